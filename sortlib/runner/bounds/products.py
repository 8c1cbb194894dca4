"""Sums of products: the bound follows from the sum of the magnitudes of their terms."""

from __future__ import annotations

import math

import torch

from sortlib import thresholds
from sortlib.features import map_tensors
from sortlib.runner.bounds.double import in_double, widen
from sortlib.runner.bounds.form import Bound, continuous, lost_steps
from sortlib.runner.execution import extremes, tensors_in


def sums(executor, node, arguments, outputs, seed):
    """n terms with the sum of magnitudes S: at most SUM * min(sqrt n, n / 4) * S; where partial sums wander as
    those of terms of mixed sign do, about SUM * (sqrt n * |y| + S), which is the stricter ``own``. As many
    products below the normal numbers may lose a step each."""
    totals = _sum_of_magnitudes(executor, node, arguments, seed)
    if totals is None or len(totals) != len(outputs):
        return [None] * len(outputs)
    length = sum_length(node["api"], arguments, outputs)
    factor = thresholds.SUM_FACTOR
    times = max(factor, factor * min(math.sqrt(length), length / factor))
    lost = lost_steps(arguments, times)
    loose = (lost, 0.0, times)
    # |y| is at most S, so this never allows more than the bound itself.
    strict = (lost, min(factor * math.sqrt(length), times - factor), factor)
    worst = max(1.0, length / loose[2])
    return [
        Bound(loose, strict, output.numel(), total, worst)
        if continuous(output) and total.shape == output.shape
        else None
        for output, total in zip(outputs, totals, strict=True)
    ]


def summed(grad, total, length, exact, arguments):
    """The bound of a gradient that is a sum of ``length`` terms, whose magnitudes add up to ``total``."""
    if not continuous(grad):
        return None
    if exact and length <= 1:
        return Bound((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), grad.numel())
    factor = thresholds.SUM_FACTOR
    times = max(factor, factor * min(math.sqrt(length), length / factor))
    terms = (lost_steps(arguments, times), 0.0, times)
    return Bound(terms, terms, grad.numel(), total, max(1.0, length / terms[2]))


def _sum_of_magnitudes(executor, node, arguments, seed):
    # A few digits of it are enough, so the fast kernels of float32 do unless values overflow.
    for dtype in (torch.float32, torch.float64):
        terms = [a._replace(value=map_tensors(a.value, magnitude)) for a in widen(arguments, dtype)]
        call = executor.call(in_double(node), terms, seed)
        if call.error is None and all(map(_finite, call.outputs)):
            return [output.abs() for output in call.outputs]
    return [output.abs() for output in call.outputs] if call.error is None else None


def _finite(tensor) -> bool:
    return not tensor.numel() or all(map(math.isfinite, extremes(tensor)))


def magnitude(_, tensor):
    """The magnitudes of a tensor's elements, for ``map_tensors``."""
    return tensor.abs() if continuous(tensor) else tensor


def sum_length(api: str, arguments, outputs) -> float:
    """Number of terms that are added for one output element."""
    given = {a.name: a.value for a in arguments}
    if isinstance(given.get("equation"), str):
        return _contracted(given["equation"], tensors_in([a.value for a in arguments]))
    shape = tuple(given["input"].shape) if isinstance(given.get("input"), torch.Tensor) else ()
    windows = _window(api, given, shape)
    if windows is not None:
        return windows
    weight = given.get("weight")
    if isinstance(weight, torch.Tensor) and weight.dim() and weight.shape[0]:
        # The channels or features that are not summed over: first in a weight, second in a transposed convolution's.
        kept = weight.shape[1] if api.startswith("conv_transpose") else weight.shape[0] if weight.dim() > 1 else 1
        return weight.numel() / max(1, kept) + 1
    if api in ("matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "baddbmm") and shape:
        other = given.get("mat1", given.get("batch1", given["input"]))
        return float(other.shape[-1]) if other.dim() else 1.0
    elements = sum(tensor.numel() for tensor in tensors_in([a.value for a in arguments]))
    return max(1.0, elements / max(1, sum(output.numel() for output in outputs)))


def _window(api, given, shape) -> float | None:
    """Elements of the largest window where windows may overlap, so that counting inputs and outputs says nothing."""
    if api.startswith("avg_pool"):
        return float(math.prod(_each(given["kernel_size"], int(api[-2]))))
    if api.startswith("adaptive_avg_pool"):
        count = int(api[-2])
        sizes = zip(shape[-count:], _each(given["output_size"], count), strict=True)
        return float(math.prod(_longest(n, n if out is None else out) for n, out in sizes))
    if api == "cumsum" and shape and isinstance(given.get("dim"), int):
        return float(shape[given["dim"]])
    return None


def _longest(size, windows) -> int:
    """Length of the longest of adaptive windows: both ends are rounded outwards, so it may exceed its share by one."""
    return min(size, -(-size // windows) + (size % windows > 0)) if windows else 0


def _each(value, count) -> tuple:
    """One value for each dimension, from one or several as PyTorch takes them."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * count if len(values) == 1 else values


def _contracted(equation, operands) -> float:
    """Length of an einsum's sums: the sizes of all letters that are not in its output."""
    inputs, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    sizes = {}
    for letters, operand in zip(inputs.split(","), operands, strict=False):
        sizes |= dict(zip(reversed(letters), reversed(operand.shape), strict=False))
    return float(math.prod(size for letter, size in sizes.items() if letter not in output))
