"""Functions of this package as text for a script: without comments and without branches that it never takes."""

from __future__ import annotations

import ast
import inspect


def source_of(*names, module, settled=None) -> str:
    """The text of functions of a module with everything of that module that they use, without comments.

    Parameters
    ----------
    names : of the functions.
    settled : what is known beforehand: the text of an expression -> its value. A parameter of that name is dropped, and
        so are branches that are not taken.
    """
    tree = ast.parse(inspect.getsource(module))
    defined = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            defined[statement.name] = _Settled(settled).visit(statement) if settled else statement
        elif isinstance(statement, ast.Assign):  # of one name, or of several at once
            targets = [node for node in ast.walk(statement.targets[0]) if isinstance(node, ast.Name)]
            defined |= {node.id: statement for node in targets}
    wanted, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in defined and name not in wanted:
            wanted.add(name)
            waiting += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    constants = [ast.unparse(s) for n, s in defined.items() if n in wanted and isinstance(s, ast.Assign)]
    constants = list(dict.fromkeys(constants))
    functions = [_bare(s) for n, s in defined.items() if n in wanted and isinstance(s, ast.FunctionDef)]
    return "\n\n\n".join(["\n".join(constants)] * bool(constants) + functions)


def _bare(function) -> str:
    """A function's text without annotations and docstring."""
    if isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant):
        del function.body[0]
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    return ast.unparse(function)


class _Settled(ast.NodeTransformer):
    """Puts known values into a function, and leaves out what they decide against."""

    def __init__(self, values: dict):
        self.values = values

    def visit(self, node):
        if isinstance(node, ast.expr) and (text := ast.unparse(node)) in self.values:
            return ast.Constant(self.values[text])
        return super().visit(node)

    def visit_FunctionDef(self, node):
        node.args.args = [argument for argument in node.args.args if argument.arg not in self.values]
        return self.generic_visit(node)

    def visit_Compare(self, node):
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.Eq) and all(isinstance(n, ast.Constant) for n in (node.left, *node.comparators)):
            return ast.Constant(node.left.value == node.comparators[0].value)
        return node

    def visit_If(self, node):
        return self._taken(self.generic_visit(node))

    def visit_IfExp(self, node):
        return self._taken(self.generic_visit(node))

    def visit_BinOp(self, node):
        self.generic_visit(node)
        once = isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant) and node.right.value == 1
        return node.left if once else node

    @staticmethod
    def _taken(node):
        if not isinstance(node.test, ast.Constant):
            return node
        return node.body if node.test.value else node.orelse
