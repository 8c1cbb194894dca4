"""RQ3: what interactions between APIs add (paper section V-C, Figure 13)."""

from __future__ import annotations

import pandas as pd

from sortlib.tables.frames import frame, noted
from sortlib.tables.methods import METHODS, absences, is_valid, wanted_apis


def average_difference(study, apis=None) -> pd.DataFrame:
    """RQ3, paper Figure 13(a): mean over an API's valid executions of its largest propagated difference.

    Returns
    -------
    pandas.DataFrame
        api, paper_name, sort, single; differences in the output's own unit, NaN where there was no execution.
    """
    values = {}
    for method in METHODS:
        rows = method.outcomes(study)
        rows = rows[is_valid(rows)]
        values[method.key] = _differences(rows).groupby(rows["api"]).mean()
    return _per_api(study, apis, values)


def involvement(study, apis=None) -> pd.DataFrame:
    """RQ3, paper Figure 13(b): share of an API's valid executions in which it is involved in erroneous behaviour.

    An execution is involved if its own output, or that of any call it feeds inside the case, however indirectly, has
    a propagated difference above the study's threshold (paper section III-D). Columns as in ``average_difference``.
    """
    edges = {case.id: case.edges for case in study.cases}
    values = {}
    for method in METHODS:
        rows = method.outcomes(study)
        involved = _involved(rows, edges, study.config.threshold)
        valid = is_valid(rows)
        values[method.key] = involved[valid].groupby(rows.loc[valid, "api"]).mean()
    return _per_api(study, apis, values)


def _differences(rows):
    if "propagated_max_abs" not in rows:
        return pd.Series(float("nan"), index=rows.index)
    return rows["propagated_max_abs"].astype(float)


def _involved(rows, edges, threshold):
    beyond = _differences(rows) > threshold
    flags = dict(zip(zip(rows["case"], rows["node"], strict=True), beyond, strict=True))
    for case in dict.fromkeys(rows["case"]):
        # Edges lead to later nodes, so a node's flag is final once those of all later nodes are.
        for src, dst, _ in sorted(edges.get(case, ()), reverse=True):
            if flags.get((case, dst)):
                flags[case, src] = True
    keys = zip(rows["case"], rows["node"], strict=True)
    return pd.Series([bool(flags[key]) for key in keys], index=rows.index, dtype=float)


def _per_api(study, apis, values):
    wanted = wanted_apis(study, apis)
    table = frame(wanted).iloc[:-1].reset_index(drop=True)
    missing = {}
    for method in METHODS:
        table[method.key] = table["api"].map(values[method.key]).astype(float)
        missing[method] = [api for api in wanted if api not in values[method.key].index]
    return noted(table, absences(study, missing))
