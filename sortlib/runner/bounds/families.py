"""Which bound holds for a call: the families of ``sortlib.thresholds``."""

from __future__ import annotations

import math

import torch

from sortlib import apis, thresholds
from sortlib.runner import invariants
from sortlib.runner.execution import tensors_in


def family(api: str, arguments=()) -> str:
    """``exact``, ``rounded``, ``sum`` or ``other``: which bound holds for a call (see ``sortlib.thresholds``)."""
    tensors = tensors_in([a.value for a in arguments])
    real = not any(t.is_complex() for t in tensors)
    given = {a.name: a.value for a in arguments}
    if api in apis.DATA_MOVEMENT or (api in thresholds.EXACT and real):
        if given.get("max_norm") is not None or given.get("decimals"):
            return "other"  # an embedding that scales its rows first; rounding to decimals divides
        return "rounded" if _rounds_a_number(tensors, arguments) else "exact"
    if api in apis.SUM_OF_PRODUCTS:
        return "sum"
    if api in thresholds.CONVERSIONS:
        return "rounded"
    # A Python number is rounded to the tensor's dtype first, and alpha adds an operation.
    plain = len(tensors) == len(arguments) and len({t.dtype for t in tensors}) == 1 and real
    return "rounded" if api in thresholds.ROUNDED and plain else "other"


def depends_on_order(api: str) -> bool:
    """Whether an infinity among the inputs makes the result a matter of the order of evaluation."""
    if api in thresholds.COMBINING or api in thresholds.COORDINATES or api in thresholds.ATTENTION:
        return True
    return api in apis.SUM_OF_PRODUCTS or on_matrices(api) or api.startswith(("fft.", "stft", "istft"))


def family_of(node) -> str:
    """The row of the table of thresholds that holds for a case node."""
    api, given = node["api"], {name: value for name, value, _ in node["arguments"]}
    if node["random"]:
        return "masked" if api in thresholds.MASKED else "random"
    if invariants.known(api) and invariants.positions(api):
        return "exact"
    if on_matrices(api) or invariants.known(api):
        return "matrix"
    if special(api):
        return "special"
    if has_steps(api, given):
        return "steps"
    return family(api)


def has_steps(api, given) -> bool:
    """Whether the result has steps at which an argument that is computed with rounding decides."""
    nearest = given.get("mode") == "nearest" or given.get("interpolation_mode") == 1
    return bool(api in thresholds.STEPS or given.get("decimals") or given.get("rounding_mode")
                or nearest and api in thresholds.ON_GRIDS)  # fmt: skip


def _rounds_a_number(tensors, arguments) -> bool:
    """Whether a call that moves elements also rounds some: a Python number, or into a narrower output or target."""
    dtypes = {t.dtype for t in tensors if t.is_floating_point()}
    if len(dtypes) > 1 or any(isinstance(a.value, torch.dtype) for a in arguments):
        return True
    numbers = [a.value for a in arguments if isinstance(a.value, float) and math.isfinite(a.value)]
    return any(float(torch.tensor(n, dtype=dtype)) != n for n in numbers for dtype in dtypes)


def special(api) -> bool:
    """Whether an API approximates a special function."""
    return api in thresholds.SPECIAL or "bessel" in api or "polynomial" in api


def on_matrices(api) -> bool:
    """Whether an API factors or solves whole matrices."""
    return (api.startswith("linalg.") or api in thresholds.MATRIX) and api not in thresholds.NOT_MATRIX
