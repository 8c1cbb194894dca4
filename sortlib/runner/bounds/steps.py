"""Results with steps that are computed with rounding, such as whole parts of quotients and counts by bins."""

from __future__ import annotations

import torch

from sortlib import thresholds
from sortlib.runner.bounds.form import Bound, Unbounded, continuous, rms, unit_roundoff
from sortlib.runner.bounds.moving import changes_under
from sortlib.runner.execution import tensors_in


def steps(executor, node, arguments, outputs, seed):
    """Results with steps that are computed with rounding: both sides of a step that a few u away are right.

    Raises
    ------
    Unbounded
        The steps are narrower than the rounding.
    """
    given = {a.name: a.value for a in arguments}
    units = [unit_roundoff(t.dtype) for t in tensors_in([a.value for a in arguments]) if continuous(t)]
    far = thresholds.OWN_FACTOR
    if node["api"] in thresholds.HISTOGRAMS:
        _resolves(given, far * max(units, default=0.0))
    largest = [None] * len(outputs)
    for ways in ((far, far), (far, -far), (-far, far), (-far, -far)):  # else input and divisor may move alike
        changes = changes_under(executor, node, arguments, outputs, seed, ways)
        largest = [c if top is None else top if c is None else torch.maximum(top, c)
                   for top, c in zip(largest, changes, strict=True)]  # fmt: skip
    # One change may be small by chance.
    largest = [top if top is None else top.clamp_(min=rms(top)) for top in largest]
    if node["api"] in thresholds.PERIODIC and largest[0] is not None:
        largest[0] = _over_periods(given, largest[0], max(units), far)
    # The way to a step hides part of its height: x - floor(x) falls by 1 and rises by the way itself, which is at
    # most half of the height where the argument stays within one period. So twice the change is never too little.
    terms = (0.0, thresholds.OWN_FACTOR, _WAY)
    return [Bound(terms, terms, output.numel(), top) if continuous(output) else None
            for output, top in zip(outputs, largest, strict=True)]  # fmt: skip


_WAY = 2.0


def _over_periods(given, change, unit, far):
    """Remainders of x by b: where x / b is off by one or more, every result from 0 to b is right."""
    number, divisor = (torch.as_tensor(given[name]).abs().to(torch.float64) for name in ("input", "other"))
    spans = number * (far * unit) >= divisor
    whole = (divisor / (_WAY * unit)).expand(change.shape)
    return torch.where(spans.expand(change.shape).to(change.device), whole.to(change.device).maximum(change), change)


def _resolves(given, relative):
    """Positions of values among n bins are off by n times the relative error of the argument."""
    bins = given.get("bins", 100)
    bins = max(bins) if isinstance(bins, list | tuple) and all(isinstance(n, int) for n in bins) else bins
    if isinstance(bins, int) and bins * relative >= 1:
        raise Unbounded(f"the {bins} bins are narrower than the rounding of positions among them")
