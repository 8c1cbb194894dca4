"""A bundle: one platform's side of a study as files, to be compared on another machine or by another interpreter.

    bundle.json                    format, reference platform, versions, number of cases
    cases.jsonl                    the cases: calls, and seeds and features of their inputs, no values
    reference/<case>.safetensors   what the reference answered: outputs, float64 truth and bounds
    SHA256SUMS                     the hash of each of these files, as ``sha256sum -c`` reads it

Nothing in it is code, and nothing of it is run when it is read: JSON and raw bytes, and only operators that PyTorch
itself lists are called. Comparing needs torch, numpy and this package.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sortlib
from sortlib.errors import SortError
from sortlib.generation import TestCase
from sortlib.platform import Platform, require, worker_threads
from sortlib.runner.campaign import AHEAD, candidate_side, check_timeout, complete_rows, reference_side
from sortlib.runner.files import Journal, only_one, write_whole
from sortlib.runner.pack import Damaged, pack, unpack
from sortlib.runner.process import Worker, WorkerDied
from sortlib.runner.progress import Progress
from sortlib.runner.transport import Shelf, claim, exchange_folder, release

FORMAT = 1
_HEAD, _CASES, _SUMS = "bundle.json", "cases.jsonl", "SHA256SUMS"
_ID = re.compile(r"[0-9a-f]{8,64}")


def save(cases, directory, reference="cpu", timeout: float = 60, lowered: bool = False, progress: bool = True) -> Path:
    """Run the reference's side of cases and keep it as a bundle. Called again, it goes on where it was interrupted.

    Parameters
    ----------
    cases : list of ``TestCase``.
    directory : of the bundle; made where it is missing.
    reference : platform, as in ``sl.run``.
    timeout : seconds for one case.
    lowered : also keep the bounds for candidates that round their inputs (``bf16``, ``autocast-bf16``); this takes
        twice the time.
    progress : show a progress bar.

    Raises
    ------
    SortError
        The directory holds something else, a platform is missing, a case's inputs are not drawn from a seed, or the
        disk is full.
    """
    check_timeout(timeout)
    directory, reference = Path(directory), require(reference)
    cases = list({case.id: case for case in cases}.values())
    text = "".join(json.dumps(_drawn_only(case).to_json()) + "\n" for case in cases).encode()
    about = {"format": FORMAT, "sortlib": sortlib.__version__, "cases": len(cases), "reference": reference.to_json(),
             "timeout": timeout, "lowered": lowered}  # fmt: skip
    with only_one(directory), _Sums(directory) as sums:
        if not sums.known:
            _only_ours(directory)
            write_whole(directory / _HEAD, json.dumps(about, indent=1).encode())
            write_whole(directory / _CASES, text)
            sums.add(_CASES, text)
        _same(directory, about, hashlib.sha256(text).hexdigest(), sums)
        if _HEAD in sums.known:
            return directory
        pending = [case for case in cases if _file(case.id) not in sums.known]
        (directory / "reference").mkdir(exist_ok=True)
        with (
            Progress(len(cases), len(cases) - len(pending), f"save {reference.name}", shown=progress) as bar,
            Worker(reference, worker_threads()) as worker,
        ):
            worker.start()
            for case, answer in _answers(worker, pending, timeout, lowered):
                write_whole(directory / _file(case.id), answer)
                sums.add(_file(case.id), answer)
                bar.add()
            head = json.dumps({**about, "versions": worker.versions}, indent=1).encode()
        write_whole(directory / _HEAD, head)
        sums.add(_HEAD, head)
    return directory


def _drawn_only(case: TestCase) -> TestCase:
    if any("$load" in json.dumps(node.arguments) for node in case.nodes):
        raise SortError(f"case {case.id}: its inputs are given values; a bundle holds inputs by seed")
    return case


def _only_ours(directory):
    others = sorted(file.name for file in directory.iterdir() if file.name not in ("lock", _HEAD, _CASES, _SUMS))
    if others:
        raise SortError(f"{directory}: is not empty and no bundle (it holds {others[0]}); choose another directory")


def _same(directory, about, cases, sums):
    """Refuse a directory that holds another bundle."""
    there = _json(directory / _HEAD)
    different = [key for key, value in about.items() if there.get(key) != value]
    different += ["cases"] if sums.known.get(_CASES) != cases else []
    if different:
        raise SortError(f"{directory}: holds a bundle with other {' and '.join(dict.fromkeys(different))}; choose "
                        "another directory")  # fmt: skip


def _answers(worker, cases, timeout, lowered):
    """(case, packed answers) in order; the worker runs ahead while files are written."""
    parts = ("plain", "lowered") if lowered else ("plain",)
    with exchange_folder() as folder, _ending(worker):

        def ask(case):
            answers, places = {}, {}
            for part in parts:
                places[part] = claim(folder)
                nodes, digest, once = reference_side(worker, case, places[part], timeout, part == "lowered")
                answers[part] = {"nodes": nodes, "digest": digest, "unsteady": _death(once)}
            data = pack(answers)
            for place in places.values():
                release(place)
            return data

        yield from _ahead(ask, cases)


@contextlib.contextmanager
def _ending(worker):
    """Whatever stops the work, nobody waits for a case that is not needed any more."""
    try:
        yield
    except BaseException:
        worker.close()
        raise


def _ahead(work, items):
    """(item, result of ``work``) in order, computed up to ``AHEAD`` items ahead by a thread."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) >= AHEAD:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _death(once: WorkerDied | None):
    return once and {"kind": once.kind, "text": str(once), "messages": [m for m in once.messages if "at" in m]}


# ---- the other side ----


class Bundle:
    """A complete bundle, opened for comparing.

    Parameters
    ----------
    directory : as ``save`` made it.

    Attributes
    ----------
    about : what ``bundle.json`` says.
    reference : the platform that made it.

    Raises
    ------
    SortError
        There is no complete bundle, it is of another format, or a file of it was changed: the line names the file.
    """

    def __init__(self, directory):
        self.directory = Path(directory)
        if not (self.directory / _SUMS).is_file():
            raise SortError(f"{self.directory}: no bundle there ({_SUMS} is missing)")
        self._sums = _Sums(self.directory).known
        if _HEAD not in self._sums:
            done = sum(name.startswith("reference/") for name in self._sums)
            raise SortError(f"{self.directory}: the bundle is not complete ({done} cases are); the command that made "
                            "it goes on where it stopped")  # fmt: skip
        try:
            self.about = json.loads(self._checked(_HEAD))
            version = self.about["format"]
            if version != FORMAT:
                raise SortError(f"{self.directory}: is of format {version}; this sortlib reads {FORMAT}")
            self.reference = Platform.from_json(self.about["reference"])
            self.lowered, self.timeout, self._count = (self.about[key] for key in ("lowered", "timeout", "cases"))
        except (ValueError, KeyError, TypeError) as error:
            raise SortError(f"{self.directory / _HEAD}: is no head of a bundle ({error})") from None
        self._checked(_CASES)

    def __len__(self):
        return self._count

    @property
    def identity(self) -> str:
        """A hash of the cases and the head, which decide everything else."""
        return hashlib.sha256((self._sums[_CASES] + self._sums[_HEAD]).encode()).hexdigest()[:16]

    def cases(self):
        """The cases, one by one."""
        with (self.directory / _CASES).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    case = TestCase.from_json(json.loads(line))
                    if not _ID.fullmatch(case.id):
                        raise ValueError(f"{case.id!r} is no case id")
                    yield _drawn_only(case)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise SortError(f"{self.directory / _CASES}, line {number}: is no case ({error})") from None

    def answer(self, case: TestCase, lowered: bool, keep):
        """(nodes, digest, first death) as ``campaign.reference_side`` gives them; ``keep`` takes the tensors."""
        name = _file(case.id)
        data = self._checked(name)
        try:
            found = unpack(data, "lowered" if lowered else "plain", keep)
            once = found["unsteady"]
            return found["nodes"], found["digest"], once and WorkerDied(once["kind"], once["text"], once["messages"])
        except (Damaged, KeyError, TypeError) as error:
            raise SortError(f"{self.directory / name}: is no reference output ({error})") from None

    def _checked(self, name) -> bytes:
        path = self.directory / name
        if name not in self._sums:
            raise SortError(f"{path}: is not listed in {_SUMS}; the bundle is damaged")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SortError(f"{path}: cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != self._sums[name]:
            raise SortError(f"{path}: was changed: its hash is not the one in {_SUMS}; copy the bundle again")
        return data


def against(directory, candidate, timeout: float | None = None, out=None, progress: bool = True) -> list[dict]:
    """Run a candidate against a bundle; the rows are those of a direct run of both platforms.

    Called again, it goes on where it was interrupted.

    Parameters
    ----------
    directory : the bundle.
    candidate : platform, as in ``sl.run``.
    timeout : seconds for one case; the bundle's own if not given.
    out : directory of the results; ``candidates/<platform>`` in the bundle if not given.
    progress : show a progress bar.

    Returns
    -------
    list of dict
        One row per node of each case, as ``sl.run`` gives; also kept in ``out`` (``outcomes.jsonl``).

    Raises
    ------
    SortError
        A file of the bundle was changed, the platform is missing, or the bundle lacks what the platform needs.
    """
    bundle, candidate = Bundle(directory), require(candidate)
    lowered = candidate.rounds_more_than(bundle.reference)
    if lowered and not bundle.lowered:
        raise SortError(f"{bundle.directory}: holds no bounds for a candidate that rounds its inputs to "
                        f"{candidate.precision}; make the bundle again with --lowered")  # fmt: skip
    timeout = bundle.timeout if timeout is None else timeout
    check_timeout(timeout)
    out = Path(out or results_folder(directory, candidate))
    about = {"bundle": bundle.identity, "candidate": candidate.to_json(), "timeout": timeout}
    with only_one(out), Journal(out / "outcomes.jsonl") as journal:
        known = _json(out / "about.json") if (out / "about.json").is_file() else about
        if any(known.get(key) != value for key, value in about.items()):
            raise SortError(f"{out}: holds results of another bundle, platform or timeout; choose another with --out")
        done = {line["case"]: line["rows"] for line in journal.read()}
        with Progress(len(bundle), 0, f"{bundle.reference.name} against {candidate.name}", shown=progress) as bar:
            for rows in done.values():
                bar.add(rows)
            pending = (case for case in bundle.cases() if case.id not in done)
            if len(done) < len(bundle):
                for case, rows, versions in _compared(bundle, pending, candidate, timeout, lowered):
                    if "versions" not in known:
                        known = {**about, "versions": {"reference": bundle.about["versions"], "candidate": versions}}
                        write_whole(out / "about.json", json.dumps(known, indent=1).encode())
                    journal.append({"case": case.id, "rows": rows})
                    done[case.id] = rows
                    bar.add(rows)
    return [row for case in bundle.cases() for row in done[case.id]]


def results_folder(directory, candidate: Platform) -> Path:
    """Where ``against`` keeps a candidate's outcomes if not told otherwise."""
    return Path(directory) / "candidates" / re.sub(r"[^\w.-]+", "_", candidate.name).strip("_")


def results(folder) -> list[dict]:
    """The rows that ``against`` has kept in a folder so far, for ``pandas.DataFrame`` and ``sl.judge``.

    Raises
    ------
    SortError
        There are none.
    """
    journal = Journal(Path(folder) / "outcomes.jsonl")
    rows = [row for line in journal.read() for row in line["rows"]]
    if not rows:
        raise SortError(f"{folder}: holds no outcomes; 'sortlib run --against' makes them")
    return rows


def _compared(bundle, cases, candidate, timeout, lowered):
    with exchange_folder() as folder, Worker(candidate, worker_threads()) as worker, _ending(worker):
        worker.start()

        def compare(case):
            try:
                place = claim(folder)
                answer = bundle.answer(case, lowered, Shelf(place).save)
            except OSError as error:
                raise SortError(f"case {case.id}: {folder} has no room for its tensors: {error.strerror}") from None
            rows = candidate_side(worker, case, answer, place, timeout, lowered)
            return complete_rows(case, rows, bundle.reference.name, candidate.name)

        for case, rows in _ahead(compare, cases):
            yield case, rows, worker.versions


# ---- files ----


def _file(case_id) -> str:
    return f"reference/{case_id}.safetensors"


def _json(path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SortError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, dict):
        raise SortError(f"{path}: must hold keys and values")
    return found


class _Sums:
    """The file of hashes: what stands in it is complete."""

    _LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")

    def __init__(self, directory):
        self.path, self.known, self._file = directory / _SUMS, {}, None
        lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n") if self.path.is_file() else [""]
        self._torn = lines.pop()  # of a process that was killed while it wrote
        for number, line in enumerate(lines, 1):
            found = self._LINE.fullmatch(line)
            if not found or ".." in found[2]:
                raise SortError(f"{self.path}, line {number}: is no hash and file name; copy the bundle again")
            self.known[found[2]] = found[1]

    def add(self, name, data: bytes):
        digest = hashlib.sha256(data).hexdigest()
        self.known[name] = digest
        write = self._file.write
        try:
            write(f"{digest}  {name}\n".encode())
        except OSError as error:
            raise SortError(f"{self.path}: cannot be written: {error.strerror}; {len(self.known) - 1} files of the "
                            "bundle are complete, and the same command goes on from there") from None  # fmt: skip

    def __enter__(self):
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
        self._file.truncate(self._file.tell() - len(self._torn.encode()))
        return self

    def __exit__(self, *exception):
        self._file.close()
