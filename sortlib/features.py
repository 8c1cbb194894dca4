"""Features of tensors and calls: what a record keeps of the inputs that an API really saw (DESIGN decision 3).

A record holds no values of activations. It holds what is needed to draw similar ones: dtype, shape, strides,
a quantile sketch, shares of zeros, NaN and infinities, aliasing between arguments, and every non-tensor argument
as it was. Only torch and numpy are needed here, since workers on other machines read the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from sortlib.apis import Argument

# Levels of the quantile sketch: dense in the tails, where rare large values decide over rounding.
LEVELS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
SKETCH_SIZE = 8192  # elements read for mean, std, zeros and quantiles; minimum and maximum read all


@dataclass(frozen=True)
class TensorFeatures:
    """What is recorded of one tensor.

    Attributes
    ----------
    dtype : name without ``torch.``, for example ``float32``.
    shape, strides : in elements.
    role : ``call`` (another call's output), ``parameter``, ``buffer``, ``input`` (of the model) or ``constant``.
    requires_grad : as seen at the call.
    minimum, maximum : over all finite elements; None where there is none.
    mean, std : of the finite elements of a systematic sample of at most ``SKETCH_SIZE``.
    zeros : share of exact zeros in that sample; for booleans the share of True is ``mean``.
    nan, posinf, neginf : exact shares.
    quantiles : at ``LEVELS``, of the finite, non-zero elements of the sample with the exact ends put in.
    integral : whether all sampled finite elements are whole numbers.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    role: str = "call"
    requires_grad: bool = False
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    zeros: float = 0.0
    nan: float = 0.0
    posinf: float = 0.0
    neginf: float = 0.0
    quantiles: tuple[float, ...] = ()
    integral: bool = False

    @property
    def signature(self) -> tuple:
        """What a join compares: dtype, shape and strides."""
        return (self.dtype, self.shape, self.strides)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def layout(self) -> str:
        """``contiguous``, ``channels_last`` or ``strided``."""
        if self.strides == contiguous_strides(self.shape):
            return "contiguous"
        if len(self.shape) == 4:
            n, c, h, w = self.shape
            if self.strides == (c * h * w, 1, c * w, c):
                return "channels_last"
        return "strided"

    def describe(self) -> list[str]:
        """Lines in the form of the paper's Figures 8 and 9."""
        lines = [f"type = {self.dtype}", f"shape = {list(self.shape)}"]
        if self.minimum is not None:
            lines.append(f"value range = [{self.minimum:.6g}, {self.maximum:.6g}]")
        return lines


@dataclass(frozen=True)
class CallRecord:
    """The features of one API call in one run of a model.

    Attributes
    ----------
    graph, node, sample : the model's name, the call's position in its graph, the number of the real input.
    api, target : canonical name and the spelling called.
    module_path, source : where in the model.
    arguments : bound arguments; every tensor is replaced by its ``TensorFeatures``, other values are as they were.
    outputs : features of the output tensors, taken after the call.
    aliases : pairs of argument paths (later, earlier) that held the same tensor.
    inplace, random : whether the call wrote into its first argument, and whether it drew random numbers.
    """

    graph: str
    node: int
    sample: int
    api: str
    target: str
    module_path: str
    source: str
    arguments: tuple[Argument, ...]
    outputs: tuple[TensorFeatures, ...]
    aliases: tuple[tuple[tuple, tuple], ...] = ()
    inplace: bool = False
    random: bool = False

    @property
    def key(self) -> tuple:
        """Identity of a record: graph, sample, node."""
        return (self.graph, self.sample, self.node)

    def tensors(self) -> Iterator[tuple[tuple, TensorFeatures]]:
        """Every tensor argument as (path, features); a path starts with the argument's name."""
        for argument in self.arguments:
            yield from _leaves(argument.value, (argument.name,))

    def describe(self) -> str:
        """The record in the form of the paper's Figures 8 and 9."""
        lines, rest = ["Tensor Parameters:"], ["Non-Tensor Parameters:"]
        for path, features in self.tensors():
            lines.append(f"- {'.'.join(map(str, path))}:")
            lines += [f"  - {line}" for line in features.describe()]
        for argument in self.arguments:
            if not any(True for _ in _leaves(argument.value, ())):
                rest.append(f"- {argument.name}: type = {type(argument.value).__name__}, values = {argument.value}")
        return "\n".join(lines + rest)


def _leaves(value, path):
    if isinstance(value, TensorFeatures):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(item, (*path, position))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))


def map_tensors(value, change: Callable[[tuple, Any], Any], kind=torch.Tensor, path=()):
    """A copy of a nested value in which every instance of ``kind`` is replaced by ``change(path, it)``."""
    if isinstance(value, kind):
        return change(path, value)
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # namedtuple
        return value._make(map_tensors(item, change, kind, (*path, i)) for i, item in enumerate(value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change, kind, (*path, i)) for i, item in enumerate(value))
    if isinstance(value, dict):
        return {name: map_tensors(item, change, kind, (*path, name)) for name, item in value.items()}
    return value


def contiguous_strides(shape) -> tuple[int, ...]:
    """Strides of a contiguous tensor of this shape, as PyTorch computes them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _as_numbers(tensor):
    """The elements in one dimension, real and imaginary parts apart, without a copy where memory is dense.

    Elements that stride 0 repeats are taken once, which changes no share and no quantile.
    """
    tensor = tensor.resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and step == 0:
            tensor = tensor.narrow(dim, 0, 1)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    flat = tensor.permute(order).reshape(-1)
    if flat.dtype in _COMPARABLE:
        return flat
    return flat.to(torch.float32 if flat.is_floating_point() else torch.float64)


# What ``torch.aminmax`` reads; float8 and the wider unsigned integers are converted first.
_COMPARABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
}  # fmt: skip


def _systematic_sample(flat):
    """At most SKETCH_SIZE elements, evenly spaced with an odd step so that even row lengths do not repeat."""
    if flat.numel() <= SKETCH_SIZE:
        return flat
    return flat[:: (flat.numel() // SKETCH_SIZE) | 1][:SKETCH_SIZE]


def measure(tensor: torch.Tensor, role: str = "call") -> TensorFeatures:
    """Features of a tensor; NaN and infinities are data and never an error.

    Tensors without readable values (meta, fake, sparse, quantised, nested) keep their form only. Below a transform of
    ``torch.func`` the form is that of one example and the values are those of the whole batch.
    """
    if _functorch.peek_interpreter_stack() is not None:
        form = _form(tensor, role)
        while _functorch.is_functorch_wrapped_tensor(tensor):
            tensor = _functorch.get_unwrapped(tensor)
        with temporarily_clear_interpreter_stack():
            return replace(measure(tensor), **form)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        form = _form(tensor, role)
        plain_memory = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
        if not plain_memory or tensor.is_meta or isinstance(tensor, FakeTensor) or tensor.numel() == 0:
            return TensorFeatures(**form)
        try:
            flat = _as_numbers(tensor.detach())
        except (NotImplementedError, RuntimeError):  # a dtype that PyTorch stores and cannot read, as float4
            return TensorFeatures(**form)
        return TensorFeatures(**form, **_values(flat))


def _form(tensor, role) -> dict:
    sized = not tensor.is_nested
    return {
        "dtype": dtype_name(tensor.dtype),
        "shape": tuple(int(size) for size in tensor.shape) if sized else (),
        "strides": tuple(int(step) for step in tensor.stride()) if sized and tensor.layout == torch.strided else (),
        "role": role,
        "requires_grad": bool(tensor.requires_grad),
    }


def _values(flat) -> dict:
    if flat.dtype == torch.bool:
        # Counted exactly: the number of True decides the shape that a boolean index returns.
        share = float(flat.sum()) / flat.numel()
        return {"minimum": float(share == 1), "maximum": float(share > 0), "mean": share, "zeros": 1 - share,
                "integral": True}  # fmt: skip
    sample = _systematic_sample(flat).to("cpu", torch.float64).numpy()
    low, high = (float(bound) for bound in torch.aminmax(flat))
    shares = {}
    if not (math.isfinite(low) and math.isfinite(high)):
        count = flat.numel()
        shares = {
            "nan": float(flat.isnan().sum()) / count,
            "posinf": float(flat.isposinf().sum()) / count,
            "neginf": float(flat.isneginf().sum()) / count,
        }
        finite = flat[flat.isfinite()]
        if finite.numel() == 0:
            return shares
        low, high = (float(bound) for bound in torch.aminmax(finite))
        sample = sample[np.isfinite(sample)]
    if sample.size == 0:
        return {**shares, "minimum": low, "maximum": high}
    nonzero = sample[sample != 0]
    with np.errstate(over="ignore", invalid="ignore"):  # float64 near its limit
        mean, std = (value if math.isfinite(value) else None for value in (float(sample.mean()), float(sample.std())))
        whole = bool((sample == np.round(sample)).all()) and low == round(low) and high == round(high)
    return {
        **shares,
        "minimum": low,
        "maximum": high,
        "mean": mean,
        "std": std,
        "zeros": 1 - nonzero.size / sample.size,
        "quantiles": _sketch(nonzero, low, high),
        "integral": whole,
    }


def _sketch(nonzero, low, high) -> tuple[float, ...]:
    if not nonzero.size:
        return ()
    with np.errstate(over="ignore", invalid="ignore"):
        quantiles = np.quantile(nonzero, LEVELS)
    if not np.isfinite(quantiles).all():  # the distance between two float64 values overflowed
        quantiles = np.quantile(nonzero, LEVELS, method="nearest")
    quantiles[0], quantiles[-1] = min(low, quantiles[0]), max(high, quantiles[-1])
    return tuple(float(q) for q in quantiles)


# ---- the JSON form of values, shared by the record store, cases and the workers' protocol ----


_DEFAULTS = {part.name: part.default for part in fields(TensorFeatures) if part.default is not MISSING}


@dataclass(frozen=True)
class Opaque:
    """An argument that has no recorded form; a call with one cannot be repeated."""

    text: str = field(default="")


_PLAIN = (
    bool, int, float, complex, str, type(None), type(Ellipsis), np.generic, torch.Size, torch.dtype, torch.device,
    torch.memory_format, torch.layout, torch.Tensor, TensorFeatures, Opaque,
)  # fmt: skip


def plain(value):
    """A copy of an argument without anything that could hold a tensor unseen: other objects become ``Opaque``."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, slice):  # a tensor in a slice is used as a number
        parts = (value.start, value.stop, value.step)
        return slice(*(int(part) if isinstance(part, torch.Tensor) else plain(part) for part in parts))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value._make(map(plain, value))
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    return Opaque(f"{type(value).__module__}.{type(value).__qualname__}")


def encode(value, special: Callable[[Any], dict | None] = lambda value: None):
    """A JSON form of an argument value; ``special`` may give the form of further types."""
    given = special(value)
    if given is not None:
        return given
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, TensorFeatures):
        given = {name: item for name, item in vars(value).items() if item != _DEFAULTS.get(name, _DEFAULTS)}
        return {"$tensor": given}
    if isinstance(value, torch.Size):
        return {"$tuple": [encode(int(item)) for item in value]}
    if isinstance(value, tuple):
        return {"$tuple": [encode(item, special) for item in value]}
    if isinstance(value, list):
        return [encode(item, special) for item in value]
    if isinstance(value, dict):
        return {"$dict": [[encode(k, special), encode(v, special)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"$slice": [encode(part, special) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"$ellipsis": True}
    for kind in (torch.dtype, torch.memory_format, torch.layout):
        if isinstance(value, kind):
            return {"$torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$device": value.type}
    if isinstance(value, complex):
        return {"$complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, np.generic):
        return encode(value.item())
    return {"$opaque": value.text if isinstance(value, Opaque) else repr(value)[:200]}


def decode(form, special: dict[str, Callable] | None = None):
    """The value behind ``encode``'s form; ``special`` maps further tags to functions of their content.

    Raises
    ------
    ValueError
        The form is none that ``encode`` writes.
    """
    if isinstance(form, list):
        return [decode(item, special) for item in form]
    if not isinstance(form, dict):
        return form
    if len(form) != 1:
        raise ValueError(f"a recorded value has one tag, not {sorted(form)}")
    ((tag, content),) = form.items()
    if special and tag in special:
        return special[tag](content)
    if tag == "$tensor":
        lists = {k: tuple(v) for k, v in content.items() if isinstance(v, list)}
        return TensorFeatures(**{"strides": (), **content, **lists})
    if tag == "$tuple":
        return tuple(decode(item, special) for item in content)
    if tag == "$dict":
        return {decode(k, special): decode(v, special) for k, v in content}
    if tag == "$slice":
        return slice(*(decode(part, special) for part in content))
    if tag == "$torch":
        found = getattr(torch, str(content), None)
        if not isinstance(found, (torch.dtype, torch.memory_format, torch.layout)):
            raise ValueError(f"torch.{content} is no dtype, memory format or layout")
        return found
    simple = {
        "$float": float,
        "$ellipsis": lambda _: Ellipsis,
        "$device": _device,
        "$complex": lambda parts: complex(*map(decode, parts)),
        "$opaque": Opaque,
    }
    if tag not in simple:
        raise ValueError(f"unknown tag {tag!r} in a recorded value")
    return simple[tag](content)


def _device(name) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"{name!r} is no device type") from None
