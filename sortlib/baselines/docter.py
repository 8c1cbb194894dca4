"""DocTer: inputs that conform to documented constraints, and inputs that violate one.

Danning Xie, Yitong Li, Mijung Kim, Hung Viet Pham, Lin Tan, Xiangyu Zhang, Michael W. Godfrey: "DocTer:
Documentation-Guided Fuzzing for Testing Deep Learning API Functions", ISSTA 2022. An independent implementation. The
constraints come from the installed PyTorch's documentation (``docs_constraints``), or from files in the published
form (option ``constraints``).

Three of five attempts conform, two violate one parameter (the published budget is 1,200 to 800). Values are uniform
over the whole range of their dtype unless an interval is documented.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import torch

from sortlib.apis import Argument
from sortlib.baselines.base import DTYPES, Call, Method, build, crash, functional, tensor
from sortlib.baselines.constraints import Constraint, dims, dtypes_of, evaluate, finite, interval, limits, read_folder
from sortlib.baselines.docs_constraints import extract
from sortlib.errors import SortError
from sortlib.features import TensorFeatures

OPTIONAL = 0.6  # probability that an optional parameter is given
BOUNDARY = 0.2  # probability of a boundary value
NDIM, SIZE = 5, 20  # largest number of dimensions and size where nothing is known
CONFORMING, CYCLE = 3, 5  # three of five attempts conform
BOUNDARIES = ("zero", "element_zero", "extreme", "zero_ndim", "empty_list", "none", "empty_str")


class DocTer(Method):
    """See the module."""

    key, name, paper = "docter", "DocTer", "DocTer"

    def __init__(self):
        self._read = {}

    def attempts(self, api, count, context, variant=""):
        specification = self._specification(api, context)
        if specification is None:
            return
        tried = set()
        for number in range(count):
            generator = Generator(specification, context.rng(self.key, api, number), tried)
            values, note = generator.inputs(violate=number % CYCLE >= CONFORMING)
            note += "; check_nan" if specification.check_nan else ""
            arguments = _arguments(specification, values)
            yield build(self.key, "", api, number, [Call(specification.target, arguments, source=note)], context.seed)

    def reason(self, api, context):
        if context.options.get("constraints"):
            return f"no constraint file for a function of that name in {context.options['constraints']}"
        return "its documentation states no parameter"

    def _specification(self, api, context):
        folder = context.options.get("constraints")
        if folder:
            if folder not in self._read:
                self._read[folder] = read_folder(folder)
            names = (f"torch.nn.functional.{api}", f"torch.{api}", f"torch.Tensor.{api}")
            return next((self._read[folder][name] for name in names if name in self._read[folder]), None)
        try:
            found = extract(functional(api))
        except SortError:
            return None
        return found if found.required or found.optional else None

    def oracle(self, nodes, row, variant):
        found = crash(row)
        if not found[0] and "check_nan" in str(row.get("source")) and (row.get("reference_nan") or 0) > 0:
            return "nan", f"NaN in {row['reference_nan']:.2%} of the output"
        return found


def _arguments(specification, values):
    """Required parameters by position as long as none is missing, all others by keyword."""
    arguments = []
    for name in (*specification.required, *specification.optional):
        if name in values:
            positional = name in specification.required and name not in specification.keyword_only
            arguments.append(Argument(name, values[name], "positional" if positional else "keyword"))
    return tuple(arguments)


class Generator:
    """Makes the inputs of one attempt.

    Parameters
    ----------
    specification : the API's constraints.
    rng : decides everything.
    tried : boundary values (parameter, kind) that earlier attempts used; untried ones come first.
    """

    def __init__(self, specification, rng, tried):
        self.specification, self.rng, self.tried = specification, rng, tried
        self.values, self.constants = {}, {}

    def inputs(self, violate: bool) -> tuple[dict, str]:
        """Values by parameter, and what they are."""
        known = self.specification
        names = [*known.required, *(name for name in known.optional if self.rng.random() < OPTIONAL)]
        victim, broken, note = None, set(), "conforming"
        constrained = [name for name in names if known.of(name).categories]
        if violate and constrained:
            victim = self.pick(constrained)
            broken = self._subset(known.of(victim).categories)
            note = f"violating {victim}: {', '.join(sorted(broken))}"
        for name in self._ordered(names):
            self.values[name] = self._value(name, known.of(name), broken if name == victim else set())
        if names and self.rng.random() < BOUNDARY:
            note += self._boundary(names)
        return self.values, note

    def pick(self, values):
        """One of the values."""
        values = list(values)
        return values[int(self.rng.integers(len(values)))]

    def _subset(self, categories):
        mask = int(self.rng.integers(1, 1 << len(categories)))
        return {name for place, name in enumerate(categories) if mask >> place & 1}

    def _ordered(self, names):
        """Parameters after those that they refer to; circles in the given order."""
        order, waiting = [], list(names)
        while waiting:
            ready = [n for n in waiting if not (self.specification.of(n).references() & set(waiting)) - {n}]
            chosen = ready[0] if ready else waiting[0]
            order.append(chosen)
            waiting.remove(chosen)
        return order

    # ---- one value ----

    def _value(self, name, constraint: Constraint, broken):
        listed = bool(constraint.enum) and not ({"dtype", "structure", "shape"} & broken)
        if listed and set(constraint.dtype) - {"str", "string"} and "value" not in broken:
            listed = self.rng.random() < 0.5  # the values are those of one of several types
        if listed:
            return self._outside_enum(constraint.enum) if "value" in broken else self.pick(constraint.enum)
        dtype = self._dtype(constraint, "dtype" in broken, "value" in broken)
        structure = self._structure(constraint, "structure" in broken)
        if structure == "none":
            return None
        if dtype == "str":
            return self._text()
        if dtype == "dtype":
            return getattr(torch, self.pick(DTYPES))
        shape = self._shape(constraint, structure, "shape" in broken)
        low, high = self._bounds(constraint, dtype, "value" in broken)
        if structure in ("list", "tuple"):
            items = [self._number(dtype, low, high) for _ in range(shape[0] if shape else 0)]
            return tuple(items) if structure == "tuple" else items
        if structure == "scalar" or not shape and structure != "tensor":
            return self._number(dtype, low, high)
        return tensor(dtype, shape, low, high)

    def _dtype(self, constraint, violate, outside):
        valid = dtypes_of(constraint.dtype, self._dtype_of)
        if outside:  # dtypes that have values outside the interval: uint8 has none below zero
            valid = [dtype for dtype in valid or DTYPES if self._beyond(constraint, dtype)] or valid
        if violate:
            narrower = _siblings(valid)
            others = [dtype for dtype in (*DTYPES, "str") if dtype not in valid and dtype not in narrower]
            return self.pick(others) if others else self.pick(DTYPES)
        return self.pick(valid or DTYPES)

    def _structure(self, constraint, violate):
        valid = [word for word in constraint.structure if word in ("tensor", "list", "tuple", "scalar", "none")]
        if violate:
            return self.pick([word for word in ("tensor", "list", "scalar") if word not in valid] or ["none"])
        return self.pick(valid) if valid else ""

    def _shape(self, constraint, structure, violate):
        if structure == "scalar" and not violate:
            return ()
        if constraint.shape and not violate:
            try:
                return self._sizes(self.pick(constraint.shape))
            except ValueError:
                pass
        valid = [n for text in constraint.ndim for n in self._ndims(text)]
        valid = valid or [len(dims(text)) for text in constraint.shape if "..." not in text and ":" not in text]
        if violate:
            ndim = self.pick([n for n in range(NDIM + 1) if n not in valid] or [NDIM + 1])
        elif structure in ("list", "tuple"):
            ndim = 1
        else:
            ndim = self.pick(valid or range(NDIM + 1))
        return tuple(int(self.rng.integers(SIZE + 1)) for _ in range(ndim))

    def _ndims(self, text):
        if text.startswith("ndim:&"):
            other = self.values.get(text.removeprefix("ndim:&"))
            return [len(other.shape)] if isinstance(other, TensorFeatures) else []
        match = re.fullmatch(r"(>=|<=|>|<)?\s*(\d+)", text)
        if not match:
            return []
        compare = {None: int.__eq__, ">=": int.__ge__, "<=": int.__le__, ">": int.__gt__, "<": int.__lt__}[match[1]]
        return [n for n in range(max(NDIM, int(match[2])) + 1) if compare(n, int(match[2]))]

    def _sizes(self, text):
        if text.startswith("shape:&"):
            other = self.values.get(text.removeprefix("shape:&"))
            if isinstance(other, TensorFeatures):
                return other.shape
            raise ValueError(text)
        sizes = []
        for part in dims(text):
            if part == "...":
                sizes += [int(self.rng.integers(SIZE + 1)) for _ in range(int(self.rng.integers(NDIM + 1)))]
            elif part.startswith("len:&"):
                other = self.values.get(part.removeprefix("len:&"))
                sizes.append(len(other) if isinstance(other, (list, tuple)) else self._named(part))
            elif part.startswith("max_value:&"):
                other = self.values.get(part.removeprefix("max_value:&"))
                high = other.maximum if isinstance(other, TensorFeatures) else other
                sizes.append(int(high) + 1 if isinstance(high, (int, float)) else self._named(part))
            else:
                sizes.append(max(0, evaluate(part, self._named)))
        return tuple(sizes)

    def _named(self, name):
        """The value of a parameter, or a constant of this attempt."""
        value = self.values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if name not in self.constants:
            self.constants[name] = int(self.rng.integers(SIZE + 1))
        return self.constants[name]

    def _dtype_of(self, name):
        value = self.values.get(name)
        return value.dtype if isinstance(value, TensorFeatures) else None

    def _bounds(self, constraint, dtype, violate):
        low, high = limits(dtype)
        intervals = [interval(text) for text in constraint.range]
        intervals = [i for i in intervals if not i.dtype or dtype in dtypes_of((i.dtype,))]
        if not intervals:
            return low, high
        chosen = self.pick(intervals)
        a, b = finite(chosen, low, high)
        if not violate:
            return (min(a + _step(dtype, a), b) if chosen.low_open else a), b
        outside = self._outside(chosen, dtype)
        return self.pick(outside) if outside else (low, high)

    def _outside(self, chosen, dtype):
        """What a dtype has below and above an interval, as pairs of ends."""
        low, high = limits(dtype)
        a, b = finite(chosen, low, high)
        below = [(low, a if chosen.low_open else a - _step(dtype, a))] if low < chosen.low else []
        return below + ([(b if chosen.high_open else b + _step(dtype, b), high)] if chosen.high < high else [])

    def _beyond(self, constraint, dtype):
        return dtype not in ("str", "dtype") and any(self._outside(interval(text), dtype) for text in constraint.range)

    def _number(self, dtype, low, high):
        if dtype == "bool":
            return bool(self.rng.random() < 0.5)
        if dtype.startswith(("int", "uint")):
            # Within what every whole number of float64 can state.
            low, high = (int(min(max(end, -(2.0**63)), 2.0**63 - 1024)) for end in (low, high))
            return int(self.rng.integers(low, max(high, low), endpoint=True))
        value = float(self.rng.uniform(low, high))
        return complex(value, float(self.rng.uniform(low, high))) if dtype.startswith("complex") else value

    def _text(self):
        letters = "abcdefghijklmnopqrstuvwxyz"
        return "".join(letters[i] for i in self.rng.integers(0, 26, int(self.rng.integers(1, 11))))

    def _outside_enum(self, values):
        value = self.pick(values)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers = [v for v in values if isinstance(v, (int, float))]
            return self.pick((min(numbers) - 1, max(numbers) + 1))
        text = str(value)
        place = int(self.rng.integers(len(text) + 1))
        letter = self._text()[0]
        return self.pick((text[:place] + letter + text[place:], text[:place] + text[place + 1 :] or letter + letter))

    # ---- boundary values ----

    def _boundary(self, names):
        fitting = [(name, kind) for name in names for kind in BOUNDARIES if self._fits(name, kind)]
        fresh = [choice for choice in fitting if choice not in self.tried]
        if not fitting:
            return ""
        name, kind = self.pick(fresh or fitting)
        self.tried.add((name, kind))
        self.values[name] = self._edge(self.values[name], kind)
        return f"; boundary {kind} of {name}"

    def _fits(self, name, kind):
        value = self.values[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind == "none":
            return value is not None
        if kind == "empty_str":
            return isinstance(value, str)
        if kind == "empty_list":
            return isinstance(value, (list, tuple))
        if kind == "element_zero":  # features do not say where one element would be, so lists only
            return isinstance(value, (list, tuple)) and len(value) > 0
        if kind == "zero_ndim":
            return isinstance(value, TensorFeatures) and bool(value.shape)
        return number or isinstance(value, TensorFeatures)

    def _edge(self, value, kind):
        if kind in ("none", "empty_str"):
            return None if kind == "none" else ""
        if kind == "empty_list":
            return type(value)()
        if kind == "element_zero":
            place = int(self.rng.integers(len(value)))
            return type(value)(0 if position == place else item for position, item in enumerate(value))
        if kind == "zero_ndim":
            return replace(value, shape=(), strides=())
        if isinstance(value, TensorFeatures):
            end = 0.0 if kind == "zero" else float(self.pick(limits(value.dtype)))
            return replace(value, minimum=end, maximum=end)
        if kind == "zero":
            return type(value)(0)
        low, high = limits("int32" if isinstance(value, int) else "float32")
        return type(value)(self.pick((low, high)))


def _step(dtype, value) -> float:
    """From a number to the next one that float32, or an integer, can be."""
    return 1 if dtype.startswith(("int", "uint")) else float(np.spacing(np.float32(abs(value) or 1e-30)))


def _siblings(valid):
    """Narrower dtypes of the same family, which convert without loss and so violate nothing."""
    families = (("int8", "int16", "int32", "int64"), ("float16", "float32", "float64"), ("complex64", "complex128"))
    found = set()
    for family in families:
        known = [family.index(dtype) for dtype in valid if dtype in family]
        found |= set(family[: max(known)]) if known else set()
    return found
