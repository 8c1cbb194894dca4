"""A backend that returns wrong numbers, for the tests of judging: a worker imports it, the environment arms faults.

Every fault is a kind that real devices have had: a gradient that forgets a term, kept values of a dropout that are not
scaled, reduced precision that a flag turns off, an approximation for the exact function, wrong positions or vectors.
"""

import os

import torch
import torch.nn.functional as F


class _ForgetfulGelu(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return _gelu(x)

    @staticmethod
    def backward(context, upstream):
        (x,) = context.saved_tensors
        return upstream * 0.5 * (1 + torch.erf(x * 0.5**0.5))  # without x times the density


class _ForgetfulNorm(torch.autograd.Function):
    @staticmethod
    def forward(context, x, shape, eps):
        context.save_for_backward(x)
        context.dims, context.eps = tuple(range(-len(shape), 0)), eps
        return _layer_norm(x, shape, eps=eps)

    @staticmethod
    def backward(context, upstream):
        (x,) = context.saved_tensors
        spread = (x.var(context.dims, unbiased=False, keepdim=True) + context.eps).sqrt()
        return upstream / spread, None, None  # without what the mean and the spread take from it


def _forgetful_norm(x, shape, weight=None, bias=None, eps=1e-5):
    return _ForgetfulNorm.apply(x, shape, eps)


_layer_norm = F.layer_norm
_gelu, _dropout, _linear, _eigh, _silu = F.gelu, F.dropout, F.linear, torch.linalg.eigh, F.silu
_CALLS = []


def _unscaled_dropout(x, p=0.5, training=True, inplace=False):
    return _dropout(x, p, training) * (1 - p)


def _dropout_of_another_share(x, p=0.5, training=True, inplace=False):
    return _dropout(x, p / 2, training) * (1 - p / 2) / (1 - p)


def _other_numbers(x, p=0.5, training=True, inplace=False):
    torch.rand(7)  # the generator is elsewhere than on the other platform
    return _dropout(x, p, training)


def _short_linear(x, w, bias=None):
    if torch.cpu.short:
        return _linear(x.bfloat16(), w.bfloat16()).to(x.dtype)
    return _linear(x, w, bias)


def _flaky_silu(x, inplace=False):
    _CALLS.append(x)
    return _silu(x) + (len(_CALLS) % 10 == 1)  # wrong in the first of ten calls


def _second_largest(x, dim=None, keepdim=False):
    return x.topk(2, dim).indices.select(dim, 1)


def _turned_vectors(x, UPLO="L"):
    values, vectors = _eigh(x)
    return values, vectors.roll(1, -1)


def _opposite_vectors(x, UPLO="L"):
    values, vectors = _eigh(x)
    return values, -vectors


_FAULTS = {
    "gelu gradient": (F, "gelu", lambda x, approximate="none": _ForgetfulGelu.apply(x)),
    "layer norm gradient": (F, "layer_norm", _forgetful_norm),
    "gelu by tanh": (F, "gelu", lambda x, approximate="none": _gelu(x, approximate="tanh")),
    "unscaled dropout": (F, "dropout", _unscaled_dropout),
    "share of dropout": (F, "dropout", _dropout_of_another_share),
    "other numbers": (F, "dropout", _other_numbers),
    "short linear": (F, "linear", _short_linear),
    "flaky silu": (F, "silu", _flaky_silu),
    "positions": (torch, "argmax", _second_largest),
    "turned vectors": (torch.linalg, "eigh", _turned_vectors),
    "opposite vectors": (torch.linalg, "eigh", _opposite_vectors),
}

if "SORT_TEST_ARITHMETIC" in os.environ:
    for armed in os.environ["SORT_TEST_ARITHMETIC"].split(", "):
        home, name, function = _FAULTS[armed]
        setattr(home, name, function)
    torch.cpu.short = True
    torch.cpu.full_precision = {"short": False}  # as an out-of-tree device names its own flags
