"""Verdicts from outcomes: the paper's rule and ours, side by side (DESIGN decision 8).

A rule reads the evidence that the run has measured and adds a verdict with its reason; nothing is executed again, so
outcomes can be judged anew at any time.
"""

from __future__ import annotations

import math
from enum import StrEnum

from sortlib.arguments import above_zero, instance
from sortlib.errors import SortError, choices
from sortlib.thresholds import (
    FEW,
    INDICES,
    LIMITS,
    NORMS,
    PAPER_THRESHOLD,
    SIGMAS,
    SLOW_SECONDS,
    SLOW_TIMES,
    ULP_WITHOUT_TRUTH,
    UNCOMPARABLE,
    Table,
)  # fmt: skip


class Verdict(StrEnum):
    """What the evidence says about one call on two platforms."""

    IDENTICAL = "identical"
    ROUNDING = "rounding"
    AMPLIFIED = "amplified"  # a propagated difference beyond the paper's threshold that no call on its way caused
    CONFIG = "config"  # gone with TF32 and reduced-precision reductions off
    SUSPECT = "suspect"
    BOTH_SUSPECT = "both-suspect"
    NAN = "nan"
    UNCONFIRMED = "unconfirmed"  # a crash or a timeout that a fresh process did not repeat
    EXCEPTION = "exception"
    CRASH = "crash"
    TIMEOUT = "timeout"
    SLOW = "slow"  # right, but a hundred times slower, twice
    RANDOM = "random"  # random numbers were drawn, and the two platforms draw different ones
    UNJUDGED = "unjudged"  # no float64 reference or no bound for this call
    UNREACHED = "unreached"


# Most interesting first: how findings are ranked.
RANK = [
    Verdict.SUSPECT, Verdict.NAN, Verdict.CRASH, Verdict.TIMEOUT, Verdict.EXCEPTION, Verdict.BOTH_SUSPECT,
    Verdict.UNCONFIRMED, Verdict.CONFIG, Verdict.SLOW, Verdict.AMPLIFIED, Verdict.UNJUDGED, Verdict.RANDOM,
    Verdict.ROUNDING, Verdict.IDENTICAL, Verdict.UNREACHED,
]  # fmt: skip


def judge(outcomes, rule: str = "evidence", threshold: float = PAPER_THRESHOLD, thresholds=None):
    """Judge every row of outcomes.

    Parameters
    ----------
    outcomes : DataFrame of ``sl.run``.
    rule : ``paper`` or ``evidence``.
    threshold : absolute difference of the paper's rule, in the output's own unit.
    thresholds : ``sortlib.thresholds.Table`` for the rule of evidence; None is the table of this package.

    Returns
    -------
    pandas.DataFrame
        The outcomes with ``rule``, ``verdict`` and ``reason``. Under ``paper`` the verdict is pass, fail or
        unreached, and ``symptom`` is precision, nan, crash or empty; under ``evidence`` a ``Verdict``.

    Raises
    ------
    SortError
        An unknown rule, no outcomes or too few of their columns, or a threshold that is no number above 0.
    """
    _check_outcomes(outcomes)
    verdicts = judge_rows(outcomes.to_dict("records"), rule, threshold, thresholds)
    judged = outcomes.assign(rule=rule, verdict=[v[0] for v in verdicts], reason=[v[1] for v in verdicts])
    return judged.assign(symptom=[v[2] for v in verdicts]) if rule == "paper" else judged


# What every row holds, and every row of a call that both sides returned from: without it a verdict would be made up.
_ALWAYS = ("api", "status", "side", "message")
_MEASURED = ("local_max_abs", "local_differing")
_STATUSES = ("ok", "mismatch", "exception", "crash", "timeout", "unreached")


def _check_outcomes(outcomes):
    import pandas as pd

    instance(outcomes, pd.DataFrame, "judge: outcomes", "the DataFrame of sl.run")
    if outcomes.empty:
        return
    returned = "status" in outcomes and (outcomes["status"] == "ok").any()
    needed = [*_ALWAYS, *(_MEASURED if returned else ())]
    lacking = [name for name in needed if name not in outcomes]
    if lacking:
        raise SortError(f"judge: outcomes lack the columns {', '.join(lacking)}; give the DataFrame of sl.run, whole")
    for row, status in zip(outcomes.index, outcomes["status"], strict=True):
        if status not in _STATUSES:
            raise SortError(f"judge: outcomes: row {row}: unknown status {status!r}; valid: {choices(_STATUSES)}")


def judge_rows(rows, rule: str = "evidence", threshold: float = PAPER_THRESHOLD, thresholds=None) -> list[tuple]:
    """``judge`` for rows as dictionaries, without pandas: (verdict, reason), under ``paper`` with the symptom too.

    Raises
    ------
    SortError
        An unknown rule.
    """
    rules = {"paper": _paper, "evidence": _evidence}
    if rule not in rules:
        raise SortError(f"unknown rule {rule!r}; valid: {choices(rules)}")
    above_zero(threshold, "threshold")
    if thresholds is not None:
        instance(thresholds, Table, "thresholds", "a sortlib.thresholds.Table", "Table.read(FILE) reads one")
    table = thresholds or Table()
    return [rules[rule](_Row(row), threshold, table) for row in rows]


class _Row(dict):
    """A row in which a figure that was not measured reads as NaN, as it does in a table."""

    def __missing__(self, name):
        return math.nan


def _number(row, name) -> float | None:
    value = row.get(name)
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _paper(row, threshold, table):
    status = row["status"]
    if status == "unreached":
        return "unreached", row["message"], ""
    if status != "ok":
        return "fail", row["message"], "crash"
    # NaN on both sides differs in nothing; on one side only it is what the paper calls a NaN bug (section IV-D).
    if _number(row, "propagated_one_sided"):
        return "fail", f"{row['propagated_one_sided']:.2%} of the elements are finite on one side only", "nan"
    difference = _number(row, "propagated_max_abs")
    if difference is None:
        return "unreached", "the candidate's own chain broke earlier", ""
    if difference > threshold:
        return "fail", f"|a-b| up to {difference:.3g}, above {threshold:g}", "precision"
    return "pass", f"|a-b| up to {difference:.3g}", ""


def _evidence(row, threshold, table):
    found, unsteady = _by_evidence(row, threshold, table), row.get("unconfirmed")
    if isinstance(unsteady, str) and unsteady and RANK.index(found[0]) > RANK.index(Verdict.UNCONFIRMED):
        return Verdict.UNCONFIRMED, row["message"]
    return found


def _by_evidence(row, threshold, table):
    status = row["status"]
    if status == "mismatch":
        return Verdict.SUSPECT, row["message"]
    if status != "ok":
        side = f"on {row['side']}" if row["side"] in ("reference", "candidate") else "on both sides"
        return Verdict(status), row["message"] if status == "unreached" else f"{side}: {row['message']}"
    limit = table.of(row["api"], row.get("family"), row.get("reference_dtype"))
    for judgement in (_non_finite, _drawn, _against_truth, _without_truth, _slow):
        found = judgement(row, limit)
        if found:
            return found
    return _explained(row, threshold)


def _non_finite(row, limit):
    if row.get("by_order") is True:
        return _infinite_inputs(row)
    nans = {side: _number(row, f"{side}_nan") or 0 for side in ("reference", "candidate")}
    if _by_rounded_inputs(row):
        return None
    if _number(row, "local_one_sided"):
        shares = f"NaN {nans['reference']:.2%} on the reference, {nans['candidate']:.2%} on the candidate"
        return Verdict.NAN, f"{row['local_one_sided']:.2%} of the elements differ in being finite ({shares})"
    if (lost := _number(row, "truth_finite_lost")) and row["api"] in NORMS and not max(nans.values()):
        return Verdict.UNJUDGED, (f"{lost:.2%} of the elements are infinite on both sides though their norm is not; "
                                  "powers of large numbers overflow, as PyTorch documents")  # fmt: skip
    if lost and row.get("gradient_overflows") is True and not _number(row, "local_one_sided"):
        return Verdict.UNJUDGED, (f"{lost:.2%} of a gradient's elements are not finite on both sides though float64 "
                                  "is; a result or a derivative on the way leaves the range of the dtype")  # fmt: skip
    if lost:
        who = _text(row, "second_opinion")
        by = f"a number is right ({who})" if who not in ("", "agrees", "disagrees") else "float64 is"
        return Verdict.NAN, f"{lost:.2%} of the elements are not finite where {by}"
    # Where float64 overflows too, a NaN may come of two infinities; single operations have none.
    single = _text(row, "family") in ("exact", "rounded", "special") or row["api"] in LIMITS
    if single and (wrong := _number(row, "truth_nan_wrong")):
        return Verdict.NAN, f"{wrong:.2%} of the elements are NaN where float64 is infinite"
    if missing := _number(row, "truth_nan_missing"):
        return Verdict.NAN, f"{missing:.2%} of the elements are numbers where float64 is NaN"
    unknown = _number(row, "reference_ratio") is None and _number(row, "reference_error") is None
    given = row["nan_inputs"] or row.get("inf_inputs") is True
    if max(nans.values()) > 0 and not given and unknown and _text(row, "truth_missing"):
        return Verdict.NAN, (f"NaN in {max(nans.values()):.2%} of the elements from inputs without NaN, on both sides; "
                             f"no float64 reference ({row['truth_missing']})")  # fmt: skip
    return None


def _by_rounded_inputs(row) -> bool:
    """Whether float64 gives the candidate's result from the inputs that the candidate, and it alone, has rounded."""
    return row.get("lowered") is True and row.get("rounded_inputs") is True


def _infinite_inputs(row):
    """0 times an infinity, and the difference of two, depend on the order in which a kernel adds and pads."""
    if not _number(row, "local_one_sided"):
        return None
    share = f"{row['local_one_sided']:.2%} of the elements differ in being finite"
    return Verdict.UNJUDGED, f"{share}; with infinite inputs that depends on the order of evaluation"


def _text(row, name) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _drawn(row, limit):
    """Random APIs: two platforms that draw different numbers are no error of either.

    Of a dropout, the share that is dropped and the arithmetic of what is kept can be judged all the same.
    """
    if not row["random"]:
        return None
    sigmas = {side: _number(row, f"{side}_drop_sigmas") or 0.0 for side in ("reference", "candidate")}
    side = max(sigmas, key=sigmas.get)
    if sigmas[side] > SIGMAS:
        share = row[f"{side}_dropped"]
        return Verdict.SUSPECT, f"{share:.2%} dropped on the {side}, {sigmas[side]:.3g} standard deviations from p"
    if _text(row, "family") == "masked" and _number(row, "candidate_ratio") is not None:
        if _against_truth(row, limit) is None and _number(row, "local_other_mask"):
            return Verdict.RANDOM, (f"{row['local_other_mask']:.2%} of the elements are dropped on one side only; what "
                                    f"both keep is {row['local_max_abs']:.3g} apart")  # fmt: skip
        return None
    if not row["local_differing"]:
        return None
    return Verdict.RANDOM, f"{row['local_differing']:.2%} of the elements differ; the platforms draw differently"


def _against_truth(row, limit):
    """Errors beyond the bound of one side (suspect, or config) or of both.

    Conditioning excuses an error, unless the other side shows that it can be avoided: a side whose error rounding of
    the result alone does not explain, and is clearly larger than the other's, is a suspect within the bound too.
    """
    ratios = {side: _number(row, f"{side}_ratio") for side in ("reference", "candidate")}
    if None in ratios.values():
        return None
    owns = {side: _number(row, f"{side}_own_ratio") for side in ratios}
    owns = {side: (ratios[side] if owns[side] is None else owns[side]) / limit.bounds for side in ratios}
    ratios = {side: ratio / limit.bounds for side, ratio in ratios.items()}
    if max(owns.values()) <= 1 or _within_units(row, limit):
        return None
    errors = {side: row[f"{side}_error"] for side in ratios}
    worse, better = sorted(errors, key=errors.get, reverse=True)
    where = f" ({_text(row, 'worst_output')})" if _text(row, "worst_output") else ""
    numbers = f"error against float64 {errors[worse]:.3g} on the {worse}, {errors[better]:.3g} on the {better}{where}"
    found = _accusation(row, limit, ratios, owns, errors, worse, better, numbers)
    if found is None:
        return None
    verdict, reason = found
    opinion = _text(row, "second_opinion")
    if opinion == "agrees":
        reason += "; the decomposition in float64 agrees with float64"
    elif opinion == "disagrees":
        reason += "; but the decomposition in float64 gives another result"
        # The candidate's process was asked, so its faults cannot excuse the candidate.
        if verdict == Verdict.BOTH_SUSPECT or worse == "reference":
            return Verdict.UNJUDGED, reason
    return verdict, reason


def _within_units(row, limit) -> bool:
    units = _number(row, "local_scale_ulp")
    return bool(limit.ulp) and units is not None and units <= limit.ulp


def _accusation(row, limit, ratios, owns, errors, worse, better, numbers):
    # Far within the bound nobody computes what conditioning excuses, and a user's table may allow less than that: then
    # only the other side can show that an error was avoidable.
    excused = row.get("partial") is True
    if row.get("reference_dtype") in ("float64", "complex128"):
        return None if excused or _by_rounded_inputs(row) else _both_in_double(max(ratios.values()), numbers)
    # A candidate that rounds its inputs to another dtype has errors that its kernels cannot avoid.
    avoidable = owns[worse] > 1 and (ratios[worse] > 1 or row.get("lowered") is not True)
    if worse == "candidate" and _by_rounded_inputs(row):
        return None
    times = _needed(row, 0.0 if excused else ratios[worse], limit)
    if avoidable and errors[worse] >= times * errors[better]:
        beyond = f"{_times(owns[worse])} the rounding of the result, "
        beyond += "more was not computed" if excused else f"{_times(ratios[worse])} the rounding bound"
        if (worst := _number(row, f"{worse}_worst_case_ratio")) is not None:
            beyond += f", {_times(worst)} the worst case of the sum"
        reason = f"{numbers}; {beyond}"
        if worse == "candidate":
            if _gone(row, "again", times * errors[better]):
                return Verdict.SUSPECT, (f"{reason}; the result changes from call to call: the same call again was "
                                         f"{row['again_error']:.3g} off")  # fmt: skip
            if _gone(row, "strict", times * errors[better]):
                return Verdict.CONFIG, f"{reason}; {row['strict_error']:.3g} with reduced precision off"
        return Verdict.SUSPECT, reason
    if min(ratios.values()) > 1 and not excused:
        return Verdict.BOTH_SUSPECT, f"{numbers}; at least {_times(min(ratios.values()))} the rounding bound"
    return None


def _needed(row, ratio, limit):
    """How many times worse a suspect is: within what conditioning excuses, few samples could be an accident."""
    samples = _number(row, "samples")
    return limit.clearly_worse * (1.0 if ratio > 1 or not samples else max(1.0, FEW / samples))


def _gone(row, run, allowed):
    """Whether the error vanishes in another run of the same call: ``again`` as it was, or ``strict`` with
    reduced-precision shortcuts off."""
    ratio, error = _number(row, f"{run}_ratio"), _number(row, f"{run}_error")
    return ratio is not None and error is not None and (ratio <= 1 or error < allowed)


def _both_in_double(ratio, numbers):
    # The float64 reference of a float64 call is the reference's own kernel, so it cannot tell which side is wrong.
    if ratio <= 2:
        return None
    return Verdict.SUSPECT, f"{numbers}; {_times(ratio)} the rounding bound (reference and float64 truth are one)"


def _times(ratio) -> str:
    return f"{ratio:.3g} times" if ratio < 1e300 else "infinitely many times"


def _without_truth(row, limit):
    """Calls that no float64 reference or bound speaks about."""
    if _number(row, "candidate_ratio") is not None or not row["local_differing"]:
        return None
    share, ulp = f"{row['local_differing']:.2%}", _number(row, "local_scale_ulp")
    missing = _text(row, "truth_missing")
    if str(row.get("reference_dtype")).startswith(("int", "uint", "bool")) or ulp is None:
        if row.get("lowered") is True:
            return Verdict.UNJUDGED, f"{share} of the whole numbers differ; the candidate rounds its inputs"
        if missing in UNCOMPARABLE:
            return Verdict.UNJUDGED, f"{share} of the whole numbers differ; {missing}"
        if row["api"] in INDICES:
            return Verdict.UNJUDGED, f"{share} of the positions differ; equal values may be chosen in any order"
        apart = f"by up to {row['local_max_abs']:.3g}"
        return Verdict.SUSPECT, f"{share} of the whole numbers differ on equal inputs, {apart}"
    if ulp <= max(ULP_WITHOUT_TRUTH, limit.ulp):
        return Verdict.ROUNDING, f"{row['local_max_abs']:.3g} apart, {ulp:.3g} units in the last place"
    return Verdict.UNJUDGED, (f"differs by {row['local_max_abs']:.3g} on equal inputs; no float64 reference "
                              f"({missing or 'no bound'})")  # fmt: skip


def _slow(row, limit):
    """Right, but far slower; the call was timed twice (see ``comparison``)."""
    seconds = {side: _number(row, f"seconds_{side}") for side in ("reference", "candidate")}
    if None in seconds.values() or seconds["candidate"] < max(SLOW_SECONDS, SLOW_TIMES * seconds["reference"]):
        return None
    return Verdict.SLOW, f"{seconds['candidate']:.3g} s on the candidate, {seconds['reference']:.3g} s on the reference"


def _explained(row, threshold):
    """Identical, amplified or rounding: nothing here accuses a platform."""
    local, propagated = row["local_max_abs"], _number(row, "propagated_max_abs")
    if not row["local_differing"] and not _number(row, "propagated_differing"):
        bits = max(_number(row, "local_bits") or 0.0, _number(row, "propagated_bits") or 0.0)
        if not bits:
            return Verdict.IDENTICAL, "all bits agree"
        return Verdict.ROUNDING, f"all values agree; {bits:.2%} differ in the sign of zero or in the bits of a NaN"
    incoming = _number(row, "incoming")
    if propagated is not None and propagated > threshold >= local and incoming:
        return Verdict.AMPLIFIED, (f"{propagated:.3g} from {incoming:.3g} arriving (gain {propagated / incoming:.3g}); "
                                   f"on equal inputs only {local:.3g}")  # fmt: skip
    if _by_rounded_inputs(row):
        return Verdict.ROUNDING, f"{local:.3g} apart; that is what the inputs give as the candidate rounds them"
    ratio = max(_number(row, "reference_ratio") or 0.0, _number(row, "candidate_ratio") or 0.0)
    what = " by product and orthogonality of the factors" if row.get("shared") is True else ""
    bound = f"{_times(ratio)} the rounding bound{what}" + (", the other side hardly better" if ratio > 1 else "")
    chain = f"; {propagated:.3g} with {incoming:.3g} arriving" if incoming and propagated is not None else ""
    return Verdict.ROUNDING, f"{local:.3g} on equal inputs, {bound}{chain}"
