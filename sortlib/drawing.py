"""Drawing tensors from recorded features, the same bits on every machine (DESIGN decision 5).

``torch.randn`` differs between instruction sets and devices. Here random bits come from NumPy's SFC64 generator,
seeded by the case and the place of the tensor in it; NumPy promises the stream of a bit generator for good, which it
does not for the methods of ``Generator``. Up to sixteen bits choose an entry of a table that holds the recorded
distribution. The table is computed by separate additions and multiplications, each rounded once, so that it is the
same everywhere. Only numpy and torch are needed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import torch

from sortlib.features import LEVELS, TensorFeatures

SAMPLERS = {
    "quantile": "values follow the recorded quantiles, zeros, NaN and infinities",
    "uniform": "values uniform between the recorded minimum and maximum (the paper's way)",
}
_SMALLEST, _LARGEST = 10, 16  # binary logarithms of the sizes of tables; sixteen bits choose an entry
_BLOCK = 1 << 16  # elements drawn at once; what they need stays in a processor's cache
_PER_WORD = 4  # table indices in one random word
_ROW = 1024  # words that the digest adds up at once
_ROWS = 64  # rows of one sum, half a megabyte


def draw(features: TensorFeatures, seed: str, sampler: str = "quantile") -> torch.Tensor:
    """A CPU tensor of the recorded dtype, shape and strides.

    Parameters
    ----------
    features : what was recorded.
    seed : any text; equal texts give equal bits.
    sampler : a key of ``SAMPLERS``.
    """
    bits = np.random.SFC64(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "little"))
    dtype = getattr(torch, features.dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(features.shape, features.strides, strict=True))
    count = span if features.numel else 0
    if dtype == torch.bool:
        values = _booleans(features, bits, count)
    else:
        values = _numbers(features, bits, count, sampler, dtype)
    memory = torch.from_numpy(values).to(dtype)
    return memory.as_strided(features.shape, features.strides) if features.numel else memory.reshape(features.shape)


def _uniform(bits, count):
    """Uniform float64 values in [0, 1), of 53 random bits each."""
    return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53


def _booleans(features, bits, count):
    # Exactly the recorded number of True, since it decides the shape that a boolean index returns.
    values = np.zeros(count, bool)
    if features.numel == count:
        places = np.arange(count)
    else:  # memory that the view repeats, or skips
        places = np.lib.stride_tricks.as_strided(
            np.arange(count), features.shape, [8 * step for step in features.strides]
        )
        places = np.unique(places)
    chosen = round((features.mean or 0.0) * places.size)
    if chosen:
        # The places with the smallest of as many random words; of equal words, if ever, the first.
        words = bits.random_raw(places.size)
        last = np.partition(words, chosen - 1)[chosen - 1]
        values[places[np.flatnonzero(words <= last)[:chosen]]] = True
    return values


def _numbers(features, bits, count, sampler, dtype):
    if dtype.is_complex:
        parts = [_numbers(features, bits, count, sampler, torch.float64) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(np.complex128)
    kind = "i8" if not dtype.is_floating_point else "f8" if dtype == torch.float64 else "f4"
    # Values of float32 and narrower are rounded to float32 first, so that all tables of a distribution are one.
    fine = dtype in (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)
    ends = (features.minimum, features.maximum)
    if features.minimum is None:  # nothing finite was seen, or the record holds no values
        values = np.zeros(count, kind)
    elif sampler == "uniform":
        share = _uniform(bits, count)
        values = _as_kind(ends[0] * (1 - share) + ends[1] * share, kind, fine, features.integral, ends)
    elif not features.quantiles:
        values = _as_kind(np.zeros(count), kind, fine, features.integral, ends)
    else:
        # A table as large as a quarter of what is drawn from it is as good, and does not cost more than the drawing.
        size = 1 << min(max((count // 4).bit_length(), _SMALLEST), _LARGEST)
        table = _table(features.quantiles, features.zeros, kind, fine, features.integral, ends, size)
        values = _chosen(table, bits, count)
    if not dtype.is_floating_point:
        return values
    for share, special in ((features.nan, np.nan), (features.posinf, np.inf), (features.neginf, -np.inf)):
        if share:
            values[_uniform(bits, count) < share] = special
    return values


def _as_kind(values, kind, fine, integral, ends):
    """Float64 values as int64, float64 or float32, whole where the recorded ones were."""
    if not fine:
        values = values.astype(np.float32)
    if kind == "i8":
        values = np.clip(np.rint(values.astype(np.float64)), *ends)
        return np.clip(values, -(2.0**63), 2.0**63 - 1024).astype(np.int64)  # 1024: the step of float64 there
    return (np.rint(values) if integral else values).astype(kind, copy=False)


@lru_cache(len(range(_SMALLEST, _LARGEST + 1)))
def _levels(size):
    """For each segment between two recorded levels: its place in a table of ``size`` entries, and how far along it
    the entries lie, from 0 to 1."""
    at = (np.arange(size) + 0.5) / size
    places = [*np.searchsorted(at, LEVELS[:-1]).tolist(), size]
    segments = []
    for k in range(len(LEVELS) - 1):
        part = slice(places[k], places[k + 1])
        segments.append((part, (at[part] - LEVELS[k]) / (LEVELS[k + 1] - LEVELS[k])))
    return segments


@lru_cache(256)  # some 40 MB
def _table(quantiles, zeros, kind, fine, integral, ends, size):
    """The inverse of the recorded distribution function at ``size`` evenly spaced levels, zeros included."""
    values = np.empty(size)
    for (part, share), low, high in zip(_levels(size), quantiles[:-1], quantiles[1:], strict=True):
        # Weighted ends, since the distance between two float64 values may overflow; rounding may pass an end by a bit.
        values[part] = np.minimum(np.maximum(low * (1 - share) + high * share, low), high)
    zero = min(round(zeros * size), size)
    if zero:
        rest = np.arange(size - zero) * size // max(size - zero, 1)
        values = np.concatenate([np.zeros(zero), values[rest]])
    table = _as_kind(values, kind, fine, integral, ends)
    table.flags.writeable = False
    return table


def _chosen(table, bits, count):
    """``count`` entries of a table of 2**k of them, each by k of sixteen random bits."""
    values = np.empty(count, table.dtype)
    places = np.empty(min(_BLOCK, count), np.intp)
    surplus = np.uint16(16 - (table.size.bit_length() - 1))
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        words = bits.random_raw(-(-size // _PER_WORD)).astype("<u8", copy=False)
        halves = words.view("<u2")[:size]
        places[:size] = halves >> surplus if surplus else halves
        # No index is out of range, and NumPy fills ``out`` without a copy unless it has to raise.
        table.take(places[:size], out=values[start : start + size], mode="clip")
    return values


def digest(tensors) -> str:
    """A hash of dtype, shape and bits of CPU tensors; two sides with equal digests drew equal inputs.

    It guards against libraries that compute differently, not against forgery: memory is added up in columns of up to
    64 words of 8 bytes (modulo 2**64), and the sums are hashed with BLAKE2. Every changed bit and every shift shows;
    words that change places within one column do not. This costs a hundredth of hashing all bytes.
    """
    state = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if not tensor.numel():
            continue
        # One element may have any stride and still be contiguous, which a view of bytes does not take.
        memory = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
        whole = memory.size // (8 * _ROW) * 8 * _ROW
        rows = memory[:whole].view("<u8").reshape(-1, _ROW)
        for start in range(0, len(rows), _ROWS):
            state.update(np.add.reduce(rows[start : start + _ROWS], axis=0).data)
        state.update(memory[whole:].data)
    return state.hexdigest()
