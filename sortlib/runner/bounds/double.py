"""What a call returns in float64 from the same inputs, or why nobody can say."""

from __future__ import annotations

import torch

from sortlib import apis, thresholds
from sortlib.features import map_tensors
from sortlib.runner import backward
from sortlib.runner.execution import tensors_in


def widen(arguments, dtype=torch.float64) -> list:
    """The same arguments with all floating-point tensors and dtypes at ``dtype`` or the complex type of its size."""
    wide_complex = torch.complex128 if dtype == torch.float64 else torch.complex64

    def tensors(_, tensor):
        if tensor.is_complex():
            return tensor.to(wide_complex)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def dtypes(_, given):
        return dtype if given.is_floating_point else given

    def wide(value):
        if isinstance(value, torch.Tensor):  # most values, at once
            return tensors((), value)
        return map_tensors(map_tensors(value, tensors), dtypes, torch.dtype)

    return [a._replace(value=wide(a.value)) for a in arguments]


def outputs_in_double(executor, node, arguments, seed):
    """Outputs of a call on arguments from ``widen``; None where it fails."""
    call = executor.call(in_double(node), arguments, seed)
    return None if call.error is not None else call.outputs


def truth(executor, node, arguments, seed):
    """Float64 outputs of a call from the same inputs, or None and the reason why there are none."""
    if node.get("random"):
        return _masked(node, arguments, seed)
    if node["api"] in thresholds.ADDRESSED and not all(map(_dense, tensors_in([a.value for a in arguments]))):
        return None, thresholds.BY_ADDRESS
    if _leaves_integers(node["api"], arguments):
        return None, thresholds.OUT_OF_RANGE
    call = executor.call(in_double(node), widen(explicit(node["api"], arguments)), seed)
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
        outputs += [upstream * scale] + [torch.zeros(())] * (backward.count(node, arguments) - 1)
    return outputs, ""


def explicit(api, arguments) -> list:
    """Arguments with what PyTorch fills in by dtype, so that the float64 call computes the same function."""
    tensors = tensors_in([a.value for a in arguments])
    if api != "rms_norm" or not tensors or {a.name: a.value for a in arguments}.get("eps") is not None:
        return arguments
    # Half types compute in float32 and take its eps.
    eps = torch.finfo(torch.float64 if tensors[0].dtype == torch.float64 else torch.float32).eps
    rest = [a for a in arguments if a.name != "eps"]
    return [*rest, apis.Argument("eps", eps, "keyword")]


def in_double(node):
    """The node with a target that does not narrow its result."""
    narrowing = ("torch.Tensor.float", "torch.Tensor.half", "torch.Tensor.bfloat16")
    return {**node, "target": "torch.Tensor.double"} if node["target"] in narrowing else node


def first_line(error) -> str:
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]
