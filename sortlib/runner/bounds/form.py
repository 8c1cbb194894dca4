"""An error bound as few numbers and at most one array, since whole arrays would cost more than the call itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from sortlib.runner.execution import tensors_in


class Unbounded(Exception):
    """No bound can be given for a call; the message says why."""


@dataclass(frozen=True)
class Bound:
    """Bound of one output t, elementwise and in u: ``constant + slope * |t| + factor * extra``.

    ``own`` is the same without what conditioning excuses, as ``(constant, slope, factor)``.
    ``samples`` is the number of elements whose errors are independent of each other. ``worst`` is the worst case of
    a sum, n u sum|terms|, in multiples of the probabilistic ``total``; None where no worst case is known.
    ``partial`` says that nobody has yet computed what conditioning excuses: ``total`` is then as small as ``own``.
    """

    total: tuple[float, float, float]
    own: tuple[float, float, float]
    samples: float
    extra: torch.Tensor | None = None
    worst: float | None = None
    partial: bool = False


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def narrowest(arguments) -> torch.dtype:
    """The floating-point or complex dtype of a call's tensors with the largest unit roundoff."""
    dtypes = {t.dtype for t in tensors_in([a.value for a in arguments]) if continuous(t)}
    return max(dtypes, key=unit_roundoff, default=torch.float64)


def lost_steps(arguments, number) -> float:
    """What ``number`` results below the normal numbers may lose, in u: a step each, which is the smallest normal
    number times 2 u."""
    return number * torch.finfo(narrowest(arguments)).smallest_normal * 2


def continuous(tensor) -> bool:
    """Whether a tensor's elements are rounded: floating-point or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def rms(tensor) -> float:
    """Root mean square of the finite elements, without overflow."""
    if tensor.numel() == 0:
        return 0.0
    norm = float(torch.linalg.vector_norm(tensor))
    if math.isfinite(norm):
        return norm / math.sqrt(tensor.numel())
    finite = tensor[tensor.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return largest * float((finite / largest).square().mean().sqrt()) if largest else 0.0


def as_arrays(limit: Bound, convert) -> Bound:
    """The same bound with ``convert(extra)`` in place of the tensor."""
    return limit if limit.extra is None else replace(limit, extra=convert(limit.extra))


def pack(limit: Bound | None, save) -> dict | None:
    """The JSON form; ``save(tensor)`` writes an array and returns its form."""
    if limit is None:
        return None
    form = {"total": limit.total, "own": limit.own, "samples": limit.samples, "worst": limit.worst, "extra": None,
            "partial": limit.partial}  # fmt: skip
    if limit.extra is not None:
        narrow = limit.extra.to(torch.float32)
        largest = float(narrow.max()) if narrow.numel() else 1.0
        form["extra"] = save(narrow if math.isfinite(largest) and largest > 1e-30 else limit.extra.double())
    return form


def unpack(form: dict | None, load) -> Bound | None:
    """What ``pack`` made; ``extra`` is then the NumPy array that ``load(form)`` returns."""
    if form is None:
        return None
    read = Bound(tuple(form["total"]), tuple(form["own"]), form["samples"], worst=form["worst"],
                 partial=form.get("partial", False))  # fmt: skip
    return replace(read, extra=load(form["extra"])) if form["extra"] else read
