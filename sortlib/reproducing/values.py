"""Input tensors as Python text, so that a script draws the same bits that the workers were given.

A ``Value`` is made by running its own text, hence what is judged and what is handed out cannot differ.
"""

from __future__ import annotations

import base64
import math
import sys
import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch

from sortlib import drawing
from sortlib.features import LEVELS, TensorFeatures, contiguous_strides, dtype_name
from sortlib.reproducing.source import source_of

LITERAL = 32  # elements up to which a tensor is written out
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Value:
    """One input tensor.

    Attributes
    ----------
    kind : ``constant`` (content: the number), ``normal`` (mean, std, digits, seed), ``uniform`` (low, high, digits,
        seed), ``integers`` (low, high, seed), ``drawn`` (features, seed text, sampler) or ``stored`` (the tensor).
    dtype, shape, strides : of the tensor; strides in elements.
    content : what the kind needs.
    """

    kind: str
    dtype: str
    shape: tuple
    strides: tuple
    content: tuple

    @classmethod
    def drawn(cls, features: TensorFeatures, seed: str, sampler: str) -> Value:
        """Drawn from recorded features, as a case does it."""
        return cls("drawn", features.dtype, features.shape, features.strides, (features, seed, sampler))

    @classmethod
    def stored(cls, tensor: torch.Tensor) -> Value:
        """Exactly this CPU tensor."""
        return cls("stored", dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), (tensor.detach(),))

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def tensor(self) -> torch.Tensor:
        """The tensor on the CPU."""
        if self.kind == "stored":
            return self.content[0]
        if self.kind == "drawn":
            return drawing.draw(*self.content)
        scope = {"torch": torch, "np": np, "copy_strided": copy_strided}
        return eval(self.code(), scope)  # noqa: S307 - the text comes from this class

    @property
    def key(self) -> str:
        """Equal keys are equal tensors."""
        content = repr(self.content)
        if self.kind == "stored":
            content = drawing.digest([self.content[0]]) if self.numel else ""
        return repr((self.kind, self.dtype, self.shape, self.strides, content))

    def code(self) -> str:
        """A Python expression of the tensor; ``helpers`` are what it needs beside torch and np."""
        if self.kind == "drawn":
            features, seed, sampler = self.content
            return f"draw({_features(features)}, {seed!r}, {sampler!r})"
        plain = getattr(self, f"_{self.kind}")()
        if self.strides == contiguous_strides(self.shape) or self.numel == 0:
            return plain
        if TensorFeatures(self.dtype, self.shape, self.strides).layout == "channels_last":
            return f"{plain}.contiguous(memory_format=torch.channels_last)"
        return f"copy_strided({plain}, {self.strides})"

    def helpers(self) -> set[str]:
        """Names of ``HELPERS`` that the text uses."""
        return {name for name in HELPERS if f"{name}(" in self.code()}

    def resized(self, shape) -> Value:
        """The same kind of tensor in another shape: its corner where it is stored, drawn anew elsewhere."""
        shape = tuple(shape)
        strides = _like(self.strides, self.shape, shape)
        if self.kind == "stored":
            corner = self.content[0][tuple(slice(0, size) for size in shape)]
            return Value.stored(torch.empty_strided(shape, strides, dtype=corner.dtype).copy_(corner))
        if self.kind == "drawn":
            features, seed, sampler = self.content
            return Value.drawn(replace(features, shape=shape, strides=strides), seed, sampler)
        return replace(self, shape=shape, strides=strides)

    def contiguous(self) -> Value:
        """The same values in the plain order of memory."""
        strides = contiguous_strides(self.shape)
        if self.kind in ("stored", "drawn"):
            return Value.stored(self.tensor().contiguous())
        return replace(self, strides=strides)

    # ---- the text of each kind ----

    def _constant(self):
        (number,) = self.content
        made = {0: "torch.zeros({0}", 1: "torch.ones({0}"}.get(number, f"torch.full({{0}}, {_number(number)}")
        return made.format(self.shape) + f", dtype=torch.{self.dtype})"

    def _normal(self):
        mean, std, digits, seed = self.content
        text = f"np.random.default_rng({seed}).standard_normal({self.shape})"
        text += f" * {_number(std)}" * (std != 1)
        text = f"{_number(mean)} + {text}" if mean else text
        return self._from_numpy(f"np.round({text}, {digits})" if digits is not None else text)

    def _uniform(self):
        low, high, digits, seed = self.content
        text = f"np.random.default_rng({seed}).uniform({_number(low)}, {_number(high)}, {self.shape})"
        return self._from_numpy(f"np.round({text}, {digits})" if digits is not None else text)

    def _integers(self):
        low, high, seed = self.content
        return self._from_numpy(f"np.random.default_rng({seed}).integers({low}, {high}, {self.shape}, endpoint=True)")

    def _from_numpy(self, text):
        # np.asarray, since a sum with a zero-dimensional array is a number.
        return f"torch.from_numpy(np.asarray({text})).to(torch.{self.dtype})"

    def _stored(self):
        tensor = self.content[0]
        written = not tensor.dtype.is_complex and (tensor.element_size() > 1 or not tensor.dtype.is_floating_point)
        if written and tensor.numel() <= LITERAL:  # float8 has no list
            return f"torch.tensor({_nested(tensor.tolist())}, dtype=torch.{self.dtype})"
        flat = tensor.contiguous().reshape(-1)
        if tensor.dtype.is_complex:
            flat = torch.view_as_real(flat).reshape(-1)
        if flat.dtype == torch.bool:
            flat = flat.to(torch.uint8)
        data = flat.view(_BITS[flat.element_size()]).numpy().tobytes() if flat.numel() else b""
        return f'unpack("{base64.b64encode(zlib.compress(data, 9)).decode()}", torch.{self.dtype}, {self.shape})'


def copy_strided(tensor, strides):
    """The same values with these strides, gaps included."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def unpack(text, dtype, shape):
    """A tensor from the base64 text of its compressed bits."""
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def _number(value) -> str:
    text = repr(float(value))
    return f"float('{text}')" if text in ("inf", "-inf", "nan") else text.removesuffix(".0")


def _nested(value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    if isinstance(value, float):
        return f"float('{value!r}')" if not math.isfinite(value) else repr(value)
    return repr(value)


def _like(strides, old, new):
    """Strides of a dense tensor of the new shape whose dimensions lie in memory in the old order."""
    result, step = [0] * len(new), 1
    # Of dimensions with equal strides (those of size 1) the last comes first, as in a contiguous tensor.
    for place in sorted(range(len(new)), key=lambda place: (strides[place], old[place], -place)):
        result[place] = step
        step *= max(new[place], 1)
    return tuple(result) if strides != contiguous_strides(old) else contiguous_strides(new)


def _features(features) -> str:
    given = {"dtype": features.dtype, "shape": features.shape, "strides": features.strides}
    names = ("minimum", "maximum", "mean", "zeros", "nan", "posinf", "neginf", "quantiles", "integral")
    # A minimum of zero is a number, and none is not: what is left out is what ``_FEATURES`` has by itself.
    defaults = {"minimum": None, "maximum": None, "mean": None, "quantiles": (), "integral": False}
    told = {name: getattr(features, name) for name in names}
    given |= {name: value for name, value in told.items() if value != defaults.get(name, 0.0)}
    return f"Features({', '.join(f'{name}={value!r}' for name, value in given.items())})"


_FEATURES = '''class Features:
    """What was recorded of a tensor in a real model."""

    minimum = maximum = mean = None
    zeros = nan = posinf = neginf = 0.0
    quantiles, integral = (), False

    def __init__(self, **given):
        self.__dict__.update(given)
        self.numel = math.prod(self.shape)'''


# Functions that the text of a value may call -> their own text.
HELPERS = {
    "draw": lambda: f"LEVELS = {LEVELS}\n\n\n{_FEATURES}\n\n\n{source_of('draw', module=drawing)}",
    "unpack": lambda: source_of("unpack", module=sys.modules[__name__]),
    "copy_strided": lambda: source_of("copy_strided", module=sys.modules[__name__]),
}
