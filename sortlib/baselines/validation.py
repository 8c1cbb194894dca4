"""Constraints on arguments from PyTorch's validation code: symbolic execution of its Python functions.

References, meta functions and decompositions of the installed PyTorch check their arguments in Python
(``torch._check``, ``assert`` and ``raise``). Each path through such a function that does not raise gives one
conjunction of Z3 formulas about the arguments. What cannot be translated is dropped, loops are run once, and helper
functions are followed to a small depth.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from dataclasses import dataclass, field

import z3

from sortlib.baselines.base import DTYPES
from sortlib.baselines.constraints import COMPLEX, FLOATS, INTEGERS

DIMS = 6  # largest number of dimensions
ITEMS = 8  # items of a list that formulas can name
PATHS = 64  # paths of one function, at most
DEPTH = 3  # helper functions within helper functions
_MODULES = ("torch._refs.nn.functional", "torch._refs", "torch.nn.functional", "torch._refs.linalg")
# The operators that do the work of composite ones, whose own meta functions check nothing.
WORKERS = {
    "conv2d": ("meta_conv",),
    "linear": ("linear", "meta_addmm", "addmm"),
    "max_pool2d": ("meta_max_pool2d_with_indices", "max_pool2d_checks_and_compute_shape"),
    "adaptive_avg_pool2d": ("meta_adaptive_avg_pool2d", "adaptive_avg_pool2d"),
    "matmul": ("matmul",),
    "softmax": ("softmax", "_softmax"),
    "batch_norm": ("native_batch_norm", "batch_norm"),
    "layer_norm": ("native_layer_norm",),
}
_NAMES = {"self": "input", "a": "input", "input_tensor": "input", "b": "other", "tensor1": "input", "tensor2": "other",
          "mat": "input", "x": "input", "train": "training", "half_to_float": ""}  # fmt: skip
_CONSTANTS = {"is_transposed": False}  # how the API under test calls its worker
_CHECKS = {"_check", "_check_value", "_check_type", "_check_index", "_check_not_implemented", "check",
           "_check_with", "_check_is_size"}  # fmt: skip


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
class _Shape:
    """The shape of a tensor, perhaps from one dimension on."""

    owner: TensorArg
    start: int = 0


@dataclass
class _Dtype:
    code: object  # Z3 integer or position in DTYPES


@dataclass
class Function:
    """A Python function that validates arguments, ready to be walked."""

    name: str
    tree: ast.FunctionDef
    scope: dict = field(repr=False)

    def parameters(self) -> list[str]:
        """Names of its parameters."""
        arguments = self.tree.args
        return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


@functools.cache
def functions_of(api: str) -> tuple[Function, ...]:
    """The functions of the installed PyTorch that validate an API's arguments."""
    names = WORKERS.get(api, ()) + (api, f"meta_{api}")
    modules = [*_MODULES, "torch._meta_registrations", "torch._decomp.decompositions"]
    found = {}
    for module in modules:
        home = importlib.import_module(module)
        for name in names:
            function = _read(getattr(home, name, None))
            if function and has_checks(function):
                found.setdefault(function.tree.lineno * 1000 + len(function.name), function)
    return tuple(found.values())


def has_reference(api: str) -> bool:
    """Whether the installed PyTorch writes the API in Python at all, be it without checks of its own."""
    modules = [*_MODULES[:2], _MODULES[3], "torch._decomp.decompositions", "torch._meta_registrations"]
    names = (api, f"meta_{api}")
    return any(callable(getattr(importlib.import_module(module), name, None)) for module in modules for name in names)


def _read(function) -> Function | None:
    if not callable(function):
        return None
    try:
        inner = inspect.unwrap(function)
        if not inspect.isfunction(inner) or not (inner.__module__ or "").startswith("torch"):
            return None
        tree = ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndentationError):
        return None
    if not isinstance(tree, ast.FunctionDef):
        return None
    tree.lineno = inner.__code__.co_firstlineno
    return Function(inner.__name__, tree, inner.__globals__)


def has_checks(function: Function) -> bool:
    """Whether a function, or one that it calls, checks anything."""
    for node in ast.walk(function.tree):
        if isinstance(node, (ast.Raise, ast.Assert)):
            return True
        if isinstance(node, ast.Call) and _called(node.func)[1] in _CHECKS:
            return True
    return any(isinstance(n, ast.Call) and _helper(n.func, function.scope) for n in ast.walk(function.tree))


def _called(node):
    if isinstance(node, ast.Attribute):
        return (node.value.id if isinstance(node.value, ast.Name) else ""), node.attr
    return "", node.id if isinstance(node, ast.Name) else ""


def _helper(node, scope):
    """A function named like a check, which is worth following."""
    home, name = _called(node)
    if not any(word in name for word in ("check", "validate", "verify", "canonicalize", "calc_")) or name in _CHECKS:
        return None
    place = scope.get(home) if home else scope
    found = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
    return _read(found)


# ---- walking ----


@dataclass
class _State:
    env: dict
    formulas: list = field(default_factory=list)

    def fork(self, formula=None):
        return _State(dict(self.env), [*self.formulas, *([formula] if formula is not None else [])])


class Walker:
    """Enumerates the paths of a function for given arguments.

    Parameters
    ----------
    arguments : parameter -> ``TensorArg``, ``ListArg``, ``Scalar``, or a plain value such as None.
    strings : text -> number, filled as texts are met.
    """

    def __init__(self, arguments: dict, strings: dict):
        self.arguments, self.strings = arguments, strings
        self.budget = PATHS

    def paths(self, function: Function) -> list[list]:
        """A list of formulas for each path that does not raise."""
        self.budget = PATHS
        env = {}
        for name in function.parameters():
            known = _NAMES.get(name, name)
            if known in self.arguments:
                env[name] = self.arguments[known]
            elif name in _CONSTANTS:
                env[name] = _CONSTANTS[name]
        found = []
        for state, ended in self._block(function.tree.body, _State(env), function.scope, 0):
            if ended != "raise":
                found.append([f for f in state.formulas if not isinstance(f, bool)])
        return found

    def _block(self, statements, state, scope, depth):
        """Yield (state, how it ended) for every path; how: '' (goes on), 'return' or 'raise'."""
        if not statements:
            yield state, ""
            return
        first, rest = statements[0], statements[1:]
        for after, ended in self._statement(first, state, scope, depth):
            if ended:
                yield after, ended
            else:
                yield from self._block(rest, after, scope, depth)

    def _statement(self, node, state, scope, depth):
        if isinstance(node, ast.Return):
            yield state, "return"
        elif isinstance(node, ast.Raise):
            yield state, "raise"
        elif isinstance(node, ast.Assert):
            yield self._checked(state, node.test, scope), ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self._call(node.value, state, scope, depth)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            yield from self._assign(node, state, scope, depth)
        elif isinstance(node, ast.If):
            yield from self._branch(node, state, scope, depth)
        elif isinstance(node, ast.For):
            yield from self._once(node, state, scope, depth)
        elif isinstance(node, ast.With):
            yield from self._block(node.body, state, scope, depth)
        else:
            yield state, ""

    def _checked(self, state, test, scope):
        """The state with a condition that must hold, as far as it can be translated."""
        for part in _conjuncts(test):
            try:
                formula = _truth(self.expression(part, state.env, scope))
            except Untranslatable:
                continue
            state = state.fork(formula)
        return state

    def _call(self, node, state, scope, depth):
        if _called(node.func)[1] in _CHECKS and node.args:
            yield self._checked(state, node.args[0], scope), ""
            return
        helper = _helper(node.func, scope) if depth < DEPTH else None
        if helper is None:
            yield state, ""
            return
        inner = _State(self._bind(helper, node, state.env, scope), state.formulas)
        for after, ended in self._block(helper.tree.body, inner, helper.scope, depth + 1):
            yield _State(state.env, after.formulas), "raise" if ended == "raise" else ""

    def _bind(self, helper, node, env, scope):
        bound = {}
        arguments = helper.tree.args
        defaults = arguments.defaults
        for parameter, default in zip(arguments.args[len(arguments.args) - len(defaults) :], defaults, strict=True):
            self._try(bound, parameter.arg, default, {}, helper.scope)
        for name, value in zip(helper.parameters(), node.args, strict=False):
            self._try(bound, name, value, env, scope)
        for keyword in node.keywords:
            if keyword.arg:
                self._try(bound, keyword.arg, keyword.value, env, scope)
        return bound

    def _try(self, bound, name, value, env, scope):
        try:
            bound[name] = self.expression(value, env, scope)
        except Untranslatable:
            bound.pop(name, None)

    def _assign(self, node, state, scope, depth):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        states = [(state, "")]
        if isinstance(node.value, ast.Call) and _helper(node.value.func, scope):
            states = list(self._call(node.value, state, scope, depth))
        for after, ended in states:
            after = after.fork()
            for target in targets:
                if isinstance(target, ast.Name):
                    after.env.pop(target.id, None)
                    self._try(after.env, target.id, node.value, state.env, scope)
                elif isinstance(target, ast.Tuple):
                    for each in target.elts:
                        if isinstance(each, ast.Name):
                            after.env.pop(each.id, None)
            yield after, ended

    def _branch(self, node, state, scope, depth):
        try:
            condition = _truth(self.expression(node.test, state.env, scope))
        except Untranslatable:
            condition = None
        taken = [(condition, node.body), (None if condition is None else _not(condition), node.orelse)]
        for formula, body in taken:
            if isinstance(formula, bool) and not formula:
                continue
            if self.budget <= 0:
                return
            if condition is None and _only_raises(body):
                continue  # nobody knows when it raises
            self.budget -= 1
            yield from self._block(body, state.fork(formula), scope, depth)

    def _once(self, node, state, scope, depth):
        after = state.fork()
        if isinstance(node.target, ast.Name):
            after.env.pop(node.target.id, None)
            try:
                values = self.expression(node.iter, state.env, scope)
                after.env[node.target.id] = _item(values, 0)
            except Untranslatable:
                pass
        yield from self._block(node.body, after, scope, depth)

    # ---- expressions ----

    def expression(self, node, env, scope):
        """A plain value, a Z3 expression or an argument object.

        Raises
        ------
        Untranslatable
            It says nothing about the arguments that a formula could.
        """
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is None:
            raise Untranslatable(ast.dump(node)[:80])
        return method(node, env, scope)

    def _on_constant(self, node, env, scope):
        return node.value

    def _on_name(self, node, env, scope):
        if node.id in env:
            return env[node.id]
        if node.id in ("int", "float", "bool", "str", "list", "tuple", "Sequence", "Number", "IntLike", "NumberType",
                       "Tensor", "TensorLike"):  # fmt: skip
            return _Type(node.id)
        raise Untranslatable(node.id)

    def _on_tuple(self, node, env, scope):
        return tuple(self.expression(item, env, scope) for item in node.elts)

    _on_list = _on_tuple

    def _on_attribute(self, node, env, scope):
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            if node.attr in DTYPES:
                return _Dtype(DTYPES.index(node.attr))
            if node.attr in ("Tensor", "SymInt"):
                return _Type(node.attr)
            raise Untranslatable(node.attr)
        owner = self.expression(node.value, env, scope)
        if isinstance(owner, TensorArg):
            if node.attr == "ndim":
                return owner.ndim
            if node.attr == "shape":
                return _Shape(owner)
            if node.attr == "dtype":
                return _Dtype(owner.dtype)
        raise Untranslatable(node.attr)

    def _on_subscript(self, node, env, scope):
        owner = self.expression(node.value, env, scope)
        if isinstance(node.slice, ast.Slice):
            raise Untranslatable("slice")
        return _item(owner, self.expression(node.slice, env, scope))

    def _on_unaryop(self, node, env, scope):
        value = self.expression(node.operand, env, scope)
        if isinstance(node.op, ast.Not):
            return _not(_truth(value))
        if isinstance(node.op, ast.USub):
            return -_number(value)
        raise Untranslatable("operator")

    def _on_binop(self, node, env, scope):
        left = _number(self.expression(node.left, env, scope))
        right = _number(self.expression(node.right, env, scope))
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            if not (_is_integer(left) and _is_integer(right)) or isinstance(right, int) and right == 0:
                raise Untranslatable("division")
            if isinstance(left, int) and isinstance(right, int):
                return left // right if isinstance(node.op, ast.FloorDiv) else left % right
            return left / right if isinstance(node.op, ast.FloorDiv) else left % right
        raise Untranslatable("operator")

    def _on_boolop(self, node, env, scope):
        parts = []
        for value in node.values:
            try:
                parts.append(_truth(self.expression(value, env, scope)))
            except Untranslatable:
                if isinstance(node.op, ast.Or):
                    raise
        if not parts:
            raise Untranslatable("and")
        if isinstance(node.op, ast.And) and len(parts) < len(node.values):
            raise Untranslatable("part of a conjunction")  # under a negation it would be too strong
        return _all(parts) if isinstance(node.op, ast.And) else _any(parts)

    def _on_ifexp(self, node, env, scope):
        condition = _truth(self.expression(node.test, env, scope))
        if isinstance(condition, bool):
            return self.expression(node.body if condition else node.orelse, env, scope)
        return z3.If(condition, _number(self.expression(node.body, env, scope)),
                     _number(self.expression(node.orelse, env, scope)))  # fmt: skip

    def _on_compare(self, node, env, scope):
        values = [self.expression(part, env, scope) for part in (node.left, *node.comparators)]
        parts = [self._compared(op, a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False)]
        return _all(parts)

    def _compared(self, op, a, b):
        if isinstance(op, (ast.Is, ast.IsNot)):
            if b is not None and not isinstance(b, bool):
                raise Untranslatable("is")
            same = a is None if b is None else self._equal(a, b)
            return same if isinstance(op, ast.Is) else _not(same)
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(b, tuple):
                raise Untranslatable("in")
            found = _any([self._equal(a, item) for item in b])
            return found if isinstance(op, ast.In) else _not(found)
        if isinstance(op, (ast.Eq, ast.NotEq)):
            same = self._equal(a, b)
            return same if isinstance(op, ast.Eq) else _not(same)
        left, right = _number(a), _number(b)
        compare = {ast.Lt: lambda: left < right, ast.LtE: lambda: left <= right, ast.Gt: lambda: left > right,
                   ast.GtE: lambda: left >= right}  # fmt: skip
        return compare[type(op)]()

    def _equal(self, a, b):
        if isinstance(a, _Dtype) and isinstance(b, _Dtype):
            return a.code == b.code
        if isinstance(a, _Shape) and isinstance(b, _Shape):
            return _same_shape(a, b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Scalar) and one.kind == "str" and isinstance(other, str):
                return one.value == self.strings.setdefault(other, len(self.strings))
        if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
            if isinstance(a, (str, type(None))) and isinstance(b, (str, type(None))):
                return a == b
            if a is None or b is None:
                return False
            raise Untranslatable("text")
        return _number(a) == _number(b)

    def _on_call(self, node, env, scope):
        home, name = _called(node.func)
        if name in ("dim", "size") and isinstance(node.func, ast.Attribute):
            owner = self.expression(node.func.value, env, scope)
            if isinstance(owner, TensorArg):
                if name == "dim":
                    return owner.ndim
                return _item(_Shape(owner), self.expression(node.args[0], env, scope)) if node.args else _Shape(owner)
        values = [self.expression(argument, env, scope) for argument in node.args if not _is_generator(argument)]
        if name == "len" and len(values) == 1:
            return _length(values[0])
        if name == "isinstance" and len(values) == 2:
            return _is_instance(*values)
        if name == "range" and values:
            return _Range(0 if len(values) == 1 else values[0])
        if name in ("all", "any") and len(node.args) == 1 and _is_generator(node.args[0]):
            return self._quantified(name, node.args[0], env, scope)
        if name in ("bool", "int", "float", "sym_not") and len(values) == 1:
            return _not(_truth(values[0])) if name == "sym_not" else values[0]
        if name in ("min", "max") and len(values) == 2:
            a, b = map(_number, values)
            return z3.If((a < b) if name == "min" else (a > b), a, b)
        if name.startswith(("is_", "_is_")) and values and "dtype" in name:
            return _dtype_is(name, values[0])
        if name in ("is_floating_point", "is_complex") and isinstance(node.func, ast.Attribute):
            owner = values[0] if values else self.expression(node.func.value, env, scope)
            if isinstance(owner, TensorArg):
                return _dtype_is("float" if name == "is_floating_point" else "complex", _Dtype(owner.dtype))
        raise Untranslatable(name or home)

    def _quantified(self, name, generator, env, scope):
        clause = generator.generators[0]
        if len(generator.generators) > 1 or not isinstance(clause.target, ast.Name):
            raise Untranslatable("generator")
        values = self.expression(clause.iter, env, scope)
        if isinstance(values, ListArg):
            pairs = [(values.length > i, item) for i, item in enumerate(values.items)]
        elif isinstance(values, _Shape):
            pairs = [(values.owner.ndim > i, item) for i, item in enumerate(values.owner.sizes)]
        else:
            raise Untranslatable("generator")
        parts = []
        for there, item in pairs:
            part = _truth(self.expression(generator.elt, {**env, clause.target.id: item}, scope))
            parts.append(z3.Implies(there, part) if name == "all" else z3.And(there, part))
        return _all(parts) if name == "all" else _any(parts)


@dataclass
class _Type:
    name: str


@dataclass
class _Range:
    start: object


def _is_generator(node):
    return isinstance(node, (ast.GeneratorExp, ast.ListComp))


def _conjuncts(test):
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _conjuncts(value)]
    return [test]


def _only_raises(body):
    return bool(body) and isinstance(body[-1], ast.Raise)


def _not(value):
    return (not value) if isinstance(value, bool) else z3.Not(value)


def _all(parts):
    if any(part is False for part in parts):
        return False
    rest = [part for part in parts if part is not True]
    return z3.And(*rest) if rest else True


def _any(parts):
    if any(part is True for part in parts):
        return True
    rest = [part for part in parts if part is not False]
    return z3.Or(*rest) if rest else False


def _truth(value):
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


def _number(value):
    if isinstance(value, Scalar) and value.kind in ("int", "float"):
        return value.value
    if isinstance(value, Scalar) and value.kind == "bool":
        return value.value
    if isinstance(value, (int, float)) or z3.is_expr(value):
        return value
    raise Untranslatable("number")


def _is_integer(value):
    return isinstance(value, int) or z3.is_int(value)


def _length(value):
    if isinstance(value, ListArg):
        return value.length
    if isinstance(value, _Shape):
        return value.owner.ndim
    if isinstance(value, (tuple, str)):
        return len(value)
    raise Untranslatable("length")


def _item(owner, index):
    """``x.shape[i]`` or ``stride[i]``; from the end where i is negative."""
    if isinstance(owner, _Range):
        return owner.start
    if isinstance(owner, tuple) and isinstance(index, int) and -len(owner) <= index < len(owner):
        return owner[index]
    if isinstance(owner, ListArg):
        values, length = owner.items, owner.length
    elif isinstance(owner, _Shape):
        values, length = owner.owner.sizes, owner.owner.ndim
    else:
        raise Untranslatable("item")
    index = _number(index)
    if isinstance(index, int) and index >= 0:
        if index >= len(values):
            raise Untranslatable("item")
        return values[index]
    place = length + index if isinstance(index, int) else z3.If(index < 0, length + index, index)
    chosen = values[-1]
    for position, value in enumerate(values[:-1]):
        chosen = z3.If(place == position, value, chosen)
    return chosen


def _same_shape(a, b):
    pairs = enumerate(zip(a.owner.sizes, b.owner.sizes, strict=True))
    equal = [z3.Implies(a.owner.ndim > place, x == y) for place, (x, y) in pairs]
    return z3.And(a.owner.ndim == b.owner.ndim, *equal)


_KINDS = {
    "int": {"int", "Number", "IntLike", "NumberType", "SymInt"},
    "float": {"float", "Number", "NumberType"},
    "bool": {"bool", "int", "Number"},
    "str": {"str"},
}


def _is_instance(value, kinds):
    names = {kind.name for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if isinstance(kind, _Type)}
    if not names:
        raise Untranslatable("isinstance")
    if isinstance(value, TensorArg):
        return bool(names & {"Tensor", "TensorLike"})
    if isinstance(value, (ListArg, tuple)):
        return bool(names & {"list", "tuple", "Sequence"})
    if isinstance(value, Scalar):
        return bool(names & _KINDS[value.kind])
    return value is not None and type(value).__name__ in names


def _dtype_is(name, value):
    code = value.code if isinstance(value, _Dtype) else value.dtype if isinstance(value, TensorArg) else None
    if code is None:
        raise Untranslatable("dtype")
    wanted = []
    for word, family in (("float", FLOATS), ("complex", COMPLEX), ("integer", INTEGERS), ("integral", INTEGERS),
                         ("boolean", ("bool",))):  # fmt: skip
        wanted += family if word in name else ()
    if not wanted:
        raise Untranslatable(name)
    return _any([code == DTYPES.index(dtype) for dtype in wanted])
