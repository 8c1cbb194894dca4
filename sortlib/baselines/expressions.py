"""Python expressions of validation code as plain values or Z3 formulas."""

from __future__ import annotations

import ast

import z3

from sortlib.baselines.base import DTYPES
from sortlib.baselines.formulas import (
    Dtype,
    ListArg,
    Range,
    Scalar,
    Shape,
    TensorArg,
    Type,
    Untranslatable,
    as_condition,
    as_number,
    conjunction,
    disjunction,
    dtype_is,
    is_instance,
    is_integer,
    item_of,
    length_of,
    negation,
    same_shape,
)


class Expressions:
    """Translates expressions.

    Parameters
    ----------
    strings : text -> number, filled as texts are met.
    """

    def __init__(self, strings: dict):
        self.strings = strings

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
            return Type(node.id)
        raise Untranslatable(node.id)

    def _on_tuple(self, node, env, scope):
        return tuple(self.expression(item, env, scope) for item in node.elts)

    _on_list = _on_tuple

    def _on_attribute(self, node, env, scope):
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            if node.attr in DTYPES:
                return Dtype(DTYPES.index(node.attr))
            if node.attr in ("Tensor", "SymInt"):
                return Type(node.attr)
            raise Untranslatable(node.attr)
        owner = self.expression(node.value, env, scope)
        if isinstance(owner, TensorArg):
            if node.attr == "ndim":
                return owner.ndim
            if node.attr == "shape":
                return Shape(owner)
            if node.attr == "dtype":
                return Dtype(owner.dtype)
        raise Untranslatable(node.attr)

    def _on_subscript(self, node, env, scope):
        owner = self.expression(node.value, env, scope)
        if isinstance(node.slice, ast.Slice):
            raise Untranslatable("slice")
        return item_of(owner, self.expression(node.slice, env, scope))

    def _on_unaryop(self, node, env, scope):
        value = self.expression(node.operand, env, scope)
        if isinstance(node.op, ast.Not):
            return negation(as_condition(value))
        if isinstance(node.op, ast.USub):
            return -as_number(value)
        raise Untranslatable("operator")

    def _on_binop(self, node, env, scope):
        left = as_number(self.expression(node.left, env, scope))
        right = as_number(self.expression(node.right, env, scope))
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            if not (is_integer(left) and is_integer(right)) or isinstance(right, int) and right == 0:
                raise Untranslatable("division")
            if isinstance(left, int) and isinstance(right, int):
                return left // right if isinstance(node.op, ast.FloorDiv) else left % right
            return left / right if isinstance(node.op, ast.FloorDiv) else left % right
        raise Untranslatable("operator")

    def _on_boolop(self, node, env, scope):
        parts = []
        for value in node.values:
            try:
                parts.append(as_condition(self.expression(value, env, scope)))
            except Untranslatable:
                if isinstance(node.op, ast.Or):
                    raise
        if not parts:
            raise Untranslatable("and")
        if isinstance(node.op, ast.And) and len(parts) < len(node.values):
            raise Untranslatable("part of a conjunction")  # under a negation it would be too strong
        return conjunction(parts) if isinstance(node.op, ast.And) else disjunction(parts)

    def _on_ifexp(self, node, env, scope):
        condition = as_condition(self.expression(node.test, env, scope))
        if isinstance(condition, bool):
            return self.expression(node.body if condition else node.orelse, env, scope)
        return z3.If(condition, as_number(self.expression(node.body, env, scope)),
                     as_number(self.expression(node.orelse, env, scope)))  # fmt: skip

    def _on_compare(self, node, env, scope):
        values = [self.expression(part, env, scope) for part in (node.left, *node.comparators)]
        parts = [self._compared(op, a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False)]
        return conjunction(parts)

    def _compared(self, op, a, b):
        if isinstance(op, (ast.Is, ast.IsNot)):
            if b is not None and not isinstance(b, bool):
                raise Untranslatable("is")
            same = a is None if b is None else self._equal(a, b)
            return same if isinstance(op, ast.Is) else negation(same)
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(b, tuple):
                raise Untranslatable("in")
            found = disjunction([self._equal(a, item) for item in b])
            return found if isinstance(op, ast.In) else negation(found)
        if isinstance(op, (ast.Eq, ast.NotEq)):
            same = self._equal(a, b)
            return same if isinstance(op, ast.Eq) else negation(same)
        left, right = as_number(a), as_number(b)
        compare = {ast.Lt: lambda: left < right, ast.LtE: lambda: left <= right, ast.Gt: lambda: left > right,
                   ast.GtE: lambda: left >= right}  # fmt: skip
        return compare[type(op)]()

    def _equal(self, a, b):
        if isinstance(a, Dtype) and isinstance(b, Dtype):
            return a.code == b.code
        if isinstance(a, Shape) and isinstance(b, Shape):
            return same_shape(a, b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Scalar) and one.kind == "str" and isinstance(other, str):
                return one.value == self.strings.setdefault(other, len(self.strings))
        if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
            if isinstance(a, (str, type(None))) and isinstance(b, (str, type(None))):
                return a == b
            if a is None or b is None:
                return False
            raise Untranslatable("text")
        return as_number(a) == as_number(b)

    def _on_call(self, node, env, scope):
        home, name = called(node.func)
        if name in ("dim", "size") and isinstance(node.func, ast.Attribute):
            owner = self.expression(node.func.value, env, scope)
            if isinstance(owner, TensorArg):
                if name == "dim":
                    return owner.ndim
                return item_of(Shape(owner), self.expression(node.args[0], env, scope)) if node.args else Shape(owner)
        values = [self.expression(argument, env, scope) for argument in node.args if not _is_generator(argument)]
        if name == "len" and len(values) == 1:
            return length_of(values[0])
        if name == "isinstance" and len(values) == 2:
            return is_instance(*values)
        if name == "range" and values:
            return Range(0 if len(values) == 1 else values[0])
        if name in ("all", "any") and len(node.args) == 1 and _is_generator(node.args[0]):
            return self._quantified(name, node.args[0], env, scope)
        if name in ("bool", "int", "float", "sym_not") and len(values) == 1:
            return negation(as_condition(values[0])) if name == "sym_not" else values[0]
        if name in ("min", "max") and len(values) == 2:
            a, b = map(as_number, values)
            return z3.If((a < b) if name == "min" else (a > b), a, b)
        if name.startswith(("is_", "_is_")) and values and "dtype" in name:
            return dtype_is(name, values[0])
        if name in ("is_floating_point", "is_complex") and isinstance(node.func, ast.Attribute):
            owner = values[0] if values else self.expression(node.func.value, env, scope)
            if isinstance(owner, TensorArg):
                return dtype_is("float" if name == "is_floating_point" else "complex", Dtype(owner.dtype))
        raise Untranslatable(name or home)

    def _quantified(self, name, generator, env, scope):
        clause = generator.generators[0]
        if len(generator.generators) > 1 or not isinstance(clause.target, ast.Name):
            raise Untranslatable("generator")
        values = self.expression(clause.iter, env, scope)
        if isinstance(values, ListArg):
            pairs = [(values.length > i, item) for i, item in enumerate(values.items)]
        elif isinstance(values, Shape):
            pairs = [(values.owner.ndim > i, item) for i, item in enumerate(values.owner.sizes)]
        else:
            raise Untranslatable("generator")
        parts = []
        for there, item in pairs:
            part = as_condition(self.expression(generator.elt, {**env, clause.target.id: item}, scope))
            parts.append(z3.Implies(there, part) if name == "all" else z3.And(there, part))
        return conjunction(parts) if name == "all" else disjunction(parts)


def called(node) -> tuple[str, str]:
    """(what stands before the dot, name) of a called function."""
    if isinstance(node, ast.Attribute):
        return (node.value.id if isinstance(node.value, ast.Name) else ""), node.attr
    return "", node.id if isinstance(node, ast.Name) else ""


def _is_generator(node):
    return isinstance(node, (ast.GeneratorExp, ast.ListComp))
