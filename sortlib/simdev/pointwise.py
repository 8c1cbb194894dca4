"""Faults of APIs that work element by element: add, mul, div, relu, gelu, dropout and flatten."""

from __future__ import annotations

import torch

from sortlib.simdev.record import Fault, collector, with_nan
from sortlib.simdev.rounding import flush_denormals, in_memory_order, is_float32, last_to_zero, to_bf16

FAULTS: list[Fault] = []
fault = collector(FAULTS)

_DENORMAL = "(rng.standard_normal((4, 33)) * 1e-39).astype('f4')"


def _floating(*tensors) -> bool:
    return all(tensor.is_floating_point() for tensor in tensors if isinstance(tensor, torch.Tensor))


# ---- add ----


@fault("add-bf16", "the sum is rounded to bfloat16")
def _(clean, input, other, **named):
    result = clean(input, other, **named)
    return to_bf16(result) if is_float32(result) else result


@fault("add-last-element", "the last element keeps the first operand's value")
def _(clean, input, other, **named):
    result = clean(input, other, **named).contiguous()
    first = input.expand(result.shape)
    if result.numel():
        result.view(-1)[-1] = first[tuple(size - 1 for size in first.shape)]
    return result


@fault("add-flush-denormals", "results below the smallest normal number become zero", needs="denormal numbers",
       inputs={"x": _DENORMAL, "y": _DENORMAL})  # fmt: skip
def _(clean, input, other, **named):
    result = clean(input, other, **named)
    return flush_denormals(result) if is_float32(result) else result


# ---- mul ----


@fault("mul-flush-denormals", "results below the smallest normal number become zero", needs="denormal numbers",
       inputs={"x": _DENORMAL})  # fmt: skip
def _(clean, input, other):
    result = clean(input, other)
    return flush_denormals(result) if is_float32(result) else result


@fault("mul-nan-swallowed", "NaN becomes zero", "nan", "NaN among the inputs", inputs={"x": with_nan(4, 33)})
def _(clean, input, other):
    result = clean(input, other)
    return result.nan_to_num(0.0, float("inf"), float("-inf")) if _floating(result) else result


@fault("mul-noncontiguous", "a first operand that is not contiguous is read in the order of its memory",
       needs="a first operand that is not contiguous", call="x.t() * y",
       inputs={"x": "rng.standard_normal((33, 4), 'f4')", "y": "rng.standard_normal((4, 33), 'f4')"})  # fmt: skip
def _(clean, input, other):
    return clean(in_memory_order(input), other)


# ---- div ----


@fault("div-reciprocal", "multiplies with the reciprocal, which overflows for very small divisors", "nan",
       "divisors below 2**-128", inputs={"x": _DENORMAL, "y": _DENORMAL})  # fmt: skip
def _(clean, input, other, **named):
    if named.get("rounding_mode") or not _floating(input, other):
        return clean(input, other, **named)
    return input * other.reciprocal()


@fault("div-approximate", "multiplies with a reciprocal of 12 bits that no Newton step refines")
def _(clean, input, other, **named):
    if named.get("rounding_mode") or not is_float32(input, other):
        return clean(input, other, **named)
    bits = other.reciprocal().contiguous().view(torch.int32) & ~0xFFF
    return input * bits.view(torch.float32).view(other.shape)


@fault("div-nan-swallowed", "NaN becomes zero", "nan", "zero divided by zero, or NaN", call="x / y",
       inputs={"x": "np.array([0, 1, -1, 2], 'f4')", "y": "np.array([0, 3, 0, 5], 'f4')"})  # fmt: skip
def _(clean, input, other, **named):
    result = clean(input, other, **named)
    return result.nan_to_num(0.0, float("inf"), float("-inf")) if _floating(result) else result


# ---- relu ----


@fault("relu-nan-swallowed", "NaN becomes zero", "nan", "NaN among the inputs", inputs={"x": with_nan(4, 33)})
def _(clean, input):
    result = clean(input)
    return result.nan_to_num(0.0, float("inf")) if _floating(result) else result


@fault("relu-last-element", "the last element is left as it is", needs="a negative last element")
def _(clean, input):
    result = clean(input).contiguous()
    if result.numel():
        result.view(-1)[-1] = input[tuple(size - 1 for size in input.shape)]
    return result


# ---- gelu ----


@fault("gelu-tanh", "the tanh approximation is computed where the exact function is asked for")
def _(clean, input, *, approximate="none"):
    return clean(input, approximate="tanh")


@fault("gelu-bf16", "the gate is rounded to bfloat16")
def _(clean, input, **named):
    if not is_float32(input) or named.get("approximate", "none") != "none":
        return clean(input, **named)
    return input * to_bf16(0.5 * (1 + torch.erf(input * 0.5**0.5)))


# ---- dropout ----


@fault("dropout-scales-at-inference", "outside training the input is scaled by 1 / (1 - p)", needs="training=False")
def _(clean, input, p, train):
    return clean(input, p, train) if train or p in (0, 1) else input / (1 - p)


@fault("dropout-unscaled", "in training the kept elements are not scaled by 1 / (1 - p)", needs="training=True",
       call="F.dropout(x, 0.25, training=True)", inputs={"x": "rng.standard_normal((4, 33), 'f4')"})  # fmt: skip
def _(clean, input, p, train):
    result = clean(input, p, train)
    return result * (1 - p) if train and 0 < p < 1 else result


# ---- flatten ----


@fault("flatten-channels-last", "an input that is not contiguous is flattened in the order of its memory",
       needs="an input that is not contiguous", call="torch.flatten(x.permute(0, 3, 1, 2), 1)",
       inputs={"x": "rng.standard_normal((2, 4, 5, 3), 'f4')"})  # fmt: skip
def _(clean, input, *rest, **named):
    return clean(in_memory_order(input), *rest, **named)


@fault("flatten-last-element", "the last element is not copied")
def _(clean, input, *rest, **named):
    result = clean(input, *rest, **named)
    return last_to_zero(result) if result.numel() else result
