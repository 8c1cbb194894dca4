"""What is unique about results that are not: factors of a matrix up to signs and order, positions of equal values.

Eigenvectors may change sign, singular vectors of a multiple singular value may turn, and of equal largest elements
either may be named. Two platforms that choose differently are both right, so such outputs are compared by what every
right answer shares: the product of the factors, their orthogonality, the elements at the named positions.
"""

from __future__ import annotations

import math

import torch

from sortlib import thresholds
from sortlib.runner.execution import tensors_in


def known(api: str) -> bool:
    """Whether outputs of this API are compared by invariants."""
    return api in _FACTORS or api in _POSITIONS


def positions(api: str) -> bool:
    """Whether the invariants are the elements at named positions, which no rounding changes."""
    return api in _POSITIONS


def invariants(api: str, arguments, outputs) -> list | None:
    """What every right result of the call shares.

    Parameters
    ----------
    arguments : bound arguments of the call.
    outputs : its output tensors, of any platform and dtype.

    Returns
    -------
    list of (values, scale), both float64 or complex128 on the CPU; rounding of a backward-stable algorithm moves values
    by a few n u times the scale. None where the outputs are not of the form that is known.
    """
    given = {a.name: _plain(a.value) for a in arguments}
    matrix = next((_plain(t) for t in tensors_in([a.value for a in arguments])), None)
    if matrix is None:
        return None
    table = _FACTORS if api in _FACTORS else _POSITIONS
    try:
        return table[api](matrix, given, [_plain(output) for output in outputs])
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def source_names(api: str) -> tuple[list, str]:
    """(functions of this module that read the invariants of an API, the expression that calls them), for a script."""
    if api in _FACTORS:
        return [_FACTORS[api].__name__], _FACTORS[api].__name__
    return ["_chosen"], f"_chosen({_PLACE[api]})"


def order(arguments) -> float:
    """The order n of the largest matrix among the arguments."""
    shapes = [t.shape[-2:] for t in tensors_in([a.value for a in arguments]) if t.dim()]
    return float(max((max(shape) for shape in shapes), default=1))


def factor(arguments) -> float:
    """What a backward-stable algorithm may be off by, in units of u times the scale."""
    return thresholds.OWN_FACTOR + thresholds.MATRIX_FACTOR * order(arguments)


def _plain(value):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() or value.dtype == torch.bool else value


def _size(matrix):
    """The Frobenius norm of every matrix of a batch, as a scale for its invariants."""
    return torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)


def _one(values):
    return torch.ones_like(values.real if values.is_complex() else values)


def _gram(columns):
    product = columns.mH @ columns
    return product, _one(product)


def _spread(values, scale):
    return values, scale.expand(values.shape).contiguous() if values.dim() >= 2 else scale.reshape(values.shape)


def _svd(matrix, given, outputs):
    u, values, v = outputs
    if not u.numel() or u.abs().sum() == 0:  # compute_uv=False leaves them empty or zero
        return [_singular(matrix, values)]
    v = v if u.shape[-1] == v.shape[-2] and given.get("_hermitian") else v
    rank = values.shape[-1]
    product = (u[..., :rank] * values.unsqueeze(-2)) @ v[..., :rank, :]
    return [_singular(matrix, values), _spread(product, _size(matrix)), _gram(u), _gram(v.mH)]


def _old_svd(matrix, given, outputs):
    u, values, v = outputs
    return _svd(matrix, given, [u, values, v.mH])


def _singular(matrix, values):
    return values, _size(matrix).squeeze(-1).expand(values.shape).contiguous()


def _eigh(matrix, given, outputs):
    values, vectors = outputs
    product = (vectors * values.unsqueeze(-2)) @ vectors.mH
    return [_singular(matrix, values), _spread(product, _size(matrix)), _gram(vectors)]


def _eig(matrix, given, outputs):
    values, vectors = outputs
    residual = matrix.to(vectors.dtype) @ vectors - vectors * values.unsqueeze(-2)
    lengths = torch.linalg.vector_norm(vectors, dim=-2)
    return [_spread(residual, _size(matrix)), (lengths, torch.ones_like(lengths)), *_eigvals(matrix, given, [values])]


def _eigvals(matrix, given, outputs):
    (values,) = outputs
    total = values.sum(-1)
    return [(total, _size(matrix).reshape(total.shape) * math.sqrt(values.shape[-1]))]


def _qr(matrix, given, outputs):
    q, r = outputs
    if not q.numel():
        product = r.mH @ r
        return [_spread(product, _size(matrix).square())]
    product = q @ r
    below = r.tril(-1)
    return [_spread(product, _size(matrix)), _gram(q), (below, torch.zeros_like(_one(below)))]


def _lu(matrix, given, outputs):
    p, lower, upper = outputs
    product = (p.to(lower.dtype) if p.numel() else torch.eye(lower.shape[-2], dtype=lower.dtype)) @ lower @ upper
    return [_spread(product, _size(lower) * _size(upper))]


def _packed_lu(matrix, given, outputs):
    return _lu(matrix, given, torch.lu_unpack(outputs[0], outputs[1].int()))


def _lstsq(matrix, given, outputs):
    right, solution = given.get("b", given.get("B", given.get("input_b"))), outputs[0]
    right = next(v for name, v in given.items() if isinstance(v, torch.Tensor) and v is not matrix) \
        if right is None else right  # fmt: skip
    if right.dim() == matrix.dim() - 1:
        right, solution = right.unsqueeze(-1), solution.unsqueeze(-1)
    residual = matrix.mH @ (matrix @ solution - right)  # zero for every least-squares solution
    scale = _size(matrix) * (_size(matrix) * _size(solution) + _size(right))
    return [_spread(residual, scale)]


def _chosen(name):
    """The elements at the positions that output ``name`` gives, and the values where they are returned too."""

    def read(matrix, given, outputs):
        places = outputs[name]
        dim = given.get("dim", -1 if len(outputs) > 1 or "k" in given else None)
        if not isinstance(dim, int) or isinstance(dim, bool):
            dim = -1 if given.get("stable") is not None or "descending" in given else None
        numbers = matrix if matrix.is_complex() else matrix.double()
        if dim is None:
            found = numbers.reshape(-1)[places.reshape(-1)].reshape(places.shape)
        elif numbers.dim() == 0:
            found = numbers.expand(places.shape)
        elif places.dim() == numbers.dim():
            found = numbers.gather(dim, places)
        else:
            found = numbers.gather(dim, places.unsqueeze(dim)).squeeze(dim)
        values = [output if output.is_complex() else output.double() for output in outputs[:name]]
        return [(v.contiguous(), torch.zeros(v.shape, dtype=torch.float64)) for v in (*values, found)]

    return read


_FACTORS = {
    "linalg.svd": _svd, "svd": _old_svd, "linalg.eigh": _eigh, "linalg.eig": _eig, "linalg.eigvals": _eigvals,
    "linalg.qr": _qr, "qr": _qr, "linalg.lu": _lu, "lu_unpack": _lu, "linalg.lu_factor": _packed_lu,
    "linalg.lu_factor_ex": _packed_lu, "_lu_with_info": _packed_lu, "lu": _packed_lu, "linalg.lstsq": _lstsq,
}  # fmt: skip
_PLACE = {  # which output holds the positions
    **dict.fromkeys(("argmax", "argmin", "argsort"), 0),
    **dict.fromkeys(("sort", "topk", "kthvalue", "mode", "cummax", "cummin"), 1),
}  # fmt: skip
_POSITIONS = {name: _chosen(place) for name, place in _PLACE.items()}
