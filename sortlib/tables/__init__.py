"""The tables of a study: what was mined and recorded, and the paper's research questions with its numbers beside ours.

Every function takes a ``Study`` and returns a DataFrame whose ``attrs["footnotes"]`` lists what a reader must know,
one line each; ``show`` prints both. A cell is ``/`` where there is nothing to count, and a footnote says why;
``rows_of`` gives the rows that a cell counts. No table but ``times`` holds a time, so that a second run with the same
seed gives the same tables to the last digit.
"""

from __future__ import annotations

import pandas as pd

from sortlib.grouping import ACCUSING, accuses
from sortlib.runner.files import write_whole
from sortlib.tables import export
from sortlib.tables.frames import NOTHING, show
from sortlib.tables.gain import gain_by_edge, local_and_propagated
from sortlib.tables.methods import METHODS, attempts, both_names, is_valid, methods, tested, times
from sortlib.tables.origin import rows_of
from sortlib.tables.rq1 import invalid, message_kind, validity
from sortlib.tables.rq2 import accusing, bugs, evidence_rule, paper_rule
from sortlib.tables.rq3 import average_difference, involvement
from sortlib.tables.rq4 import seeded_faults
from sortlib.tables.subjects import campaign, models, patterns, records, statistics, support

__all__ = [
    "ACCUSING", "METHODS", "NOTHING", "TABLES", "accuses", "accusing", "attempts", "average_difference", "both_names",
    "bugs", "campaign", "evidence_rule", "export", "gain_by_edge", "invalid", "involvement", "is_valid",
    "local_and_propagated", "message_kind", "methods", "models", "paper_rule", "patterns", "records",
    "rows_of", "seeded_faults", "show", "statistics", "support", "tested", "times", "validity", "write_all",
]  # fmt: skip

TABLES = {
    "models": models,
    "statistics": statistics,
    "patterns": patterns,
    "support": support,
    "records": records,
    "campaign": campaign,
    "validity": validity,
    "validity_all_apis": lambda study: validity(study, "tested"),
    "invalid": invalid,
    "bugs": bugs,
    "bugs_all_apis": lambda study: bugs(study, "tested"),
    "average_difference": average_difference,
    "involvement": involvement,
    "local_and_propagated": local_and_propagated,
    "gain_by_edge": gain_by_edge,
    "seeded_faults": seeded_faults,
    "findings": lambda study: study.findings,
}


def write_all(study) -> list:
    """Write every table into ``tables/`` of the study as CSV, with ``footnotes.csv``, LaTeX and HTML.

    Returns the paths of the CSV files.

    Raises
    ------
    SortError
        A file cannot be written.
    """
    written, notes = [], []
    for name, make in TABLES.items():
        table = make(study)
        path = study.path("tables", f"{name}.csv")
        _write(path, _csv(table))
        _write(path.with_suffix(".tex"), export.latex(table))
        _write(path.with_suffix(".html"), export.page(table))
        notes += [(name, note) for note in table.attrs.get("footnotes", ())]
        written.append(path)
    path = study.path("tables", "footnotes.csv")
    _write(path, _csv(pd.DataFrame(notes, columns=["table", "footnote"])))
    return [*written, path]


def _csv(table):
    return table.to_csv(index=False, lineterminator="\n")


def _write(path, text):
    write_whole(path, text.encode())
