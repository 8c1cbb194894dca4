"""Values as histograms: those drawn for a tensor beside what was recorded of it, and the outputs of both platforms."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from sortlib.drawing import draw
from sortlib.features import TensorFeatures, _as_numbers, measure
from sortlib.figures.bars import both_outputs, edges_of, shares

BARS = 24
SHARES = ("zeros", "nan", "posinf", "neginf")  # features that are shares of the elements
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
        as text, the shares of ``bars`` (drawn) and ``line`` (recorded; of the finite values other than 0, which is
        what the recorded quantiles are of), or None where there is nothing to show.
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
    names += [name for name in SHARES[1:] if getattr(recorded, name) or getattr(made, name)]
    return [[name, _text(name, getattr(recorded, name)), _text(name, getattr(made, name))] for name in names]


def _text(name, value) -> str:
    if value is None:
        return "/"
    return f"{value:.2%}" if name in SHARES else f"{value:.4g}"


def outputs(row) -> dict | None:
    """Histogram of both outputs in a row of outcomes, as that of ``drawn``: bars of the reference's, a line of the
    candidate's. None where nothing is known of them, and where there is one value alone."""
    found = both_outputs(row, BARS)
    return None if found is None else _form(found.ends, found.reference, found.candidate)


def _histogram(recorded, tensor) -> dict | None:
    values = _as_numbers(tensor).double().numpy() if tensor.numel() else np.zeros(0)
    values = values[np.isfinite(values) & (values != 0)]
    known = recorded.quantiles
    ends = [*([values.min(), values.max()] if values.size else []), *([known[0], known[-1]] if known else [])]
    edges = edges_of(ends, BARS, recorded.integral)
    if edges is None:
        return None
    return _form((min(ends), max(ends)), np.histogram(values, edges)[0] / max(1, values.size), shares(edges, known))


def _form(ends, bars, line) -> dict:
    digits = 3
    while digits < 17 and f"{ends[0]:.{digits}g}" == f"{ends[1]:.{digits}g}":
        digits += 1  # until they can be told apart, as 10000 and 10001
    return {
        "low": f"{ends[0]:.{digits}g}", "high": f"{ends[1]:.{digits}g}",
        "bars": [round(float(share), 5) for share in bars], "line": [round(float(share), 5) for share in line],
    }  # fmt: skip
