"""Two platforms kept running for cases that are chosen one after the other, each by what the last one gave."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from sortlib.platform import worker_threads
from sortlib.runner.campaign import candidate_side, complete_rows, reference_side
from sortlib.runner.process import Worker
from sortlib.runner.transport import claim, exchange_folder, load_tensor, release


class Pair:
    """The worker processes of a reference and a candidate platform, as a context manager.

    Parameters
    ----------
    reference, candidate : ``Platform``.
    timeout : seconds for one case on one platform; can be set anew at any time.
    """

    def __init__(self, reference, candidate, timeout: float = 60):
        self.reference, self.candidate, self.timeout = reference, candidate, timeout

    def __enter__(self):
        self._stack = ExitStack()
        self.folder = self._stack.enter_context(exchange_folder())
        threads = worker_threads()
        # Kept until the end: a worker ends with the thread that started it.
        starting = self._stack.enter_context(ThreadPoolExecutor(2))
        self._first, self._second = (self._stack.enter_context(Worker(platform, threads))
                                     for platform in (self.reference, self.candidate))  # fmt: skip
        try:
            for started in [starting.submit(worker.start) for worker in (self._first, self._second)]:
                started.result()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def rows(self, case) -> list[dict]:
        """The rows of a case, one for each node, as a campaign makes them."""
        place = claim(self.folder)
        outcome = self._reference(case, place)
        rows = candidate_side(self._second, case, outcome, place, self.timeout, self._lowered)
        return complete_rows(case, rows, self.reference.name, self.candidate.name)

    def values(self, case) -> dict:
        """(node, output) -> CPU tensor that the reference platform computes."""
        place = claim(self.folder)
        nodes = self._reference(case, place)[0]
        try:
            return {(int(node), output): load_tensor(form) for node, given in nodes.items()
                    for output, form in enumerate(given.get("outputs", ()))}  # fmt: skip
        finally:
            release(place)

    def _reference(self, case, place):
        return reference_side(self._first, case, place, self.timeout, self._lowered)

    @property
    def _lowered(self):
        return self.candidate.rounds_more_than(self.reference)
