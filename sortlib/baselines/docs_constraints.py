"""Constraints from the installed PyTorch's documentation, by a list of rules of our own.

DocTer learns its rules by mining parsed sentences of annotated documentation; this reads the forms in which PyTorch's
documentation states types, shapes, dimensions, intervals and lists of values.
"""

from __future__ import annotations

import ast
import functools
import re

from sortlib.baselines.constraints import Constraint, Specification, dims
from sortlib.baselines.definitions import definition, documentation, type_words

_SECTION = re.compile(
    r"^(?P<indent>[ \t]*)(?P<title>Args|Arguments|Parameters|Keyword [Aa]rg(?:ument)?s|Shape)\s*:+[ \t]*\n"
    r"(?P<body>(?:(?:(?P=indent)[ \t]+[^\n]*)?\n)+)",
    re.MULTILINE,
)
_TENSOR = re.compile(r"\btensor\b|\bTensor\b")
_NUMBER_WORDS = {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5": 5, "one": 1, "two": 2, "three": 3}


@functools.cache
def extract(target: str) -> Specification:
    """The constraints that the documentation and signature of a function state."""
    found = definition(target)
    texts, shapes = _sections(target)
    known = {}
    for parameter in found.parameters:
        annotation, text = texts.get(parameter.name, ("", ""))
        known[parameter.name] = _constraint(parameter, annotation, text, shapes.get(parameter.name, ""), found.doc)
    required = tuple(p.name for p in found.parameters if p.required)
    optional = tuple(p.name for p in found.parameters if not p.required)
    keywords = frozenset(p.name for p in found.parameters if p.keyword_only)
    return Specification(target, required, optional, known, keywords)


def _sections(target):
    """(parameter -> (what stands in brackets, description)), (parameter -> its line below ``Shape``)."""
    texts, shapes = {}, {}
    for match in _SECTION.finditer(documentation(target) + "\n"):
        for name, annotation, text in _entries(match["body"]):
            if match["title"] == "Shape":
                shapes.setdefault(name.lower(), text)
            else:
                texts.setdefault(name, (annotation, text))
    return texts, shapes


def _entries(body):
    lines = body.splitlines()
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    current = None
    for line in lines:
        inside = line[depth:]
        start = re.match(r"(?:- )?(?P<names>\w+(?:, \w+)*)\s*(?:\((?P<kind>.*?)\)(?=\s*:))?\s*:\s*(?P<text>.*)", inside)
        if start and not inside.startswith(" "):
            if current:
                yield from current
            current = [[name, start["kind"] or "", start["text"]] for name in start["names"].split(", ")]
        elif current:
            for entry in current:
                entry[2] += " " + line.strip()
    if current:
        yield from current


def _constraint(parameter, annotation, text, shape_line, doc):
    words = set(parameter.types) | _types(annotation)
    if "dtype" in words:
        words &= {"dtype", "none"}
    elif "tensor" not in words:  # the layer's ``bias`` is a flag where the function's is a tensor
        words |= _types_in_words(text)
    shapes, ndims = _shapes(shape_line, always=True) if shape_line else ((), ())
    own = _shapes(text, always=False)
    shapes, ndims = own[0] or shapes, own[1] or ndims
    tensor = "tensor" in words or bool(_TENSOR.search(text.partition(".")[0]))
    structure = []
    if tensor:
        structure.append("tensor")
    if "list" in words:
        structure.append("tuple")
    if words & {"int", "float", "bool", "str", "scalar", "dtype"}:
        structure.append("scalar")
    if "none" in words and parameter.required:
        structure.append("none")
    dtype = tuple(word for word in ("int", "float", "bool", "str", "scalar", "dtype") if word in words)
    dtype = _tensor_dtypes(text) or (() if tensor else dtype)
    enum = () if tensor else _enum(parameter, text, doc)
    return Constraint(dtype, tuple(structure), shapes if tensor else (), ndims if tensor else (), _ranges(text), enum)


def _types(annotation) -> set[str]:
    return type_words(annotation) - {"none"}


def _types_in_words(text) -> set[str]:
    found = set()
    if re.search(r"\bsingle (number|integer|int)\b|\ba single \w+ for\b", text):
        found.add("int")
    if re.search(r"\b(tuple|list)\b", text):
        found |= {"list", "int"}
    if re.search(r"\bIf (set to )?``(True|False)``|\bif (is )?``True``|\bboolean\b", text, re.IGNORECASE):
        found.add("bool")
    match = re.search(r"Default(?:s to|:)\s*`*([^`\s]+?)`*\.?(?:\s|$)", text)
    try:
        value = ast.literal_eval(match[1]) if match else None
    except (ValueError, SyntaxError):
        value = None
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(value, kind):
            return found | {word}
    return found


def _tensor_dtypes(text):
    if re.search(r"\bLongTensor\b|\bint64\b", text):
        return ("int64",)
    if re.search(r"\bBoolTensor\b|\bboolean (mask|tensor)\b", text):
        return ("bool",)
    if re.search(r"\bfloating[- ]point tensor\b|\bFloatTensor\b", text):
        return ("float",)
    return ()


def _shapes(text, always):
    """(shapes, ndims) that a text states; ``always`` if the text is about a shape already."""
    text = text if always else _after_shape(text)
    shapes = tuple(dict.fromkeys("[" + ",".join(dims(found)) + "]" for found in _tuples(text)))
    ndims = tuple(dict.fromkeys(
        str(_NUMBER_WORDS[number]) for number in re.findall(r"\b(\d|one|two|three)-?(?:D\b|[- ]dimensional)", text)
        if number in _NUMBER_WORDS
    ))  # fmt: skip
    return shapes, ndims


def _after_shape(text):
    match = re.search(r"\b(of shape|of size|tensor)\b[^.]*", text)
    return match[0] if match else ""


def _tuples(text):
    for formula in re.findall(r":math:`([^`]*)`", text):
        formula = _plain(formula)
        if re.fullmatch(r"\(.*\)", formula) and formula.count("(") == 1:
            parts = dims(formula)
            if parts and all(re.fullmatch(r"\.\.\.|[A-Za-z_]\w*([/*+-]\w+)*|\d+", part) for part in parts):
                yield formula


def _plain(formula):
    """A formula of documentation without LaTeX: ``\\text{in\\_channels}`` becomes ``in_channels``."""
    formula = formula.replace(r"\_", "_").replace(r"\times", "*")
    formula = re.sub(r"\\text\{([^{}]*)\}", r"\1", formula)
    formula = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", formula)
    formula = re.sub(r"_\{([^{}]*)\}", r"_\1", formula)
    formula = re.sub(r"(?<![\w)])\*(?![\w(])", "...", formula)
    return formula.replace(" ", "")


def _ranges(text):
    lower = text.lower()
    if re.search(r"\bprobability\b|\bbetween 0 and 1\b", lower):
        return ("[0,1]",)
    if re.search(r"must be\s*(>=|greater than or equal to)\s*0|\bnon-?negative\b", lower):
        return ("[0,inf)",)
    if re.search(r"must be\s*(>|greater than)\s*0|\bpositive (integer|int|number|float)\b", lower):
        return ("(0,inf)",)
    return ()


def _enum(parameter, text, doc):
    """Quoted values of a string parameter, at least two of them."""
    if "str" not in parameter.types and not re.search(r"\bstring\b", text):
        return ()
    quoted = re.findall(r"['\"]([A-Za-z_]\w*)['\"]", text)
    quoted += re.findall(rf"\b{parameter.name} argument is ['\"](\w+)['\"]", doc)
    return tuple(dict.fromkeys(quoted)) if len(set(quoted)) > 1 else ()
