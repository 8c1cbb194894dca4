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

from sortlib.baselines.expressions import Expressions, called
from sortlib.baselines.formulas import Untranslatable, as_condition, item_of, negation

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
        if isinstance(node, ast.Call) and called(node.func)[1] in _CHECKS:
            return True
    return any(isinstance(n, ast.Call) and _helper(n.func, function.scope) for n in ast.walk(function.tree))


def _helper(node, scope):
    """A function named like a check, which is worth following."""
    home, name = called(node)
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


class Walker(Expressions):
    """Enumerates the paths of a function for given arguments.

    Parameters
    ----------
    arguments : parameter -> ``TensorArg``, ``ListArg``, ``Scalar``, or a plain value such as None.
    strings : text -> number, filled as texts are met.
    """

    def __init__(self, arguments: dict, strings: dict):
        super().__init__(strings)
        self.arguments = arguments
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
                formula = as_condition(self.expression(part, state.env, scope))
            except Untranslatable:
                continue
            state = state.fork(formula)
        return state

    def _call(self, node, state, scope, depth):
        if called(node.func)[1] in _CHECKS and node.args:
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
            condition = as_condition(self.expression(node.test, state.env, scope))
        except Untranslatable:
            condition = None
        taken = [(condition, node.body), (None if condition is None else negation(condition), node.orelse)]
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
                after.env[node.target.id] = item_of(values, 0)
            except Untranslatable:
                pass
        yield from self._block(node.body, after, scope, depth)


def _conjuncts(test):
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _conjuncts(value)]
    return [test]


def _only_raises(body):
    return bool(body) and isinstance(body[-1], ast.Raise)
