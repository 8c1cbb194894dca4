"""Drawing tensors from recorded features, the same bits on every machine (DESIGN decision 5).

``torch.randn`` differs between instruction sets and devices, so values come from NumPy's Philox generator, seeded
by the case and the place of the tensor in it. Only numpy and torch are needed.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from sortlib.features import LEVELS, TensorFeatures

SAMPLERS = {
    "quantile": "values follow the recorded quantiles, zeros, NaN and infinities",
    "uniform": "values uniform between the recorded minimum and maximum (the paper's way)",
}
_TABLE = 1 << 16


def draw(features: TensorFeatures, seed: str, sampler: str = "quantile") -> torch.Tensor:
    """A CPU tensor of the recorded dtype, shape and strides.

    Parameters
    ----------
    features : what was recorded.
    seed : any text; equal texts give equal bits.
    sampler : a key of ``SAMPLERS``.
    """
    rng = np.random.Generator(np.random.Philox(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "little")))
    dtype = getattr(torch, features.dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(features.shape, features.strides, strict=True))
    count = span if features.numel else 0
    values = _booleans(features, rng, count) if dtype == torch.bool else _numbers(features, rng, count, sampler, dtype)
    memory = torch.from_numpy(values).to(dtype)
    return memory.as_strided(features.shape, features.strides) if features.numel else memory.reshape(features.shape)


def _booleans(features, rng, count):
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
    values[rng.permutation(places)[:chosen]] = True
    return values


def _numbers(features, rng, count, sampler, dtype):
    if dtype.is_complex:
        parts = [_numbers(features, rng, count, sampler, torch.float64) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(np.complex128)
    exact = dtype in (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)
    if features.minimum is None:  # nothing finite was seen, or the record holds no values
        values = np.zeros(count)
    elif sampler == "uniform":
        values = rng.uniform(features.minimum, features.maximum, count)
    else:
        values = _by_quantiles(features, rng, count, np.float64 if exact else np.float32)
    if not dtype.is_floating_point:
        if features.minimum is not None:
            values = np.clip(np.rint(values), features.minimum, features.maximum)
        return np.clip(values, -(2.0**63), 2.0**63 - 1024).astype(np.int64)  # 1024: the step of float64 there
    if features.integral:
        values = np.rint(values)
    values = values.astype(np.float64 if dtype == torch.float64 else np.float32)
    for share, special in ((features.nan, np.nan), (features.posinf, np.inf), (features.neginf, -np.inf)):
        if share:
            values[rng.random(count) < share] = special
    return values


def _by_quantiles(features, rng, count, kind):
    """Inverse of the recorded distribution function, as a table so that large tensors stay cheap."""
    if not features.quantiles:
        return np.zeros(count)
    table = np.interp((np.arange(_TABLE) + 0.5) / _TABLE, LEVELS, features.quantiles).astype(kind)
    values = table[rng.integers(0, _TABLE, count, dtype=np.uint16)]
    if features.zeros:
        values[rng.random(count, dtype=np.float32) < features.zeros] = 0
    return values


def digest(tensors) -> str:
    """A hash of dtype, shape and bits of CPU tensors; two sides with equal digests drew equal inputs."""
    state = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            state.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()
