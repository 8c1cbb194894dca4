"""The tables of a study: what was mined and recorded, and the paper's research questions with its numbers beside ours.

Every function takes a ``Study`` and returns a DataFrame whose ``attrs["footnotes"]`` lists what a reader must know,
one line each; ``show`` prints both. A cell is ``/`` where there is nothing to count, and a footnote says why. No table
holds a time, so that a second run with the same seed gives the same tables to the last digit.
"""

from __future__ import annotations

import pandas as pd

from sortlib.tables.frames import NOTHING, show
from sortlib.tables.methods import METHODS, attempts, both_names, is_valid, methods, tested, times
from sortlib.tables.rq1 import invalid, message_kind, validity
from sortlib.tables.rq2 import ACCUSING, accuses, accusing, bugs, evidence_rule, paper_rule
from sortlib.tables.rq3 import average_difference, involvement
from sortlib.tables.subjects import campaign, models, patterns, records, statistics, support

__all__ = [
    "ACCUSING", "METHODS", "NOTHING", "TABLES", "accuses", "accusing", "attempts", "average_difference", "both_names",
    "bugs", "campaign", "evidence_rule", "invalid", "involvement", "is_valid", "message_kind", "methods", "models",
    "paper_rule", "patterns", "records", "show", "statistics", "support", "tested", "times", "validity", "write_all",
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
    "findings": lambda study: study.findings,
}


def write_all(study) -> list:
    """Write every table as CSV into ``tables/`` of the study, with ``footnotes.csv``; returns the paths."""
    written, notes = [], []
    for name, make in TABLES.items():
        table = make(study)
        path = study.path("tables", f"{name}.csv")
        table.to_csv(path, index=False, lineterminator="\n")
        notes += [(name, note) for note in table.attrs.get("footnotes", ())]
        written.append(path)
    path = study.path("tables", "footnotes.csv")
    pd.DataFrame(notes, columns=["table", "footnote"]).to_csv(path, index=False, lineterminator="\n")
    return [*written, path]
