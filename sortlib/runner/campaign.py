"""A campaign: every case on the reference and the candidate platform, a row for every call, and nothing kills it.

Two worker processes work in a pipeline: while the candidate runs one case, the reference runs the next. A crash or a
hang is confirmed once in a fresh process and becomes the outcome of the one call concerned; the case's other calls run
without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

from sortlib.arguments import above_zero, items
from sortlib.errors import SortError
from sortlib.generation import TestCase
from sortlib.platform import Platform, require, worker_threads
from sortlib.runner.process import Worker, WorkerDied
from sortlib.runner.progress import Progress
from sortlib.runner.transport import Room, claim, exchange_folder, memory_dir, release

_UNREACHED = {"status": "unreached", "side": "", "message": "an earlier call gave no result"}
# What a row of a call holds where both sides returned; a run without any case has these columns too.
_FEATURES = ("minimum", "maximum", "mean", "std", "zeros", "nan", "posinf", "neginf", "quantiles", "dtype", "shape")
_ERRORS = ("error", "rms", "ratio", "own_ratio", "worst_case_ratio")
_DIFFERENCES = ("max_abs", "max_rel", "differing", "bits", "scale_ulp", "one_sided")
COLUMNS = [
    "case", "pattern", "node", "api", "target", "reference", "candidate", "model", "sample", "call", "module_path",
    "source", "random", "entry", "unconfirmed", "incoming", "seconds_reference", "seconds_candidate",
    *(f"{side}_{name}" for side in ("reference", "candidate") for name in (*_FEATURES, *_ERRORS)), "nan_inputs",
    "inf_inputs", "by_order", "truth_missing", "second_opinion", "shared", "family",
    *(f"{part}_{name}" for part in ("local", "propagated") for name in _DIFFERENCES), "propagated_broken",
    "truth_finite_lost", "truth_nan_wrong", "truth_nan_missing", "worst_output", "samples", "partial",
    "rounded_inputs", "status", "side", "message", "lowered",
]  # fmt: skip
# Cases whose reference outputs may wait for the candidate, so that neither side waits for a long case of the other.
AHEAD = 16
WAITING_BYTES = 1 << 28  # of memory for these outputs, after which the reference waits
# Cases of one executor task: it starts two processes, so it should be worth their start, but what is lost with a
# machine should not be much.
SHARE, LARGEST_SHARE = 16, 256
TASKS = 64  # at least so many of a campaign whose shares are larger than the smallest


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
        No list of cases; a platform is unknown or missing here; or the timeout is not above 0.
    """
    import pandas as pd

    cases = items(cases, TestCase, "run: cases", "see sl.generate")
    reference, candidate = require(reference), require(candidate)
    found = {}
    with Progress(len(cases), label=f"{reference.name} against {candidate.name}", shown=progress) as bar:
        for case, rows in campaign(cases, reference, candidate, timeout, executor):
            found[case.id] = rows
            bar.add(rows)
    rows = [row for case in cases for row in found[case.id]]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=COLUMNS)


def check_timeout(timeout):
    """Refuse what is no number of seconds above 0 with a ``SortError``."""
    above_zero(timeout, "timeout:", "number of seconds")


def campaign(cases, reference, candidate, timeout=60, executor=None, versions=None) -> Iterator[tuple[TestCase, list]]:
    """Yield every case with its rows as soon as they are complete: in order here, in any order from an executor.

    ``versions``, a dictionary, receives what each worker said about itself.
    """
    reference, candidate = require(reference), require(candidate)
    check_timeout(timeout)
    if executor is None:
        try:
            yield from _pipeline(cases, reference, candidate, timeout, versions)
        except OSError as error:
            raise SortError(f"{error.filename or memory_dir()}: {error.strerror or error}, where the workers exchange "
                            "tensors; what is complete is kept") from None  # fmt: skip
        return
    cases = list(cases)
    size = max(SHARE, min(LARGEST_SHARE, len(cases) // TASKS))
    shares = [cases[start : start + size] for start in range(0, len(cases), size)]
    tasks = {
        executor.submit(run_share, [case.to_json() for case in share], reference, candidate, timeout): share
        for share in shares
    }
    try:
        for task in as_completed(tasks):
            share = tasks[task]
            rows, said = _result(task, share)
            if versions is not None:
                versions.update(said)
            yield from zip(share, rows, strict=True)
    finally:
        for task in tasks:
            task.cancel()


def _result(task, share):
    try:
        return task.result()
    except SortError:
        raise
    except Exception as error:  # of the executor: a machine was lost, say
        text = (str(error).strip().splitlines() or [""])[0]
        raise SortError(f"the executor lost a share of {len(share)} cases, from case {share[0].id} on: "
                        f"{type(error).__name__}: {text}") from None  # fmt: skip


def run_share(forms: list[dict], reference: Platform, candidate: Platform, timeout: float) -> tuple[list, dict]:
    """The task that is sent to an executor, in and out as plain values.

    Parameters
    ----------
    forms : cases in ``TestCase.to_json``'s form.

    Returns
    -------
    (list of list of dict, dict)
        The rows of each case, and what the two workers said about themselves.
    """
    cases, versions = [TestCase.from_json(form) for form in forms], {}
    return [rows for _, rows in _pipeline(cases, reference, candidate, timeout, versions)], versions


def _pipeline(cases: Iterable, reference, candidate, timeout, versions):
    threads = worker_threads()
    first, second = Worker(reference, threads), Worker(candidate, threads)
    with exchange_folder() as folder, first, second, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        starts = one.submit(first.start), two.submit(second.start)
        for start in starts:
            start.result()
        if versions is not None:
            versions.update({reference.name: first.versions, candidate.name: second.versions})
        lowered, room = candidate.rounds_more_than(reference), Room(WAITING_BYTES)

        def measured(case, place):
            with room.fill(place):
                return reference_side(first, case, place, timeout, lowered)

        def compared(case, place, outcome):
            with room.empty(place):
                return candidate_side(second, case, outcome.result(), place, timeout, lowered)

        def begin(case):
            place = claim(folder)
            outcome = one.submit(measured, case, place)
            return case, two.submit(compared, case, place, outcome)

        waiting, source = deque(), iter(cases)
        try:
            waiting.extend(begin(case) for case in islice(source, AHEAD))
            while waiting:
                case, future = waiting[0]
                rows = future.result()
                waiting.popleft()
                waiting.extend(begin(case) for case in islice(source, 1))
                yield case, complete_rows(case, rows, reference.name, candidate.name)
        finally:
            # An interrupt must not wait for cases that nobody will read.
            for _, future in waiting:
                future.cancel()
            if waiting:
                room.close(), first.close(), second.close()


def _ask(worker, timeout, op, case, place, **request):
    """Everything that a worker can say of a case.

    Returns
    -------
    (messages, ended, once)
        Its messages about the calls that it could make; node -> (status, text) of calls that a fresh process confirmed
        to end the worker, or that it had no room to measure; and the first ``WorkerDied`` that was not confirmed.
    """
    form, ended, once = case.to_json(), {}, None
    while True:
        death = None
        place.unlink(missing_ok=True)  # of the case that used this folder before
        try:
            messages = worker.ask(op, timeout, case=form, skip=list(ended), place=str(place), **request)
        except WorkerDied as first:
            first.messages = [{"at": _last_call(place)}]
            try:  # without ``place``: nothing that is known before a second death is lost
                messages = worker.ask(op, timeout, case=form, skip=list(ended), **request)
                once = once or first
            except WorkerDied as again:
                messages, death = again.messages, again
        trouble, full = next(((m["trouble"], m["full"]) for m in messages if "trouble" in m), (None, False))
        if death is None and trouble is None:
            return messages, ended, once
        node = next((m["at"] for m in reversed(messages) if "at" in m), None)
        node = _last_call(place) if node is None else node
        if node in ended:  # it ends before any call
            return messages, ended, once
        # No room for what the workers exchange says nothing about a platform.
        ended[node] = (death.kind, str(death)) if death else ("unreached" if full else "exception", trouble)
        if death and node == len(case.nodes) - 1:
            return messages, ended, once


def _last_call(place) -> int:
    """The call that a worker was about to make when it noted its number in a file."""
    try:
        return int(place.read_bytes() or 0)
    except OSError:  # it had no time to make the file
        return 0


def reference_side(worker, case, place, timeout, lowered):
    """What the reference says of a case: its nodes by number (as text), the digest of the inputs, and the first
    ``WorkerDied`` that was not confirmed. What it computed lies in ``place``, from ``claim``."""
    # What is left out, the candidate's process can make up for where it has the same inputs.
    quick = not lowered and worker.platform.precision is None
    messages, ended, once = _ask(worker, timeout, "reference", case, place / "reference", folder=str(place),
                                 lowered=lowered, quick=quick)  # fmt: skip
    nodes = {str(m["node"]): m for m in messages if "node" in m}
    # The candidate still runs a call that ended the reference, to see whether the other side ends as well.
    nodes |= {str(node): {"status": status, "error": text} for node, (status, text) in ended.items()}
    return nodes, next((m["digest"] for m in messages if "digest" in m), None), once


def candidate_side(worker, case, outcome, place, timeout, lowered):
    """The rows of a case by node number; ``outcome`` is what ``reference_side`` returned. Gives ``place`` back."""
    nodes, digest, unsteady = outcome
    messages, ended, once = _ask(worker, timeout, "candidate", case, place / "candidate", reference=nodes)
    release(place)
    other = next((m["digest"] for m in messages if "digest" in m), None)
    if digest and other and digest != other:
        raise SortError(f"case {case.id}: the two platforms drew different inputs ({digest}, {other}); "
                        "their NumPy versions disagree")  # fmt: skip
    rows = {m["row"]["node"]: {**m["row"], "lowered": lowered} for m in messages if "row" in m}
    for node, (status, text) in ended.items():
        given = nodes.get(str(node), {})
        side = "both" if "error" in given else "candidate"
        message = f"reference: {given['error']}; candidate: {text}" if side == "both" else text
        rows[node] = {"node": node, "status": status, "side": side, "message": message}
    for side, first in (("reference", unsteady), ("candidate", once)):
        if first is not None:
            _unconfirmed(rows, side, first)
    return rows


def _unconfirmed(rows, side, first):
    """Note a death that a fresh process did not repeat; the row keeps what the second try measured."""
    node = next((m["at"] for m in reversed(first.messages) if "at" in m), 0)
    text = f"{first.kind} of the {side} on the first try ({first}); a fresh process got through"
    row = rows.setdefault(node, dict(_UNREACHED))
    row["unconfirmed"] = first.kind
    row["message"] = "; ".join(filter(None, [row["message"], text]))


def complete_rows(case, rows, reference, candidate):
    """A row for every node, with what the case itself says; a node that was not reached says so."""
    complete = []
    for position, node in enumerate(case.nodes):
        row = rows.get(position, _UNREACHED)
        graph, sample, call = node.record
        complete.append(
            {
                "case": case.id, "pattern": case.pattern, "node": position, "api": node.api, "target": node.target,
                "reference": reference, "candidate": candidate, "model": graph, "sample": sample, "call": call,
                "module_path": node.module_path, "source": node.source, "random": node.random,
                "entry": not any(dst == position for _, dst, _ in case.edges), "unconfirmed": "", **row,
            }
        )  # fmt: skip
    return complete
