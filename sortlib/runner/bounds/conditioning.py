"""Everything that is no sum of products: roundings of the result's own size, and what conditioning excuses."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from sortlib import thresholds
from sortlib.runner import invariants
from sortlib.runner.bounds import distances, gates
from sortlib.runner.bounds.families import on_matrices, special
from sortlib.runner.bounds.form import Bound, continuous, lost_steps, narrowest, rms, unit_roundoff
from sortlib.runner.bounds.moving import changes_under
from sortlib.runner.execution import tensors_in


def conditioning(executor, node, arguments, outputs, seed, quick=False):
    """Roundings of the result's own size, longer by the square root of a reduction's length; to that, unless the
    other platform shows better, the change of the result when every input moves by one u.

    ``quick`` leaves the change out, which costs a second float64 call; few errors are so large that it matters.
    """
    length = reduction_length(node["api"], arguments, outputs)
    sizes = [None if quick else gates.of_result(node["api"], arguments, output) for output in outputs]
    changes = [None] * len(outputs)
    if not quick and None in sizes:
        changes = changes_under(executor, node, arguments, outputs, seed, patterns=patterns(length))
    slope, factor = slope_of(node["api"], arguments, length)
    gate = _gate(node["api"], arguments, slope) + underflow(node["api"], arguments, length)
    floor = float(node["api"] in thresholds.NORMALISING or special(node["api"]))
    limits = [conditioned(output, change, slope, factor, gate, floor, length)
              for output, change in zip(outputs, changes, strict=True)]  # fmt: skip
    if quick:
        return [limit and replace(limit, partial=True) for limit in limits]
    limits = [gates.widened(limit, size) for limit, size in zip(limits, sizes, strict=True)]
    if node["api"] == "cdist":
        return [distances.widened(limits[0], arguments, outputs[0])]
    lost = _vanished(arguments)
    return [limit if size is not None else _with_lost(limit, lost) for limit, size in zip(limits, sizes, strict=True)]


def _with_lost(limit, lost):
    return limit and replace(limit, total=(limit.total[0] + lost, *limit.total[1:]))


def patterns(length) -> int:
    """How many patterns of signs the inputs of a reduction of ``length`` elements are moved by: one says little about
    a few elements, whose changes may cancel."""
    return 4 if 1 < length <= thresholds.FEW else 1


def _vanished(arguments) -> float:
    """Results below float32's normal numbers, in u, which a function computed through others may lose:
    1 / (1 + exp(x)) is zero where exp(x) overflows. Unless the other side keeps them, as with all that is excused.
    Half types are computed in float32."""
    dtype = narrowest(arguments)
    computed = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    return torch.finfo(computed).smallest_normal / unit_roundoff(dtype)


def conditioned(output, change, slope, factor, gate, floor, length):
    """The bound of one output whose ``change`` under moved inputs is known, or None; consumes ``change``."""
    if not continuous(output):
        return None
    # An element near zero carries the rounding of the others; normalised values are of size 1 before the weight.
    own = (slope * max(rms(output), floor) + gate, slope, 0.0)
    samples = output.numel() if length == 1 else max(1.0, output.numel() / length)
    if change is None:
        return Bound(own, own, samples)
    # One element's change can vanish by chance, so none is held to less than the typical change.
    change = change.clamp_(min=rms(change))
    return Bound((*own[:2], factor), own, samples, change)


def slope_of(api, arguments, length):
    """(roundings of the result's size, multiples of the conditioning) that an API may show."""
    if on_matrices(api):
        order = invariants.order(arguments)
        return invariants.factor(arguments), thresholds.CONDITION_FACTOR * max(1.0, math.sqrt(order))
    if special(api):
        return thresholds.SPECIAL_FACTOR, thresholds.CONDITION_FACTOR
    # Each of the log2 n stages of an FFT adds some 6 u of the norm, the rounded weights included (Higham 2002, ch. 24).
    if api.startswith(("fft.", "stft", "istft")):
        largest = max((t.numel() for t in tensors_in([a.value for a in arguments])), default=1)
        return thresholds.OWN_FACTOR * max(1.0, math.log2(max(1, largest))), thresholds.CONDITION_FACTOR
    # The powers that a norm adds have one sign and are often alike, so their rounding may drift as that of any sum may.
    times = thresholds.SUM_FACTOR if api in thresholds.NORMS else 1.0
    return thresholds.OWN_FACTOR + times * math.sqrt(length) * (length > 1), thresholds.CONDITION_FACTOR


def underflow(api, arguments, length) -> float:
    """Intermediate results of a reduction that lie below the normal numbers lose one step each, in u.

    A norm takes the root of the sum of powers, which raises what is lost to the same root.
    """
    if length <= 1:
        return 0.0
    lost = lost_steps(arguments, length)
    if api not in thresholds.NORMS:
        return lost
    given = {a.name: a.value for a in arguments}
    power = next((given[name] for name in ("p", "ord") if name in given), 2.0)
    power = float(power) if isinstance(power, int | float) and not isinstance(power, bool) else 2.0
    unit = unit_roundoff(narrowest(arguments))
    return (lost * unit) ** (1 / power) / unit if 1 < power < math.inf else lost


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


def _gate(api, arguments, slope) -> float:
    """The absolute error of weights in [0, 1], where the API computes them and multiplies one of its inputs by them."""
    given = {a.name: a.value for a in arguments}
    if api in thresholds.ATTENTION:
        return _attention(given, slope)
    if api in thresholds.COORDINATES or "upsample" in api:
        return thresholds.COORDINATE_FACTOR * _steepest(given.get("input"))
    if api not in thresholds.GATED or not isinstance(given.get("input"), torch.Tensor):
        return 0.0
    return thresholds.GATE_FACTOR * rms(given["input"].double())


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
    scores = (given.get("scale") or length**-0.5) * length * rms(query.double()) * rms(key.double())
    return (slope + thresholds.SUM_FACTOR * scores) * rms(value.double())
