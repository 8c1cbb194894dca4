"""The values drawn for one tensor of a case, beside what was recorded of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from sortlib.drawing import draw
from sortlib.features import LEVELS, TensorFeatures, _as_numbers, measure

BARS = 24
SAMPLE = 1 << 13  # larger tensors are shown by a sample, so that a click costs milliseconds


@lru_cache(256)
def drawn(features: TensorFeatures, seed: str, sampler: str) -> dict:
    """Summary and histogram of a tensor as ``drawing.draw`` makes it.

    Parameters
    ----------
    features, seed, sampler : as given to ``draw``.

    Returns
    -------
    dict
        ``note`` for people; ``summary``: rows of name, recorded and drawn value; ``histogram``: ``low`` and ``high``
        as text, ``drawn`` and ``recorded`` shares of each bar (of the finite values other than 0, which is what the
        recorded quantiles are of), or None where there is nothing to show.
    """
    sampled = features.numel > SAMPLE
    form = replace(features, shape=(SAMPLE,), strides=(1,)) if sampled else features
    tensor = draw(form, seed, sampler)
    made = measure(tensor)
    if features.minimum is not None and features.minimum == features.maximum == made.minimum == made.maximum:
        return {"note": f"all values are {made.minimum:.4g}", "summary": [], "histogram": None}
    note = f"a sample of {SAMPLE:,}; the tensor has {features.numel:,} values" if sampled else ""
    return {"note": note, "summary": _summary(features, made), "histogram": _histogram(features, tensor)}


@lru_cache(256)
def recorded(features: TensorFeatures) -> dict:
    """The same of a tensor that another call gives, of which the recorded distribution alone is known beforehand."""
    names = ["minimum", "maximum", "mean", "std", "zeros"]
    return {"note": "", "summary": [[name, _text(name, getattr(features, name))] for name in names],
            "histogram": _histogram(features, torch.zeros(0))}  # fmt: skip


def _summary(recorded, made) -> list[list[str]]:
    names = ["minimum", "maximum", "mean", "std", "zeros"]
    names += [name for name in ("nan", "posinf", "neginf") if getattr(recorded, name) or getattr(made, name)]
    return [[name, _text(name, getattr(recorded, name)), _text(name, getattr(made, name))] for name in names]


def _text(name, value) -> str:
    if value is None:
        return "/"
    return f"{value:.2%}" if name in ("zeros", "nan", "posinf", "neginf") else f"{value:.4g}"


def _histogram(recorded, tensor) -> dict | None:
    values = _as_numbers(tensor).double().numpy() if tensor.numel() else np.zeros(0)
    values = values[np.isfinite(values) & (values != 0)]
    known = recorded.quantiles
    ends = [*([values.min(), values.max()] if values.size else []), *([known[0], known[-1]] if known else [])]
    if not ends or max(ends) <= min(ends):
        return None
    low, high = float(min(ends)), float(max(ends))
    bars = BARS
    if recorded.integral and high - low < BARS:  # a bar for each whole number
        low, high, bars = low - 0.5, high + 0.5, int(high - low) + 1
    edges = np.linspace(low, high, bars + 1)
    if not np.isfinite(edges).all() or edges[0] >= edges[1]:
        return None
    counts = np.histogram(values, edges)[0] / max(1, values.size)
    shares = np.diff(np.interp(edges, known, LEVELS, left=0.0, right=1.0)) if known else np.zeros(bars)
    return {
        "low": f"{min(ends):.3g}", "high": f"{max(ends):.3g}",
        "drawn": [round(float(share), 5) for share in counts], "recorded": [round(float(share), 5) for share in shares],
    }  # fmt: skip
