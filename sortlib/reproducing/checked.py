"""Scripts for the entries of a file of expressions (``sortlib check CASES.yaml --reproduce DIR``)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from sortlib.minimizing import target_of
from sortlib.reproducing.making import Reproducer, reproduce_case
from sortlib.runner.transport import exchange_folder

SECONDS = 30.0  # of the search for a smaller case, for each entry


def accused(frame) -> bool:
    """Whether the rows of one checked expression accuse a platform."""
    from sortlib.grouping import accuses

    return bool(accuses(frame).any())


def file_name(identity: str) -> str:
    """An entry's id as the name of a file; where characters had to go, a hash keeps ids apart that are equal now."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", identity)
    return plain if plain == identity else f"{plain}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def reproduce_checked(case_of, name, frame, pair, folder, table=None, progress=True) -> Reproducer:
    """Write the script and the issue text of one checked expression.

    Parameters
    ----------
    case_of : function from a folder, for the values of the inputs, to the case.
    name : of the entry, which becomes the name of the files.
    frame : the rows of ``sl.check``.
    pair : (reference, candidate).
    folder : of the scripts.
    table : ``thresholds.Table`` that the expression was judged by.
    """
    target = target_of(frame.to_dict("records"), what=str(name), table=table)
    path = Path(folder) / f"{file_name(str(name))}.py"
    with exchange_folder() as values:
        shrink = {"seconds": SECONDS, "folder": values / "smallest"}
        return reproduce_case(case_of(values / "given"), target, *pair, path, shrink=shrink, progress=progress)
