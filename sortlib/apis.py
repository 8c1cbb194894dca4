"""Identity of an API: one canonical name for all spellings of a call, bound arguments, and traits.

``torch.add``, ``x.add``, ``x + y``, ``y.__radd__`` and ``x += y`` are one API, ``add``; what differs between
them (the spelling that was called, whether it writes in place) is kept beside the name. The paper's own
spelling is only a display name (``paper_name``).
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions, get_testing_overrides, resolve_name

from sortlib.errors import SortError

# The 15 APIs of the paper's Table I, canonical name -> the paper's spelling (section IV-E).
PAPER_APIS = {
    "flatten": "flatten",
    "mul": "__mul__",
    "div": "div",
    "softmax": "softmax",
    "adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "matmul": "matmul",
    "max_pool2d": "max_pool2d",
    "batch_norm": "batch_norm",
    "dropout": "dropout",
    "relu": "relu",
    "conv2d": "conv2d",
    "gelu": "gelu",
    "linear": "linear",
    "layer_norm": "layer_norm",
    "add": "__add__",
}

# Spellings that PyTorch documents as aliases, and the names that Python's operators arrive under.
_SAME = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add",
    "__sub__": "sub", "__rsub__": "sub", "__isub__": "sub", "rsub": "sub", "subtract": "sub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul",
    "__truediv__": "div", "__rtruediv__": "div", "__itruediv__": "div", "__div__": "div", "__rdiv__": "div",
    "__idiv__": "div", "divide": "div", "true_divide": "div",
    "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__ifloordiv__": "floor_divide",
    "__mod__": "remainder", "__rmod__": "remainder", "__imod__": "remainder",
    "__pow__": "pow", "__rpow__": "pow", "__ipow__": "pow",
    "__matmul__": "matmul", "__rmatmul__": "matmul", "__imatmul__": "matmul",
    "__and__": "bitwise_and", "__rand__": "bitwise_and", "__iand__": "bitwise_and",
    "__or__": "bitwise_or", "__ror__": "bitwise_or", "__ior__": "bitwise_or",
    "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__ixor__": "bitwise_xor",
    "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift",
    "__invert__": "bitwise_not", "__neg__": "neg", "negative": "neg", "__pos__": "positive", "__abs__": "abs",
    "absolute": "abs", "__eq__": "eq", "__ne__": "ne", "not_equal": "ne", "__lt__": "lt", "less": "lt",
    "__le__": "le", "less_equal": "le", "__gt__": "gt", "greater": "gt", "__ge__": "ge", "greater_equal": "ge",
    "__getitem__": "getitem", "__setitem__": "setitem", "concat": "cat", "concatenate": "cat", "clip": "clamp",
    "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "arccos": "acos", "arcsin": "asin",
    "arctan": "atan", "fix": "trunc", "max_pool2d_with_indices": "max_pool2d",
    "max_pool1d_with_indices": "max_pool1d", "max_pool3d_with_indices": "max_pool3d",
    "adaptive_max_pool1d_with_indices": "adaptive_max_pool1d",
    "adaptive_max_pool2d_with_indices": "adaptive_max_pool2d",
    "adaptive_max_pool3d_with_indices": "adaptive_max_pool3d",
    "fractional_max_pool2d_with_indices": "fractional_max_pool2d",
    "fractional_max_pool3d_with_indices": "fractional_max_pool3d",
}  # fmt: skip

_REFLECTED = {
    "__rsub__", "rsub", "__rtruediv__", "__rdiv__", "__rfloordiv__", "__rmod__", "__rpow__", "__rmatmul__",
    "__rlshift__", "__rrshift__",
}  # fmt: skip

# Operands of these may be exchanged without a change of the result, so their edges share the label "operand".
COMMUTATIVE = {
    "add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "hypot", "logaddexp", "logaddexp2",
}  # fmt: skip

# Draw random numbers when active; see ``is_random``.
RANDOM = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "feature_dropout", "rrelu", "bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "rand",
    "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "poisson", "uniform_",
    "gumbel_softmax", "random_", "exponential_", "native_dropout", "empty", "empty_like", "new_empty",
}  # fmt: skip

# Only move, select or reinterpret elements: every platform must return the same bits.
DATA_MOVEMENT = {
    "flatten", "view", "reshape", "permute", "transpose", "t", "T", "mT", "getitem", "setitem", "cat", "stack",
    "chunk", "split", "unbind", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "roll", "contiguous",
    "clone", "detach", "pad", "unfold", "movedim", "flip", "tile", "view_as", "reshape_as", "unflatten", "narrow",
    "select", "index_select", "gather", "masked_fill", "where", "data", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "rot90", "hstack", "vstack", "split_with_sizes", "tensor_split", "embedding",
}  # fmt: skip

# Sums of products or of terms, whose error grows with the length of the sum.
SUM_OF_PRODUCTS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul",
    "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum", "bilinear", "sum", "mean", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "cumsum", "inner", "outer",
    "tensordot",
}  # fmt: skip

# Calls that return a tensor but only ask or set an attribute of one.
_QUERIES = {"requires_grad_", "retain_grad", "is_nested", "grad", "_base", "__hash__", "is_leaf", "_use_count"}


class Argument(NamedTuple):
    """One bound argument: ``kind`` is positional, variadic (the excess positions as a tuple) or keyword."""

    name: str
    value: Any
    kind: str


@dataclass(frozen=True)
class Api:
    """One spelling of an API.

    Attributes
    ----------
    name : canonical name, the label of graph nodes.
    target : the dotted name that was called; ``resolve`` finds the function again.
    parameters : argument names in order of position.
    variadic : whether excess positional arguments belong to the last parameter.
    inplace : whether this spelling always writes into its first argument.
    query : whether the call is an attribute query and no operation.
    """

    name: str
    target: str
    parameters: tuple[str, ...]
    variadic: bool
    inplace: bool
    query: bool


@functools.cache
def _testing_overrides():
    return get_testing_overrides()


def _parameters(func) -> tuple[tuple[str, ...], bool]:
    """Argument names of a function; for built-ins the lambdas that PyTorch keeps for its own tests name them."""
    name = getattr(func, "__name__", "")
    functional = getattr(torch, name[:-1], None) if name.endswith("_") else None  # relu_ is bound like relu
    for candidate in (func, _testing_overrides().get(func), _testing_overrides().get(functional)):
        if candidate is None:
            continue
        try:
            signature = inspect.signature(candidate)
        except (ValueError, TypeError):
            continue
        names = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        star = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        if names == ["args"]:  # a wrapper that hides its arguments
            continue
        return tuple("input" if name == "self" else name for name in names), star
    return ("args",), True


def _base_name(name: str) -> tuple[str, bool]:
    """Name without the in-place underscore, and whether there was one."""
    if name in _SAME:
        return _SAME[name], name.startswith("__i") and name not in ("__invert__",) or name == "__setitem__"
    if name.endswith("_") and not name.endswith("__"):
        base = name[:-1]
        if any(hasattr(home, base) for home in (torch, torch.Tensor, F)):
            return _SAME.get(base, base), True
        return name, True
    return name, False


@functools.cache
def identify(func) -> Api:
    """The API behind a function that ``__torch_function__`` reports."""
    target = resolve_name(func) or f"{getattr(func, '__module__', None) or '?'}.{getattr(func, '__name__', func)}"
    parts = target.split(".")
    last = parts[-2] if parts[-1] in ("__get__", "__set__", "__delete__") else parts[-1]
    name, inplace = _base_name(last)
    # torch.linalg.norm and torch.norm are two operations; torch.special.softmax and torch.softmax are one.
    if (
        len(parts) > 2
        and parts[1] in ("linalg", "fft", "sparse", "nested", "signal", "ops")
        or (len(parts) > 2 and parts[1] == "special" and not hasattr(torch, name))
    ):
        name = ".".join([*parts[1:-1], name])
    parameters, variadic = _parameters(func)
    if last in _REFLECTED and len(parameters) >= 2:
        parameters = (parameters[1], parameters[0], *parameters[2:])
    if last in ("__getitem__", "__setitem__"):
        parameters, variadic = (
            (("input", "indices"), False) if last == "__getitem__" else (("input", "indices", "value"), False)
        )
    if parts[-1] == "__get__":
        parameters, variadic = ("input",), False
    query = last in _QUERIES or parts[-1] in ("__set__", "__delete__")
    return Api(name, target, parameters, variadic, inplace, query)


def bind(api: Api, args: tuple, kwargs: dict) -> tuple[Argument, ...]:
    """Name the arguments of a call, built-ins included; ``unbind`` gives the call back unchanged."""
    names = api.parameters
    bound = []
    if len(args) > len(names) or (api.variadic and len(args) >= len(names)):
        fixed = len(names) - 1
        bound += [Argument(name, value, "positional") for name, value in zip(names[:fixed], args, strict=False)]
        bound.append(Argument(names[-1], tuple(args[fixed:]), "variadic"))
    else:
        bound += [Argument(name, value, "positional") for name, value in zip(names, args, strict=False)]
    bound += [Argument(name, value, "keyword") for name, value in (kwargs or {}).items()]
    return tuple(bound)


def unbind(arguments) -> tuple[list, dict]:
    """Positional and keyword arguments of a bound call."""
    args, kwargs = [], {}
    for name, value, kind in arguments:
        if kind == "keyword":
            kwargs[name] = value
        elif kind == "variadic":
            args.extend(value)
        else:
            args.append(value)
    return args, kwargs


def writes_in_place(api: Api, arguments) -> bool:
    """Whether this call writes into its first argument."""
    return api.inplace or any(a.name == "inplace" and a.value is True for a in arguments)


def is_random(api_name: str, arguments) -> bool:
    """Whether this call draws random numbers (dropout outside training does not)."""
    if api_name not in RANDOM:
        return False
    given = {a.name: a.value for a in arguments}
    return given.get("training", given.get("train", True)) is not False


def edge_label(api_name: str, path: tuple, output: int = 0, several: bool = False, alias: bool = False) -> str:
    """The label that mining compares (see ``graph.Edge``)."""
    label = str(path[0])
    if api_name in COMMUTATIVE and label in ("input", "other"):
        label = "operand"
    if several:
        label += f"[{output}]"
    return label + "@alias" if alias else label


def paper_name(api_name: str) -> str:
    """The paper's spelling of an API: ``__add__`` for ``add``."""
    return PAPER_APIS.get(api_name, api_name)


# Operators that reach outside the process.
_REFUSED = {"from_file", "save", "load"}


@functools.cache
def _overridable() -> frozenset:
    return frozenset(f for group in get_overridable_functions().values() for f in group) | set(_testing_overrides())


def _is_operator(name: str, found) -> bool:
    if name in _REFUSED or isinstance(found, type):
        return False
    if isinstance(found, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    built_in = (getattr(home, name, None) for home in (torch._C._VariableFunctions, torch._C._nn, torch.Tensor))
    return found in _overridable() or found in [f for f in built_in if f is not None]


@functools.cache
def resolve(target: str):
    """The function behind a recorded ``target``.

    Only operators that PyTorch itself lists are returned, so a record read from disk cannot name other code.

    Raises
    ------
    SortError
        The name does not lead to such a function in this PyTorch.
    """
    parts = target.split(".")
    if parts[0] == "torch" and len(parts) > 1:
        found = torch
        try:
            for part in parts[1:]:
                found = getattr(found, part)
        except AttributeError:
            found = None
        if found is not None and _is_operator(parts[-1], found):
            return found
    raise SortError(f"{target!r} is no operator of torch {torch.__version__}")
