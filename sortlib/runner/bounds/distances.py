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
    left, right = (tensor.double().square().sum(-1) for tensor in points)
    unit = unit_roundoff(narrowest(arguments))
    factor = thresholds.SUM_FACTOR * math.sqrt(points[0].shape[-1] + 2)
    squares = 2 * factor * unit * (left.unsqueeze(-1) + right.unsqueeze(-2))
    if squares.shape != output.shape:
        return limit
    # A square off by e moves the root d by e / d, or by sqrt(e) where nothing remains of d.
    smallest = torch.finfo(torch.float64).tiny
    apart = torch.minimum(squares / output.clamp(min=smallest), squares.sqrt()) / unit
    terms = (*limit.own[:2], 1.0)
    return replace(limit, total=terms, own=terms, extra=apart)


def _multiplied(arguments):
    """Both sets of points, or None where distances are computed point by point."""
    given = {a.name: a.value for a in arguments}
    points = [given.get(name) for name in ("x1", "x2")]
    if given.get("p", 2.0) != 2 or not all(isinstance(t, torch.Tensor) and t.dim() > 1 for t in points):
        return None
    mode = _MODES.get(given.get("compute_mode"), 0)
    many = max(tensor.shape[-2] for tensor in points) > _MANY
    return points if mode == 1 or (mode == 0 and many) else None
