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

from sortlib.api_tables import (  # noqa: F401 - the traits are public here
    COMMUTATIVE,
    DATA_MOVEMENT,
    FILLS,
    FORM_ONLY,
    HIDDEN_WRITES,
    IF_TENSOR,
    PACKED_STEPS,
    PAPER_APIS,
    PARAMETERS,
    QUERIES,
    RANDOM,
    RANDOM_WITH,
    RECURRENT,
    REFLECTED,
    SAME,
    STEPS,
    SUM_OF_PRODUCTS,
)
from sortlib.errors import SortError


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


@functools.cache
def _schemas(name: str) -> tuple:
    """Names of the positional arguments of every overload of an ATen operator."""
    return tuple(_positional(schema) for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"))


def _positional(schema) -> tuple[str, ...]:
    return tuple("input" if a.name == "self" else a.name for a in schema.arguments if not a.kwarg_only)


def _is_op(func) -> bool:
    return isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


def _target(func) -> str:
    """The dotted name under which ``resolve`` finds the function."""
    if isinstance(func, torch._ops.OpOverload):
        return f"torch.ops.{func.namespace}.{func._opname}.{func._overloadname}"
    if _is_op(func):
        return "torch.ops." + func._qualified_op_name.replace("::", ".")
    name = getattr(func, "__name__", str(func))
    return resolve_name(func) or (
        f"torch.{name}" if getattr(torch, name, None) is func else f"{getattr(func, '__module__', None) or '?'}.{name}"
    )


def _parameters(func, target) -> tuple[tuple[str, ...], bool]:
    """Names of the positional arguments, and whether the last takes all that remain.

    Built-in functions have no signature: the lambdas that PyTorch keeps for its own tests name their arguments, and
    operator schemas those which the lambdas leave out.
    """
    if target in PARAMETERS:
        return tuple(PARAMETERS[target].split()), False
    if _is_op(func):
        overload = func if isinstance(func, torch._ops.OpOverload) else getattr(func, func.overloads()[0])
        return _positional(overload._schema), False
    name = getattr(func, "__name__", "")
    functional = getattr(torch, name[:-1], None) if name.endswith("_") else None  # relu_ is bound like relu
    for candidate in (func, _testing_overrides().get(func), _testing_overrides().get(functional)):
        if candidate is None:
            continue
        try:
            signature = inspect.signature(candidate)
        except (ValueError, TypeError):
            continue
        kinds = {p.name: p.kind for p in signature.parameters.values()}
        names = [n for n, kind in kinds.items() if kind not in (inspect._VAR_KEYWORD, inspect._KEYWORD_ONLY)]
        if names == ["args"]:  # a wrapper that hides its arguments
            continue
        star = inspect._VAR_POSITIONAL in kinds.values()
        if names and names[0] in ("self", "tensor", "inputs"):
            names[0] = "input"
        if candidate is not func:
            names = [n for n in names if n != "out"]  # by keyword only
            if not star:
                names += _beyond(tuple(names), name)
        return tuple(names), star
    takes_tensor = target.startswith(("torch.Tensor.", "torch._foreach_"))
    return ("input", "args") if takes_tensor else ("args",), True


def _beyond(names, operator) -> tuple[str, ...]:
    """Positional arguments of an operator that follow the given ones."""
    longer = [schema for schema in _schemas(operator) if schema[: len(names)] == names]
    return max(longer, key=len, default=names)[len(names) :]


def _base_name(name: str) -> tuple[str, bool]:
    """Name without the in-place underscore, and whether there was one."""
    if name in SAME:
        return SAME[name], name.startswith("__i") and name not in ("__invert__",) or name == "__setitem__"
    if name.endswith("_") and not name.endswith("__"):
        base = name[:-1]
        homes = (torch, torch.Tensor, F)
        if name not in FILLS and any(inspect.isroutine(getattr(home, base, None)) for home in homes):
            return SAME.get(base, base), True
        return name, True
    return name, False


# Namespaces in which a name means something else than in ``torch``.
_NAMESPACES = ("linalg", "fft", "sparse", "nested", "signal", "distributed", "ops")


def _canonical(target: str) -> tuple[str, bool, str]:
    """(canonical name, whether it writes in place, last part) of a dotted name."""
    parts = target.split(".")
    last = parts[-2] if parts[-1] in ("__get__", "__set__", "__delete__") else parts[-1]
    space = parts[1] if len(parts) > 2 else ""
    if space == "ops":  # torch.ops.aten.add.Tensor is add; torch.ops.mylib.mine is mylib.mine
        space, last = ("" if parts[2] == "aten" else parts[2]), parts[3]
    elif space == "distributed":
        space = "distributed"
    elif target == "torch.Tensor.unfold":  # windows of one dimension; torch.nn.functional.unfold is im2col
        space = "Tensor"
    elif space not in _NAMESPACES and not (space == "special" and not hasattr(torch, last)):
        space = ""
    elif len(parts) > 3:
        space = ".".join(parts[1:-1])
    name, inplace = _base_name(last)
    name = f"{space}.{name}" if space else name
    return SAME.get(name, name), inplace, last


@functools.cache
def identify(func) -> Api:
    """The API behind a function that ``__torch_function__`` reports."""
    target = _target(func)
    name, inplace, last = _canonical(target)
    parameters, variadic = _parameters(func, target)
    if last in REFLECTED and target not in PARAMETERS and len(parameters) >= 2:
        parameters = (parameters[1], parameters[0], *parameters[2:])
    kind = target.rpartition(".")[2]
    if kind == "__get__":
        parameters, variadic = ("input",), False
    query = last in QUERIES or kind in ("__set__", "__delete__")
    return Api(name, target, parameters, variadic, inplace, query)


def bind(api: Api, args: tuple, kwargs: dict) -> tuple[Argument, ...]:
    """Name the arguments of a call, built-ins included; ``unbind`` gives an equal call back."""
    names = api.parameters
    if api.name in RECURRENT and len(args) == 9:
        names = tuple((STEPS if isinstance(args[3], bool) else PACKED_STEPS).split())
    if kwargs and api.target.rpartition(".")[2] in REFLECTED:
        # ``torch.rsub(x, other=y)`` is y - x: keywords name places, and the bound names say which operand it is.
        places = ("input", "other")[len(args) :]
        args = (*args, *(kwargs[place] for place in places if place in kwargs))
        kwargs = {name: value for name, value in kwargs.items() if name not in places}
    bound = []
    if len(args) > len(names) or (api.variadic and len(args) >= len(names)):
        fixed = len(names) - 1
        bound += [Argument(name, value, "positional") for name, value in zip(names[:fixed], args, strict=False)]
        bound.append(Argument(names[-1], tuple(args[fixed:]), "variadic"))
    else:
        bound += [Argument(name, value, "positional") for name, value in zip(names, args, strict=False)]
    for place, (name, value, kind) in enumerate(bound[1:3], 1):
        if (api.name, name) in IF_TENSOR and isinstance(value, torch.Tensor):
            bound[place] = Argument(IF_TENSOR[api.name, name], value, kind)
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


def form_only(api: Api) -> bool:
    """Whether this in-place spelling changes the form of a tensor object and writes into no memory."""
    return api.target.rpartition(".")[2] in FORM_ONLY


def written_arguments(api: Api, arguments) -> set[str]:
    """Names of the arguments whose memory this call writes, as far as names and flags tell."""
    names = {"out"} & {a.name for a in arguments}
    if arguments and writes_in_place(api, arguments) and not form_only(api):
        names.add(arguments[0].name)
    if api.name in HIDDEN_WRITES:
        hidden, flag, default = HIDDEN_WRITES[api.name]
        if {a.name: a.value for a in arguments}.get(flag, default) not in (None, False):
            names.update(hidden)
    return names


def is_random(api_name: str, arguments) -> bool:
    """Whether this call draws random numbers (dropout outside training does not)."""
    given = {a.name: a.value for a in arguments}
    if api_name in RANDOM_WITH:
        share, flag = RANDOM_WITH[api_name]
        return bool(given.get(share)) and (flag is None or given.get(flag, True) is not False)
    if api_name not in RANDOM:
        return False
    return given.get("training", given.get("train", api_name != "rrelu")) is not False


def edge_label(api_name: str, path: tuple, output: int = 0, several: bool = False, alias: bool = False) -> str:
    """The label that mining compares (see ``graph.Edge``)."""
    label = "input" if path[0] == "self" else str(path[0])
    if api_name in COMMUTATIVE and label in ("input", "other"):
        label = "operand"
    if several:
        label += f"[{output}]"
    return label + "@alias" if alias else label


def paper_name(api_name: str) -> str:
    """The paper's spelling of an API: ``__add__`` for ``add``."""
    return PAPER_APIS.get(api_name, api_name)


# Operators that reach outside the process, or call back into Python.
_REFUSED = {
    "from_file", "save", "load", "load_library", "share_memory_", "apply_", "map_", "map2_", "register_hook",
    "register_post_accumulate_grad_hook", "distributed", "c10d", "_c10d_functional", "module_load", "_make_subclass",
    "_make_wrapper_subclass", "set_data", "storage", "untyped_storage", "backward",
}  # fmt: skip
# Double-underscore names that are operators or lead to one, beside Python's operators.
_SPECIAL = {"__get__", "__reversed__", "__deepcopy__"}


@functools.cache
def overridable() -> frozenset:
    """Every function that PyTorch reports to modes."""
    return frozenset(f for group in get_overridable_functions().values() for f in group) | set(_testing_overrides())


_NATIVE = ("_nn", "_linalg", "_fft", "_special", "_sparse")  # PyTorch's own homes of built-in operators


def _is_operator(parts, found) -> bool:
    name = parts[-1]
    special = {part for part in parts if part.startswith("__")}
    if _REFUSED.intersection(parts) or not special <= (SAME.keys() | _SPECIAL) or not callable(found):
        return False
    if _is_op(found):  # TorchScript's own operators (aten::save writes files) are unknown to the dispatcher
        packet = isinstance(found, torch._ops.OpOverloadPacket)
        overloads = [getattr(found, name) for name in found.overloads()] if packet else [found]
        return any(torch._C._dispatch_has_kernel(overload.name()) for overload in overloads)
    if parts[-1] == "__get__" or inspect.isroutine(found):
        homes = {
            "torch": torch._C._VariableFunctions,
            "torch.Tensor": torch.Tensor,
            "torch.nn.functional": F,  # hardswish and hardsigmoid report to modes but are not listed
            **{f"torch._C.{part}": getattr(torch._C, part) for part in _NATIVE},
        }
        home = homes.get(".".join(parts[:-1]))
        if home is F and getattr(found, "__module__", "") != "torch.nn.functional":
            home = torch._C._VariableFunctions if hasattr(torch._C._VariableFunctions, name) else torch._C._nn
        private = home is torch.Tensor and name.startswith("_") and name not in ("_is_all_true", "_is_any_true")
        return found in overridable() or (not private and found == getattr(home, name, None))
    return False


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
        except (AttributeError, ImportError, RuntimeError):
            found = None
        if found is not None and _is_operator(parts, found):
            return found
    raise SortError(f"{target!r} is no operator of torch {torch.__version__}")
