"""Distances by matrix multiplication, as ``torch.cdist`` documents: |x|^2 + |y|^2 - 2 x y cancels for near points.

That is how it computes them from more than 25 points on unless ``compute_mode`` says otherwise
(ATen/native/Distance.cpp). The squares are off by what a sum of products is, whatever remains of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from sortlib import thresholds
from sortlib.runner.bounds.form import narrowest, unit_roundoff

_MANY = 25
_MODES = {"use_mm_for_euclid_dist_if_necessary": 0, "use_mm_for_euclid_dist": 1, "donot_use_mm_for_euclid_dist": 2}


def of_gradients(arguments, output, upstream) -> dict:
    """What the gradients of ``cdist`` are off by where it multiplies matrices: argument -> tensor of its shape, in u.

    The difference of two points over their distance is as wrong as the distance, and is itself computed as a
    difference of sums over all points (``_euclidean_dist_backward``, torch/csrc/autograd/FunctionsManual.cpp).

    Parameters
    ----------
    output, upstream : float64 distances and the magnitudes of their upstream gradient.
    """
    points = _multiplied(arguments)
    if points is None:
        return {}
    left, right, unit = points
    apart = _apart(*points, output)
    if apart is None or left.shape[:-2] != right.shape[:-2]:
        return {}
    smallest = torch.finfo(torch.float64).tiny
    share = upstream / output.clamp(min=smallest)
    # The directions have length 1 at most, right or wrong.
    wrong = torch.minimum(share * apart, upstream / unit)
    return {"x1": _summed(left, right, share, wrong), "x2": _summed(right, left, share.mT, wrong.mT)}


def _summed(own, other, share, wrong):
    length = thresholds.SUM_FACTOR * math.sqrt(other.shape[-2])
    products = share.sum(-1, keepdim=True) * own.abs() + share @ other.abs()
    return wrong.sum(-1, keepdim=True) + length * products


def widened(limit, arguments, output):
    """The bound of ``cdist`` with the errors of multiplied matrices; unchanged where it does not multiply them.

    Parameters
    ----------
    limit : ``Bound``, or None.
    output : float64 distances.
    """
    points = _multiplied(arguments)
    if limit is None or points is None:
        return limit
    apart = _apart(*points, output)
    if apart is None:
        return limit
    terms = (*limit.own[:2], 1.0)
    return replace(limit, total=terms, own=terms, extra=apart)


def _apart(left, right, unit, output):
    """What multiplying the matrices of two sets of points puts each distance off by, in u; None for other shapes."""
    factor = thresholds.SUM_FACTOR * math.sqrt(left.shape[-1] + 2)
    norms = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
    if norms.shape != output.shape:
        return None
    # A square off by e moves the root d by e / d, or by sqrt(e) where nothing remains of d.
    squares = 2 * factor * unit * norms
    smallest = torch.finfo(torch.float64).tiny
    return torch.minimum(squares / output.clamp(min=smallest), squares.sqrt()) / unit


def _multiplied(arguments):
    """Both sets of points in float64 and u of what they were, or None where distances are computed point by point."""
    given = {a.name: a.value for a in arguments}
    points = [given.get(name) for name in ("x1", "x2")]
    if given.get("p", 2.0) != 2 or not all(isinstance(t, torch.Tensor) and t.dim() > 1 for t in points):
        return None
    mode = _MODES.get(given.get("compute_mode"), 0)
    many = max(tensor.shape[-2] for tensor in points) > _MANY
    if mode == 2 or (mode == 0 and not many):
        return None
    return points[0].double(), points[1].double(), unit_roundoff(narrowest(arguments))
