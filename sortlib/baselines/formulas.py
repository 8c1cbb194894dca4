"""Arguments as formulas see them: Z3 variables for what validation code asks of a tensor, a list or a number."""

from __future__ import annotations

from dataclasses import dataclass

import z3

from sortlib.baselines.base import DTYPES
from sortlib.baselines.constraints import COMPLEX, FLOATS, INTEGERS

DIMS = 6  # largest number of dimensions
ITEMS = 8  # items of a list that formulas can name


class Untranslatable(Exception):
    """An expression without a formula."""


# ---- the arguments as the formulas see them ----


@dataclass
class TensorArg:
    """Number of dimensions, sizes and dtype of a tensor argument, as Z3 integers."""

    name: str

    def __post_init__(self):
        self.ndim = z3.Int(f"{self.name}.ndim")
        self.sizes = [z3.Int(f"{self.name}.size{i}") for i in range(DIMS)]
        self.dtype = z3.Int(f"{self.name}.dtype")


@dataclass
class ListArg:
    """Length and first items of a list of whole numbers."""

    name: str

    def __post_init__(self):
        self.length = z3.Int(f"{self.name}.len")
        self.items = [z3.Int(f"{self.name}.item{i}") for i in range(ITEMS)]


@dataclass
class Scalar:
    """A number, bool or string; strings are numbers of a table."""

    name: str
    kind: str

    def __post_init__(self):
        make = {"int": z3.Int, "str": z3.Int, "float": z3.Real, "bool": z3.Bool}[self.kind]
        self.value = make(f"{self.name}.value")


@dataclass
class Shape:
    """The shape of a tensor, perhaps from one dimension on."""

    owner: TensorArg
    start: int = 0


@dataclass
class Dtype:
    code: object  # Z3 integer or position in DTYPES


@dataclass
class Type:
    name: str


@dataclass
class Range:
    start: object


def negation(value):
    return (not value) if isinstance(value, bool) else z3.Not(value)


def conjunction(parts):
    if any(part is False for part in parts):
        return False
    rest = [part for part in parts if part is not True]
    return z3.And(*rest) if rest else True


def disjunction(parts):
    if any(part is True for part in parts):
        return True
    rest = [part for part in parts if part is not False]
    return z3.Or(*rest) if rest else False


def as_condition(value):
    """A condition as Python and Z3 take it."""
    if isinstance(value, bool) or z3.is_bool(value):
        return value
    if value is None:
        return False
    if isinstance(value, Scalar):
        return value.value if value.kind == "bool" else value.value != 0
    if isinstance(value, int) or z3.is_int(value):
        return value != 0
    raise Untranslatable("condition")


def as_number(value):
    if isinstance(value, Scalar) and value.kind in ("int", "float"):
        return value.value
    if isinstance(value, Scalar) and value.kind == "bool":
        return value.value
    if isinstance(value, (int, float)) or z3.is_expr(value):
        return value
    raise Untranslatable("number")


def is_integer(value):
    return isinstance(value, int) or z3.is_int(value)


def length_of(value):
    if isinstance(value, ListArg):
        return value.length
    if isinstance(value, Shape):
        return value.owner.ndim
    if isinstance(value, (tuple, str)):
        return len(value)
    raise Untranslatable("length")


def item_of(owner, index):
    """``x.shape[i]`` or ``stride[i]``; from the end where i is negative."""
    if isinstance(owner, Range):
        return owner.start
    if isinstance(owner, tuple) and isinstance(index, int) and -len(owner) <= index < len(owner):
        return owner[index]
    if isinstance(owner, ListArg):
        values, length = owner.items, owner.length
    elif isinstance(owner, Shape):
        values, length = owner.owner.sizes, owner.owner.ndim
    else:
        raise Untranslatable("item")
    index = as_number(index)
    if isinstance(index, int) and index >= 0:
        if index >= len(values):
            raise Untranslatable("item")
        return values[index]
    place = length + index if isinstance(index, int) else z3.If(index < 0, length + index, index)
    chosen = values[-1]
    for position, value in enumerate(values[:-1]):
        chosen = z3.If(place == position, value, chosen)
    return chosen


def same_shape(a, b):
    pairs = enumerate(zip(a.owner.sizes, b.owner.sizes, strict=True))
    equal = [z3.Implies(a.owner.ndim > place, x == y) for place, (x, y) in pairs]
    return z3.And(a.owner.ndim == b.owner.ndim, *equal)


_KINDS = {
    "int": {"int", "Number", "IntLike", "NumberType", "SymInt"},
    "float": {"float", "Number", "NumberType"},
    "bool": {"bool", "int", "Number"},
    "str": {"str"},
}


def is_instance(value, kinds):
    names = {kind.name for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if isinstance(kind, Type)}
    if not names:
        raise Untranslatable("isinstance")
    if isinstance(value, TensorArg):
        return bool(names & {"Tensor", "TensorLike"})
    if isinstance(value, (ListArg, tuple)):
        return bool(names & {"list", "tuple", "Sequence"})
    if isinstance(value, Scalar):
        return bool(names & _KINDS[value.kind])
    return value is not None and type(value).__name__ in names


def dtype_is(name, value):
    code = value.code if isinstance(value, Dtype) else value.dtype if isinstance(value, TensorArg) else None
    if code is None:
        raise Untranslatable("dtype")
    wanted = []
    for word, family in (("float", FLOATS), ("complex", COMPLEX), ("integer", INTEGERS), ("integral", INTEGERS),
                         ("boolean", ("bool",))):  # fmt: skip
        wanted += family if word in name else ()
    if not wanted:
        raise Untranslatable(name)
    return disjunction([code == DTYPES.index(dtype) for dtype in wanted])
