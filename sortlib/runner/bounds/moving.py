"""How far results move when the inputs move by a few units of their rounding."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from sortlib import thresholds
from sortlib.features import map_tensors
from sortlib.runner.bounds.double import in_double, widen
from sortlib.runner.bounds.form import continuous, unit_roundoff
from sortlib.runner.execution import tensors_in


def changes_under(executor, node, arguments, outputs, seed, ways=(1.0, 1.0), patterns=1) -> list:
    """|f(moved inputs) - f(inputs)| / u for every output, None where nothing could be moved.

    ``ways`` is how many u the argument ``input`` and the others move; a negative one turns the random signs round.
    ``patterns`` is how many of ``_SIGNS`` the random signs are multiplied by, one after another; the largest change
    counts.
    """
    changes = [None] * len(outputs)
    for pattern in range(1 if node["api"] in thresholds.LOSSES else patterns):
        found = _changes(executor, node, arguments, outputs, seed, ways, pattern)
        changes = [a if b is None else b if a is None else torch.maximum(a, b)
                   for a, b in zip(changes, found, strict=True)]  # fmt: skip
    return changes


# Rows of a Hadamard matrix, by the sum of an element's indices. Two values that move alike leave their difference as it
# was, and with it everything that is made of it; of these four, one moves any two neighbours apart, and the squares of
# the changes that four neighbours make add up.
_SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))


def _changes(executor, node, arguments, outputs, seed, ways, pattern) -> list:
    none = [None] * len(outputs)
    units = [unit_roundoff(t.dtype) for t in tensors_in([a.value for a in arguments]) if continuous(t)]
    if not units:
        return none
    step = max(units)
    moved = [a._replace(value=_move(a, step * ways[a.name != "input"], seed, node["api"], pattern))
             for a in widen(arguments)]  # fmt: skip
    call = executor.call(in_double(node), moved, seed)
    if call.error is not None or [o.shape for o in call.outputs] != [o.shape for o in outputs]:
        return none
    return [
        (other - output).abs().nan_to_num_(0.0, 0.0, 0.0).div_(step) if continuous(output) else None
        for output, other in zip(outputs, call.outputs, strict=True)
    ]


def _move(argument, step, seed, api, pattern=0):
    """Every element times 1 + step or 1 - step, by random signs that are the same on every machine."""
    # Coordinates in [-1, 1] are shifted to [0, 2] first, and values by the lower end of their histogram,
    # which rounds them absolutely.
    absolute = argument.name == "grid" or api in thresholds.HISTOGRAMS
    if api in thresholds.STEPS and isinstance(argument.value, float):  # rounded to the tensor's dtype
        return argument.value * (1 + step)

    def move(path, tensor):
        if not continuous(tensor) or tensor.numel() == 0:
            return tensor
        if tensor.is_complex():
            return torch.view_as_complex(move((*path, "parts"), torch.view_as_real(tensor.resolve_conj())).contiguous())
        if api in thresholds.LOSSES:
            return tensor * (1 + step if argument.name == "input" else 1 - step)
        key = hashlib.sha256(f"{seed}/{argument.name}/{path}".encode()).digest()[:16]
        rng = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
        bits = np.unpackbits(np.frombuffer(rng.bytes((tensor.numel() + 7) // 8), np.uint8), count=tensor.numel())
        factors = torch.from_numpy(bits).to(tensor.device).to(tensor.dtype).mul_(2 * step).sub_(step)
        factors = factors.reshape(tensor.shape)
        if pattern:
            factors.mul_(_signs(pattern, tensor))
        return tensor + factors * (1 + tensor.abs().max()) if absolute else tensor * factors.add_(1)

    return map_tensors(argument.value, move)


def _signs(pattern, tensor):
    """The signs of ``_SIGNS[pattern]`` for every element of a tensor."""
    places = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for size in tensor.shape:
        places = places.unsqueeze(-1) + torch.arange(size, device=tensor.device)
    return torch.tensor(_SIGNS[pattern], dtype=tensor.dtype, device=tensor.device)[places % len(_SIGNS)]
