"""Findings: judged calls of one cause in one row, so that one bug is one row.

A cause is what the evidence says went wrong, and on which side: two suspects of one API are one bug where the same
platform is inaccurate in both, and two where one returns another shape.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from sortlib.errors import SortError, choices
from sortlib.judging import RANK, Verdict
from sortlib.thresholds import SIGMAS

SIDES = ("reference", "candidate")
# Verdicts that accuse a platform; the others explain a difference.
ACCUSING = (
    Verdict.SUSPECT, Verdict.NAN, Verdict.CRASH, Verdict.TIMEOUT, Verdict.EXCEPTION, Verdict.BOTH_SUSPECT,
    Verdict.SLOW,
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """What went wrong in one call.

    Attributes
    ----------
    kind : ``accuracy``, ``values`` (whole numbers or booleans differ), ``share`` (a dropout drops another share than
        p), ``form`` (another shape or dtype), ``nan``, ``infinity``, ``exception``, ``crash``, ``hang``,
        ``unconfirmed crash`` or ``unconfirmed hang``, ``slow``, ``config``, ``difference`` (beyond the paper's
        threshold, or without a float64 reference), or empty where nothing accuses a platform.
    side : ``reference``, ``candidate``, ``both``, or empty where nobody is accused.
    detail : the type of an exception, or the signal that ended a process.
    """

    kind: str
    side: str = ""
    detail: str = ""

    def __str__(self):
        where = {"": "", "both": " on both sides"}.get(self.side, f" on the {self.side}")
        return self.kind + where + (f": {self.detail}" if self.detail else "")


def cause_of(row, rule: str = "evidence") -> Cause:
    """The cause behind one judged row.

    Parameters
    ----------
    row : mapping of a row of ``sl.judge``, with ``verdict`` (under ``paper`` also ``symptom``).
    rule : the rule that judged it.
    """
    verdict, status = str(row["verdict"]), row["status"]
    if rule == "paper" and verdict != "fail":
        return Cause("")
    if status == "mismatch":
        return Cause("form", row["side"] or "candidate", str(row["message"]).split(" ", 2)[1])
    if status in ("exception", "crash", "timeout"):
        kind = "hang" if status == "timeout" else status
        return Cause(kind, row["side"], "" if kind == "hang" else _ending(row["message"], status))
    if rule == "paper":
        return _non_finite(row, "propagated") if row["symptom"] == "nan" else Cause("difference")
    if verdict == Verdict.NAN:
        return _non_finite(row, "local")
    if verdict == Verdict.SUSPECT:
        sigmas = {side: _number(row, f"{side}_drop_sigmas") or 0.0 for side in SIDES}
        if max(sigmas.values()) > SIGMAS:
            return Cause("share", max(SIDES, key=sigmas.get))
        errors = [_number(row, f"{side}_error") for side in SIDES]
        if None in errors or _number(row, "candidate_ratio") is None:
            return Cause("values", "candidate")
        return Cause("accuracy", SIDES[errors[1] >= errors[0]])
    if verdict == Verdict.BOTH_SUSPECT:
        return Cause("accuracy", "both")
    if verdict == Verdict.SLOW:
        seconds = [_number(row, f"seconds_{side}") or 0.0 for side in SIDES]
        return Cause("slow", SIDES[seconds[1] >= seconds[0]])
    if verdict == Verdict.CONFIG:
        return Cause("config", "candidate")
    if verdict == Verdict.UNCONFIRMED:
        return Cause("unconfirmed hang" if row["unconfirmed"] == "timeout" else f"unconfirmed {row['unconfirmed']}")
    return Cause("difference") if verdict in (Verdict.UNJUDGED, Verdict.AMPLIFIED) else Cause("")


def _number(row, name):
    value = row.get(name)
    return None if value is None or value != value else value


def _ending(message, status) -> str:
    """The exception's type, or what ended the process."""
    text = str(message).partition("; ")[0]
    kind = text.partition(":")[0].strip()
    return kind if status == "crash" or kind.isidentifier() else ""


def _non_finite(row, part) -> Cause:
    shares = {side: {kind: _number(row, f"{side}_{kind}") or 0.0 for kind in ("nan", "posinf", "neginf")}
              for side in SIDES}  # fmt: skip
    kind = "nan" if any(share["nan"] for share in shares.values()) else "infinity"
    have = {side: share["nan"] if kind == "nan" else share["posinf"] + share["neginf"]
            for side, share in shares.items()}  # fmt: skip
    if have["reference"] != have["candidate"]:
        return Cause(kind, max(SIDES, key=have.get))
    return Cause(kind, "both")


def accuses(rows):
    """Whether the evidence rule's verdict on each judged row (``evidence``, ``side``) accuses a platform.

    An exception accuses only where one side alone raised it: what both refuse is an invalid input.
    """
    refused = (rows["evidence"] == str(Verdict.EXCEPTION)) & ~rows["side"].isin(SIDES)
    return rows["evidence"].isin([str(verdict) for verdict in ACCUSING]) & ~refused


def finding_id(api, reference, candidate, verdict, cause) -> str:
    """The same finding has the same id in every run."""
    return hashlib.sha256(json.dumps([api, reference, candidate, str(verdict), str(cause)]).encode()).hexdigest()[:8]


COLUMNS = ["finding", "verdict", "api", "reference", "candidate", "cause", "calls", "cases", "patterns", "worst_case",
           "worst_node", "reason"]  # fmt: skip


def findings_of(judged):
    """One row per API, platform pair, verdict and cause, most interesting first.

    Parameters
    ----------
    judged : DataFrame of ``judge(..., rule="evidence")``.

    Returns
    -------
    pandas.DataFrame
        finding (id), verdict, api, reference, candidate, cause, calls (rows that share them), cases, patterns,
        worst_case, worst_node and the reason given for that worst row.
    """
    import pandas as pd

    causes = [str(cause_of(row)) for row in judged.to_dict("records")]
    judged = judged.assign(verdict=judged["verdict"].astype(str), cause=pd.Series(causes, judged.index, dtype=object))
    rows = []
    for key, group in judged.groupby(["verdict", "api", "reference", "candidate", "cause"], sort=True):
        verdict, api, reference, candidate, cause = key
        severity = severity_of(group)
        worst = group.loc[severity.idxmax()]
        rows.append({
            "finding": finding_id(api, reference, candidate, verdict, cause), "verdict": verdict, "api": api,
            "reference": reference, "candidate": candidate, "cause": cause, "calls": len(group),
            "cases": group["case"].nunique(), "patterns": group["pattern"].nunique(), "worst_case": worst["case"],
            "worst_node": worst["node"], "reason": worst["reason"], "severity": float(severity.max()),
        })  # fmt: skip
    table = pd.DataFrame(rows, columns=[*COLUMNS, "severity"])
    table["rank"] = table["verdict"].map({str(verdict): place for place, verdict in enumerate(RANK)})
    order = table.sort_values(["rank", "severity", "api", "cause"], ascending=[True, False, True, True], kind="stable")
    return order[COLUMNS].reset_index(drop=True)


def severity_of(rows):
    """How far a row is from harmless, for ranking within one verdict: the propagated difference, then the bound."""
    return rows["propagated_max_abs"].fillna(0.0) + rows["candidate_ratio"].fillna(0.0).clip(upper=1e6)


def findings(study):
    """The bugs of a study: a row for each API, platform pair and cause that accuses a platform, the worst first.

    Parameters
    ----------
    study : study whose cases were run.

    Returns
    -------
    pandas.DataFrame
        The columns of ``findings_of``; ``only`` (the dtype or layout that all its calls have and no other call of the
        API has, or empty) and ``reproducer`` (``not made``, ``reproduces`` or ``does not reproduce``).
    """
    import pandas as pd

    from sortlib.study import opened

    study = opened(study, "findings")
    rows = pd.concat([study.judged, study.judged_single], ignore_index=True)
    table = findings_of(rows[accuses(rows)].rename(columns={"evidence": "verdict"}))
    traits = _Traits(study) if len(table) else None
    only = [traits.only(rows, finding) for finding in table.to_dict("records")]
    made = [state(study, finding)["state"] for finding in table["finding"]]
    return table.assign(only=pd.Series(only, table.index, dtype=object),
                        reproducer=pd.Series(made, table.index, dtype=object))  # fmt: skip


def finding(study, name) -> dict:
    """One row of ``findings`` by its id, or by a case that has it.

    Raises
    ------
    SortError
        No such finding.
    """
    table = findings(study)
    for row in table.to_dict("records"):
        if name in (row["finding"], row["worst_case"]):
            return row
    known = choices(table["finding"]) if len(table) else "none"
    raise SortError(f"{study.directory}: no finding {name!r}; there are: {known}")


def state(study, finding) -> dict:
    """What is known of a finding's reproducer: ``state``, and once it was made ``script``, ``case`` and ``node``."""
    path = study.directory / "findings" / f"{finding}.json"
    if not path.is_file():
        return {"state": "not made"}
    return json.loads(path.read_text(encoding="utf-8"))


class _Traits:
    """Dtype and layout of the tensor arguments of a study's calls, by case and node."""

    def __init__(self, study):
        self._cases = {case.id: case for case in study.cases}
        self._study, self._records = study, None

    def only(self, rows, finding) -> str:
        """What distinguishes a finding's calls from all other calls of the API, or an empty text."""
        same = rows[rows["api"] == finding["api"]]
        groups = {True: [], False: []}
        for row in same.to_dict("records"):
            verdict = row["evidence"]
            mine = verdict == finding["verdict"] and str(cause_of({**row, "verdict": verdict})) == finding["cause"]
            if row["status"] != "unreached":
                groups[mine].append(self._of(row["case"], row["node"]))
        found = []
        for place, trait in enumerate(("dtype", "layout")):
            mine = {traits[place] for traits in groups[True]}
            others = {traits[place] for traits in groups[False]}
            if len(mine) == 1 and others and not mine & others:
                found.append(f"{trait} {mine.pop()}")
        return ", ".join(found)

    def _of(self, case_id, node):
        call = self._cases[case_id].nodes[node]
        if self._records is None:
            self._records = {record.key: record for record in self._study.records}
        record = self._records.get(tuple(call.record))
        tensors = [features for _, features in record.tensors()] if record else []
        first = next((f for f in tensors if f.dtype.startswith(("float", "bfloat", "complex"))), None)
        dtype = (first or tensors[0]).dtype if tensors else ""
        layouts = {features.layout for features in tensors}
        return dtype, next((name for name in ("strided", "channels_last") if name in layouts), "contiguous")
