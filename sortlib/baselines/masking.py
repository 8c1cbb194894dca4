"""TitanFuzz's program transformations: where a mutation leaves a gap, what is tidied up, and how a program is rated."""

from __future__ import annotations

import ast

SPAN = "<SPAN>"
OPERATORS = ("argument", "keyword", "method", "prefix", "suffix", "prefix-argument", "suffix-argument")


def dotted(node) -> str:
    """``torch.nn.functional.relu`` for the expression that says so, else an empty text."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def calls_of(tree, api: str) -> list[ast.Call]:
    """The calls of an API in a program: by its last name, as function or method."""
    name = api.rpartition(".")[2]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == name:
                found.append(node)
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def parse(code: str):
    """The syntax tree, or None where there is none."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):
        return None


def mask(code: str, api: str, operator: str, rng) -> str | None:
    """The program with gaps (``SPAN``) where an operator has them, or None where it cannot be applied.

    Parameters
    ----------
    code : a program that calls the API.
    api : its dotted name.
    operator : one of ``OPERATORS``.
    rng : NumPy generator; decides which call and which lines.
    """
    tree = parse(code)
    calls = calls_of(tree, api) if tree else []
    if not calls:
        return None
    call = calls[int(rng.integers(len(calls)))]
    lines = code.splitlines()
    first, last = _statement(tree, call)
    edits = []
    if operator in ("argument", "prefix-argument", "suffix-argument"):
        edits.append((*_inside(code, call), SPAN))
    if operator == "keyword":
        end = _inside(code, call)[1]
        edits.append((end, end, f"{', ' if call.args or call.keywords else ''}{SPAN}={SPAN}"))
    if operator == "method":
        edits.append((_offset(code, call.func.lineno, call.func.col_offset),
                      _offset(code, call.func.end_lineno, call.func.end_col_offset), f"torch.{SPAN}"))  # fmt: skip
    if operator.startswith("prefix"):
        edits.append(_lines(code, lines, _first_code(tree), first - 1, rng))
    if operator.startswith("suffix"):
        edits.append(_lines(code, lines, last, len(lines), rng))
    for start, end, text in sorted(edits, reverse=True):
        code = code[:start] + text + code[end:]
    return code


def _offset(code, line, column):
    lines = code.splitlines(keepends=True)
    # Columns of syntax trees count bytes.
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode(errors="ignore"))


def _inside(code, call):
    """Where the arguments of a call stand, without the brackets."""
    start = _offset(code, call.func.end_lineno, call.func.end_col_offset)
    return code.index("(", start) + 1, _offset(code, call.end_lineno, call.end_col_offset) - 1


def _statement(tree, call):
    """First and last line of the top-level statement that holds a call."""
    for statement in tree.body:
        if statement.lineno <= call.lineno <= statement.end_lineno:
            return statement.lineno, statement.end_lineno
    return call.lineno, call.end_lineno


def _first_code(tree):
    """Number of lines up to the last import at the beginning."""
    last = 0
    for statement in tree.body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            break
        last = statement.end_lineno
    return last


def _lines(code, lines, low, high, rng):
    """A random span of whole lines between two line numbers; a new line where there are none."""
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    if low >= high:
        place = starts[min(low, len(lines))]
        return place, place, ("" if not place or code[place - 1] == "\n" else "\n") + f"{SPAN}\n"
    a, b = sorted(int(n) for n in rng.integers(low, high + 1, 2))
    b = max(b, a + 1) if a < high else b
    a = a if a < b else b - 1
    return starts[a], starts[b], f"{SPAN}\n"


# ---- tidying ----


def tidy(code: str, api: str) -> str | None:
    """The program without comments, prints, moves to a device and dead code; None if it no longer calls the API."""
    tree = parse(code)
    if tree is None or not calls_of(tree, api):
        return None
    tree = ast.fix_missing_locations(_Strip().visit(tree))
    tree.body = _alive(tree.body, api)
    return ast.unparse(tree) if tree.body and calls_of(tree, api) else None


class _Strip(ast.NodeTransformer):
    def visit_Expr(self, node):
        self.generic_visit(node)
        value = node.value
        printed = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "print"
        return ast.Pass() if printed or isinstance(value, ast.Constant) else node

    def visit_Call(self, node):
        self.generic_visit(node)
        moves = isinstance(node.func, ast.Attribute) and node.func.attr in ("cuda", "cpu") and not node.args
        return node.func.value if moves else node


def _alive(statements, api):
    """Statements that the calls of the API need, and those with an effect of their own."""
    needed, kept = set(), []
    for statement in reversed(statements):
        if isinstance(statement, ast.Pass):
            continue
        stored = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        plain = isinstance(statement, (ast.Assign, ast.AnnAssign)) and not any(
            isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store) for n in ast.walk(statement)
        )
        if plain and not stored & needed and not calls_of(statement, api):
            continue
        needed |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        kept.append(statement)
    return kept[::-1]


# ---- rating ----


def fitness(code: str) -> int:
    """Depth of the flow of data through library calls + different library APIs - exactly repeated calls.

    Examples
    --------
    >>> fitness("import torch\\nx = torch.ones(2)\\ny = torch.relu(x)\\nz = torch.relu(x)")
    3
    """
    tree = parse(code)
    if tree is None:
        return 0
    depths, names, texts = {}, set(), []

    def depth(node) -> int:
        below = max((depth(child) for child in ast.iter_child_nodes(node)), default=0)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            return depths.get(node.id, 0)
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            root = name.partition(".")[0]
            if root == "torch" or root in depths or (not name and isinstance(node.func, ast.Attribute)):
                names.add(name.rpartition(".")[2] or node.func.attr)
                texts.append(ast.unparse(node))
                return below + 1
        return below

    deepest = 0
    for statement in tree.body:
        found = depth(statement)
        deepest = max(deepest, found)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and found:
                depths[node.id] = found
    return deepest + len(names) - (len(texts) - len(set(texts)))
