"""Faults of softmax, layer_norm and batch_norm."""

from __future__ import annotations

import torch

from sortlib.simdev.record import Fault, collector, with_nan
from sortlib.simdev.rounding import is_float32, to_bf16

FAULTS: list[Fault] = []
fault = collector(FAULTS)

_FAR = "(rng.standard_normal(({shape})) + 1e4).astype('f4')"

# ---- softmax ----


def _exponentials(input, dim):
    """exp(x - max) and its sum, as the operator computes them."""
    raised = torch.exp(input - input.amax(dim, keepdim=True))
    return raised, raised.sum(dim, keepdim=True)


def _applies(input, dtype) -> bool:
    return is_float32(input) and dtype in (None, torch.float32) and input.numel() > 0 and input.dim() > 0


@fault("softmax-no-maximum", "the maximum is not subtracted, so large inputs overflow", "nan", "inputs above 88",
       inputs={"x": "(rng.standard_normal((4, 33)) * 60).astype('f4')"})  # fmt: skip
def _(clean, input, dim, dtype=None):
    if not _applies(input, dtype):
        return clean(input, dim, dtype)
    raised = torch.exp(input)
    return raised / raised.sum(dim, keepdim=True)


@fault("softmax-last-term", "the last element is missing in the sum")
def _(clean, input, dim, dtype=None):
    if not _applies(input, dtype) or input.shape[dim] < 2:
        return clean(input, dim, dtype)
    raised, _ = _exponentials(input, dim)
    return raised / raised.narrow(dim, 0, input.shape[dim] - 1).sum(dim, keepdim=True)


@fault("softmax-bf16", "the sum is rounded to bfloat16")
def _(clean, input, dim, dtype=None):
    if not _applies(input, dtype):
        return clean(input, dim, dtype)
    raised, total = _exponentials(input, dim)
    return raised / to_bf16(total)


@fault("softmax-minus-infinity", "an input of -inf counts as -10, so masked positions keep a share",
       needs="inputs of -inf", inputs={
           "x": "np.where(rng.uniform(size=(4, 33)) < .1, -np.inf, rng.standard_normal((4, 33))).astype('f4')"
       })  # fmt: skip
def _(clean, input, dim, dtype=None):
    return clean(input.masked_fill(input == float("-inf"), -10.0) if _applies(input, dtype) else input, dim, dtype)


# ---- layer_norm ----


def _layer_norm(input, shape, weight, bias, mean, variance, eps):
    result = (input - mean) * torch.rsqrt(variance + eps)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def _dims(shape):
    return tuple(range(-len(shape), 0))


@fault("layer_norm-one-pass", "the variance is E[x**2] - E[x]**2 in float32, which cancels", needs="a large mean",
       inputs={"x": _FAR.format(shape="20, 64")})  # fmt: skip
def _(clean, input, normalized_shape, weight=None, bias=None, eps=1e-5, *rest):
    if not is_float32(input):
        return clean(input, normalized_shape, weight, bias, eps)
    dims = _dims(normalized_shape)
    mean = input.mean(dims, keepdim=True)
    variance = (input.square().mean(dims, keepdim=True) - mean.square()).clamp(min=0)
    return _layer_norm(input, normalized_shape, weight, bias, mean, variance, eps)


@fault("layer_norm-eps", "eps is always 1e-3")
def _(clean, input, normalized_shape, weight=None, bias=None, eps=1e-5, *rest):
    return clean(input, normalized_shape, weight, bias, 1e-3)


@fault("layer_norm-unbiased", "the variance divides by n - 1 instead of n")
def _(clean, input, normalized_shape, weight=None, bias=None, eps=1e-5, *rest):
    if not is_float32(input):
        return clean(input, normalized_shape, weight, bias, eps)
    dims = _dims(normalized_shape)
    variance, mean = torch.var_mean(input, dims, correction=1, keepdim=True)
    return _layer_norm(input, normalized_shape, weight, bias, mean, variance, eps)


@fault("layer_norm-nan-swallowed", "NaN becomes zero", "nan", "NaN among the inputs",
       inputs={"x": with_nan(20, 64)})  # fmt: skip
def _(clean, *args, **named):
    return clean(*args, **named).nan_to_num(0.0, float("inf"), float("-inf"))


# ---- batch_norm ----


def _batch_norm(clean, input, weight, bias, mean, variance, eps):
    shape = (1, -1) + (1,) * (input.dim() - 2)
    scale = torch.rsqrt(variance + eps)
    result = (input - mean.view(shape)) * scale.view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    return result if bias is None else result + bias.view(shape)


@fault("batch_norm-one-pass", "the variance is E[x**2] - E[x]**2 in float32, which cancels",
       needs="training=True and a large mean", call="F.batch_norm(x, None, None, training=True)",
       inputs={"x": _FAR.format(shape="4, 20, 5, 5")})  # fmt: skip
def _(clean, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    result = clean(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
    if not training or not is_float32(input):
        return result
    dims = (0, *range(2, input.dim()))
    mean = input.mean(dims)
    variance = (input.square().mean(dims) - mean.square()).clamp(min=0)
    return _batch_norm(clean, input, weight, bias, mean, variance, eps)


@fault("batch_norm-eps", "eps is added to the standard deviation instead of the variance")
def _(clean, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    result = clean(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
    if not is_float32(input):
        return result
    dims = (0, *range(2, input.dim()))
    variance, mean = torch.var_mean(input, dims, correction=0) if training else (running_var, running_mean)
    deviation = variance.sqrt() + eps
    return _batch_norm(clean, input, weight, bias, mean, deviation.square(), 0.0)


@fault("batch_norm-batch-statistics", "outside training the statistics of the batch are used", needs="training=False")
def _(clean, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    if training or input.numel() // input.shape[1] < 2:
        return clean(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
    return clean(input, weight, bias, None, None, True, momentum, eps, cudnn_enabled)
