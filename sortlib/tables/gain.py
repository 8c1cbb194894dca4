"""RQ3 beyond the paper: what a call adds itself, what arrives from earlier calls, and how much of it is passed on.

The paper's Figure 13 shows propagated differences only. A difference that a call passes on is not its own; these tables
take the two apart (DESIGN decision 7: local, propagated, gain) and say how sure the averages are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sortlib.tables.frames import NOTHING, noted
from sortlib.tables.methods import METHODS, both_names, is_valid, wanted_apis

LEVEL, RESAMPLES = 0.95, 2000  # of the bootstrap intervals
_SORT = METHODS[0]


def local_and_propagated(study, apis=None) -> pd.DataFrame:
    """RQ3, ours: per API the average difference of its own, the one with what arrives, and the gain.

    Only calls that some other call of their case feeds can pass anything on; the others are counted in ``calls`` of
    ``involvement``. Gain is propagated difference / largest difference that arrives (both absolute, in the units of
    the two outputs), over calls where something arrives.

    Returns
    -------
    pandas.DataFrame
        api, calls (fed by other calls of the case, and valid), local, propagated (means of the largest absolute
        difference), arriving (calls where a difference arrives), gain (median), and for each of the three the limits
        ``_low`` and ``_high`` of a 95 % bootstrap interval that draws whole cases, since the calls of one case are not
        independent. NaN where there is nothing to average or where fewer than two cases leave nothing to resample.
    """
    rows = fed_calls(study)
    wanted = wanted_apis(study, apis)
    table = []
    for api in wanted:
        own = rows[rows["api"] == api]
        arriving = own[own["gain"].notna()]
        line = {"api": api, "calls": len(own)}
        line |= _mean("local", own, "local_max_abs") | _mean("propagated", own, "propagated_max_abs")
        line |= {"arriving": len(arriving)} | _median("gain", arriving, "gain")
        table.append(line)
    missing = [both_names(line["api"]) for line in table if not line["calls"]]
    notes = [f"no call that another call of its case feeds: {', '.join(missing)}"] if missing else []
    notes.append(f"intervals: {LEVEL:.0%} percentile bootstrap over cases, {RESAMPLES:,} resamples")
    return noted(pd.DataFrame(table), notes)


def gain_by_edge(study) -> pd.DataFrame:
    """RQ3, ours: gain for each kind of edge: which call feeds which argument of which.

    A call with several calls in front counts for each of them, since what arrives cannot be told apart afterwards.

    Returns
    -------
    pandas.DataFrame
        source, api, argument, calls (where a difference arrives), gain (median) with ``gain_low`` and ``gain_high``
        as in ``local_and_propagated``, and the share ``amplified`` of calls with a gain above 1; by falling gain.
    """
    kinds = fed_edges(study)
    table = []
    for (source, api, argument), own in kinds.groupby(["producer", "api", "argument"]):
        line = {"source": source, "api": api, "argument": argument, "calls": len(own)}
        table.append(line | _median("gain", own, "gain") | {"amplified": float((own["gain"] > 1).mean())})
    columns = ["source", "api", "argument", "calls", "gain", "gain_low", "gain_high", "amplified"]
    table = pd.DataFrame(table, columns=columns).sort_values(
        ["gain", "source", "api", "argument"], ascending=[False, True, True, True], ignore_index=True
    )
    notes = [f"intervals: {LEVEL:.0%} percentile bootstrap over cases, {RESAMPLES:,} resamples"]
    return noted(table, notes if len(table) else [f"{NOTHING}: no difference arrives at any call"])


def fed_edges(study):
    """The calls of ``fed_calls`` at which a difference arrives, once for each ``producer`` (API) and ``argument`` that
    feeds them; several tensors of one list are one argument each."""
    rows = fed_calls(study)
    rows = rows[rows["gain"].notna()]
    edges = [(case.id, dst, case.nodes[src].api, argument) for case in study.cases for src, dst, argument in case.edges]
    edges = pd.DataFrame(edges, columns=["case", "node", "producer", "argument"]).drop_duplicates()
    return rows.merge(edges, on=["case", "node"])


def fed_calls(study):
    """SORT's valid calls that are fed from inside their case, with finite differences and the gain."""
    rows = _SORT.outcomes(study)
    rows = rows[is_valid(rows)]
    if "propagated_max_abs" not in rows:
        return rows.assign(gain=pd.Series(dtype=float))
    rows = rows[~rows["entry"].astype(bool)]
    differences = rows[["local_max_abs", "propagated_max_abs"]].astype(float)
    rows = rows[np.isfinite(differences).all(axis=1)].copy()
    arriving = rows["incoming"].astype(float)
    some = np.isfinite(arriving) & (arriving > 0)
    rows["gain"] = (rows["propagated_max_abs"].astype(float) / arriving.where(some)).where(some)
    return rows


def _mean(name, rows, column):
    sums = rows.groupby("case", sort=True)[column].agg(["sum", "count"]) if len(rows) else None
    if sums is None:
        return {name: np.nan, f"{name}_low": np.nan, f"{name}_high": np.nan}

    def mean(total, count, axis=-1):
        return total.sum(axis=axis) / count.sum(axis=axis)

    total, count = sums["sum"].to_numpy(float), sums["count"].to_numpy(float)
    return {name: float(mean(total, count))} | _interval(name, (total, count), mean)


def _median(name, rows, column):
    if not len(rows):
        return {name: np.nan, f"{name}_low": np.nan, f"{name}_high": np.nan}
    # a case counts once, by its own median, so that the interval can draw whole cases
    values = rows.groupby("case", sort=True)[column].median().to_numpy(float)
    return {name: float(np.median(values))} | _interval(name, (values,), np.median)


def _interval(name, data, statistic):
    from scipy.stats import bootstrap

    low = high = np.nan
    if len(data[0]) > 1:
        made = bootstrap(data, statistic, paired=True, vectorized=True, method="percentile", n_resamples=RESAMPLES,
                         confidence_level=LEVEL, rng=np.random.default_rng(0))  # fmt: skip
        low, high = map(float, made.confidence_interval)
    return {f"{name}_low": low, f"{name}_high": high}
