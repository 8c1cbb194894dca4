"""``sortlib run``: one platform's side of a study as a bundle, and another platform against it.

Comparing needs torch and numpy alone, so this command reads its own arguments; ``python -m sortlib run`` works where
nothing else is installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from pathlib import Path

from sortlib.errors import SortError

SUMMARY = "Compare two machines: keep one platform's side of a study as a bundle, or run another against it."


def main(arguments=None):
    """Run the command; a user's mistake is one line on the error stream and exit status 2, an interrupt is 130."""
    try:
        run(arguments)
    except SortError as error:
        print(f"sortlib: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("sortlib: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def run(arguments=None):
    """Run the command.

    Raises
    ------
    SortError
        A mistake in the arguments, the study or the bundle.
    """
    given = _parser().parse_args(arguments)
    if (given.save is None) == (given.against is None):
        raise SortError("run: give one of --save DIR (with a study, here) and --against DIR (with --candidate, there)")
    if given.save is not None:
        _save(given)
    else:
        _against(given)


def _parser():
    parser = argparse.ArgumentParser(
        "sortlib run", description=SUMMARY, epilog="Both go on where they were interrupted.", allow_abbrev=False
    )
    parser.add_argument("study", nargs="?", help="directory of a study, study file or name of a bundled one (--save)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="make a bundle with the reference's side")
    parser.add_argument("--against", type=Path, metavar="DIR", help="run the candidate against a bundle")
    parser.add_argument("--reference", default=None, help="platform that makes the bundle; the study's if not given")
    parser.add_argument("--candidate", help="platform that is compared with the bundle")
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE",
                        help="module that registers the candidate's backend; may be repeated")  # fmt: skip
    parser.add_argument("--lowered", action="store_true",
                        help="keep bounds for candidates that round their inputs too (bf16, autocast)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="results; candidates/<platform> in the bundle")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for one case on one platform")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _save(given):
    if not given.study:
        raise SortError("run --save: which study? give its directory, a study file or the name of a bundled one")
    for option, value in (("--candidate", given.candidate), ("--import", given.imports), ("--out", given.out)):
        if value:
            raise SortError(f"run --save: {option} is for --against; a bundle holds the reference's side alone")
    try:
        from sortlib.pipeline import study_with_cases
    except ModuleNotFoundError as error:
        raise SortError(f"run --save: reading a study needs the whole of sortlib ({error.name} is missing)") from None
    from sortlib.platform import require
    from sortlib.runner.bundle import save

    study = study_with_cases(given.study, progress=not given.quiet)
    reference = given.reference or study.config.platforms.reference
    timeout = study.config.timeout if given.timeout is None else given.timeout
    reference = require(reference, study.config.platforms.own)
    directory = save(study.cases, given.save, reference, timeout, given.lowered, not given.quiet)
    print(f"Bundle: {directory} ({len(study.cases)} cases). On the other machine, with torch, numpy and sortlib:")
    print(f"  python -m sortlib run --against {directory.name} --candidate PLATFORM")


def _against(given):
    from sortlib.judging import judge_rows
    from sortlib.platform import Platform, parse
    from sortlib.runner.bundle import against, results_folder
    from sortlib.runner.progress import counts

    if given.study or given.reference:
        raise SortError("run --against: the study and the reference are those of the bundle; give only --candidate")
    if given.lowered:
        raise SortError("run --against: --lowered is for --save; the bundle says whether it holds such bounds")
    if not given.candidate:
        raise SortError("run --against: which platform? give --candidate, for example --candidate cuda")
    candidate = parse(given.candidate) if not given.imports else given.candidate
    if given.imports:
        device = candidate.partition(":")[0]
        try:
            known = parse(candidate)
        except SortError:
            if ":" in candidate:  # a variant of a device that only its backend knows
                raise
            known = Platform(candidate, device)
        candidate = dataclasses.replace(known, imports=(*known.imports, *given.imports))
    rows = against(given.against, candidate, given.timeout, given.out, not given.quiet)
    verdicts = Counter(str(verdict) for verdict, _ in judge_rows(rows))
    print(f"{len({row['case'] for row in rows})} cases, {len(rows)} calls: {counts(verdicts)}")
    print(f"Outcomes: {given.out or results_folder(given.against, candidate)}")
