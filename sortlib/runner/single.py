"""The figures of ``evidence`` for finite float32 arrays, in float32: a quarter of the cost of going by float64.

The difference of two neighbouring float32 numbers is exact, and any other is rounded by less than a ten-millionth of
itself, which no verdict turns on. Where that would not hold (infinities, NaN, results near the ends of the range),
these functions return None, and ``evidence`` computes in float64.
"""

from __future__ import annotations

import math

import numpy as np

BLOCK = 1 << 14  # elements; the temporaries of a block stay in a processor's second-level cache
_SMALL, _LARGE = 1e-15, 1e15  # between them, the square of the largest error and of what matters beside it is normal


@np.errstate(all="ignore")
def compare(reference: np.ndarray, candidate: np.ndarray) -> dict | None:
    """``evidence.compare`` of two arrays of one dimension and equal length."""
    integers = reference.view(np.int32), candidate.view(np.int32)
    work = np.empty((3, BLOCK), np.float32)
    largest = relative = magnitude = 0.0
    differing = unequal = 0
    for start in range(0, reference.size, BLOCK):
        part = slice(start, start + BLOCK)
        x = reference[part]
        difference, quotient, sizes = (row[: x.size] for row in work)
        top = float(np.abs(x, out=sizes).max())
        if not math.isfinite(top):
            return None
        magnitude = max(magnitude, top)
        count = int(np.count_nonzero(integers[0][part] != integers[1][part]))
        if not count:
            continue
        unequal += count
        np.subtract(candidate[part], x, out=difference)
        differing += int(np.count_nonzero(difference))
        top = float(np.abs(difference, out=difference).max())
        if not math.isfinite(top):
            return None
        largest = max(largest, top)
        # Equal zeros give NaN, which fmax passes over.
        relative = max(relative, float(np.fmax.reduce(np.divide(difference, sizes, out=quotient))))
    if math.isinf(relative):  # a zero on the reference's side, or a quotient beyond float32
        return None
    ulp = largest / float(np.spacing(np.float32(magnitude)))
    return {"max_abs": largest, "max_rel": max(relative, 0.0), "differing": differing / reference.size,
            "bits": unequal / reference.size, "scale_ulp": ulp, "one_sided": 0.0}  # fmt: skip


@np.errstate(all="ignore")
def errors(reference, candidate, residual, limit, extra, unit: float, step: float) -> list[dict] | None:
    """``evidence.errors`` of both sides at once, which share the size of what is allowed.

    Parameters
    ----------
    reference : values of the reference, one dimension.
    candidate : those of the candidate, or None where they are the same to the last bit.
    residual : float64 truth minus the reference's values, as float32; None where the reference is the truth itself.
    limit : ``bounds.Bound`` or None, whose array is ``extra``.
    unit, step : unit roundoff and smallest positive number of the dtype that computed.

    Returns
    -------
    list of dict
        Figures of the reference, and of the candidate where there is one.
    """
    sides = [_Side(), _Side()][: 1 if candidate is None else 2]
    terms = [] if limit is None else [limit.own] if limit.own == limit.total else [limit.own, limit.total]
    work = np.empty((5, BLOCK), np.float32)
    for start in range(0, reference.size, BLOCK):
        part = slice(start, start + BLOCK)
        x = reference[part]
        own, other, allowed, truth, spare = (row[: x.size] for row in work)
        found = [np.abs(residual[part], out=own)] if residual is not None else [None]
        if candidate is not None:
            np.subtract(candidate[part], x, out=other)
            if residual is not None:
                other -= residual[part]
            found.append(np.abs(other, out=other))
        tops = [0.0 if error is None else float(error.max()) for error in found]
        if not all(map(math.isfinite, tops)):
            return None
        if not any(tops):
            continue
        for side, error, top in zip(sides, found, tops, strict=True):
            if top:
                side.add(error, top, spare)
        if terms:
            np.abs(x if residual is None else np.add(x, residual[part], out=truth), out=truth)
        more = None if extra is None else extra[part]
        for number, (constant, slope, factor) in enumerate(terms):
            # In units of roundoff, so that even the smallest allowance is a normal number.
            np.multiply(truth, np.float32(slope), out=allowed)
            allowed += np.float32(constant + step / unit)
            if factor and more is not None:
                allowed += np.multiply(more, np.float32(factor), out=spare)
            for side, error, top in zip(sides, found, tops, strict=True):
                if top:
                    quotient = float(np.fmax.reduce(np.divide(error, allowed, out=spare)))
                    side.quotients[number] = max(side.quotients[number], quotient)
    answers = [side.figures(reference.size, unit, len(terms)) for side in sides]
    return None if None in answers else answers


class _Side:
    """What is known of the errors of one platform."""

    def __init__(self):
        self.worst, self.squares, self.quotients = 0.0, 0.0, [0.0, 0.0]

    def add(self, error, top, spare):
        self.worst = max(self.worst, top)
        self.squares += float(np.add.reduce(np.square(error, out=spare)))

    def figures(self, size, unit, terms):
        """The entries of ``evidence.errors``, or None where float32 is too narrow for them."""
        if self.worst and not _SMALL < self.worst < _LARGE or not all(map(math.isfinite, self.quotients)):
            return None
        own, total = ((q / unit for q in self.quotients) if terms else (None, None))  # fmt: skip
        return {"error": self.worst, "rms": math.sqrt(self.squares / size), "ratio": own if terms == 1 else total,
                "own_ratio": own, "lost": 0.0, "nan_wrong": 0.0, "nan_missing": 0.0}  # fmt: skip
