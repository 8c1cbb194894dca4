"""DocTer's constraints on parameters: the published YAML form, and the small language inside it.

The form is that of DocTer's artifact (Xie et al., ISSTA 2022), so constraint files of others can be read; none is
shipped here.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from dataclasses import dataclass, field
from pathlib import Path

from sortlib.baselines.base import DTYPES
from sortlib.errors import SortError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
FLOATS = ("float16", "float32", "float64", "bfloat16")
COMPLEX = ("complex64", "complex128")
FAMILIES = {
    "int": INTEGERS, "float": FLOATS, "bool": ("bool",), "complex": COMPLEX, "numeric": INTEGERS + FLOATS,
    "scalar": INTEGERS + FLOATS, "str": ("str",), "string": ("str",), "dtype": ("dtype",), "uint": ("uint8",),
}  # fmt: skip
CATEGORIES = ("dtype", "structure", "shape", "value")


@dataclass(frozen=True)
class Constraint:
    """What is known of one parameter; an empty field says nothing.

    Attributes
    ----------
    dtype : words: a torch dtype, a family of ``FAMILIES``, or ``dtype:&x`` (that of parameter x).
    structure : ``tensor``, ``list``, ``tuple``, ``scalar``, ``none``.
    shape : alternatives such as ``[minibatch,in_channels,ih,iw]``, ``[...,&k]`` or ``shape:&x``.
    ndim : alternatives such as ``2``, ``>=1`` or ``ndim:&x``.
    range : intervals such as ``[0,inf)``, perhaps for one dtype: ``float:(0,1]``.
    enum : the valid values.
    """

    dtype: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    ndim: tuple[str, ...] = ()
    range: tuple[str, ...] = ()
    enum: tuple = ()

    @property
    def categories(self) -> list[str]:
        """The categories of the paper that are constrained."""
        known = {"dtype": self.dtype, "structure": self.structure, "shape": self.shape or self.ndim,
                 "value": self.range or self.enum}  # fmt: skip
        return [name for name in CATEGORIES if known[name]]

    def references(self) -> set[str]:
        """Parameters that must have a value first."""
        texts = (*self.dtype, *self.shape, *self.ndim, *self.range)
        return {name for text in texts for name in re.findall(r"&(\w+)", text)}


@dataclass(frozen=True)
class Specification:
    """The constraints of one API."""

    target: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    constraints: dict[str, Constraint] = field(default_factory=dict)
    keyword_only: frozenset[str] = frozenset()
    check_nan: bool = False

    def of(self, name: str) -> Constraint:
        """The constraint of a parameter, an empty one if nothing is known."""
        return self.constraints.get(name, Constraint())


# ---- files ----


def read_folder(folder) -> dict[str, Specification]:
    """Every constraint file of a folder, by target; constructors of layers are left out, since they are no calls.

    Raises
    ------
    SortError
        There is no such folder, it has no YAML file, or a file is none of this form.
    """
    folder = Path(folder)
    files = sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]) if folder.is_dir() else []
    if not files:
        raise SortError(f"{folder}: no folder with DocTer's constraint files (*.yaml)")
    found = [read_file(file) for file in files]
    return {specification.target: specification for specification in found if specification}


def read_file(path) -> Specification | None:
    """One constraint file; None for the constructor of a layer."""
    from sortlib.config import read_yaml

    raw = read_yaml(path)
    for key in ("inputs", "constraints"):
        if not isinstance(raw.get(key), dict):
            raise SortError(f"{path}: {key}: missing, or no mapping; is this a DocTer constraint file?")
    target = str(raw.get("target") or raw.get("title") or "")
    if not target:
        raise SortError(f"{path}: target: missing; the dotted name of the API, as torch.nn.functional.relu")
    if raw.get("layer_constructor"):
        return None
    inputs = {}
    for kind in ("required", "optional", "keyword_only"):
        names = raw["inputs"].get(kind) or []
        if not isinstance(names, list):
            raise SortError(f"{path}: inputs.{kind}: must be a list of names, not {names!r}")
        inputs[kind] = tuple(name for name in map(str, names) if name not in ("*", "out"))
    known = {}
    for name, entry in raw["constraints"].items():
        if not isinstance(entry, dict):
            raise SortError(f"{path}: constraints.{name}: must be keys and values, not {entry!r}")
        known[str(name)] = _constraint(entry, f"{path}: constraints.{name}")
    optional = (*inputs["optional"], *(n for n in inputs["keyword_only"] if n not in inputs["optional"]))
    optional = tuple(name for name in optional if name not in inputs["required"])
    return Specification(target, inputs["required"], optional, known, frozenset(inputs["keyword_only"]),
                         bool(raw.get("check_nan")))  # fmt: skip


def _constraint(entry, where):
    lists = {}
    for key in ("dtype", "structure", "tensor_t", "shape", "ndim", "range", "enum"):
        value = entry.get(key)
        value = [] if value is None else value if isinstance(value, list) else [value]
        lists[key] = tuple(value) if key == "enum" else tuple(str(item).strip() for item in value)
    for text in lists["range"]:
        interval(text, where)
    structure = tuple(word.lower() for word in lists["structure"])
    if lists["tensor_t"] and "tensor" not in structure:
        structure += ("tensor",)
    dtypes = tuple(text.removeprefix("torch.").removeprefix("tf.") for text in lists["dtype"])
    return Constraint(dtypes, structure, lists["shape"], lists["ndim"], lists["range"], lists["enum"])


# ---- the small language ----


def dtypes_of(words, dtype_of=None) -> list[str]:
    """The dtypes that words allow; ``dtype_of`` gives that of another parameter."""
    found = []
    for word in words:
        if word.startswith("dtype:&"):
            other = dtype_of(word.removeprefix("dtype:&")) if dtype_of else None
            found += [other] if other else []
        elif word in FAMILIES:
            found += FAMILIES[word]
        elif word in DTYPES or word == "str":
            found.append(word)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends; an open end is excluded."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False
    dtype: str = ""


def interval(text: str, where: str = "") -> Interval:
    """Parse ``[0,inf)`` or ``float:(0,1]``.

    Raises
    ------
    SortError
        It is no interval.
    """
    match = re.fullmatch(r"(?:(\w+):)?\s*([\[(])\s*([^,\s]+)\s*,\s*([^,\s]+)\s*([\])])", text)
    try:
        low, high = float(match[3]), float(match[4])
    except (TypeError, ValueError):
        raise SortError(f"{where or 'range'}: {text!r} is no interval such as [0,inf)") from None
    return Interval(low, high, match[2] == "(", match[5] == ")", match[1] or "")


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def evaluate(text: str, names) -> int:
    """The value of ``iH+2*padding`` or ``&k/2``; ``names`` is asked for every name (``&k`` as ``k`` too).

    Raises
    ------
    ValueError
        It is no sum, product or quotient of names and whole numbers.
    """
    try:
        tree = ast.parse(text.replace("&", ""), mode="eval").body
    except SyntaxError:
        raise ValueError(text) from None
    return _value(tree, names)


def _value(node, names):
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, (ast.Div, ast.FloorDiv)):
            return left // right if right else 0
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Name):
        return names(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError(ast.dump(node))


def dims(text: str) -> list[str]:
    """The sizes in ``[a,b]`` or ``(a,b)``."""
    return [part.strip() for part in text.strip().strip("[]()").split(",") if part.strip()]


def limits(dtype: str) -> tuple[float, float]:
    """Smallest and largest finite value of a dtype (half of float64's range, so that differences are finite)."""
    import torch

    if dtype == "bool":
        return 0, 1
    kind = getattr(torch, dtype)
    if kind.is_complex:
        kind = torch.float32 if kind == torch.complex64 else torch.float64
    if kind.is_floating_point:
        high = torch.finfo(kind).max
        return (-high / 2, high / 2) if kind == torch.float64 else (-high, high)
    return torch.iinfo(kind).min, torch.iinfo(kind).max


def finite(interval_: Interval, low: float, high: float) -> tuple[float, float]:
    """The ends of an interval within [low, high]."""
    a = low if math.isinf(interval_.low) else max(low, interval_.low)
    b = high if math.isinf(interval_.high) else min(high, interval_.high)
    return (a, b) if a <= b else (b, b)
