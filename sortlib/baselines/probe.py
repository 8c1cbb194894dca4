"""Running calls while attempts are generated, in a worker process that may die without harm."""

from __future__ import annotations

import contextlib
import shutil

from sortlib.features import decode
from sortlib.generation import TestCase
from sortlib.platform import require, worker_threads
from sortlib.runner.process import Worker, WorkerDied
from sortlib.runner.transport import exchange_folder


class Probe:
    """A platform that answers what the calls of a case return, from the first question until ``close``.

    Parameters
    ----------
    platform : name of a platform.
    timeout : seconds for one case.
    """

    def __init__(self, platform: str = "cpu", timeout: float = 10):
        self.platform, self.timeout = require(platform), timeout
        self._open = None

    def close(self):
        """End the process and remove its files."""
        if self._open:
            self._open.close()
            self._open = None

    def _start(self):
        self._open = contextlib.ExitStack()
        self._folder = self._open.enter_context(exchange_folder())
        self._worker = self._open.enter_context(Worker(self.platform, worker_threads()))

    def run(self, case: TestCase) -> list[dict]:
        """For each call ``error`` (empty if it returned) and ``output``, the features of its first output tensor."""
        if self._open is None:
            self._start()
        folder = self._folder / case.id
        folder.mkdir(exist_ok=True)
        try:
            messages = self._worker.ask("reference", self.timeout, case=case.to_json(), folder=str(folder))
            ended = ""
        except WorkerDied as death:
            messages, ended = death.messages, f"{death.kind}: {death}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        trouble = next((m["trouble"] for m in messages if "trouble" in m), ended)
        answers = {m["node"]: m for m in messages if "node" in m}
        found = []
        for position in range(len(case.nodes)):
            answer = answers.get(position)
            if answer is None:
                found.append({"error": trouble or "an earlier call gave no result", "output": None})
            else:
                features = answer.get("features") or [None]
                output = decode(features[0]) if features[0] else None
                found.append({"error": answer.get("error", ""), "output": output})
        return found
