"""Faults of sums of products: linear, matmul and conv2d."""

from __future__ import annotations

import torch

from sortlib.simdev.record import Fault, collector
from sortlib.simdev.rounding import in_memory_order, is_float32, tf32_allowed, to_bf16, to_tf32

FAULTS: list[Fault] = []
fault = collector(FAULTS)

_BLOCK = 8  # terms between two roundings of an accumulator


def _tf32(clean, first, second, *rest, **named):
    if tf32_allowed() and is_float32(first, second):
        first, second = to_tf32(first), to_tf32(second)
    return clean(first, second, *rest, **named)


def _product_bf16(first, second):
    """first @ second with an accumulator that is rounded to bfloat16 after every block of terms."""
    total = 0.0
    for start in range(0, first.shape[-1], _BLOCK):
        stop = start + _BLOCK
        rows = second[start:stop] if second.dim() == 1 else second[..., start:stop, :]
        total = to_bf16(total + torch.matmul(first[..., start:stop], rows))
    return total


# ---- linear ----

fault("linear-tf32", "float32 inputs are rounded to TensorFloat-32, which torch.backends.simdev.allow_tf32 = False "
      "switches off", "config")(_tf32)  # fmt: skip


@fault("linear-bf16", "sums are kept in bfloat16 instead of float32")
def _(clean, input, weight, bias=None):
    if not is_float32(input, weight) or not input.numel():
        return clean(input, weight, bias)
    result = _product_bf16(input, weight.t())
    return result if bias is None else result + bias


@fault("linear-last-term", "the last of the summed products is dropped")
def _(clean, input, weight, bias=None):
    return clean(input[..., :-1], weight[..., :-1], bias)


@fault("linear-bias-twice", "the bias is added twice", needs="a bias")
def _(clean, input, weight, bias=None):
    return clean(input, weight, None if bias is None else bias + bias)


@fault("linear-noncontiguous", "an input that is not contiguous is read in the order of its memory",
       needs="an input that is not contiguous", call="F.linear(x.t(), w)",
       inputs={"x": "rng.standard_normal((64, 8), 'f4')", "w": "rng.standard_normal((16, 64), 'f4')"})  # fmt: skip
def _(clean, input, weight, bias=None):
    return clean(in_memory_order(input), weight, bias)


# ---- matmul ----

fault("matmul-tf32", "float32 inputs are rounded to TensorFloat-32, which torch.backends.simdev.allow_tf32 = False "
      "switches off", "config")(_tf32)  # fmt: skip


@fault("matmul-bf16", "sums are kept in bfloat16 instead of float32")
def _(clean, input, other):
    if not is_float32(input, other) or not input.numel() or not other.numel():
        return clean(input, other)
    return _product_bf16(input, other)


@fault("matmul-last-term", "the last of the summed products is dropped")
def _(clean, input, other):
    rows = other[:-1] if other.dim() == 1 else other[..., :-1, :]
    return clean(input[..., :-1], rows)


@fault("matmul-noncontiguous", "a transposed second operand is read in the order of its memory",
       needs="a second operand that is not contiguous", call="torch.matmul(x, y.transpose(1, 2))",
       inputs={"y": "rng.standard_normal((3, 16, 64), 'f4')", "x": "rng.standard_normal((3, 8, 64), 'f4')"},
)  # fmt: skip
def _(clean, input, other):
    return clean(input, in_memory_order(other))


# ---- conv2d ----

fault("conv2d-tf32", "float32 inputs are rounded to TensorFloat-32, which torch.backends.simdev.allow_tf32 = False "
      "switches off", "config")(_tf32)  # fmt: skip


@fault("conv2d-bf16", "sums are kept in bfloat16 instead of float32")
def _(clean, input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    if not is_float32(input, weight) or not input.numel():
        return clean(input, weight, bias, stride, padding, dilation, groups)
    if groups > 1:  # few terms a sum: only the sum itself is rounded
        result = to_bf16(clean(input, weight, None, stride, padding, dilation, groups))
    else:
        result = 0.0
        for channel in range(weight.shape[1]):
            part = slice(channel, channel + 1)
            one = clean(input.narrow(-3, channel, 1), weight[:, part], None, stride, padding, dilation, 1)
            result = to_bf16(result + one)
    return result if bias is None else result + bias.view(-1, 1, 1)


@fault("conv2d-last-channel", "the last input channel of every group is left out",)  # fmt: skip
def _(clean, input, weight, *rest, **named):
    without = weight.clone()
    without[:, -1] = 0
    return clean(input, without, *rest, **named)


@fault("conv2d-border", "the padding repeats the border instead of being zero", needs="padding")
def _(clean, input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    if isinstance(padding, str) or not is_float32(input) or not any(padding):
        return clean(input, weight, bias, stride, padding, dilation, groups)
    high, wide = (tuple(padding) * 2)[:2]
    batch = input if input.dim() == 4 else input.unsqueeze(0)
    padded = torch.nn.functional.pad(batch, (wide, wide, high, high), mode="replicate")
    return clean(padded.view(*input.shape[:-3], *padded.shape[-3:]), weight, bias, stride, (0, 0), dilation, groups)


@fault("conv2d-channels-last", "an input in channels-last format is read as if it were contiguous",
       needs="an input in channels-last format",
       call="F.conv2d(x.permute(0, 3, 1, 2), w)",
       inputs={"x": "rng.standard_normal((2, 12, 12, 8), 'f4')", "w": "rng.standard_normal((4, 8, 3, 3), 'f4')"},
)  # fmt: skip
def _(clean, input, *rest, **named):
    return clean(in_memory_order(input), *rest, **named)
