"""A campaign: every case on the reference and the candidate platform, a row for every call, and nothing kills it.

Two worker processes work in a pipeline: while the candidate runs one case, the reference runs the next. A crash or a
hang costs the one case concerned, is confirmed once in a fresh process, and becomes its outcome.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from sortlib.errors import SortError
from sortlib.generation import TestCase
from sortlib.platform import Platform, require, worker_threads
from sortlib.runner.process import Worker, WorkerDied
from sortlib.runner.transport import exchange_folder

AHEAD = 3  # cases whose reference outputs may wait in memory for the candidate
SHARE = 16  # cases of one executor task: it starts two processes, so it should be worth their start


def run(
    cases,
    reference: str | Platform = "cpu",
    candidate: str | Platform = "cpu:baseline",
    executor=None,
    timeout: float = 60,
    progress: bool = True,
):
    """Run cases on two platforms and compare them call by call.

    Parameters
    ----------
    cases : list of ``TestCase``.
    reference, candidate : platform names (``sl.platforms()`` lists them), or ``Platform`` objects made by hand.
    executor : any ``concurrent.futures.Executor``; each of its tasks runs a share of the cases in worker processes
        of its own. None works here.
    timeout : seconds for one case on one platform.
    progress : show a progress bar.

    Returns
    -------
    pandas.DataFrame
        One row per node of each case, in the order of ``cases``; see the README for the columns.

    Raises
    ------
    SortError
        A platform is unknown or missing here.
    """
    import pandas as pd
    from tqdm.auto import tqdm

    reference, candidate = require(reference), require(candidate)
    rows = []
    with tqdm(total=len(cases), desc=f"{reference.name} against {candidate.name}", unit="case",
              disable=not progress) as bar:  # fmt: skip
        for _, found in campaign(cases, reference, candidate, timeout, executor):
            rows += found
            bar.update()
    return pd.DataFrame(rows)


def campaign(cases, reference, candidate, timeout=60, executor=None, versions=None) -> Iterator[tuple[TestCase, list]]:
    """Yield every case with its rows as soon as they are complete, in order.

    ``versions``, a dictionary, receives what each worker said about itself.
    """
    reference, candidate = require(reference), require(candidate)
    if executor is None:
        yield from _pipeline(cases, reference, candidate, timeout, versions)
        return
    forms = [case.to_json() for case in cases]
    tasks = [
        executor.submit(run_share, forms[start : start + SHARE], reference, candidate, timeout)
        for start in range(0, len(forms), SHARE)
    ]
    try:
        done = (rows for task in tasks for rows in task.result())
        yield from zip(cases, done, strict=True)
    finally:
        for task in tasks:
            task.cancel()


def run_share(forms: list[dict], reference: Platform, candidate: Platform, timeout: float) -> list[list[dict]]:
    """The task that is sent to an executor: the rows of some cases, given in ``TestCase.to_json``'s form."""
    cases = [TestCase.from_json(form) for form in forms]
    return [rows for _, rows in _pipeline(cases, reference, candidate, timeout, None)]


def _pipeline(cases: Iterable, reference, candidate, timeout, versions):
    threads = worker_threads()
    first, second = Worker(reference, threads), Worker(candidate, threads)
    with exchange_folder() as folder, first, second, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        starts = one.submit(first.start), two.submit(second.start)
        for start in starts:
            start.result()
        if versions is not None:
            versions.update({reference.name: first.versions, candidate.name: second.versions})
        lowered = candidate.dtype not in (None, reference.dtype)

        def begin(case):
            outcome = one.submit(_reference, first, case, folder, timeout, lowered)
            return case, two.submit(lambda: _candidate(second, case, outcome.result(), folder, timeout, lowered))

        waiting, source = deque(), iter(cases)
        try:
            waiting.extend(begin(case) for case in islice(source, AHEAD))
            while waiting:
                case, future = waiting[0]
                rows = future.result()
                waiting.popleft()
                waiting.extend(begin(case) for case in islice(source, 1))
                yield case, _complete(case, rows, reference.name, candidate.name)
        finally:
            # An interrupt must not wait for cases that nobody will read.
            for _, future in waiting:
                future.cancel()
            if waiting:
                first.close(), second.close()


def _ask_twice(worker, timeout, op, **request):
    """Messages, the WorkerDied that a second try in a fresh process confirmed, and the one that it did not confirm."""
    try:
        return worker.ask(op, timeout, **request), None, None
    except WorkerDied as first:
        try:
            return worker.ask(op, timeout, **request), None, first
        except WorkerDied as again:
            return again.messages, again, None


def _reference(worker, case, folder, timeout, lowered):
    """What the reference says of a case: its nodes by number (as text), and the digest of the inputs."""
    target = folder / case.id
    target.mkdir(exist_ok=True)
    messages, death, once = _ask_twice(
        worker, timeout, "reference", case=case.to_json(), folder=str(target), lowered=lowered
    )
    nodes = {str(m["node"]): m for m in messages if "node" in m}
    ended = _ending(messages, death)
    if ended:
        node, status, text = ended
        # The candidate still runs the call, to see whether the other side ends as well.
        nodes[str(node)] = {"status": status, "error": text}
    return nodes, next((m["digest"] for m in messages if "digest" in m), None), once


def _candidate(worker, case, outcome, folder, timeout, lowered):
    """The rows of a case by node number."""
    nodes, digest, unsteady = outcome
    messages, death, once = _ask_twice(worker, timeout, "candidate", case=case.to_json(), reference=nodes)
    shutil.rmtree(folder / case.id, ignore_errors=True)
    other = next((m["digest"] for m in messages if "digest" in m), None)
    if digest and other and digest != other:
        raise SortError(f"case {case.id}: the two platforms drew different inputs ({digest}, {other}); "
                        "their NumPy versions disagree")  # fmt: skip
    rows = {m["row"]["node"]: {**m["row"], "lowered": lowered} for m in messages if "row" in m}
    ended = _ending(messages, death)
    if ended:
        node, status, text = ended
        given = nodes.get(str(node), {})
        side = "both" if "error" in given else "candidate"
        message = f"reference: {given['error']}; candidate: {text}" if side == "both" else text
        rows.setdefault(node, {"node": node, "status": status, "side": side, "message": message})
    for side, first in (("reference", unsteady), ("candidate", once)):
        if first is not None:  # not confirmed, so no outcome of its own, but never silent
            node = next((m["at"] for m in reversed(first.messages) if "at" in m), 0)
            text = f"{first.kind} of the {side} on the first try ({first}); a fresh process got through"
            if node in rows:
                rows[node]["message"] = "; ".join(filter(None, [rows[node].get("message", ""), text]))
    return rows


def _ending(messages, death):
    """(node, status, text) of a case that its worker could not finish, else None."""
    trouble = next((m["trouble"] for m in messages if "trouble" in m), None)
    if death is None and trouble is None:
        return None
    node = next((m["at"] for m in reversed(messages) if "at" in m), 0)
    return (node, death.kind, str(death)) if death else (node, "exception", trouble)


def _complete(case, rows, reference, candidate):
    """A row for every node, with what the case itself says; a node that was not reached says so."""
    complete = []
    for position, node in enumerate(case.nodes):
        row = rows.get(position, {"status": "unreached", "side": "", "message": "an earlier call gave no result"})
        graph, sample, call = node.record
        complete.append(
            {
                "case": case.id, "pattern": case.pattern, "node": position, "api": node.api, "target": node.target,
                "reference": reference, "candidate": candidate, "model": graph, "sample": sample, "call": call,
                "module_path": node.module_path, "source": node.source, "random": node.random,
                "entry": not any(dst == position for _, dst, _ in case.edges), **row,
            }
        )  # fmt: skip
    return complete
