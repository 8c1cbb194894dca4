"""Backward passes that add terms far larger than what remains of them: their errors are those of the terms.

Moving the inputs does not show these, since terms computed from the same moved inputs cancel as well as before.
"""

from __future__ import annotations

import torch

from sortlib import thresholds
from sortlib.runner import backward
from sortlib.runner.bounds import distances
from sortlib.runner.bounds.double import outputs_in_double, widen
from sortlib.runner.bounds.form import rms


def of_gradients(executor, node, arguments, outputs, grads, seed) -> list:
    """For each gradient what its terms are off by, in u, as a float64 tensor of its shape; None where none cancel."""
    api, none = node["api"], [None] * len(grads)
    if api in thresholds.EXPONENTS:
        terms = outputs_in_double(executor, {**node, "upstream": "magnitudes"}, widen(arguments), seed)
        exponent = _exponent(api, arguments, outputs)
        return none if terms is None else [exponent * term.abs() for term in terms[-len(grads) :]]
    names = [name for name, _ in backward.leaves(arguments, node.get("frozen", ()))[1]]
    found = {}
    if api in thresholds.NORMALISING:
        found["input"] = _centred(api, {a.name: a.value for a in arguments})
    elif api == "cdist":
        upstream = backward.upstream_of(outputs[0], f"{seed}/0", "magnitudes")
        found = distances.of_gradients(arguments, outputs[0], upstream)
    fitting = [found.get(name) for name in names]
    return [extra if extra is not None and extra.shape == grad.shape else None
            for extra, grad in zip(fitting, grads, strict=True)]  # fmt: skip


def _exponent(api, arguments, outputs) -> float:
    """Size of the sums of logarithms whose exponential is the gradient."""
    if api == "ctc_loss":  # sums from both ends of time, which the mean that is returned does not show
        steps = next(a.value for a in arguments if a.name == "log_probs")
        return 2 * steps.shape[0] * rms(steps.double())
    finite = outputs[0][outputs[0].isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _centred(api, given):
    """Upstream gradients over the standard deviation, from which their mean and their part along the result are taken.

    The standard deviation itself is off by u times the mean over it. None where the statistics are given.
    """
    tensor, weight = given["input"].double(), given.get("weight")
    groups = _groups(api, given, tensor)
    if groups is None or not tensor.numel():
        return None
    grouped, dims = groups
    mean = torch.zeros(()).double() if api == "rms_norm" else grouped.mean(dims, keepdim=True)
    spread = ((grouped - mean).square().mean(dims, keepdim=True) + (given.get("eps") or 0.0)).sqrt()
    size = ((1 + mean.abs() / spread) / spread).expand(grouped.shape).reshape_as(tensor)
    if not isinstance(weight, torch.Tensor):
        return 2 * size
    weight = weight.double().abs()
    scale = weight if api in ("layer_norm", "rms_norm") else weight.reshape(-1, *[1] * (tensor.dim() - 2))
    return size * (scale + rms(weight))


def _groups(api, given, tensor):
    """The input, shaped so that elements are normalised together over whole dimensions, and these; or None."""
    every = range(tensor.dim())
    if api in ("layer_norm", "rms_norm"):
        return tensor, tuple(every[-len(given["normalized_shape"]) :])
    if api == "group_norm":
        return tensor.reshape(tensor.shape[0], given["num_groups"], -1), (2,)
    if api == "instance_norm":
        return (tensor, tuple(every[2:])) if given.get("use_input_stats", True) else None
    return (tensor, (0, *every[2:])) if given.get("training") is True else None
