"""Features of tensors and calls: what a record keeps of the inputs that an API really saw (DESIGN decision 3).

A record holds no values of activations. It holds what is needed to draw similar ones: dtype, shape, strides,
a quantile sketch, shares of zeros, NaN and infinities, aliasing between arguments, and every non-tensor argument
as it was. Only torch and numpy are needed here, since workers on other machines read the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from sortlib.apis import Argument

# Levels of the quantile sketch: dense in the tails, where rare large values decide over rounding.
LEVELS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
SKETCH_SIZE = 2048  # elements read for mean, std, zeros and quantiles; minimum and maximum read all


@dataclass(frozen=True)
class TensorFeatures:
    """What is recorded of one tensor.

    Attributes
    ----------
    dtype : name without ``torch.``, for example ``float32``.
    shape, strides : in elements.
    role : ``call`` (another call's output), ``parameter``, ``buffer``, ``input`` (of the model), ``constant`` or
        ``gradient``.
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

    @classmethod
    def made(cls, dtype, shape, strides, role, requires_grad, values) -> TensorFeatures:
        """The same as the constructor with ``**values``, in a fraction of its time."""
        found = object.__new__(cls)
        found.__dict__.update(
            _DEFAULTS, dtype=dtype, shape=shape, strides=strides, role=role, requires_grad=requires_grad, **values
        )
        return found

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
    input_gradients : pairs (argument path, features) of the gradients of the loss by the tensors that the call read,
        for those that the loss depends on (``Tracer(backward=True)``). A gradient is that of the tensor, all its
        readers together.
    output_gradients : for each output the features of the gradient of the loss by it, or None.
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
    input_gradients: tuple[tuple[tuple, TensorFeatures], ...] = ()
    output_gradients: tuple[TensorFeatures | None, ...] = ()

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


_PLAIN = frozenset({int, float, bool, str})


def map_tensors(value, change: Callable[[tuple, Any], Any], kind=torch.Tensor, path=()):
    """A copy of a nested value in which every instance of ``kind`` is replaced by ``change(path, it)``."""
    if isinstance(value, kind):
        return change(path, value)
    if value is None or type(value) in _PLAIN:  # most values, at once
        return value
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


@lru_cache
def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def memory_order(tensor):
    """The elements of a strided tensor in one dimension, without a copy where memory is dense.

    Elements that stride 0 repeats are taken once, which changes no share and no quantile.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).view(-1)
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and step == 0:
            tensor = tensor.narrow(dim, 0, 1)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(-1)


def _as_numbers(tensor):
    """``memory_order`` of real numbers that PyTorch can compare, real and imaginary parts apart."""
    tensor = tensor.resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = memory_order(tensor)
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
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return TensorFeatures(**_form(tensor, role), **read_values(tensor))


class Sample(NamedTuple):
    """What is taken of a tensor at once; ``summarise`` makes values of it later, for many tensors together.

    ``minimum`` and ``maximum`` of all finite elements, the shares of others, and the finite elements of the sample,
    which may lie in the tensor's own memory.
    """

    minimum: float
    maximum: float
    shares: dict
    numbers: np.ndarray


def read_values(tensor) -> dict:
    """The part of the features that is read from the elements; empty where there is nothing to read.

    It does not depend on shape and strides where these cover the same dense memory.
    """
    taken = take(tensor)
    return summarise([taken])[0] if isinstance(taken, Sample) else taken


def take(tensor) -> Sample | dict:
    """A sample of the tensor, or its values where these need none."""
    if _functorch.peek_interpreter_stack() is not None:
        while _functorch.is_functorch_wrapped_tensor(tensor):
            tensor = _functorch.get_unwrapped(tensor)
        with temporarily_clear_interpreter_stack():
            return take(tensor)
    plain_memory = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    if not plain_memory or tensor.is_meta or isinstance(tensor, FakeTensor) or tensor.numel() == 0:
        return {}
    try:
        flat = _as_numbers(tensor.detach())
    except (NotImplementedError, RuntimeError):  # a dtype that PyTorch stores and cannot read, as float4
        return {}
    return _taken(flat)


def _form(tensor, role) -> dict:
    sized = not tensor.is_nested
    return {
        "dtype": dtype_name(tensor.dtype),
        "shape": tuple(int(size) for size in tensor.shape) if sized else (),
        "strides": tuple(int(step) for step in tensor.stride()) if sized and tensor.layout == torch.strided else (),
        "role": role,
        "requires_grad": bool(tensor.requires_grad),
    }


def _taken(flat) -> Sample | dict:
    count = flat.numel()
    if flat.dtype == torch.bool:
        # Counted exactly: the number of True decides the shape that a boolean index returns.
        share = float(flat.sum()) / count
        return {"minimum": float(share == 1), "maximum": float(share > 0), "mean": share, "zeros": 1 - share,
                "integral": True}  # fmt: skip
    kind = torch.float32 if flat.dtype in (torch.float32, torch.float16, torch.bfloat16) else torch.float64
    sample = _systematic_sample(flat).to("cpu", kind).numpy()
    if count <= SKETCH_SIZE:
        low, high = float(sample.min()), float(sample.max())
    else:
        low, high = (float(bound) for bound in torch.aminmax(flat))
    if math.isfinite(low) and math.isfinite(high):
        return Sample(low, high, {}, sample)
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
    return Sample(low, high, shares, sample) if sample.size else {**shares, "minimum": low, "maximum": high}


_TOGETHER = 64  # samples that are sorted at once, which fit into a processor's cache


def summarise(samples: list[Sample]) -> list[dict]:
    """The values of each sample; those of one size together, which spares most of NumPy's cost for each call."""
    sizes = {}
    for place, sample in enumerate(samples):
        sizes.setdefault((sample.numbers.size, sample.numbers.dtype), []).append(place)
    result = [None] * len(samples)
    for places in sizes.values():
        for start in range(0, len(places), _TOGETHER):
            some = places[start : start + _TOGETHER]
            for place, values in zip(some, _summaries([samples[place] for place in some]), strict=True):
                result[place] = values
    return result


def _summaries(samples):
    ordered = np.stack([sample.numbers for sample in samples])
    ordered.sort(axis=1)
    low, high = (np.array([getattr(sample, end) for sample in samples]) for end in ("minimum", "maximum"))
    below, above = np.count_nonzero(ordered < 0, axis=1), np.count_nonzero(ordered <= 0, axis=1)
    whole = (low == np.round(low)) & (high == np.round(high))
    if whole.any():
        whole[whole] = (ordered[whole] == np.rint(ordered[whole])).all(axis=1)
    ordered = ordered.astype(np.float64)
    count = ordered.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):  # float64 near its limit
        mean = ordered.sum(axis=1) / count
        centred = ordered - mean[:, None]
        std = np.sqrt((centred * centred).sum(axis=1) / count)
        quantiles = _sketch(ordered, below, above)
    quantiles[:, 0], quantiles[:, -1] = np.minimum(low, quantiles[:, 0]), np.maximum(high, quantiles[:, -1])
    zeros = (above - below) / count
    columns = (part.tolist() for part in (mean, std, zeros, quantiles, whole))
    return [
        {
            **sample.shares,
            "minimum": sample.minimum,
            "maximum": sample.maximum,
            "mean": mean if math.isfinite(mean) else None,
            "std": std if math.isfinite(std) else None,
            "zeros": zeros,
            "quantiles": tuple(quantiles) if zeros < 1 else (),
            "integral": whole,
        }
        for sample, mean, std, zeros, quantiles, whole in zip(samples, *columns, strict=True)
    ]


def _sketch(ordered, below, above):
    """Quantiles of sorted rows without the zeros, which stand at ``below`` to ``above`` of each row."""
    zeros = above - below
    last = np.maximum(ordered.shape[1] - zeros - 1, 0)[:, None]
    exact = last * np.array(LEVELS)
    lower = np.floor(exact).astype(np.int64)
    upper = np.minimum(lower + 1, last)
    share = exact - lower
    below, zeros = below[:, None], zeros[:, None]
    places = (np.minimum(place + zeros * (place >= below), ordered.shape[1] - 1) for place in (lower, upper))
    return between(*(np.take_along_axis(ordered, place, axis=1) for place in places), share)


def between(first, second, share):
    """Values at ``share`` of the way from ``first`` to ``second`` (float64); of two whose distance overflows, the
    nearer one."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = first + (second - first) * share
    finite = np.isfinite(found)
    return found if finite.all() else np.where(finite, found, np.where(share <= 0.5, first, second))


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
