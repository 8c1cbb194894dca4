"""Activations that multiply their input by a gate in [0, 1]: where the gate closes, its error counts, not its size.

``1 + erf`` or ``1 / (1 + exp)`` is off by some u whatever remains of it, and an element far out multiplies that by its
own size, which the typical size of the input does not show. So every element is held to its own size. That covers what
conditioning would excuse too: x times the derivative of x gate(x) is 1.1 |x| at most.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from sortlib import thresholds
from sortlib.runner import backward


def widened(limit, size):
    """The bound with the errors of gates that multiply numbers of ``size``; unchanged where ``size`` is None."""
    if limit is None or size is None:
        return limit
    terms = (*limit.own[:2], thresholds.CLOSED_GATE_FACTOR)
    return replace(limit, total=terms, own=terms, extra=size)


def of_result(api, arguments, output):
    """What the gate of each element of the output multiplies: float64 of its shape, or None for APIs without gates."""
    tensor = _gated(api, arguments)
    if tensor is None:
        return None
    size = _value(api, arguments, tensor)
    return size if size.shape == output.shape else None


def of_gradient(api, arguments, output, grad, seed):
    """What the gate, and its derivative, of each element of the input's gradient multiply, or None.

    The derivative of x times gate(x) is the gate plus x times the gate's derivative, in which 1 is subtracted again.
    """
    tensor = _gated(api, arguments)
    if tensor is None or tensor.shape != grad.shape:
        return None
    upstream = backward.upstream_of(output, f"{seed}/0", "magnitudes")
    value = _value(api, arguments, tensor)
    if api == "glu":
        return torch.cat([upstream, upstream * value], _dim(arguments))
    return upstream * (1 + value) if upstream.shape == value.shape else None


def _gated(api, arguments):
    tensor = {a.name: a.value for a in arguments}.get("input")
    known = api in thresholds.GATED and isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return tensor if known else None


def _value(api, arguments, tensor):
    """Magnitudes of what is multiplied by the gate: the input, or the half of it that is no gate."""
    tensor = tensor.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return tensor.chunk(2, _dim(arguments))[0] if api == "glu" else tensor


def _dim(arguments):
    return {a.name: a.value for a in arguments}.get("dim", -1)
