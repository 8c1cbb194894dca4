"""From a cell of a table of the research questions back to the rows in the store that it counts."""

from __future__ import annotations

import pandas as pd

from sortlib import published
from sortlib.apis import PAPER_APIS
from sortlib.errors import SortError, choices
from sortlib.grouping import accuses
from sortlib.tables.gain import fed_calls, fed_edges
from sortlib.tables.methods import attempts, is_valid, methods

_VALIDITY = ("attempts", "valid", "ratio", "reasons")
_EVIDENCE = "evidence_"


def rows_of(study, table: str, api: str, column: str) -> pd.DataFrame:
    """The rows of outcomes behind one cell of a table.

    A row has the columns of ``sl.run`` and the verdicts of both rules; its ``case`` can be given to ``study.case``,
    ``sl.figures.amplification`` and ``sl.reproduce``. A count is the number of the rows, a mean or a median is over
    them.

    Parameters
    ----------
    table : ``validity``, ``bugs`` (or ``paper_rule``, ``evidence_rule``), ``average_difference``, ``involvement``,
        ``local_and_propagated``, ``gain_by_edge`` or ``seeded_faults``.
    api : of the cell's row; ``Total`` for the paper's 15.
    column : of the cell, as ``freefuzz-C_valid``, ``sort_evidence_suspect`` or ``SORT_evidence_found``; for
        ``gain_by_edge``, which has several rows of an API, the source and the argument: ``gelu input``.

    Returns
    -------
    pandas.DataFrame
        Rows of calls; of a published method one row for each attempt. Empty for ``/``.

    Raises
    ------
    SortError
        The table, the API or the column cannot be traced: a published number, say, comes from no row.
    """
    if table not in _TABLES:
        raise SortError(f"rows of table {table!r} are not known; valid: {choices(_TABLES)}")
    known = {node.api for graph in study.graphs for node in graph.nodes} | set(PAPER_APIS)
    if api != "Total" and api not in known:
        raise SortError(f"API {api!r} is in no model of this study; tables.records(study) lists those that are")
    apis = list(PAPER_APIS) if api == "Total" else [api]
    rows = _TABLES[table](study, apis, column)
    if rows is None:
        raise SortError(f"table {table} has no column {column!r} that counts rows of this study")
    return rows.reset_index(drop=True)


def _method(study, column):
    """The method whose column it is, and the rest of the column's name."""
    for method in methods(study):
        if column.startswith(f"{method.key}_"):
            return method, column.removeprefix(f"{method.key}_")
    return None, column


def _validity(study, apis, column):
    method, what = _method(study, column)
    if method is None or what not in _VALIDITY:
        return None
    rows = attempts(method.judged(study))
    rows = rows[rows["api"].isin(apis)]
    if what in ("attempts", "ratio"):
        return rows
    return rows[is_valid(rows) == (what == "valid")]


def _bugs(study, apis, column):
    method, what = _method(study, column)
    if method is None:
        return None
    if what.startswith(_EVIDENCE):
        rows = attempts(method.judged(study))
        rows, verdict = rows[rows["api"].isin(apis)], what.removeprefix(_EVIDENCE)
        return rows[accuses(rows)] if verdict == "findings" else rows[rows["evidence"] == verdict]
    if what not in (*published.SYMPTOMS, "distinct"):
        return None
    rows = method.failing(study)
    rows = rows[rows["api"].isin(apis)]
    return rows if what == "distinct" else rows[rows["symptom"] == what]


def _per_execution(study, apis, column):
    method = next((method for method in methods(study) if not method.baseline and method.key == column), None)
    if method is None:
        return None
    rows = method.judged(study)
    return rows[is_valid(rows) & rows["api"].isin(apis)]


def _gain(study, apis, column):
    name = column.removesuffix("_low").removesuffix("_high")
    if name not in ("calls", "local", "propagated", "arriving", "gain"):
        return None
    rows = fed_calls(study)
    rows = rows[rows["api"].isin(apis)]
    return rows[rows["gain"].notna()] if name in ("arriving", "gain") else rows


def _edges(study, apis, column):
    producer, _, argument = column.partition(" ")
    rows = fed_edges(study)
    rows = rows[(rows["producer"] == producer) & (rows["argument"] == argument)]
    return rows[rows["api"].isin(apis)] if len(rows) else None


def _faults(study, apis, column):
    from sortlib.seeded_faults import accusing_rows

    names = column.split("_")
    return accusing_rows(study, apis, "_".join(names[:-2]), *names[-2:]) if len(names) > 2 else None


_TABLES = {
    "validity": _validity, "validity_all_apis": _validity, "bugs": _bugs, "bugs_all_apis": _bugs, "paper_rule": _bugs,
    "evidence_rule": _bugs, "average_difference": _per_execution, "involvement": _per_execution,
    "local_and_propagated": _gain, "gain_by_edge": _edges, "seeded_faults": _faults,
}  # fmt: skip
