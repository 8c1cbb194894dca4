"""Verdicts from outcomes: the paper's rule and ours, side by side (DESIGN decision 8).

A rule reads the evidence that the run has measured and adds a verdict with its reason; nothing is executed again, so
outcomes can be judged anew at any time.
"""

from __future__ import annotations

import math
from enum import StrEnum

from sortlib.errors import SortError, choices
from sortlib.thresholds import CLEARLY_WORSE, FEW, INDICES, PAPER_THRESHOLD, ULP_WITHOUT_TRUTH, UNDEFINED


class Verdict(StrEnum):
    """What the evidence says about one call on two platforms."""

    IDENTICAL = "identical"
    ROUNDING = "rounding"
    AMPLIFIED = "amplified"  # a propagated difference beyond the paper's threshold that no call on its way caused
    CONFIG = "config"  # gone with TF32 and reduced-precision reductions off
    SUSPECT = "suspect"
    BOTH_SUSPECT = "both-suspect"
    NAN = "nan"
    EXCEPTION = "exception"
    CRASH = "crash"
    TIMEOUT = "timeout"
    RANDOM = "random"  # random numbers were drawn, and the two platforms draw different ones
    UNJUDGED = "unjudged"  # no float64 reference or no bound for this call
    UNREACHED = "unreached"


# Most interesting first: how findings are ranked.
RANK = [
    Verdict.SUSPECT, Verdict.NAN, Verdict.CRASH, Verdict.TIMEOUT, Verdict.EXCEPTION, Verdict.BOTH_SUSPECT,
    Verdict.CONFIG, Verdict.AMPLIFIED, Verdict.UNJUDGED, Verdict.RANDOM, Verdict.ROUNDING, Verdict.IDENTICAL,
    Verdict.UNREACHED,
]  # fmt: skip


def judge(outcomes, rule: str = "evidence", threshold: float = PAPER_THRESHOLD):
    """Judge every row of outcomes.

    Parameters
    ----------
    outcomes : DataFrame of ``sl.run``.
    rule : ``paper`` or ``evidence``.
    threshold : absolute difference of the paper's rule, in the output's own unit.

    Returns
    -------
    pandas.DataFrame
        The outcomes with ``rule``, ``verdict`` and ``reason``. Under ``paper`` the verdict is pass, fail or
        unreached, and ``symptom`` is precision, nan, crash or empty; under ``evidence`` a ``Verdict``.

    Raises
    ------
    SortError
        An unknown rule.
    """
    rules = {"paper": _paper, "evidence": _evidence}
    if rule not in rules:
        raise SortError(f"unknown rule {rule!r}; valid: {choices(rules)}")
    verdicts = [rules[rule](row, threshold) for row in outcomes.to_dict("records")]
    judged = outcomes.assign(rule=rule, verdict=[v[0] for v in verdicts], reason=[v[1] for v in verdicts])
    return judged.assign(symptom=[v[2] for v in verdicts]) if rule == "paper" else judged


def _number(row, name) -> float | None:
    value = row.get(name)
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _paper(row, threshold):
    status = row["status"]
    if status == "unreached":
        return "unreached", row["message"], ""
    if status != "ok":
        return "fail", row["message"], "crash"
    if _number(row, "propagated_one_sided"):
        return "fail", f"{row['propagated_one_sided']:.2%} of the elements are finite on one side only", "nan"
    difference = _number(row, "propagated_max_abs")
    if difference is None:
        return "unreached", "the candidate's own chain broke earlier", ""
    if difference > threshold:
        return "fail", f"|a-b| up to {difference:.3g}, above {threshold:g}", "precision"
    return "pass", f"|a-b| up to {difference:.3g}", ""


def _evidence(row, threshold):
    status = row["status"]
    if status == "mismatch":
        return Verdict.SUSPECT, row["message"]
    if status != "ok":
        side = f"on {row['side']}" if row["side"] in ("reference", "candidate") else "on both sides"
        return Verdict(status), row["message"] if status == "unreached" else f"{side}: {row['message']}"
    for judgement in (_non_finite, _drawn, _against_truth, _without_truth):
        found = judgement(row)
        if found:
            return found
    return _explained(row, threshold)


def _non_finite(row):
    nans = {side: _number(row, f"{side}_nan") or 0 for side in ("reference", "candidate")}
    if _number(row, "local_one_sided"):
        shares = f"NaN {nans['reference']:.2%} on the reference, {nans['candidate']:.2%} on the candidate"
        return Verdict.NAN, f"{row['local_one_sided']:.2%} of the elements differ in being finite ({shares})"
    lost = _number(row, "truth_finite_lost")
    right = row["api"] in UNDEFINED and lost == 0  # the float64 reference says NaN too, and mathematics does
    if max(nans.values()) > 0 and not row["nan_inputs"] and not right:
        return Verdict.NAN, f"NaN in {max(nans.values()):.2%} of the elements from inputs without NaN, on both sides"
    if lost:
        return Verdict.NAN, f"{lost:.2%} of the elements are not finite where float64 is"
    return None


def _drawn(row):
    """Random APIs: two platforms that draw different numbers are no error of either."""
    if not row["random"] or not row["local_differing"]:
        return None
    return Verdict.RANDOM, f"{row['local_differing']:.2%} of the elements differ; the platforms draw differently"


def _against_truth(row):
    """Errors beyond the bound of one side (suspect, or config) or of both.

    Conditioning excuses an error, unless the other side shows that it can be avoided: a side whose error rounding of
    the result alone does not explain, and is clearly larger than the other's, is a suspect within the bound too.
    """
    ratios = {side: _number(row, f"{side}_ratio") for side in ("reference", "candidate")}
    if None in ratios.values():
        return None
    owns = {side: _number(row, f"{side}_own_ratio") for side in ratios}
    owns = {side: ratios[side] if owns[side] is None else owns[side] for side in ratios}
    if max(owns.values()) <= 1:
        return None
    errors = {side: row[f"{side}_error"] for side in ratios}
    worse, better = sorted(errors, key=errors.get, reverse=True)
    numbers = f"error against float64 {errors[worse]:.3g} on the {worse}, {errors[better]:.3g} on the {better}"
    if row.get("reference_dtype") in ("float64", "complex128"):
        return _both_in_double(max(ratios.values()), numbers)
    # A candidate that rounds its inputs to another dtype has errors that its kernels cannot avoid.
    avoidable = owns[worse] > 1 and (ratios[worse] > 1 or row.get("lowered") is not True)
    times = _needed(row, ratios[worse])
    if avoidable and errors[worse] >= times * errors[better]:
        beyond = f"{_times(owns[worse])} the rounding of the result, {_times(ratios[worse])} the rounding bound"
        reason = f"{numbers}; {beyond}"
        if worse == "candidate" and _gone(row, times * errors[better]):
            return Verdict.CONFIG, f"{reason}; {row['strict_error']:.3g} with reduced precision off"
        return Verdict.SUSPECT, reason
    if min(ratios.values()) > 1:
        return Verdict.BOTH_SUSPECT, f"{numbers}; at least {_times(min(ratios.values()))} the rounding bound"
    return None


def _needed(row, ratio):
    """How many times worse a suspect is: within what conditioning excuses, few samples could be an accident."""
    samples = _number(row, "samples")
    return CLEARLY_WORSE * (1.0 if ratio > 1 or not samples else max(1.0, FEW / samples))


def _gone(row, allowed):
    """Whether the error vanishes with reduced-precision shortcuts off."""
    strict, error = _number(row, "strict_ratio"), _number(row, "strict_error")
    return strict is not None and error is not None and (strict <= 1 or error < allowed)


def _both_in_double(ratio, numbers):
    # The float64 reference of a float64 call is the reference's own kernel, so it cannot tell which side is wrong.
    if ratio <= 2:
        return None
    return Verdict.SUSPECT, f"{numbers}; {_times(ratio)} the rounding bound (reference and float64 truth are one)"


def _times(ratio) -> str:
    return f"{ratio:.3g} times" if ratio < 1e300 else "infinitely many times"


def _without_truth(row):
    """Calls that no float64 reference or bound speaks about."""
    if _number(row, "candidate_ratio") is not None or not row["local_differing"]:
        return None
    share, ulp = f"{row['local_differing']:.2%}", _number(row, "local_scale_ulp")
    if str(row.get("reference_dtype")).startswith(("int", "uint", "bool")) or ulp is None:
        if row.get("lowered") is True:
            return Verdict.UNJUDGED, f"{share} of the whole numbers differ; the candidate rounds its inputs"
        if row["api"] in INDICES:
            return Verdict.UNJUDGED, f"{share} of the positions differ; equal values may be chosen in any order"
        return Verdict.SUSPECT, f"{share} of the whole numbers differ on equal inputs"
    if ulp <= ULP_WITHOUT_TRUTH:
        return Verdict.ROUNDING, f"{row['local_max_abs']:.3g} apart, {ulp:.3g} units in the last place"
    missing = row["truth_missing"] or "no bound"
    return Verdict.UNJUDGED, f"differs by {row['local_max_abs']:.3g} on equal inputs; no float64 reference ({missing})"


def _explained(row, threshold):
    """Identical, amplified or rounding: nothing here accuses a platform."""
    local, propagated = row["local_max_abs"], _number(row, "propagated_max_abs")
    if not row["local_differing"] and not _number(row, "propagated_differing"):
        return Verdict.IDENTICAL, "all bits agree"
    incoming = _number(row, "incoming")
    if propagated is not None and propagated > threshold >= local and incoming:
        return Verdict.AMPLIFIED, (f"{propagated:.3g} from {incoming:.3g} arriving (gain {propagated / incoming:.3g}); "
                                   f"on equal inputs only {local:.3g}")  # fmt: skip
    ratio = max(_number(row, "reference_ratio") or 0.0, _number(row, "candidate_ratio") or 0.0)
    bound = f"{_times(ratio)} the rounding bound" + (", the other side hardly better" if ratio > 1 else "")
    chain = f"; {propagated:.3g} with {incoming:.3g} arriving" if incoming and propagated is not None else ""
    return Verdict.ROUNDING, f"{local:.3g} on equal inputs, {bound}{chain}"


def findings_of(judged):
    """One row per API, platform pair and verdict, most interesting first.

    Parameters
    ----------
    judged : DataFrame of ``judge(..., rule="evidence")``.

    Returns
    -------
    pandas.DataFrame
        verdict, api, reference, candidate, calls (rows that share them), patterns, worst_case, worst_node and the
        reason given for that worst row.
    """
    import pandas as pd

    columns = ["verdict", "api", "reference", "candidate", "calls", "patterns", "worst_case", "worst_node", "reason"]
    rows = []
    for (verdict, api, reference, candidate), group in judged.groupby(
        ["verdict", "api", "reference", "candidate"], sort=True
    ):
        worst = group.loc[_severity(group).idxmax()]
        rows.append([str(verdict), api, reference, candidate, len(group), group["pattern"].nunique(), worst["case"],
                     worst["node"], worst["reason"], float(_severity(group).max())])  # fmt: skip
    table = pd.DataFrame(rows, columns=[*columns, "severity"])
    table["rank"] = table["verdict"].map({str(verdict): place for place, verdict in enumerate(RANK)})
    ordered = table.sort_values(["rank", "severity", "api"], ascending=[True, False, True], kind="stable")
    return ordered[columns].reset_index(drop=True)


def _severity(rows):
    """How far a row is from harmless, for ranking within one verdict: the propagated difference, then the bound."""
    return rows["propagated_max_abs"].fillna(0.0) + rows["candidate_ratio"].fillna(0.0).clip(upper=1e6)
