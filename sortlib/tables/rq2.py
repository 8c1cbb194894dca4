"""RQ2: which bugs are found (paper section V-B, Table II), under the paper's rule and under the evidence rule."""

from __future__ import annotations

import pandas as pd

from sortlib import published
from sortlib.grouping import accuses, findings_of
from sortlib.judging import Verdict
from sortlib.tables.frames import NOTHING, as_column, frame, noted, with_total
from sortlib.tables.methods import absences, attempts, methods, wanted_apis

NO_TIMING = "perf: not measured, except by methods whose own oracle compares times"


def accusing(study) -> pd.DataFrame:
    """The findings of SORT and its ablation that accuse a platform; columns as ``study.findings``."""
    rows = pd.concat([study.judged, study.judged_single], ignore_index=True)
    return findings_of(rows[accuses(rows)].rename(columns={"evidence": "verdict"}))


def bugs(study, apis=None) -> pd.DataFrame:
    """RQ2 (paper Table II): ``paper_rule`` and ``evidence_rule`` side by side, then the published counts."""
    ours, evidence = paper_rule(study, apis), evidence_rule(study, apis)
    table = ours.merge(evidence, on=["api", "paper_name"], validate="one_to_one")
    theirs = published.table2()
    numbers = {f"paper_{c}": as_column(table["api"], theirs[c].dropna().astype(int).to_dict()) for c in theirs}
    table = table.assign(**numbers)
    notes = [*ours.attrs["footnotes"], *evidence.attrs["footnotes"]]
    return noted(table, [*notes, "paper_*: Table II of the paper; / where the method has no tests"])


def paper_rule(study, apis=None) -> pd.DataFrame:
    """Bugs as the paper counts them: every call whose outputs differ by more than the threshold, or fail on one side.

    The other methods' bugs are those of their own oracles, as the paper counted them.
    An exception on both sides is an invalid input (RQ1), not a bug. ``*_distinct`` counts one bug for an API and
    symptom, however many calls show it.
    """
    wanted = wanted_apis(study, apis)
    table, missing = frame(wanted), {}
    for method in methods(study):
        rows = attempts(method.judged(study))
        rows = rows[rows["api"].isin(wanted)]
        failing = method.failing(study)
        failing = failing[failing["api"].isin(wanted)]
        counts = failing.groupby(["api", "symptom"]).size()
        seen = sorted(set(rows["api"]))
        if not method.timed:
            table[f"{method.key}_perf"] = NOTHING
        for symptom in published.SYMPTOMS[0 if method.timed else 1 :]:
            cells = {api: int(counts.get((api, symptom), 0)) for api in seen}
            table[f"{method.key}_{symptom}"] = with_total(table["api"], cells)
        distinct = counts.groupby("api").size()
        cells = {api: int(distinct.get(api, 0)) for api in seen}
        table[f"{method.key}_distinct"] = with_total(table["api"], cells)
        missing[method] = [api for api in wanted if api not in seen]
    return noted(table.copy(), [NO_TIMING, *absences(study, missing)])


def evidence_rule(study, apis=None) -> pd.DataFrame:
    """Calls by verdict of the evidence rule; ``*_evidence_findings`` are the distinct ones that accuse a platform.

    Columns ``<method>_evidence_<verdict>`` count calls; a finding is one API, platform pair and accusing verdict. What
    both sides refuse with an exception is an invalid input (RQ1) and accuses neither.
    """
    wanted = wanted_apis(study, apis)
    table, columns, missing = frame(wanted), {}, {}
    for method in methods(study):
        rows = attempts(method.judged(study))
        rows = rows[rows["api"].isin(wanted)]
        counts = rows.groupby(["api", "evidence"]).size()
        seen = sorted(set(rows["api"]))
        for verdict in Verdict:
            if verdict != Verdict.UNREACHED:
                cells = {api: int(counts.get((api, str(verdict)), 0)) for api in seen}
                columns[f"{method.key}_evidence_{verdict}"] = with_total(table["api"], cells)
        accused = findings_of(rows[accuses(rows)].rename(columns={"evidence": "verdict"}))["api"].value_counts()
        columns[f"{method.key}_evidence_findings"] = with_total(
            table["api"], {api: int(accused.get(api, 0)) for api in seen}
        )
        missing[method] = [api for api in wanted if api not in seen]
    table = pd.concat([table, pd.DataFrame(columns)], axis=1)  # at once: there are hundreds of columns
    return noted(table, absences(study, missing))
