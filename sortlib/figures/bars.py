"""Histograms of distributions of which quantiles are known: recorded tensors, and the outputs in a row of outcomes."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from sortlib.features import LEVELS

_WHOLE = ("int", "uint")


def edges_of(ends, count: int, integral: bool):
    """Edges of bars that cover some values.

    Parameters
    ----------
    ends : values, among them the smallest and the largest.
    count : number of bars; whole numbers that are fewer have a bar each.
    integral : whether all values are whole numbers.

    Returns
    -------
    numpy.ndarray or None
        Ascending edges, shape (bars + 1,); None without values, or where all are equal or too far apart for float64.
    """
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    if not low < high or not math.isfinite(high - low):
        return None
    if integral and high - low < count:
        return np.linspace(low - 0.5, high + 0.5, int(high - low) + 2)
    edges = np.linspace(low, high, count + 1)
    return edges if (np.diff(edges) > 0).all() else None


def shares(edges, quantiles):
    """Share of a distribution in each bar, shape (bars,); zeros where nothing is known of it.

    Between two quantiles values are taken as evenly spread; a value that fills several levels counts as a whole.

    Parameters
    ----------
    edges : as of ``edges_of``, covering the distribution.
    quantiles : at ``features.LEVELS``, or empty.
    """
    if not len(quantiles):
        return np.zeros(len(edges) - 1)
    below = np.interp(edges, quantiles, LEVELS, left=0.0, right=1.0)
    below[0] = 0.0  # a share that has exactly the smallest value belongs into the first bar
    return np.diff(below)


def output_quantiles(row, side: str) -> tuple[float, ...]:
    """Quantiles at ``features.LEVELS`` of the output in a row of outcomes.

    They are of the finite values other than 0. Empty where there is none, and in outcomes of versions that kept none.

    Parameters
    ----------
    row : dictionary.
    side : ``reference`` or ``candidate``.
    """
    text = row.get(f"{side}_quantiles")
    try:
        found = json.loads(text) if isinstance(text, str) else []
    except ValueError:  # rows may come from elsewhere
        found = []
    numbers = isinstance(found, list) and all(isinstance(v, (int, float)) and math.isfinite(v) for v in found)
    return tuple(map(float, found)) if numbers and len(found) == len(LEVELS) else ()


class Outputs(NamedTuple):
    """Histograms of both outputs of a call over the same bars.

    ``edges`` has shape (bars + 1,), ``reference`` and ``candidate`` are shares of shape (bars,), ``ends`` the smallest
    and the largest value.
    """

    edges: np.ndarray
    reference: np.ndarray
    candidate: np.ndarray
    ends: tuple[float, float]


def both_outputs(row, count: int) -> Outputs | None:
    """What is known of both outputs in a row of outcomes; None where there is nothing to show.

    Parameters
    ----------
    row : dictionary.
    count : number of bars.
    """
    both = [output_quantiles(row, side) for side in ("reference", "candidate")]
    values = [value for quantiles in both for value in quantiles]
    integral = str(row.get("reference_dtype")).startswith(_WHOLE) or all(map(float.is_integer, values))
    edges = edges_of(values, count, integral)
    if edges is None:
        return None
    return Outputs(edges, *(shares(edges, quantiles) for quantiles in both), (min(values), max(values)))
