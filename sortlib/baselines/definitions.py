"""What the installed PyTorch says of a function: its parameters with types and defaults, and its documentation."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from dataclasses import dataclass

import torch

from sortlib import apis
from sortlib.errors import SortError

_MISSING = object()


@dataclass(frozen=True)
class Parameter:
    """One parameter; ``types`` are words such as tensor, int, float, bool, str, dtype, list, none."""

    name: str
    required: bool
    keyword_only: bool
    types: frozenset[str]
    default: str = ""


@dataclass(frozen=True)
class Definition:
    """A function with its parameters and documentation."""

    target: str
    parameters: tuple[Parameter, ...]
    doc: str

    @property
    def text(self) -> str:
        """The definition as one string: ``torch.add(input, other, *, alpha=1)``."""
        parts = []
        for parameter in self.parameters:
            if parameter.keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(parameter.name if parameter.required else f"{parameter.name}={parameter.default}")
        return f"{self.target}({', '.join(parts)})"


@functools.cache
def definition(target: str) -> Definition:
    """Read a function's definition: from Python's signature, the first line of its documentation, or its schemas."""
    function = apis.resolve(target)
    doc = inspect.getdoc(function) or ""
    name = target.rpartition(".")[2]
    twin = _twin(target)
    if twin:  # a method says "See torch.mul" and has its function's parameters
        return Definition(target, definition(twin).parameters, f"{doc}\n{definition(twin).doc}")
    schemas = _schemas(name)
    found = _from_signature(function, schemas) or _from_first_line(doc, name, target, schemas)
    if not found:
        found = _from_schema(schemas, target)
    return Definition(target, tuple(p for p in found if p.name != "out"), doc)


def _twin(target):
    """The function of the same name as a method, if it takes the tensor first."""
    if not target.startswith("torch.Tensor."):
        return ""
    name = target.rpartition(".")[2]
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    for home in ("torch", "torch.nn.functional"):
        try:
            apis.resolve(f"{home}.{name}")
        except SortError:
            continue
        parameters = definition(f"{home}.{name}").parameters
        if parameters and parameters[0].name == "input":
            return f"{home}.{name}"
    return ""


def documentation(target: str) -> str:
    """The documentation with that of the classes it refers to, as ``See :class:`~torch.nn.Conv2d` for details``."""
    doc = definition(target).doc
    texts = [doc]
    for path in re.findall(r"See\s+:(?:class|func):`~?([\w.]+)`", doc):
        found = torch
        for part in path.removeprefix("torch.").split("."):
            found = getattr(found, part, None)
        if found is not None and found is not torch:
            texts.append(inspect.getdoc(found) or "")
    return "\n".join(texts)


def _schemas(name):
    base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    names = dict.fromkeys([name, base, apis.SAME.get(name, name)])
    return [schema for each in names for schema in torch._C._jit_get_schemas_for_operator(f"aten::{each}")]


def _from_signature(function, schemas):
    try:
        signature = inspect.signature(inspect.unwrap(function))
    except (ValueError, TypeError):
        return None
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
        if parameter.name.startswith("_"):
            continue
        required = parameter.default is parameter.empty
        types = type_words(str(parameter.annotation)) if parameter.annotation is not parameter.empty else set()
        types |= set() if required else _type_of(parameter.default)
        types = _named(parameter.name, types if types - {"none"} else types | _schema_types(schemas, parameter.name))
        default = "" if required else repr(parameter.default)
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        parameters.append(Parameter(parameter.name, required, keyword, frozenset(types), default))
    return parameters


def _from_first_line(doc, name, target, schemas):
    """``conv2d(input, weight, bias=None, stride=1) -> Tensor``, as built-in functions are documented."""
    match = re.search(rf"^\s*{re.escape(name)}\((.*?)\)\s*(->|$)", doc, re.MULTILINE | re.DOTALL)
    if not match:
        return None
    parameters, keyword = [], False
    if target.startswith("torch.Tensor."):
        parameters.append(Parameter("input", True, False, frozenset({"tensor"})))
    for part in _split(match[1]):
        if part in ("*", "/"):
            keyword = keyword or part == "*"
            continue
        label, _, default = (text.strip() for text in part.partition("="))
        label, _, annotation = (text.strip() for text in label.partition(":"))
        if not label.isidentifier():
            return None
        required = "=" not in part
        types = type_words(annotation) | (set() if required else _type_of(_literal(default)))
        types = _named(label, types | _schema_types(schemas, label))
        parameters.append(Parameter(label, required, keyword, frozenset(types), default))
    return parameters


def _from_schema(schemas, target):
    if not schemas:
        return [Parameter(name, True, False, frozenset()) for name in apis.identify(apis.resolve(target)).parameters]
    chosen = max(schemas, key=lambda schema: len(schema.arguments))
    return [
        Parameter("input" if a.name == "self" else a.name, not a.has_default_value(), a.kwarg_only,
                  frozenset(type_words(str(a.type))), repr(a.default_value) if a.has_default_value() else "")
        for a in chosen.arguments if a.name != "out"
    ]  # fmt: skip


def _schema_types(schemas, name):
    names = (name, "self") if name == "input" else (name,)
    found = set()
    for argument in (a for schema in schemas for a in schema.arguments if a.name in names):
        found |= type_words(str(argument.type))
        if argument.N:  # a list of fixed length may be one number
            found.add("int")
    return found


def _named(name, types):
    """Numbers of dtypes are what schemas call a ``dtype`` argument."""
    return (types - {"int"}) | {"dtype"} if name == "dtype" else types


def _split(text):
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [part for part in [*parts, current.strip()] if part]


_WORDS = {
    "tensor": r"\bTensors?\b|\btensors?\b",
    "int": r"\b(int|Int|integer|long|SymInt)\b",
    "float": r"\b(float|double)\b",
    "bool": r"\b(bool|boolean)\b",
    "str": r"\b(str|string)\b",
    "list": r"\b(list|List|tuple|Tuple|ints|sequence)\b|\[\]",
    "none": r"\bNone\b|\bOptional\b|\boptional\b|\?",
    "dtype": r"\bdtype\b",
    "scalar": r"\b(Number|number|Scalar|scalar)\b",
}


def type_words(text) -> set[str]:
    """Type words in an annotation or a phrase of documentation; what a list holds does not count."""
    text = re.sub(r"\b(list|tuple|List|Tuple)\[[^\]]*\]", r"\1", text)
    return {word for word, expression in _WORDS.items() if re.search(expression, text)}


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _MISSING


def _type_of(default) -> set[str]:
    if default is _MISSING:
        return set()
    if default is None:
        return {"none"}
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (tuple, "list"), (list, "list")):
        if isinstance(default, kind):
            return {word}
    return set()


@functools.cache
def edit_similarity(a: str, b: str) -> float:
    """1 - Levenshtein distance / length of the longer text.

    Examples
    --------
    >>> round(edit_similarity("kitten", "sitting"), 3)
    0.571
    """
    if not a and not b:
        return 1.0
    before = list(range(len(b) + 1))
    for row, left in enumerate(a, 1):
        now = [row]
        for column, right in enumerate(b, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (left != right)))
        before = now
    return 1 - before[-1] / max(len(a), len(b))
