"""Figures about two outputs, and about an output and the float64 truth.

Arrays are read in blocks that fit into a processor's cache: temporaries of a whole array in float64 would cost
several times the call that made it.
"""

from __future__ import annotations

import numpy as np

from sortlib.runner import single

BLOCK = 1 << 15  # elements; some ten float64 temporaries of this size stay in the second-level cache
EQUAL = {"max_abs": 0.0, "max_rel": 0.0, "differing": 0.0, "bits": 0.0, "scale_ulp": None, "one_sided": 0.0}
_LARGEST = float(np.finfo(np.float64).max)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays agree in dtype, shape and every bit."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = _plain(a), _plain(b)
    if a.dtype.kind == "f":
        a, b = a.view(f"i{a.dtype.itemsize}"), b.view(f"i{b.dtype.itemsize}")
    return all(np.array_equal(a[k : k + BLOCK], b[k : k + BLOCK]) for k in range(0, a.size, BLOCK))


def compare(reference: np.ndarray, candidate: np.ndarray) -> dict:
    """Differences of two arrays of equal shape.

    Returns
    -------
    dict
        ``max_abs``, ``max_rel`` (by the reference's element), ``differing`` (share of elements with unequal values,
        NaN equal to NaN), ``bits`` (share of elements with unequal bits, so that the sign of zero counts; None where
        the dtypes differ), ``scale_ulp`` (``max_abs`` in units of the last place of the reference's largest
        magnitude; None for integers) and ``one_sided`` (share that is finite or NaN or an infinity on one side only).
    """
    floating = reference.dtype.kind in "fc"
    if reference.size == 0 or same_bits(reference, candidate):
        return {**EQUAL, "scale_ulp": 0.0 if floating else None}
    a, b = _plain(reference), _plain(candidate)
    if reference.dtype == candidate.dtype == np.float32 and (found := single.compare(a, b)):
        return found
    bits = _unequal_bits(reference, candidate)
    whole = a.dtype == b.dtype and a.dtype.kind in "iu" and a.dtype.itemsize == 8
    largest = relative = magnitude = 0.0
    differing = one_sided = 0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for start in range(0, a.size, BLOCK):
            left, right = a[start : start + BLOCK], b[start : start + BLOCK]
            x, y = left.astype(np.float64), right.astype(np.float64)
            if whole:  # beyond 2**53 float64 does not tell neighbours apart; the difference wraps round to its size
                difference = np.where(left > right, left - right, right - left).view(np.uint64).astype(np.float64)
            else:
                difference = np.abs(x - y)
            np.abs(x, out=x)
            count = int(np.count_nonzero(difference != 0))  # NaN counts
            if not np.isfinite(difference.max()):
                finite = np.isfinite(x) & np.isfinite(y)
                nan = np.isnan(x), np.isnan(y)
                # Infinities of one sign leave a NaN difference without being NaN themselves.
                agree = (nan[0] & nan[1]) | (np.isnan(difference) & ~nan[0] & ~nan[1])
                count -= int(np.count_nonzero(agree))
                one_sided += int(np.count_nonzero(~finite & ~agree))
                difference[~finite] = 0.0
                x[~finite] = 0.0
            magnitude = max(magnitude, float(x.max()))
            if not count:
                continue
            differing += count
            largest = max(largest, float(difference.max()))
            # Equal zeros give NaN, which fmax passes over: selecting what differs would cost twenty times as much.
            relative = max(relative, float(np.fmax.reduce(np.divide(difference, x, out=x))))
    ulp = largest / float(np.spacing(np.asarray(magnitude).astype(a.dtype))) if floating else None
    return {"max_abs": largest, "max_rel": relative, "differing": differing / a.size, "bits": bits, "scale_ulp": ulp,
            "one_sided": one_sided / a.size}  # fmt: skip


def _unequal_bits(a, b) -> float | None:
    if a.dtype != b.dtype:
        return None
    a, b = _plain(a), _plain(b)
    if a.dtype.kind == "f":
        a, b = a.view(f"i{a.dtype.itemsize}"), b.view(f"i{b.dtype.itemsize}")
    return float(np.count_nonzero(a != b)) / a.size


def errors_of_both(reference, candidate, right: Truth, limit, units) -> list[dict]:
    """``errors`` of both platforms, together where that is cheaper.

    Parameters
    ----------
    reference, candidate : values of the platforms; None for a candidate that is equal to the last bit.
    right : the truth.
    limit : ``bounds.Bound`` with a NumPy array, or None.
    units : for each side (unit roundoff, smallest positive, largest number) of the dtype that computed.
    """
    sides = [reference, *([] if candidate is None else [candidate])]
    together = right.values is None and len(set(units)) == 1 and all(side.dtype == np.float32 for side in sides)
    extra = None if limit is None or limit.extra is None else _plain(limit.extra)
    if together and (extra is None or extra.dtype == np.float32):
        plain = [_plain(side) for side in sides]
        found = single.errors(plain[0], plain[1] if len(sides) > 1 else None, right.residual, limit, extra,
                              *units[0][:2])  # fmt: skip
        if found is not None:
            return found
    return [errors(side, right, limit, *unit) for side, unit in zip(sides, units, strict=False)]


@np.errstate(invalid="ignore", over="ignore")
def errors(output: np.ndarray, right: Truth, limit, unit: float, step: float, largest: float) -> dict:
    """Error of an output against the float64 truth.

    Parameters
    ----------
    output : values of one platform.
    right : the truth.
    limit : ``bounds.Bound`` with a NumPy array, or None.
    unit, step, largest : unit roundoff, smallest positive and largest number of the dtype that computed.

    Returns
    -------
    dict
        ``error`` (largest) and ``rms``; ``ratio`` and ``own_ratio``, the largest quotients of error and bound (None
        without a bound); ``lost``, the share of elements that are not finite though the truth lies in the dtype's
        range; ``nan_wrong``, the share of NaN where the truth is an infinity or a number, and ``nan_missing``, the
        share of other values where the truth is NaN. Elements where either is not finite count for these three only.
        The parts of a complex number have its modulus as their magnitude.
    """
    values = _plain(output)
    paired = output.dtype.kind == "c"
    extra = None if limit is None or limit.extra is None else _plain(limit.extra)
    if extra is not None and paired:
        extra = np.repeat(extra, 2)
    worst = ratio = own = squares = 0.0
    count = lost = wrong = missing = 0
    for start, x, t in right.blocks(values):
        error = np.abs(x - t)
        finite = None
        if not np.isfinite(error.max()):
            finite = np.isfinite(error)
            lost += int(np.count_nonzero(~np.isfinite(x) & (np.abs(t) <= largest)))
            nan = np.isnan(x), np.isnan(t)
            wrong += int(np.count_nonzero(nan[0] & ~nan[1]))
            missing += int(np.count_nonzero(nan[1] & ~nan[0]))
            error = error[finite]
        count += error.size
        if not error.size:
            continue
        top = float(error.max())
        if top == 0:
            continue
        worst = max(worst, top)
        squares += float(np.square(error).sum())  # np.dot would wake the threads of a BLAS
        if limit is None:
            continue
        t = np.repeat(np.hypot(t[::2], t[1::2]), 2) if paired else np.abs(t, out=t)
        more = None if extra is None else extra[start : start + x.size].astype(np.float64)
        own = max(own, _quotient(error, limit.own, t, more, finite, unit, step))
        ratio = own if limit.own == limit.total else max(
            ratio, _quotient(error, limit.total, t, more, finite, unit, step))  # fmt: skip
    size = values.size or 1
    shares = {"lost": lost / size, "nan_wrong": wrong / size, "nan_missing": missing / size}
    if not count:
        return {"error": None, "rms": None, "ratio": None, "own_ratio": None, **shares}
    return {
        "error": worst, "rms": float(np.sqrt(squares / count)), "ratio": None if limit is None else ratio,
        "own_ratio": None if limit is None else own, **shares,
    }  # fmt: skip


def _quotient(error, terms, magnitude, extra, finite, unit, step) -> float:
    constant, slope, factor = terms
    allowed = constant * unit + step
    if slope:
        allowed = allowed + (slope * unit) * magnitude
    if factor and extra is not None:
        allowed = allowed + (factor * unit) * extra
    if finite is not None and isinstance(allowed, np.ndarray):
        allowed = allowed[finite]
    return min(float(np.fmax.reduce(error / allowed)), _LARGEST)


class Truth:
    """The float64 truth of one output, kept as what it adds to the reference's output where that is exact enough.

    Parameters
    ----------
    residual, base : truth minus the reference's output (float32; None where that is zero), and that output; or
    values : the truth itself.
    """

    def __init__(self, values=None, residual=None, base=None):
        self.values = None if values is None else _plain(values)
        self.residual = None if residual is None else _plain(residual)
        self.base = None if base is None else _plain(base)

    def whole(self, base):
        """The truth as one float64 or complex128 array of the shape of ``base``, the reference's output."""
        values = np.concatenate([right for *_, right in self.blocks(_plain(base))] or [np.empty(0)])
        return (values.view(np.complex128) if base.dtype.kind == "c" else values).reshape(base.shape)

    def where(self, base, kept):
        """The truth with zero where ``kept``, of the shape of ``base``, is False."""
        values = _plain(self.whole(base))
        kept = np.repeat(kept.reshape(-1), 2) if base.dtype.kind == "c" else kept.reshape(-1)
        return Truth(values=np.where(kept, values, 0.0))

    def blocks(self, output):
        """(start, block of the output, block of the truth) as float64 arrays of their own."""
        for start in range(0, output.size, BLOCK):
            part = slice(start, start + BLOCK)
            x = output[part].astype(np.float64)
            if self.values is not None:
                yield start, x, self.values[part].astype(np.float64)
            else:
                right = self.base[part].astype(np.float64)
                if self.residual is not None:
                    right += self.residual[part]
                yield start, x, right


def _plain(array: np.ndarray) -> np.ndarray:
    """One dimension; complex as real and imaginary parts side by side."""
    array = np.ascontiguousarray(array).reshape(-1)
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array
