"""A stand-alone script and an issue text for one finding, both checked before they are handed out (issue E)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm.auto import tqdm

from sortlib.arguments import above_zero
from sortlib.errors import SortError
from sortlib.grouping import SIDES, finding_id
from sortlib.judging import Verdict
from sortlib.minimizing import Minimal, Target, limit_of, locate, minimize_case
from sortlib.platform import Platform
from sortlib.reproducing import issue, script
from sortlib.reproducing.draft import Draft, ancestors
from sortlib.runner.execution import PRECISION_FLAGS, seed_of
from sortlib.thresholds import CLEARLY_WORSE

STARTING = 60.0  # seconds granted to a process that a script starts, before its call counts as hanging
LARGEST = 1 << 20  # characters of a script; what is longer cannot be read or posted


@dataclass(frozen=True)
class Reproducer:
    """A script for one finding.

    Attributes
    ----------
    finding : the finding's id.
    script, issue : paths of the Python file and of the Markdown beside it.
    reproduces : whether the script showed the difference when it was run here.
    output : what it printed.
    gone : settings of the accused side under which the script shows no difference, each as in 'without NAME=value'.
    minimal : the search for a smaller case, if there was one.
    """

    finding: str
    script: Path
    issue: Path
    reproduces: bool
    output: str
    gone: tuple[str, ...]
    minimal: Minimal | None = None

    @property
    def state(self) -> str:
        """``reproduces`` or ``does not reproduce``."""
        return "reproduces" if self.reproduces else "does not reproduce"


def reproduce(study, case_id: str, path=None, *, minimize: bool = False, seconds: float = 60, node: int | None = None,
              rule: str = "evidence", progress: bool = True) -> Reproducer:  # fmt: skip
    """Write one self-contained Python file that shows a finding, and an issue text beside it.

    The script needs torch and numpy only, and the modules that a platform imports. It is run before this returns, once
    as it is and once for each setting that might make the difference vanish; if it does not reproduce, the result, the
    issue text and ``sl.findings`` say so.

    Parameters
    ----------
    study : study whose cases were run.
    case_id : a case, or a finding's id.
    path : of the script; ``findings/<finding>.py`` in the study if not given.
    minimize, seconds : shrink the case first, for so many seconds.
    node : the call in question; the most serious one of the case if not given.
    rule : ``evidence`` or ``paper``.
    progress : show progress bars.

    Raises
    ------
    SortError
        No such case; the rule finds nothing in it; its inputs are too large for a script; no file can be written.
    """
    above_zero(seconds, "reproduce: seconds", "number of seconds")
    case, target, pair = locate(study, case_id, node, rule, "reproduce")
    name = identity(target)
    path = Path(path) if path else study.path("findings", f"{name}.py")
    folder = study.path("findings", f"{case.id}-{target.node}-{rule}", "case").parent
    shrink = {"seconds": seconds, "folder": folder} if minimize else None
    made = reproduce_case(case, target, *pair, path, timeout=study.config.timeout, shrink=shrink, progress=progress)
    facts = {"state": made.state, "script": str(made.script), "case": case.id, "node": target.node, "rule": rule,
             "minimized": minimize}  # fmt: skip
    study.path("findings", f"{name}.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return made


def identity(target: Target) -> str:
    """The id of the finding that a target belongs to."""
    row = target.row
    return finding_id(row["api"], row["reference"], row["candidate"], target.verdict, target.cause)


def reproduce_case(case, target: Target, reference: Platform, candidate: Platform, path, *, timeout=60, shrink=None,
                   progress=True) -> Reproducer:  # fmt: skip
    """``reproduce`` for any case; ``shrink`` holds ``seconds`` and ``folder`` of ``minimize_case``, or is None."""
    if target.verdict == Verdict.UNCONFIRMED:
        raise SortError(f"{target.row['api']}: {target.cause.kind.removeprefix('unconfirmed ')} that a fresh process "
                        "did not repeat; there is nothing that a script could show")  # fmt: skip
    minimal = None
    if shrink is not None:
        minimal = minimize_case(case, target, reference, candidate, timeout=timeout, progress=progress, **shrink)
    if minimal is not None and minimal.kept:
        draft, row = minimal.draft, minimal.row
        form = minimal.case.to_json()
        seeds = [seed_of(form, place) for place in range(len(draft.nodes))]
    else:
        draft, row = Draft.of(case, target.node), target.row
        seeds = [seed_of(case.to_json(), place) for place in sorted(ancestors(case.nodes, target.node))]
    claim = claim_of(row, target, timeout)
    text = script.write(
        draft, seeds, claim, reference, candidate, issue.summary(draft, row, target, reference, candidate)
    )
    if len(text) > LARGEST:
        raise SortError(f"{path}: the inputs make a script of {len(text):,} characters; minimize the case first, or "
                        "for longer")  # fmt: skip
    path = Path(path)
    _write(path, text)
    done, output = execute(path, claim)
    gone = _gone(draft, seeds, claim, reference, candidate, row, target, progress) if done else ()
    made = Reproducer(identity(target), path, path.with_suffix(".md"), done, output, tuple(gone), minimal)
    _write(made.issue, issue.text(made, text, row, target, draft, reference, candidate))
    return made


def claim_of(row, target: Target, timeout=60) -> script.Claim:
    """What a script of a judged row has to show."""
    cause, limit = target.cause, 0.0
    if cause.kind == "difference":
        limit = target.threshold if target.propagated else 0.0
    if cause.kind in ("accuracy", "config"):
        sides = [cause.side] if cause.side in SIDES else SIDES
        limit = min(_explained(row, side) for side in sides)
    waiting = limit_of(target, timeout) if cause.kind == "hang" else timeout
    far = row.get("second_opinion") == "the limit at infinity"
    judged = cause.kind in ("accuracy", "share")
    return script.Claim(cause, target.propagated, limit, waiting + STARTING, far,
                        shared=judged and row.get("shared") in (True,),
                        masked=judged and row.get("family") == "masked", unsteady=_unsteady(row, cause))  # fmt: skip


def _unsteady(row, cause) -> bool:
    """Whether the candidate's error was gone when the same call was made again."""
    again, first = row.get("again_error"), row.get("candidate_error")
    measured = cause.kind == "accuracy" and cause.side == "candidate" and None not in (again, first)
    return bool(measured and again * CLEARLY_WORSE <= first)


def _explained(row, side) -> float:
    """The error that rounding explains where a side's is largest, from its error and how far that is beyond."""
    ratios = [row.get(f"{side}_{name}") for name in ("ratio", "own_ratio")]
    beyond = [ratio for ratio in ratios if ratio is not None and ratio > 1]
    return float(f"{row[f'{side}_error'] / beyond[0]:.3g}") if beyond else 0.0


def _write(path, text):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SortError(f"{path}: cannot be written: {error.strerror}") from None


def execute(path, claim) -> tuple[bool, str]:
    """Run a script as its reader would: (whether it shows the difference, what it printed)."""
    # Only the interpreter's own packages: nothing of what this process has on its path.
    command = [sys.executable, str(Path(path).resolve())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5 * claim.timeout, cwd=path.parent,
                              env=_environment(), check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"no result within {5 * claim.timeout:g} s"
    lines = done.stdout.strip().splitlines()
    shown = done.returncode == 0 and bool(lines) and lines[-1] == "reproduced"
    return shown, "\n".join([*lines, *([] if shown else done.stderr.strip().splitlines()[-5:])])


def _environment() -> dict:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _gone(draft, seeds, claim, reference, candidate, row, target, progress) -> list[str]:
    """Settings of the accused side under which the script itself shows no difference."""
    import tempfile

    wrong = claim.cause.side if claim.cause.side in SIDES else "candidate"
    platforms = {"reference": reference, "candidate": candidate}
    options = variants(platforms[wrong])
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(options, desc="settings that make it vanish", unit="run", disable=not progress) as bar,
    ):
        for label, platform in bar:
            sides = {**platforms, wrong: platform}
            path = Path(folder) / "variant.py"
            path.write_text(script.write(draft, seeds, claim, *sides.values(), "a variant"), encoding="utf-8")
            shown, output = execute(path, claim)
            if not shown and output.splitlines()[-1:] == ["NOT reproduced"]:
                found.append(label)
    return found


def variants(platform: Platform) -> list[tuple[str, Platform]]:
    """A platform with one setting changed, and what is changed, in words that go on after 'the difference is gone'."""
    found = []
    for name, value in platform.env.items():
        rest = {key: item for key, item in platform.env.items() if key != name}
        found.append((f"without {name}={value}", replace(platform, env=rest)))
    for name, value in platform.backends.items():
        rest = {key: item for key, item in platform.backends.items() if key != name}
        found.append((f"without torch.backends.{name} = {value}", replace(platform, backends=rest)))
    words = {"memory_format": "with contiguous inputs instead of channels_last", "dtype": "with inputs as they are",
             "autocast": "without autocast", "threads": "with PyTorch's own number of threads"}  # fmt: skip
    found += [(text, replace(platform, **{name: None})) for name, text in words.items() if getattr(platform, name)]
    if platform.compile:
        found.append(("in eager mode instead of torch.compile", replace(platform, compile=False)))
    more = {}
    if platform.device == "cpu" and "mkldnn.enabled" not in platform.backends:
        more["with torch.backends.mkldnn.enabled = False"] = {"mkldnn.enabled": False}
    if platform.device == "cuda":
        more["with TF32 and reduced-precision reductions off"] = PRECISION_FLAGS
    found += [(text, replace(platform, backends={**platform.backends, **flags})) for text, flags in more.items()]
    if platform.device == "cpu" and "ATEN_CPU_CAPABILITY" not in platform.env:
        env = {**platform.env, "ATEN_CPU_CAPABILITY": "default"}
        found.append(("with ATEN_CPU_CAPABILITY=default (portable kernels)", replace(platform, env=env)))
    return found
