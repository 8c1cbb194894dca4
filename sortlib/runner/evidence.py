"""Evidence about one call: float64 truth, error bound, and differences between outputs.

The bound is stored in units of the unit roundoff u of the dtype that computed, so that one array serves platforms
of different precision. Sums of products are bounded through the sum of their absolute terms; everything else
through conditioning, the change of the float64 result when every input moves by one rounding.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from sortlib import apis
from sortlib.features import map_tensors
from sortlib.runner.execution import tensors_in

# Factors of the bound, in u: see ``bound``. The probabilistic constant follows Higham and Mary (2019), whose
# sqrt(n) bound holds with a small constant with probability close to 1; conditioning is sampled by two draws of
# random signs, so its largest value is underestimated by a small factor.
SUM_FACTOR = 4.0
CONDITION_FACTOR = 8.0


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def widen(arguments) -> list:
    """The same arguments in double precision."""

    def double(_, tensor):
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    def dtypes(_, dtype):
        return torch.float64 if dtype.is_floating_point else dtype

    return [
        argument._replace(value=map_tensors(map_tensors(argument.value, double), dtypes, torch.dtype))
        for argument in arguments
    ]


def truth(executor, node, arguments, seed):
    """Float64 outputs of a call from the same inputs, or the reason why there are none."""
    call = executor.call(_in_double(node), widen(arguments), seed)
    if call.error is not None:
        return None, f"{type(call.error).__name__}: {first_line(call.error)}"
    return call.outputs, ""


def _in_double(node):
    narrowing = ("torch.Tensor.float", "torch.Tensor.half", "torch.Tensor.bfloat16")
    return {**node, "target": "torch.Tensor.double"} if node["target"] in narrowing else node


def bound(executor, node, arguments, outputs, seed) -> list:
    """For every float64 output an array b: an error up to b * u is what rounding explains; None where unknown.

    * data movement: 0, the bits must agree;
    * sums of products of length n: ``SUM_FACTOR * sqrt(n)`` times the sum of absolute terms;
    * else: ``CONDITION_FACTOR`` times (the result's own size plus its change, in u, when inputs move by one u).
    """
    if node["api"] in apis.DATA_MOVEMENT:
        return [torch.zeros_like(output) for output in outputs]
    wide = widen(arguments)
    if node["api"] in apis.SUM_OF_PRODUCTS:
        terms = [a._replace(value=map_tensors(a.value, _magnitude)) for a in wide]
        call = executor.call(_in_double(node), terms, seed)
        if call.error is not None or len(call.outputs) != len(outputs):
            return [None] * len(outputs)
        length = math.sqrt(sum_length(node["api"], arguments, outputs))
        return [SUM_FACTOR * max(1.0, length) * total for total in call.outputs]
    return _conditioning(executor, node, arguments, wide, outputs, seed)


def _magnitude(_, tensor):
    return tensor.abs() if tensor.is_floating_point() or tensor.is_complex() else tensor


def _conditioning(executor, node, arguments, wide, outputs, seed):
    units = [unit_roundoff(t.dtype) for t in tensors_in([a.value for a in arguments]) if t.is_floating_point()]
    if not units:
        return [output.abs() * CONDITION_FACTOR if output.is_floating_point() else None for output in outputs]
    step = max(units)
    worst = [torch.zeros_like(output) if output.is_floating_point() else None for output in outputs]
    for draw in range(2):
        moved = [a._replace(value=_move(a, step, f"{seed}/{draw}")) for a in wide]
        call = executor.call(_in_double(node), moved, seed)
        if call.error is not None or len(call.outputs) != len(outputs):
            return [None] * len(outputs)
        for position, (output, other) in enumerate(zip(outputs, call.outputs, strict=True)):
            if worst[position] is not None and other.shape == output.shape:
                change = (other - output).abs().nan_to_num(0.0, 0.0, 0.0) / step
                worst[position] = torch.maximum(worst[position], change)
    return [
        # One element's own change can vanish by chance, so no element is held to less than the typical change.
        CONDITION_FACTOR * (output.abs() + torch.clamp(change, min=float(change.square().mean().sqrt())))
        if change is not None and change.numel() else change
        for output, change in zip(outputs, worst, strict=True)
    ]  # fmt: skip


def _move(argument, step, seed):
    def move(path, tensor):
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return tensor
        key = hashlib.sha256(f"{seed}/{argument.name}/{path}".encode()).digest()[:16]
        rng = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
        signs = rng.integers(0, 2, tensor.numel(), dtype=np.int8).reshape(tensor.shape) * 2 - 1
        return tensor * (1 + step * torch.from_numpy(signs).to(tensor.device))

    return map_tensors(argument.value, move)


def sum_length(api: str, arguments, outputs) -> float:
    """Number of terms that are added for one output element."""
    given = {a.name: a.value for a in arguments}
    shape = tuple(given["input"].shape) if isinstance(given.get("input"), torch.Tensor) else ()
    weight = given.get("weight")
    if isinstance(weight, torch.Tensor) and weight.dim() and weight.shape[0]:
        return weight.numel() / weight.shape[0] + 1
    if api in ("matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "baddbmm") and shape:
        other = given.get("mat1", given.get("batch1", given["input"]))
        return float(other.shape[-1]) if other.dim() else 1.0
    elements = sum(tensor.numel() for tensor in tensors_in([a.value for a in arguments]))
    return max(1.0, elements / max(1, sum(output.numel() for output in outputs)))


def first_line(error) -> str:
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]


# ---- comparing outputs ----


def compare(reference: np.ndarray, candidate: np.ndarray) -> dict:
    """Differences of two arrays of equal shape.

    Returns
    -------
    dict
        ``max_abs``, ``max_rel`` (by the reference's element), ``differing`` (share of elements with unequal bits,
        NaN equal to NaN), ``scale_ulp`` (``max_abs`` in units of the last place of the reference's largest
        magnitude; None for integers) and ``one_sided`` (share that is finite or NaN or an infinity on one side only).
    """
    if reference.size == 0:
        return {"max_abs": 0.0, "max_rel": 0.0, "differing": 0.0, "scale_ulp": 0.0, "one_sided": 0.0}
    a, b = wide_array(reference), wide_array(candidate)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    difference = np.abs(np.where(finite, a - b, 0.0))
    magnitude = np.abs(np.where(finite, a, 0.0))
    largest = float(difference.max())
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference > 0, difference / magnitude, 0.0)
    scale_ulp = None
    if reference.dtype.kind == "f":
        scale_ulp = largest / float(np.spacing(magnitude.max().astype(reference.dtype)))
    return {
        "max_abs": largest,
        "max_rel": float(relative.max()),
        "differing": float(1 - equal.mean()),
        "scale_ulp": scale_ulp,
        "one_sided": float((~equal & ~finite).mean()),
    }


def error_against(output: np.ndarray, right: np.ndarray, allowed: np.ndarray | None, unit: float) -> dict:
    """Error of an output against the float64 truth.

    Returns ``error`` (largest), ``rms`` and ``ratio`` (largest quotient of error and bound, None without a bound).
    Elements where either is not finite are left out; ``compare`` counts those.
    """
    a, t = wide_array(output), wide_array(right)
    finite = np.isfinite(a) & np.isfinite(t)
    if not finite.any():
        return {"error": None, "rms": None, "ratio": None}
    error = np.abs(np.where(finite, a - t, 0.0))
    result = {"error": float(error.max()), "rms": float(np.sqrt(np.mean(error**2))), "ratio": None}
    if allowed is not None:
        limit = wide_array(allowed) * unit
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(error > 0, error / limit, 0.0)
        # An error over a bound of 0 is infinite; stored as the largest float so that tables can hold it.
        result["ratio"] = float(np.nan_to_num(ratio, nan=0.0, posinf=np.finfo(np.float64).max).max())
    return result


def wide_array(array: np.ndarray) -> np.ndarray:
    """As float64 (complex: real and imaginary parts side by side)."""
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    return array.astype(np.float64, copy=False)
