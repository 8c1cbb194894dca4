"""Simpler tensors in the place of one: what a person would have written."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from sortlib.reproducing.values import LITERAL, Value


def simpler_values(value: Value, seed: int) -> list[Value]:
    """Simpler tensors of the same dtype and shape, the simplest first.

    Zeros, ones and other constants, then random numbers rounded to whole numbers, one or two digits, or not at all;
    small tensors at last rounded as they are.
    """
    dtype = getattr(torch, value.dtype)
    tensor = value.tensor()
    if not tensor.numel() or dtype.is_complex:
        return []

    def made(kind, *content):
        return replace(value, kind=kind, content=content)

    numbers = tensor.double().numpy() if dtype != torch.bool else tensor.numpy().astype(float)
    finite = numbers[np.isfinite(numbers)]
    special = [number for number in (math.inf, -math.inf) if (numbers == number).any()]
    special += [math.nan] if np.isnan(numbers).any() else []
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    exact = not dtype.is_floating_point
    if exact:
        options = [made("constant", c) for c in dict.fromkeys((0, 1, int(low), int(high)))]
        options += [made("integers", int(low), int(high), seed)] if dtype != torch.bool else []
    else:
        constants = [*([0.0, 1.0] if not special else []), *special, _round(high, 2), _round(low, 2)]
        options = [made("constant", c) for c in dict.fromkeys(constants)]
        if finite.size and not special:
            options += [made(kind, *content, seed) for kind, content in _random(finite)]
        if value.numel <= LITERAL:
            options += [Value.stored(_rounded(tensor, digits)) for digits in (1, 2, 3)]
    return [option for option in options if option.kind == value.kind == "stored" or _rank(option) < _rank(value)]


def _rank(value) -> tuple:
    """How much there is to say of a value: the search goes down only, so that it comes to an end."""
    if value.kind == "constant":
        (number,) = value.content
        return (0, int(number) if number in (0, 1) else 2)
    if value.kind in ("normal", "uniform"):
        digits = value.content[2]
        return (2 + (value.kind == "uniform"), math.inf if digits is None else digits)
    return ({"integers": 1, "drawn": 4, "stored": 5}[value.kind],)


def _random(finite):
    """Random numbers like some finite ones: normal and uniform, with few digits or all."""
    mean, std = float(finite.mean()), float(finite.std())
    mean = 0.0 if abs(mean) < 0.2 * std else _round(mean, 1 if abs(mean) > 10 * std else 2)
    std = _round(std, 1)
    if not std:
        return
    digits = [d for d in (base - math.floor(math.log10(std)) for base in (0, 1, 2)) if abs(d) < 8]
    for scale in [1.0, std] if 0.1 <= std <= 10 and std != 1 else [std]:
        yield from (("normal", (mean, scale, d)) for d in (*digits, None))
    ends = _round(float(finite.min()), 2), _round(float(finite.max()), 2)
    yield from (("uniform", (*ends, d)) for d in (*digits, None))


def _round(number, digits) -> float:
    """Rounded to some significant digits."""
    return float(f"{number:.{digits - 1}e}")


def _rounded(tensor, digits):
    numbers = tensor.double().reshape(-1).tolist()
    flat = [_round(number, digits) if math.isfinite(number) else number for number in numbers]
    rounded = torch.tensor(flat, dtype=torch.float64).reshape(tensor.shape).to(tensor.dtype)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(rounded)
