"""What is right and how far rounding may lead from it: float64 truth and error bound of one call.

Bounds follow the families of ``sortlib.thresholds``. They are kept as few numbers and at most one array, since a
whole array for each would cost more than the call itself.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from sortlib import apis, thresholds
from sortlib.features import map_tensors
from sortlib.runner.execution import tensors_in


@dataclass(frozen=True)
class Bound:
    """Bound of one output t, elementwise and in u: ``constant + slope * |t| + factor * extra``.

    ``own`` is the same without what conditioning excuses, as ``(constant, slope, factor)``.
    ``samples`` is the number of elements whose errors are independent of each other.
    """

    total: tuple[float, float, float]
    own: tuple[float, float, float]
    samples: float
    extra: torch.Tensor | None = None


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def widen(arguments, dtype=torch.float64) -> list:
    """The same arguments with all floating-point tensors and dtypes at ``dtype`` or the complex type of its size."""
    wide_complex = torch.complex128 if dtype == torch.float64 else torch.complex64

    def tensors(_, tensor):
        if tensor.is_complex():
            return tensor.to(wide_complex)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def dtypes(_, given):
        return dtype if given.is_floating_point else given

    return [a._replace(value=map_tensors(map_tensors(a.value, tensors), dtypes, torch.dtype)) for a in arguments]


def truth(executor, node, arguments, seed):
    """Float64 outputs of a call from the same inputs, or None and the reason why there are none."""
    call = executor.call(_in_double(node), widen(_explicit(node["api"], arguments)), seed)
    if call.error is not None:
        return None, f"{type(call.error).__name__}: {first_line(call.error)}"
    return call.outputs, ""


def _explicit(api, arguments) -> list:
    """Arguments with what PyTorch fills in by dtype, so that the float64 call computes the same function."""
    tensors = tensors_in([a.value for a in arguments])
    if api != "rms_norm" or not tensors or {a.name: a.value for a in arguments}.get("eps") is not None:
        return arguments
    # Half types compute in float32 and take its eps.
    eps = torch.finfo(torch.float64 if tensors[0].dtype == torch.float64 else torch.float32).eps
    rest = [a for a in arguments if a.name != "eps"]
    return [*rest, apis.Argument("eps", eps, "keyword")]


def _in_double(node):
    narrowing = ("torch.Tensor.float", "torch.Tensor.half", "torch.Tensor.bfloat16")
    return {**node, "target": "torch.Tensor.double"} if node["target"] in narrowing else node


def family(api: str, arguments=()) -> str:
    """``exact``, ``rounded``, ``sum`` or ``other``: which bound holds for a call (see ``sortlib.thresholds``)."""
    tensors = tensors_in([a.value for a in arguments])
    real = not any(t.is_complex() for t in tensors)
    if api in apis.DATA_MOVEMENT or (api in thresholds.EXACT and real):
        return "exact"
    if api in apis.SUM_OF_PRODUCTS:
        return "sum"
    if api in thresholds.CONVERSIONS:
        return "rounded"
    # A Python number is rounded to the tensor's dtype first, and alpha adds an operation.
    plain = len(tensors) == len(arguments) and len({t.dtype for t in tensors}) == 1 and real
    return "rounded" if api in thresholds.ROUNDED and plain else "other"


def bound(executor, node, arguments, outputs, seed, lowered=False) -> list[Bound | None]:
    """The bound of every float64 output; None where unknown.

    Parameters
    ----------
    outputs : the call's float64 outputs.
    lowered : the candidate rounds the inputs themselves, so that even exact APIs inherit their conditioning.
    """
    arguments = _explicit(node["api"], arguments)
    kind = family(node["api"], arguments)
    if kind == "sum":
        return _sums(executor, node, arguments, outputs, seed)
    if lowered and node["api"] in thresholds.DISCONTINUOUS:
        return [None] * len(outputs)
    if lowered or kind == "other":
        return _conditioning(executor, node, arguments, outputs, seed)
    slope = 0.0 if kind == "exact" else thresholds.ROUNDED_FACTOR
    terms = (0.0, slope, 0.0)
    return [Bound(terms, terms, output.numel()) if _continuous(output) else None for output in outputs]


def _continuous(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


# ---- sums of products ----


def _sums(executor, node, arguments, outputs, seed):
    """n terms with the sum of magnitudes S: at most SUM * min(sqrt n, n / 4) * S; where partial sums wander as
    those of terms of mixed sign do, about SUM * (sqrt n * |y| + S), which is the stricter ``own``."""
    totals = _sum_of_magnitudes(executor, node, arguments, seed)
    if totals is None or len(totals) != len(outputs):
        return [None] * len(outputs)
    length = sum_length(node["api"], arguments, outputs)
    factor = thresholds.SUM_FACTOR
    loose = (0.0, 0.0, max(factor, factor * min(math.sqrt(length), length / factor)))
    strict = (0.0, min(factor * math.sqrt(length), loose[2]), factor)
    strict = loose if loose[2] <= factor else strict
    return [
        Bound(loose, strict, output.numel(), total) if _continuous(output) and total.shape == output.shape else None
        for output, total in zip(outputs, totals, strict=True)
    ]


def _sum_of_magnitudes(executor, node, arguments, seed):
    # A few digits of it are enough, so the fast kernels of float32 do unless values overflow.
    for dtype in (torch.float32, torch.float64):
        terms = [a._replace(value=map_tensors(a.value, _magnitude)) for a in widen(arguments, dtype)]
        call = executor.call(_in_double(node), terms, seed)
        if call.error is None and all(bool(output.isfinite().all()) for output in call.outputs):
            return [output.abs() for output in call.outputs]
    return [output.abs() for output in call.outputs] if call.error is None else None


def _magnitude(_, tensor):
    return tensor.abs() if _continuous(tensor) else tensor


def sum_length(api: str, arguments, outputs) -> float:
    """Number of terms that are added for one output element."""
    given = {a.name: a.value for a in arguments}
    if isinstance(given.get("equation"), str):
        return _contracted(given["equation"], tensors_in([a.value for a in arguments]))
    shape = tuple(given["input"].shape) if isinstance(given.get("input"), torch.Tensor) else ()
    weight = given.get("weight")
    if isinstance(weight, torch.Tensor) and weight.dim() and weight.shape[0]:
        return weight.numel() / weight.shape[0] + 1
    if api in ("matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "baddbmm") and shape:
        other = given.get("mat1", given.get("batch1", given["input"]))
        return float(other.shape[-1]) if other.dim() else 1.0
    elements = sum(tensor.numel() for tensor in tensors_in([a.value for a in arguments]))
    return max(1.0, elements / max(1, sum(output.numel() for output in outputs)))


def _contracted(equation, operands) -> float:
    """Length of an einsum's sums: the sizes of all letters that are not in its output."""
    inputs, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    sizes = {}
    for letters, operand in zip(inputs.split(","), operands, strict=False):
        sizes |= dict(zip(reversed(letters), reversed(operand.shape), strict=False))
    return float(math.prod(size for letter, size in sizes.items() if letter not in output))


# ---- everything else ----


def _conditioning(executor, node, arguments, outputs, seed):
    """Roundings of the result's own size, longer by the square root of a reduction's length; to that, unless the
    other platform shows better, the change of the result when every input moves by one u."""
    length = reduction_length(node["api"], arguments, outputs)
    changes = _changes(executor, node, arguments, outputs, seed)
    slope = thresholds.OWN_FACTOR + math.sqrt(length) * (length > 1)
    gate = _gate(node["api"], arguments, slope)
    result = []
    for output, change in zip(outputs, changes, strict=True):
        if not _continuous(output):
            result.append(None)
            continue
        # An element near zero carries the rounding of the others; normalised values are of size 1 before the weight.
        typical = max(_rms(output), float(node["api"] in thresholds.NORMALISING))
        own = (slope * typical + gate, slope, 0.0)
        samples = output.numel() if length == 1 else max(1.0, output.numel() / length)
        if change is None:
            result.append(Bound(own, own, samples))
            continue
        # One element's change can vanish by chance, so none is held to less than the typical change.
        change = change.clamp_(min=_rms(change))
        result.append(Bound((*own[:2], thresholds.CONDITION_FACTOR), own, samples, change))
    return result


def _rms(tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    norm = float(torch.linalg.vector_norm(tensor))
    if math.isfinite(norm):
        return norm / math.sqrt(tensor.numel())
    finite = tensor[tensor.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return largest * float((finite / largest).square().mean().sqrt()) if largest else 0.0


def _gate(api, arguments, slope) -> float:
    """The absolute error of weights in [0, 1], where the API computes them and multiplies one of its inputs by them."""
    given = {a.name: a.value for a in arguments}
    if api in thresholds.ATTENTION:
        return _attention(given, slope)
    if api not in thresholds.GATED or not isinstance(given.get("input"), torch.Tensor):
        return 0.0
    return thresholds.GATE_FACTOR * _rms(given["input"].double())


def _attention(given, slope) -> float:
    """Attention's weights come from a softmax, and its scores are sums of products whose error they inherit."""
    query, key, value = (given.get(name) for name in ("query", "key", "value"))
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in (query, key, value)):
        return 0.0
    length = query.shape[-1] / (given.get("num_heads") or 1)
    scores = (given.get("scale") or length**-0.5) * length * _rms(query.double()) * _rms(key.double())
    return (slope + thresholds.SUM_FACTOR * scores) * _rms(value.double())


def _changes(executor, node, arguments, outputs, seed) -> list:
    """|f(moved inputs) - f(inputs)| / u for every output, None where nothing could be moved."""
    none = [None] * len(outputs)
    units = [unit_roundoff(t.dtype) for t in tensors_in([a.value for a in arguments]) if t.is_floating_point()]
    if not units:
        return none
    step = max(units)
    moved = [a._replace(value=_move(a, step, seed)) for a in widen(arguments)]
    call = executor.call(_in_double(node), moved, seed)
    if call.error is not None or [o.shape for o in call.outputs] != [o.shape for o in outputs]:
        return none
    return [
        (other - output).abs_().nan_to_num_(0.0, 0.0, 0.0).div_(step) if _continuous(output) else None
        for output, other in zip(outputs, call.outputs, strict=True)
    ]


def _move(argument, step, seed):
    """Every element times 1 + step or 1 - step, by random signs that are the same on every machine."""

    def move(path, tensor):
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return tensor
        key = hashlib.sha256(f"{seed}/{argument.name}/{path}".encode()).digest()[:16]
        rng = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
        bits = np.unpackbits(np.frombuffer(rng.bytes((tensor.numel() + 7) // 8), np.uint8), count=tensor.numel())
        factors = torch.from_numpy(bits).to(tensor.device).to(tensor.dtype)
        return tensor * factors.mul_(2 * step).add_(1 - step).reshape(tensor.shape)

    return map_tensors(argument.value, move)


def reduction_length(api: str, arguments, outputs) -> float:
    """Number of elements that are combined into one output element (1 for pointwise APIs)."""
    given = {a.name: a.value for a in arguments}
    tensor = given.get("input", given.get("query"))
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
        return 1.0
    shape = tensor.shape
    if api in ("softmax", "log_softmax", "softmin", "gumbel_softmax", "normalize", "cumsum", "cumprod", "logcumsumexp"):
        dim = given.get("dim", 1)
        return float(shape[dim]) if isinstance(dim, int) and -len(shape) <= dim < len(shape) else float(max(shape))
    if api in ("layer_norm", "rms_norm"):
        return float(math.prod(given.get("normalized_shape", shape[-1:])))
    if api == "batch_norm" and given.get("training") is not True:
        return 1.0
    if api in ("batch_norm", "instance_norm") and len(shape) > 1:
        return tensor.numel() / shape[1] / (shape[0] if api == "instance_norm" else 1)
    if api == "group_norm" and given.get("num_groups"):
        return tensor.numel() / shape[0] / given["num_groups"]
    if api == "local_response_norm":
        return float(given.get("size", 1))
    if api in thresholds.COMPOSITE:
        return float(max((max(t.shape, default=1) for t in tensors_in([a.value for a in arguments])), default=1))
    return max(1.0, tensor.numel() / max(1, max(output.numel() for output in outputs)))


def first_line(error) -> str:
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]


# ---- between processes ----


def pack(limit: Bound | None, save) -> dict | None:
    """The JSON form; ``save(tensor)`` writes an array and returns its form."""
    if limit is None:
        return None
    form = {"total": limit.total, "own": limit.own, "samples": limit.samples, "extra": None}
    if limit.extra is not None:
        narrow = limit.extra.to(torch.float32)
        largest = float(narrow.max()) if narrow.numel() else 1.0
        form["extra"] = save(narrow if math.isfinite(largest) and largest > 1e-30 else limit.extra.double())
    return form


def unpack(form: dict | None, load) -> Bound | None:
    """What ``pack`` made; ``extra`` is then the NumPy array that ``load(form)`` returns."""
    if form is None:
        return None
    read = Bound(tuple(form["total"]), tuple(form["own"]), form["samples"])
    return replace(read, extra=load(form["extra"])) if form["extra"] else read
