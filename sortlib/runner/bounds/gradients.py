"""Bounds of gradients."""

from __future__ import annotations

import math

import torch

from sortlib import thresholds
from sortlib.features import map_tensors
from sortlib.runner.bounds import cancelling, gates
from sortlib.runner.bounds.conditioning import conditioned, patterns, reduction_length, slope_of, underflow
from sortlib.runner.bounds.double import outputs_in_double, widen
from sortlib.runner.bounds.families import family
from sortlib.runner.bounds.form import Bound, continuous, lost_steps, rms
from sortlib.runner.bounds.moving import changes_under
from sortlib.runner.bounds.products import magnitude, sum_length, summed

_UPSTREAM = 4.0  # largest upstream gradient, see ``backward.upstream_of``


def of_gradients(executor, node, arguments, outputs, grads, seed):
    """Gradients of sums and of moved elements are sums of products too, of the upstream gradient with the inputs;
    for the rest, conditioning as for the results."""
    kind = family(node["api"], arguments)
    produced = max((output.numel() for output in outputs), default=1)
    more = [max(1.0, produced / max(1, grad.numel())) for grad in grads]
    if kind in ("sum", "rounded", "exact") and not node.get("random"):
        terms = arguments
        if kind != "exact":
            terms = [a._replace(value=map_tensors(a.value, magnitude)) for a in arguments]
        found = outputs_in_double(executor, {**node, "upstream": "magnitudes"}, widen(terms), seed)
        if found is None:
            return [None] * len(grads)
        lengths = more
        if kind == "sum":
            each = sum_length(node["api"], arguments, outputs)
            lengths = [max(each, each * factor) for factor in more]
        elif kind == "exact":  # derivatives are 0 or 1, so gradients under ones count the terms
            counts = outputs_in_double(executor, {**node, "upstream": "ones"}, widen(arguments), seed)[-len(grads) :]
            lengths = [float(count.abs().max()) if count.numel() else 1.0 for count in counts]
        return [summed(grad, total.abs(), n, kind == "exact", arguments)
                for grad, total, n in zip(grads, found[-len(grads):], lengths, strict=True)]  # fmt: skip
    if node.get("random"):
        terms = (0.0, 2 * thresholds.ROUNDED_FACTOR, 0.0)
        return [Bound(terms, terms, grads[0].numel())] + [None] * (len(grads) - 1)
    length = reduction_length(node["api"], arguments, outputs)
    changes = changes_under(executor, node, arguments, [*outputs, *grads], seed, patterns=patterns(length))
    changes = changes[len(outputs) :]
    extras = cancelling.of_gradients(executor, node, arguments, outputs, grads, seed)
    typical = max((rms(output) for output in outputs if continuous(output)), default=0.0)
    # The upstream gradient is of size 1, and so are the saved results that are subtracted from 1 or from each other.
    saved = max(typical, 1.0) if node["api"] in thresholds.SATURATING else 0.0
    if node["api"] in thresholds.ATTENTION:
        saved += _through_scores({a.name: a.value for a in arguments})
    fractions = thresholds.COORDINATE_FACTOR * _coordinates(node["api"], arguments, length)
    lost = lost_steps(arguments, _UPSTREAM)
    # What underflows in a norm is relative to it in the gradient, which is divided by it.
    by_norm = underflow(node["api"], arguments, length) / typical if node["api"] in thresholds.NORMS and typical else 0
    bounds = []
    for grad, change, extra, times in zip(grads, changes, extras, more, strict=True):
        slope, factor = slope_of(node["api"], arguments, max(length, times))
        constant = (slope * saved + fractions) * math.sqrt(times) + lost
        limit = conditioned(grad, _added(change, extra), slope + by_norm, factor, constant, 0.0, length)
        bounds.append(gates.widened(limit, gates.of_gradient(node["api"], arguments, outputs[0], grad, seed)))
    return bounds


def _added(change, extra):
    return change if extra is None else extra if change is None else change.add_(extra)


def _coordinates(api, arguments, length) -> float:
    """Size of the coordinates, or ranks, whose fractions are the weights that a gradient is multiplied by."""
    tensor = {a.name: a.value for a in arguments}.get("input")
    if api in thresholds.RANKS:
        return length
    if not isinstance(tensor, torch.Tensor) or not (api in thresholds.COORDINATES or "upsample" in api):
        return 0.0
    return float(sum(tensor.shape[2:]))


def _through_scores(given) -> float:
    """Size of what the backward pass of attention subtracts before it multiplies queries or keys: an upstream gradient
    of size 1 times the values, summed over their length, times the scale."""
    query, key, value = (given.get(name) for name in ("query", "key", "value"))
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() > 1 for tensor in (query, key, value)):
        return 0.0
    scale = given.get("scale") or query.shape[-1] ** -0.5
    sides = max(rms(query.double()), rms(key.double())) * math.sqrt(max(query.shape[-2], key.shape[-2]))
    return rms(value.double()) * math.sqrt(value.shape[-1]) * scale * sides
