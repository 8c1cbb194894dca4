"""The calls of a draft as Python text, as somebody would write them."""

from __future__ import annotations

import re

import torch

from sortlib import apis
from sortlib.api_tables import UNINITIALISED
from sortlib.features import decode
from sortlib.reproducing.draft import walk
from sortlib.runner.execution import _mutates

_OPERATORS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__matmul__": "@", "__floordiv__": "//",
    "__mod__": "%", "__pow__": "**", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=", "__eq__": "==",
    "__ne__": "!=", "__and__": "&", "__or__": "|",
}  # fmt: skip
_NARROWING = ("torch.Tensor.float", "torch.Tensor.half", "torch.Tensor.bfloat16")


def names_of(draft) -> dict:
    """A readable Python name for each input of a draft, by the argument that first takes it."""
    chosen = {}
    for node in draft.nodes:
        for argument, form, _ in node.arguments:
            base = re.sub(r"\W", "_", {"input": "x", "self": "x", "other": "y"}.get(argument, argument))

            def note(leaf, base=base):
                if "$load" in leaf and leaf["$load"][0] not in chosen:
                    taken = set(chosen.values())
                    options = (base if n == 1 else f"{base}{n}" for n in range(1, 10**6))
                    chosen[leaf["$load"][0]] = next(name for name in options if name not in taken)
                return leaf

            walk(form, note)
    return chosen


def statements(node, leaf, result, seed, wide=False) -> list[str]:
    """Lines that run one node.

    Parameters
    ----------
    node : ``CaseNode`` whose tensors are ``$from`` or ``$load``.
    leaf : function from such a form to the name of the tensor.
    result : name that the result gets; ``return`` for the last line of a function.
    seed : of random numbers, for nodes that draw any.
    wide : everything in float64, as the truth is computed.
    """
    if wide:
        node = _widened(node)
    copied = _mutates(vars(node), [apis.Argument(n, decode(f, _BLIND), k) for n, f, k in node.arguments])

    def tensor(form):
        return leaf(form) + (".clone()" if copied else "")

    lines = [f"torch.manual_seed({seed})"] if node.random else []
    assigned = "return " if result == "return" else f"{result} = "
    if node.api == "setitem":
        changed, *rest = [text(form, tensor) for _, form, _ in node.arguments]
        target = "changed" if result == "return" else result
        lines += [f"{target} = {changed}", f"{target}[{rest[0]}] = {rest[1]}"]
        return lines + ([f"return {target}"] if result == "return" else [])
    called = expression(node, tensor)
    if node.api in UNINITIALISED:  # what such memory holds is chance
        called = f"torch.zeros_like({called})"
    return [*lines, assigned + called]


_BLIND = {tag: lambda content: None for tag in ("$from", "$load", "$draw")}


def _widened(node):
    """The node in float64: dtypes among its arguments, conversions, and what PyTorch fills in by dtype."""

    def wide(form):
        if isinstance(form, dict) and "$torch" in form:
            dtype = getattr(torch, form["$torch"])
            return {"$torch": "float64"} if isinstance(dtype, torch.dtype) and dtype.is_floating_point else form
        if isinstance(form, dict):
            return {name: wide(item) for name, item in form.items()}
        return [wide(item) for item in form] if isinstance(form, list) else form

    arguments = [[name, wide(form), kind] for name, form, kind in node.arguments]
    if node.api == "rms_norm" and all(form is None for name, form, _ in arguments if name == "eps"):
        arguments = [a for a in arguments if a[0] != "eps"] + [["eps", torch.finfo(torch.float32).eps, "keyword"]]
    target = "torch.Tensor.double" if node.target in _NARROWING else node.target
    return type(node)(**{**vars(node), "arguments": arguments, "target": target})


def expression(node, tensor) -> str:
    """The call itself."""
    positional, keywords = [], []
    for name, form, kind in node.arguments:
        if kind == "keyword":
            keywords.append(f"{name}={text(form, tensor)}")
        elif kind == "variadic":
            positional += [text(item, tensor) for item in (form["$tuple"] if isinstance(form, dict) else form)]
        else:
            positional.append(text(form, tensor))
    home, _, last = node.target.rpartition(".")
    if home == "torch.Tensor" and last in _OPERATORS and len(positional) == 2 and not keywords:
        return f"{positional[0]} {_OPERATORS[last]} {positional[1]}"
    given = ", ".join([*positional, *keywords])
    first = node.arguments[0][1] if node.arguments else None
    method = home == "torch.Tensor" and not last.startswith("_") and isinstance(first, dict)
    if method and ("$from" in first or "$load" in first):
        return f"{positional[0]}.{last}({', '.join([*positional[1:], *keywords])})"
    if home == "torch.nn.functional":
        return f"F.{last}({given})"
    return f"{node.target}({given})"


def text(form, tensor) -> str:
    """The Python text of an argument in the form of a case; ``tensor`` names tensors."""
    if isinstance(form, list):
        return f"[{', '.join(text(item, tensor) for item in form)}]"
    if not isinstance(form, dict):
        return repr(form)
    ((tag, content),) = form.items()
    if tag in ("$from", "$load"):
        return tensor(form)
    if tag == "$tuple":
        items = ", ".join(text(item, tensor) for item in content)
        return f"({items},)" if len(content) == 1 else f"({items})"
    if tag == "$dict":
        return "{" + ", ".join(f"{text(k, tensor)}: {text(v, tensor)}" for k, v in content) + "}"
    if tag == "$slice":
        return f"slice({', '.join(text(part, tensor) for part in content)})"
    simple = {
        "$float": lambda: f"float({content!r})",
        "$ellipsis": lambda: "...",
        "$torch": lambda: f"torch.{content}",
        "$device": lambda: "DEVICE",
        "$complex": lambda: repr(complex(*(decode(part) for part in content))),
    }
    return simple[tag]()
