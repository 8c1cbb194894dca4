"""Truth and bound of one call."""

from __future__ import annotations

from dataclasses import dataclass

from sortlib import thresholds
from sortlib.runner import backward, invariants, opinions
from sortlib.runner.bounds.conditioning import conditioning
from sortlib.runner.bounds.double import explicit, first_line, outputs_in_double, truth, widen
from sortlib.runner.bounds.families import family, has_steps
from sortlib.runner.bounds.form import Bound, Unbounded, continuous
from sortlib.runner.bounds.gradients import of_gradients
from sortlib.runner.bounds.products import sums
from sortlib.runner.bounds.steps import steps


@dataclass(frozen=True)
class Proof:
    """What is right about one call.

    Attributes
    ----------
    truth : float64 value of everything that is compared, or None.
    bound : ``Bound`` for each, or None.
    missing : why there is no truth or bound; empty where there is.
    compared : what stands for the outputs where they are not unique (see ``invariants``), else None.
    opinion : who corrected the float64 kernel; empty where nobody had to.
    """

    truth: list
    bound: list
    missing: str = ""
    compared: list | None = None
    opinion: str = ""


def prove(executor, node, arguments, outputs, seed, lowered=False, quick=False) -> Proof:
    """Truth and bounds of a call that returned ``outputs`` on this platform; see ``bound``."""
    nothing = [None] * len(outputs)
    right, reason = truth(executor, node, arguments, seed)
    if right is None:
        return Proof(nothing, nothing, reason)
    if [t.shape for t in right] != [t.shape for t in outputs]:
        return Proof(nothing, nothing, "the float64 call returns other shapes")
    if invariants.known(node["api"]) and not node.get("backward"):
        shared = invariants.invariants(node["api"], arguments, outputs)
        wanted = shared and invariants.invariants(node["api"], widen(arguments), right)
        if wanted and [v.shape for v, _ in shared] == [v.shape for v, _ in wanted]:
            return _of_invariants(node, arguments, shared, wanted, lowered)
    try:
        limits, missing = bound(executor, node, arguments, right, seed, lowered, quick), ""
    except Unbounded as error:
        limits, missing = nothing, f"no bound: {error}"
    except Exception as error:
        limits, missing = nothing, f"no bound: {type(error).__name__}: {first_line(error)}"
    opinion = ""
    if not node.get("backward") and any(_may_be_wrong(node["api"], t) for t in right):

        def again(given):
            return outputs_in_double(executor, node, given, seed)

        right, opinion = opinions.corrected(node["api"], again, widen(arguments), right)
    return Proof(right, limits, missing, opinion=opinion)


def _may_be_wrong(api, tensor):
    return opinions.asked(api) and tensor.is_floating_point() and bool(tensor.isnan().any())


def _of_invariants(node, arguments, shared, wanted, lowered):
    units = 1.0 if invariants.positions(node["api"]) else invariants.factor(arguments)
    terms = (0.0, 0.0, units)
    limits = [Bound(terms, terms, values.numel(), scale) for values, scale in wanted]
    if lowered:  # rounded inputs have other factors and another order
        limits = [None] * len(wanted)
    return Proof([v for v, _ in wanted], limits, compared=[v for v, _ in shared])


def bound(executor, node, arguments, outputs, seed, lowered=False, quick=False) -> list[Bound | None]:
    """The bound of every float64 output; None where unknown.

    Parameters
    ----------
    outputs : the call's float64 outputs.
    lowered : the candidate rounds the inputs themselves, so that even exact APIs inherit their conditioning.
    quick : leave out what conditioning excuses, where it costs a call of its own (``Bound.partial``).
    """
    arguments = explicit(node["api"], arguments)
    if node.get("backward"):
        number = len(outputs) - backward.count(node, arguments)
        forward = bound(executor, {**node, "backward": False}, arguments, outputs[:number], seed, lowered)
        return forward + of_gradients(executor, node, arguments, outputs[:number], outputs[number:], seed)
    kind = family(node["api"], arguments)
    if node.get("random"):
        terms = (0.0, 2 * thresholds.ROUNDED_FACTOR, 0.0)  # the scale is rounded, then the product
        return [Bound(terms, terms, output.numel()) if continuous(output) else None for output in outputs]
    if kind == "sum":
        return sums(executor, node, arguments, outputs, seed)
    if lowered and node["api"] in thresholds.DISCONTINUOUS:
        return [None] * len(outputs)
    if has_steps(node["api"], {a.name: a.value for a in arguments}):
        return steps(executor, node, arguments, outputs, seed)
    if lowered or kind == "other":
        return conditioning(executor, node, arguments, outputs, seed, quick)
    slope = 0.0 if kind == "exact" else thresholds.ROUNDED_FACTOR
    terms = (0.0, slope, 0.0)
    return [Bound(terms, terms, output.numel()) if continuous(output) else None for output in outputs]
