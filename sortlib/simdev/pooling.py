"""Faults of max_pool2d and adaptive_avg_pool2d."""

from __future__ import annotations

import torch

from sortlib.simdev.record import Fault, collector, with_nan
from sortlib.simdev.rounding import in_memory_order, is_float32, to_bf16

FAULTS: list[Fault] = []
fault = collector(FAULTS)


def _pair(values):
    values = (values,) if isinstance(values, int) else tuple(values)
    return (values * 2)[:2]


# ---- max_pool2d ----


@fault("max_pool2d-border", "the padding counts as zero instead of being ignored",
       needs="padding, and negative values at the border", inputs={
           "x": "-np.abs(rng.standard_normal((2, 3, 9, 9), 'f4')) - 1"})  # fmt: skip
def _(clean, input, kernel_size, stride=(), padding=(0, 0), dilation=(1, 1), ceil_mode=False):
    high, wide = _pair(padding)
    if not (high or wide) or ceil_mode or not input.is_floating_point():
        return clean(input, kernel_size, stride, padding, dilation, ceil_mode)
    padded = torch.nn.functional.pad(input, (wide, wide, high, high))
    return clean(padded, kernel_size, stride, (0, 0), dilation, ceil_mode)


@fault("max_pool2d-last-column", "the last column of every window is left out", needs="windows wider than one")
def _(clean, input, kernel_size, stride=(), padding=(0, 0), dilation=(1, 1), ceil_mode=False):
    high, wide = _pair(kernel_size)
    if wide < 2 or ceil_mode or 2 * _pair(padding)[1] > wide - 1:
        return clean(input, kernel_size, stride, padding, dilation, ceil_mode)
    columns = clean(input, kernel_size, stride, padding, dilation, ceil_mode).shape[-1]
    step = stride if stride else kernel_size
    return clean(input, (high, wide - 1), step, padding, dilation, ceil_mode)[..., :columns]


@fault("max_pool2d-nan-swallowed", "NaN is ignored like a small number", "nan", "NaN among the inputs",
       inputs={"x": with_nan(2, 3, 9, 9)})  # fmt: skip
def _(clean, input, *rest, **named):
    lowest = torch.finfo(input.dtype).min if input.is_floating_point() else 0
    return clean(input.nan_to_num(lowest, float("inf"), float("-inf")), *rest, **named)


@fault("max_pool2d-channels-last", "an input in channels-last format is read as if it were contiguous",
       needs="an input in channels-last format", call="F.max_pool2d(x.permute(0, 3, 1, 2), 3)",
       inputs={"x": "rng.standard_normal((2, 9, 9, 3), 'f4')"})  # fmt: skip
def _(clean, input, *rest, **named):
    return clean(in_memory_order(input), *rest, **named)


# ---- adaptive_avg_pool2d ----


def _windows(size, parts):
    """First and one past the last index of each window."""
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _adaptive(input, output_size, average):
    """``average`` of every window of the last two dimensions."""
    high, wide = (given or size for given, size in zip(_pair(output_size), input.shape[-2:], strict=True))
    rows, columns = _windows(input.shape[-2], high), _windows(input.shape[-1], wide)
    lines = [torch.stack([average(input[..., a:b, c:d]) for c, d in columns], -1) for a, b in rows]
    return torch.stack(lines, -2)


@fault("adaptive_avg_pool2d-border", "windows end where the next begins instead of overlapping it",
       needs="a size that the output's does not divide")  # fmt: skip
def _(clean, input, output_size):
    if not is_float32(input) or not input.numel():
        return clean(input, output_size)
    high, wide = (given or size for given, size in zip(_pair(output_size), input.shape[-2:], strict=True))
    rows = [((i * input.shape[-2]) // high, ((i + 1) * input.shape[-2]) // high) for i in range(high)]
    columns = [((i * input.shape[-1]) // wide, ((i + 1) * input.shape[-1]) // wide) for i in range(wide)]
    if any(a == b for a, b in rows + columns):  # more windows than elements
        return clean(input, output_size)
    lines = [torch.stack([input[..., a:b, c:d].mean((-2, -1)) for c, d in columns], -1) for a, b in rows]
    return torch.stack(lines, -2)


@fault("adaptive_avg_pool2d-last-term", "the last element of every window is dropped, though counted")
def _(clean, input, output_size):
    if not is_float32(input) or not input.numel():
        return clean(input, output_size)
    return _adaptive(input, output_size, lambda window: window.mean((-2, -1)) - window[..., -1, -1] / (
        window.shape[-2] * window.shape[-1]))  # fmt: skip


@fault("adaptive_avg_pool2d-bf16", "sums are kept in bfloat16 instead of float32", needs="windows of several rows")
def _(clean, input, output_size):
    if not is_float32(input) or not input.numel():
        return clean(input, output_size)

    def average(window):
        total = 0.0
        for row in range(window.shape[-2]):
            total = to_bf16(total + window[..., row, :].sum(-1))
        return total / (window.shape[-2] * window.shape[-1])

    return _adaptive(input, output_size, average)
