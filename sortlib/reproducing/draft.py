"""A case that can be edited: its nodes, and its inputs as ``Value`` instead of recorded features."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sortlib.features import decode
from sortlib.generation import TestCase, tensor_forms
from sortlib.reproducing.values import Value
from sortlib.runner import backward
from sortlib.runner.transport import load_tensor, save_tensor

_LEAVES = ("$from", "$draw", "$load")


def walk(form, change):
    """A copy of an argument's form in which every tensor is replaced by ``change`` of its form."""
    if isinstance(form, dict):
        if any(tag in form for tag in _LEAVES):
            return change(form)
        return {name: walk(item, change) for name, item in form.items()}
    if isinstance(form, list):
        return [walk(item, change) for item in form]
    return form


@dataclass(frozen=True)
class Draft:
    """Nodes and inputs of a case.

    Attributes
    ----------
    nodes : ``CaseNode``s in an order in which they can run; the last is the one that is judged. Tensors are
        ``{"$from": [node, output]}`` or ``{"$load": [name]}`` of ``values``.
    values : name -> ``Value``.
    case : the case that it was made from.
    """

    nodes: tuple
    values: dict
    case: TestCase

    @classmethod
    def of(cls, case: TestCase, node: int) -> Draft:
        """The part of a case that decides what one of its nodes computes."""
        values = {}

        def name(form):
            if "$from" in form:
                return form
            ((tag, (stream, content)),) = form.items()
            if stream not in values:
                drawn = tag == "$draw"
                values[stream] = (Value.drawn(decode(content), f"{case.id}/{stream}", case.sampler) if drawn
                                  else Value.stored(load_tensor(content)))  # fmt: skip
            return {"$load": [stream]}

        wanted = ancestors(case.nodes, node)
        nodes = [replace(call, arguments=[[n, walk(f, name), k] for n, f, k in call.arguments])
                 for place, call in enumerate(case.nodes) if place in wanted]  # fmt: skip
        return cls(tuple(_renumbered(nodes, sorted(wanted))), values, case)

    def pruned(self) -> Draft:
        """Without nodes and inputs that the last node does not need."""
        wanted = sorted(ancestors(self.nodes, len(self.nodes) - 1))
        nodes = tuple(_renumbered([self.nodes[place] for place in wanted], wanted))
        used = {form["$load"][0] for node in nodes for form in tensors_of(node) if "$load" in form}
        return replace(self, nodes=nodes, values={n: v for n, v in self.values.items() if n in used})

    def changed(self, change) -> Draft:
        """With every tensor of every node replaced by ``change(form)``."""
        nodes = tuple(replace(node, arguments=[[n, walk(f, change), k] for n, f, k in node.arguments])
                      for node in self.nodes)  # fmt: skip
        return replace(self, nodes=nodes)

    def with_values(self, changes) -> Draft:
        """With other inputs of the same names."""
        return replace(self, values={**self.values, **changes})

    def materialised(self, folder) -> TestCase:
        """A case that workers can run; the inputs are written to ``folder`` as raw files.

        Equal nodes and inputs give the same case, whatever the folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        forms, digests = {}, []
        for place, (name, value) in enumerate(sorted(self.values.items())):
            forms[name] = save_tensor(value.tensor(), folder / f"{place}.bin")
            content = Path(forms[name]["path"]).read_bytes()
            digests.append([name, value.dtype, value.shape, value.strides, hashlib.sha256(content).hexdigest()])
        nodes = self.changed(lambda form: form if "$from" in form else {"$load": [form["$load"][0],
                             forms[form["$load"][0]]]}).nodes  # fmt: skip
        calls = [[n.target, n.arguments, *([list(n.frozen)] if n.backward else [])] for n in self.nodes]
        identity = json.dumps([self.case.pattern, calls, digests])
        edges = tuple(dict.fromkeys(
            (form["$from"][0], place, name) for place, node in enumerate(nodes) for name, argument, _ in node.arguments
            for _, form in tensor_forms(walk(argument, _readable), name) if "$from" in form
        ))  # fmt: skip
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return TestCase(key, self.case.pattern, nodes, edges, self.case.seed, "given")

    @property
    def size(self) -> tuple[int, int]:
        """(nodes, input elements)."""
        return len(self.nodes), sum(value.numel for value in self.values.values())


def _readable(form):
    # tensor_forms looks for wired and drawn tensors only.
    return form if "$from" in form else {"$draw": ["", {}]}


def tensors_of(node):
    """Forms of all tensors among a node's arguments."""
    found = []
    for _, form, _ in node.arguments:
        walk(form, lambda leaf: found.append(leaf) or leaf)
    return found


def differentiated(draft) -> dict[int, str]:
    """Which tensors of the last call have a gradient that is judged too: their place in the order in which a script
    hands them over -> name as in ``CaseNode.frozen``. Empty without a backward pass."""
    last = draft.nodes[-1]
    order, found = [], {}
    for name, form, _ in last.arguments:
        for path, leaf in tensor_forms(form, name):
            if leaf not in order:
                order.append(leaf)
                free = name not in backward._STATE and path not in last.frozen
                if last.backward and free and _continuous(draft, leaf):
                    found[len(order) - 1] = path
    return found


def _continuous(draft, leaf) -> bool:
    if "$from" in leaf:
        return True
    dtype = getattr(torch, draft.values[leaf["$load"][0]].dtype)
    return dtype.is_floating_point or dtype.is_complex


def sources(node) -> set[int]:
    """Numbers of the nodes that feed a node."""
    return {form["$from"][0] for form in tensors_of(node) if "$from" in form}


def ancestors(nodes, node) -> set[int]:
    """A node and all that its inputs come from."""
    wanted, waiting = set(), [node]
    while waiting:
        place = waiting.pop()
        if place not in wanted:
            wanted.add(place)
            waiting += sources(nodes[place])
    return wanted


def _renumbered(nodes, old):
    """Nodes with the references among them in terms of their new places; ``old`` are their numbers before."""
    place = {number: position for position, number in enumerate(old)}

    def moved(form):
        return {"$from": [place[form["$from"][0]], form["$from"][1]]} if "$from" in form else form

    return [replace(node, arguments=[[n, walk(f, moved), k] for n, f, k in node.arguments]) for node in nodes]
