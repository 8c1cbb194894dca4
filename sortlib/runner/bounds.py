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
from sortlib.runner import backward, invariants, opinions
from sortlib.runner.execution import tensors_in


@dataclass(frozen=True)
class Bound:
    """Bound of one output t, elementwise and in u: ``constant + slope * |t| + factor * extra``.

    ``own`` is the same without what conditioning excuses, as ``(constant, slope, factor)``.
    ``samples`` is the number of elements whose errors are independent of each other. ``worst`` is the worst case of
    a sum, n u sum|terms|, in multiples of the probabilistic ``total``; None where no worst case is known.
    """

    total: tuple[float, float, float]
    own: tuple[float, float, float]
    samples: float
    extra: torch.Tensor | None = None
    worst: float | None = None


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


@dataclass(frozen=True)
class Proof:
    """What is right about one call.

    Attributes
    ----------
    truth : float64 value of everything that is compared, or None.
    bound : ``Bound`` for each, or None.
    missing : why there is no truth or bound; empty where there is.
    compared : what stands for the outputs where they are not unique (see ``invariants``), else None.
    opinion : who corrected the float64 kernel; empty where nobody had to.
    """

    truth: list
    bound: list
    missing: str = ""
    compared: list | None = None
    opinion: str = ""


def prove(executor, node, arguments, outputs, seed, lowered=False) -> Proof:
    """Truth and bounds of a call that returned ``outputs`` on this platform."""
    nothing = [None] * len(outputs)
    right, reason = truth(executor, node, arguments, seed)
    if right is None:
        return Proof(nothing, nothing, reason)
    if [t.shape for t in right] != [t.shape for t in outputs]:
        return Proof(nothing, nothing, "the float64 call returns other shapes")
    if invariants.known(node["api"]) and not node.get("backward"):
        shared = invariants.invariants(node["api"], arguments, outputs)
        wanted = shared and invariants.invariants(node["api"], widen(arguments), right)
        if wanted and [v.shape for v, _ in shared] == [v.shape for v, _ in wanted]:
            return _of_invariants(node, arguments, shared, wanted, lowered)
    try:
        limits, missing = bound(executor, node, arguments, right, seed, lowered), ""
    except Exception as error:
        limits, missing = nothing, f"no bound: {type(error).__name__}: {first_line(error)}"
    opinion = ""
    if not node.get("backward") and any(_may_be_wrong(node["api"], t) for t in right):

        def again(given):
            return outputs_in_double(executor, node, given, seed)

        right, opinion = opinions.corrected(node["api"], again, widen(arguments), right)
    return Proof(right, limits, missing, opinion=opinion)


def _may_be_wrong(api, tensor):
    return opinions.asked(api) and tensor.is_floating_point() and bool(tensor.isnan().any())


def _of_invariants(node, arguments, shared, wanted, lowered):
    units = 1.0 if invariants.positions(node["api"]) else invariants.factor(arguments)
    terms = (0.0, 0.0, units)
    limits = [Bound(terms, terms, values.numel(), scale) for values, scale in wanted]
    if lowered:  # rounded inputs have other factors and another order
        limits = [None] * len(wanted)
    return Proof([v for v, _ in wanted], limits, compared=[v for v, _ in shared])


def outputs_in_double(executor, node, arguments, seed):
    """Outputs of a call on arguments from ``widen``; None where it fails."""
    call = executor.call(_in_double(node), arguments, seed)
    return None if call.error is not None else call.outputs


def truth(executor, node, arguments, seed):
    """Float64 outputs of a call from the same inputs, or None and the reason why there are none."""
    if node.get("random"):
        return _masked(node, arguments, seed)
    if node["api"] in thresholds.ADDRESSED and not all(map(_dense, tensors_in([a.value for a in arguments]))):
        return None, thresholds.BY_ADDRESS
    if _leaves_integers(node["api"], arguments):
        return None, thresholds.OUT_OF_RANGE
    call = executor.call(_in_double(node), widen(_explicit(node["api"], arguments)), seed)
    if call.error is not None:
        return None, f"{type(call.error).__name__}: {first_line(call.error)}"
    return call.outputs, ""


def _leaves_integers(api, arguments) -> bool:
    """Whether a conversion to whole numbers meets numbers that they cannot hold."""
    if api not in thresholds.CONVERSIONS and api not in thresholds.INTEGER_CONVERSIONS:
        return False
    tensor = next(iter(tensors_in([a.value for a in arguments])), None)
    given = next((a.value for a in arguments if isinstance(a.value, torch.dtype)), None)
    wanted = thresholds.INTEGER_CONVERSIONS.get(api, str(given).removeprefix("torch."))
    dtype = getattr(torch, wanted, None)
    if not isinstance(dtype, torch.dtype) or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return False
    if tensor is None or not tensor.is_floating_point() or not tensor.numel():
        return False
    low, high = (float(end) for end in tensor.aminmax())
    info = torch.iinfo(dtype)
    return not (info.min - 1 < low and high < info.max + 1)  # NaN is outside too


def _dense(tensor):
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _masked(node, arguments, seed):
    """What a dropout returns where it drops nothing: the comparison leaves out what a side has dropped."""
    given = {a.name: a.value for a in arguments}
    tensor, share = given.get("input"), given.get("p", 0.5)
    known = node["api"] in thresholds.MASKED and isinstance(tensor, torch.Tensor) and isinstance(share, float | int)
    if not known:
        return None, thresholds.DRAWN
    scale = 1 / (1 - share) if share < 1 else 0.0
    outputs = [tensor.double() * scale]
    if node["api"] == "native_dropout":
        outputs.append(torch.ones_like(tensor, dtype=torch.bool))
    if node.get("backward"):
        upstream = backward.upstream_of(outputs[0], f"{seed}/0", "drawn")
        outputs += [upstream * scale] + [torch.zeros(())] * (backward.count(arguments) - 1)
    return outputs, ""


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
    return api in apis.SUM_OF_PRODUCTS or _on_matrices(api) or api.startswith(("fft.", "stft", "istft"))


def family_of(node) -> str:
    """The row of the table of thresholds that holds for a case node."""
    api, given = node["api"], {name: value for name, value, _ in node["arguments"]}
    if node["random"]:
        return "masked" if api in thresholds.MASKED else "random"
    if invariants.known(api) and invariants.positions(api):
        return "exact"
    if _on_matrices(api) or invariants.known(api):
        return "matrix"
    if _special(api):
        return "special"
    if _has_steps(api, given):
        return "steps"
    return family(api)


def _has_steps(api, given) -> bool:
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


def bound(executor, node, arguments, outputs, seed, lowered=False) -> list[Bound | None]:
    """The bound of every float64 output; None where unknown.

    Parameters
    ----------
    outputs : the call's float64 outputs.
    lowered : the candidate rounds the inputs themselves, so that even exact APIs inherit their conditioning.
    """
    arguments = _explicit(node["api"], arguments)
    if node.get("backward"):
        number = len(outputs) - backward.count(arguments)
        forward = bound(executor, {**node, "backward": False}, arguments, outputs[:number], seed, lowered)
        return forward + _of_gradients(executor, node, arguments, outputs[:number], outputs[number:], seed)
    kind = family(node["api"], arguments)
    if node.get("random"):
        terms = (0.0, 2 * thresholds.ROUNDED_FACTOR, 0.0)  # the scale is rounded, then the product
        return [Bound(terms, terms, output.numel()) if _continuous(output) else None for output in outputs]
    if kind == "sum":
        return _sums(executor, node, arguments, outputs, seed)
    if lowered and node["api"] in thresholds.DISCONTINUOUS:
        return [None] * len(outputs)
    if _has_steps(node["api"], {a.name: a.value for a in arguments}):
        return _steps(executor, node, arguments, outputs, seed)
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
    worst = max(1.0, length / loose[2])
    return [
        Bound(loose, strict, output.numel(), total, worst)
        if _continuous(output) and total.shape == output.shape
        else None
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
    slope, factor = _slope(node["api"], arguments, length)
    gate = _gate(node["api"], arguments, slope) + _underflow(arguments, length)
    floor = float(node["api"] in thresholds.NORMALISING or _special(node["api"]))
    return [_conditioned(output, change, slope, factor, gate, floor, length)
            for output, change in zip(outputs, changes, strict=True)]  # fmt: skip


def _underflow(arguments, length) -> float:
    """Intermediate results of a reduction that lie below the normal numbers lose one step each, in u."""
    dtypes = {t.dtype for t in tensors_in([a.value for a in arguments]) if t.is_floating_point()}
    narrow = max(dtypes, key=unit_roundoff, default=torch.float64)
    info = torch.finfo(narrow)
    return length * info.smallest_normal * 2 if length > 1 else 0.0  # a step is smallest_normal times 2 u


def _conditioned(output, change, slope, factor, gate, floor, length):
    if not _continuous(output):
        return None
    # An element near zero carries the rounding of the others; normalised values are of size 1 before the weight.
    own = (slope * max(_rms(output), floor) + gate, slope, 0.0)
    samples = output.numel() if length == 1 else max(1.0, output.numel() / length)
    if change is None:
        return Bound(own, own, samples)
    # One element's change can vanish by chance, so none is held to less than the typical change.
    change = change.clamp_(min=_rms(change))
    return Bound((*own[:2], factor), own, samples, change)


def _slope(api, arguments, length):
    """(roundings of the result's size, multiples of the conditioning) that an API may show."""
    if _on_matrices(api):
        order = invariants.order(arguments)
        return invariants.factor(arguments), thresholds.CONDITION_FACTOR * max(1.0, math.sqrt(order))
    if _special(api):
        return thresholds.SPECIAL_FACTOR, thresholds.CONDITION_FACTOR
    if api.startswith(("fft.", "stft", "istft")):  # Higham 2002, theorem 24.2: log2 n u times the norm
        largest = max((t.numel() for t in tensors_in([a.value for a in arguments])), default=1)
        return thresholds.OWN_FACTOR * max(1.0, math.log2(max(1, largest))), thresholds.CONDITION_FACTOR
    return thresholds.OWN_FACTOR + math.sqrt(length) * (length > 1), thresholds.CONDITION_FACTOR


def _special(api) -> bool:
    return api in thresholds.SPECIAL or "bessel" in api or "polynomial" in api


def _on_matrices(api) -> bool:
    return (api.startswith("linalg.") or api in thresholds.MATRIX) and api not in thresholds.NOT_MATRIX


def _steps(executor, node, arguments, outputs, seed):
    """Results with steps that are computed with rounding: both sides of a step that a few u away are right."""
    terms = (0.0, thresholds.OWN_FACTOR, 2.0)  # the way to a step hides part of its height
    largest = [None] * len(outputs)
    far = thresholds.OWN_FACTOR
    for ways in ((far, far), (far, -far), (-far, far), (-far, -far)):  # else input and divisor may move alike
        changes = _changes(executor, node, arguments, outputs, seed, ways)
        largest = [c if top is None else top if c is None else torch.maximum(top, c)
                   for top, c in zip(largest, changes, strict=True)]  # fmt: skip
    # Where the argument spans many steps, all results between them are right; one change may be small by chance.
    largest = [top if top is None else top.clamp_(min=_rms(top)) for top in largest]
    return [Bound(terms, terms, output.numel(), top) if _continuous(output) else None
            for output, top in zip(outputs, largest, strict=True)]  # fmt: skip


def _of_gradients(executor, node, arguments, outputs, grads, seed):
    """Gradients of sums and of moved elements are sums of products too, of the upstream gradient with the inputs;
    for the rest, conditioning as for the results."""
    kind = family(node["api"], arguments)
    produced = max((output.numel() for output in outputs), default=1)
    more = [max(1.0, produced / max(1, grad.numel())) for grad in grads]
    if kind in ("sum", "rounded", "exact") and not node.get("random"):
        terms = arguments
        if kind != "exact":
            terms = [a._replace(value=map_tensors(a.value, _magnitude)) for a in arguments]
        found = outputs_in_double(executor, {**node, "upstream": "magnitudes"}, widen(terms), seed)
        if found is None:
            return [None] * len(grads)
        lengths = more
        if kind == "sum":
            each = sum_length(node["api"], arguments, outputs)
            lengths = [max(each, each * factor) for factor in more]
        elif kind == "exact":  # derivatives are 0 or 1, so gradients under ones count the terms
            counts = outputs_in_double(executor, {**node, "upstream": "ones"}, widen(arguments), seed)[-len(grads) :]
            lengths = [float(count.abs().max()) if count.numel() else 1.0 for count in counts]
        return [_summed(grad, total.abs(), n, exact=kind == "exact")
                for grad, total, n in zip(grads, found[-len(grads):], lengths, strict=True)]  # fmt: skip
    if node.get("random"):
        terms = (0.0, 2 * thresholds.ROUNDED_FACTOR, 0.0)
        return [Bound(terms, terms, grads[0].numel())] + [None] * (len(grads) - 1)
    changes = _changes(executor, node, arguments, [*outputs, *grads], seed)[len(outputs) :]
    length = reduction_length(node["api"], arguments, outputs)
    typical = max((_rms(output) for output in outputs if _continuous(output)), default=0.0)
    # The upstream gradient is of size 1, and so are the saved results that are subtracted from 1 or from each other.
    saved = max(typical, 1.0) if node["api"] in thresholds.SATURATING else 0.0
    if node["api"] in thresholds.ATTENTION:
        saved += _through_scores({a.name: a.value for a in arguments})
    bounds = []
    for grad, change, times in zip(grads, changes, more, strict=True):
        slope, factor = _slope(node["api"], arguments, max(length, times))
        bounds.append(_conditioned(grad, change, slope, factor, slope * saved * math.sqrt(times), 0.0, length))
    return bounds


def _through_scores(given) -> float:
    """Size of what the backward pass of attention subtracts before it multiplies queries or keys: an upstream gradient
    of size 1 times the values, summed over their length, times the scale."""
    query, key, value = (given.get(name) for name in ("query", "key", "value"))
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() > 1 for tensor in (query, key, value)):
        return 0.0
    scale = given.get("scale") or query.shape[-1] ** -0.5
    sides = max(_rms(query.double()), _rms(key.double())) * math.sqrt(max(query.shape[-2], key.shape[-2]))
    return _rms(value.double()) * math.sqrt(value.shape[-1]) * scale * sides


def _summed(grad, total, length, exact):
    if not _continuous(grad):
        return None
    if exact and length <= 1:
        return Bound((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), grad.numel())
    factor = thresholds.SUM_FACTOR
    terms = (0.0, 0.0, max(factor, factor * min(math.sqrt(length), length / factor)))
    return Bound(terms, terms, grad.numel(), total, max(1.0, length / terms[2]))


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
    if api in thresholds.COORDINATES or "upsample" in api:
        return thresholds.COORDINATE_FACTOR * _steepest(given.get("input"))
    if api not in thresholds.GATED or not isinstance(given.get("input"), torch.Tensor):
        return 0.0
    return thresholds.GATE_FACTOR * _rms(given["input"].double())


def _steepest(tensor) -> float:
    """Sum over the spatial dimensions of their length times the largest difference of neighbours."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    total = 0.0
    for dim in range(2, tensor.dim()):
        apart = tensor.double().diff(dim=dim).abs().nan_to_num(0.0, 0.0, 0.0)
        total += tensor.shape[dim] * (float(apart.max()) if apart.numel() else 0.0)
    return total


def _attention(given, slope) -> float:
    """Attention's weights come from a softmax, and its scores are sums of products whose error they inherit."""
    query, key, value = (given.get(name) for name in ("query", "key", "value"))
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in (query, key, value)):
        return 0.0
    length = query.shape[-1] / (given.get("num_heads") or 1)
    scores = (given.get("scale") or length**-0.5) * length * _rms(query.double()) * _rms(key.double())
    return (slope + thresholds.SUM_FACTOR * scores) * _rms(value.double())


def _changes(executor, node, arguments, outputs, seed, ways=(1.0, 1.0)) -> list:
    """|f(moved inputs) - f(inputs)| / u for every output, None where nothing could be moved.

    ``ways`` is how many u the argument ``input`` and the others move; a negative one turns the random signs round.
    """
    none = [None] * len(outputs)
    units = [unit_roundoff(t.dtype) for t in tensors_in([a.value for a in arguments]) if _continuous(t)]
    if not units:
        return none
    step = max(units)
    moved = [a._replace(value=_move(a, step * ways[a.name != "input"], seed, node["api"])) for a in widen(arguments)]
    call = executor.call(_in_double(node), moved, seed)
    if call.error is not None or [o.shape for o in call.outputs] != [o.shape for o in outputs]:
        return none
    return [
        (other - output).abs().nan_to_num_(0.0, 0.0, 0.0).div_(step) if _continuous(output) else None
        for output, other in zip(outputs, call.outputs, strict=True)
    ]


def _move(argument, step, seed, api):
    """Every element times 1 + step or 1 - step, by random signs that are the same on every machine."""
    # Coordinates in [-1, 1] are shifted to [0, 2] first, and values by the lower end of their histogram,
    # which rounds them absolutely.
    absolute = argument.name == "grid" or api in thresholds.HISTOGRAMS
    if api in thresholds.STEPS and isinstance(argument.value, float):  # rounded to the tensor's dtype
        return argument.value * (1 + step)

    def move(path, tensor):
        if not _continuous(tensor) or tensor.numel() == 0:
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
        return tensor + factors * (1 + tensor.abs().max()) if absolute else tensor * factors.add_(1)

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
    form = {"total": limit.total, "own": limit.own, "samples": limit.samples, "worst": limit.worst, "extra": None}
    if limit.extra is not None:
        narrow = limit.extra.to(torch.float32)
        largest = float(narrow.max()) if narrow.numel() else 1.0
        form["extra"] = save(narrow if math.isfinite(largest) and largest > 1e-30 else limit.extra.double())
    return form


def unpack(form: dict | None, load) -> Bound | None:
    """What ``pack`` made; ``extra`` is then the NumPy array that ``load(form)`` returns."""
    if form is None:
        return None
    read = Bound(tuple(form["total"]), tuple(form["own"]), form["samples"], worst=form["worst"])
    return replace(read, extra=load(form["extra"])) if form["extra"] else read
