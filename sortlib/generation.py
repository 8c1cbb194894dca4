"""Test cases: records joined along the edges of a pattern (paper section III-C, DESIGN decision 4).

Every node of a pattern gets one recorded call. An edge may join two calls only where the producer's recorded output
and the consumer's recorded argument have the same dtype, shape and strides; all in-pattern operands are joined, not
only the first. The pattern's occurrence in a real model is the witness that at least one such choice exists.
Everything that does not come from inside the pattern is drawn later from its recorded features.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from sortlib import apis
from sortlib.arguments import LARGEST_SEED, flag, instance, items, whole
from sortlib.drawing import SAMPLERS
from sortlib.errors import SortError, choices
from sortlib.features import CallRecord, Opaque, TensorFeatures, encode, map_tensors
from sortlib.graph import ApiGraph, Pattern

_LABEL = re.compile(r"^(?P<argument>.*?)(\[(?P<output>\d+)\])?(?P<alias>@alias)?$")


@dataclass(frozen=True)
class CaseNode:
    """One call of a case.

    ``arguments`` holds (name, value, kind) in the form of ``features.encode``: tensors from inside the pattern are
    ``{"$from": [node, output]}``, tensors to be drawn ``{"$draw": [stream, features]}``; equal streams are one tensor.
    With ``backward`` the gradients of its floating-point inputs are judged like further outputs, except of those in
    ``frozen`` (names as in ``input`` or ``tensors.0``), which wanted none when the call was recorded.
    """

    api: str
    target: str
    arguments: list
    record: tuple
    module_path: str = ""
    source: str = ""
    inplace: bool = False
    random: bool = False
    backward: bool = False
    frozen: list = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class TestCase:
    """A pattern with everything needed to run it.

    Attributes
    ----------
    id : hash of all that decides the inputs; equal ids are equal cases on every machine.
    pattern : the pattern's id.
    nodes : one ``CaseNode`` for each pattern node, in an order in which they can run.
    edges : (src, dst, argument) in terms of ``nodes``.
    seed, sampler : how external tensors are drawn.
    """

    __test__ = False  # pytest would take it for a test class

    id: str
    pattern: str
    nodes: tuple[CaseNode, ...]
    edges: tuple[tuple[int, int, str], ...]
    seed: int
    sampler: str

    def __repr__(self):
        return f"TestCase({self.id!r}: {', '.join(node.api for node in self.nodes)})"

    def to_json(self) -> dict:
        """The form that workers and stores read."""
        nodes = [{**vars(node), "record": list(node.record)} for node in self.nodes]
        return {**vars(self), "nodes": nodes, "edges": [list(edge) for edge in self.edges]}

    @classmethod
    def from_json(cls, form) -> TestCase:
        """Read ``to_json``'s form."""
        nodes = tuple(CaseNode(**{**node, "record": tuple(node["record"])}) for node in form["nodes"])
        return cls(**{**form, "nodes": nodes, "edges": tuple(tuple(edge) for edge in form["edges"])})


class CaseList(list):
    """Generated cases.

    Attributes
    ----------
    skipped : the id of every pattern without a case -> the reason.
    left_out : reason -> number of records that could not take part.
    """

    def __init__(self, cases=(), skipped=None, left_out=None):
        super().__init__(cases)
        self.skipped, self.left_out = skipped or {}, dict(left_out or {})


def generate(
    patterns: list[Pattern],
    records: list[CallRecord],
    graphs: list[ApiGraph],
    per_pattern: int = 5,
    seed: int = 0,
    sampler: str = "quantile",
    max_elements: int | None = None,
    progress=None,
    backward: bool = False,
) -> CaseList:
    """Join records into cases.

    Parameters
    ----------
    patterns : mined from ``graphs``, with at least one embedding each.
    records : of those graphs, of any number of samples; one list, or a list of lists as ``trace`` returns them.
    per_pattern : cases of each pattern; they differ in the join, or at least in the drawn values.
    seed : decides the joins and, later, the drawn values.
    sampler : a key of ``drawing.SAMPLERS``.
    max_elements : leave out calls with a tensor larger than this (off by default); what that costs is in ``skipped``.
    progress : called with 1 after each pattern.
    backward : run every call forward and backward, and judge the gradients of its own inputs too (see
        ``runner.backward``). Parameters and buffers want a gradient as they were recorded; so does everything where the
        model was traced with gradients, and else every other input does, as it would in training.

    Returns
    -------
    CaseList
        Ordered by pattern; ``skipped`` says which patterns gave no case, and why.

    Raises
    ------
    SortError
        An unknown sampler, a number out of range, or lists of something else.
    """
    if sampler not in SAMPLERS:
        raise SortError(f"unknown sampler {sampler!r}; valid: {choices(SAMPLERS)}")
    whole(per_pattern, "generate: per_pattern", 1)
    whole(seed, "generate: seed", 0, LARGEST_SEED)
    if max_elements is not None:
        whole(max_elements, "generate: max_elements", 1)
    backward = flag(backward, "generate: backward")
    patterns = items(patterns, Pattern, "generate: patterns", "see sl.mine")
    graphs = items(graphs, ApiGraph, "generate: graphs", "those that the patterns were mined from")
    records, names = _told_apart(records, graphs)
    index = RecordIndex(records, max_elements)
    cases, skipped = CaseList(left_out=index.left_out), {}
    for pattern in patterns:
        made, reason = _cases_of(pattern, index, names, per_pattern, seed, sampler, backward)
        cases.extend(made)
        if not made:
            skipped[pattern.id] = reason
        if progress:
            progress(1)
    cases.skipped = skipped
    return cases


def _told_apart(records, graphs):
    """Flat records, and the name that each graph's records go by.

    Models of one class share a name. Given as one list for each graph, their records are renamed; a flat list of them
    could not be told apart.
    """
    names = [graph.name for graph in graphs]
    instance(records, list | tuple, "generate: records", "a list of CallRecord, or one such list for each graph")
    nested = len(records) > 0 and all(isinstance(item, (list, tuple)) for item in records)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and not (nested and len(records) == len(graphs)):
        raise SortError(f"{names.count(twice[0])} graphs are called {twice[0]!r}, so their records cannot be told "
                        "apart; give records as a list for each graph, or names by Tracer(name=...)")  # fmt: skip
    if twice:
        names = [f"{name}#{position}" for position, name in enumerate(names)]
        records = [[replace(r, graph=name) for r in part] for name, part in zip(names, records, strict=True)]
    records = [r for part in records for r in part] if nested else records
    return items(records, CallRecord, "generate: records", "sl.trace returns them beside the graph"), names


# ---- the index of records ----


@dataclass
class _Form:
    """All records of one API that agree in everything a join can see."""

    slots: tuple  # (path, base label, signature) of every tensor argument
    outputs: tuple  # signatures
    records: list = field(default_factory=list)


class RecordIndex:
    """Records by API and by the signature of each argument and output.

    Attributes
    ----------
    left_out : number of records that cannot take part, by reason.
    """

    def __init__(self, records, max_elements=None):
        self.left_out = defaultdict(int)
        self.by_key = {}
        self.samples = []
        self.forms = defaultdict(list)
        forms = {}
        for record in records:
            reason = _unusable(record, max_elements)
            if reason:
                self.left_out[reason] += 1
                continue
            slots = tuple((path, apis.edge_label(record.api, path), f.signature) for path, f in record.tensors())
            outputs = tuple(features.signature for features in record.outputs)
            form = forms.get((record.api, slots, outputs))
            if form is None:
                form = forms[record.api, slots, outputs] = _Form(slots, outputs)
                self.forms[record.api].append(form)
            form.records.append(record)
            self.by_key[record.key] = record
        self.samples = sorted({sample for _, sample, _ in self.by_key})


def _unusable(record, max_elements):
    tensors = [features for _, features in record.tensors()]
    if any(_holds(argument.value, Opaque) for argument in record.arguments):
        return "an argument has no recorded form"
    if max_elements and any(f.numel > max_elements for f in (*tensors, *record.outputs)):
        return f"a tensor has more than {max_elements:,} elements"
    if any(not f.strides and f.shape for f in tensors):
        return "a tensor is not strided"
    return None


def _holds(value, kind):
    found = []
    map_tensors(value, lambda path, item: found.append(item), kind)
    return bool(found)


# ---- joining ----


def _order(pattern: Pattern) -> list[int]:
    """Pattern nodes in an order in which they can run; the lowest number first among those that are ready."""
    waiting = {node: {e.src for e in pattern.edges if e.dst == node} for node in range(len(pattern.nodes))}
    order = []
    while waiting:
        ready = min(node for node, sources in waiting.items() if not sources - set(order))
        order.append(ready)
        del waiting[ready]
    return order


@dataclass(frozen=True)
class _Join:
    src: int
    dst: int
    label: str
    output: int


def _cases_of(pattern, index, names, count, seed, sampler, backward):
    joins = []
    for src, dst, argument in pattern.edges:
        label = _LABEL.match(argument)
        if label["alias"]:
            return [], "an edge stands for shared memory, which a case cannot rebuild"
        joins.append(_Join(src, dst, label["argument"], int(label["output"] or 0)))
    witnesses = _witnesses(pattern, joins, index, names)
    if not witnesses:
        left_out = "; ".join(f"{number} records left out: {reason}" for reason, number in index.left_out.items())
        return [], f"no recorded occurrence can be used ({left_out or 'the records are of other graphs'})"
    made = []
    for number in range(count):
        rng = np.random.Generator(np.random.Philox(_integer(f"{seed}/{pattern.id}/{number}")))
        chosen = _join(pattern, joins, index, rng) or witnesses[int(rng.integers(len(witnesses)))]
        made.append(_build(pattern, joins, chosen, seed, sampler, number, backward))
    return made, ""


def _integer(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def _witnesses(pattern, joins, index, names):
    """Records of the pattern's own occurrences: a record for each node, for each embedding and sample."""
    found = []
    for embedding in pattern.embeddings:
        for sample in index.samples:
            keys = [(names[embedding.graph], sample, node) for node in embedding.nodes]
            if all(key in index.by_key for key in keys):
                records = [index.by_key[key] for key in keys]
                if all(_wiring(node, joins, records) is not None for node in {j.dst for j in joins}):
                    found.append(records)
    return found


def _join(pattern, joins, index, rng, budget=2000):
    """A random record for each node so that every edge joins, or None if none was found in ``budget`` steps.

    Nodes are visited along edges in either direction, so that after the first every choice is constrained.
    """
    visit, remaining = [], set(range(len(pattern.nodes)))
    frontier = [int(rng.integers(len(pattern.nodes)))]
    while remaining:
        node = frontier.pop(0)
        if node in remaining:
            visit.append(node)
            remaining.discard(node)
            frontier += [j.dst if j.src == node else j.src for j in joins if node in (j.src, j.dst)]
    chosen, steps = {}, [0]

    def place(position):
        if position == len(visit):
            return True
        node = visit[position]
        forms = index.forms[pattern.nodes[node]]
        weights = np.array([len(form.records) for form in forms], float)
        order = (
            rng.permutation(len(forms))
            if position
            else rng.choice(len(forms), len(forms), replace=False, p=weights / weights.sum())
        )
        for choice in order:
            steps[0] += 1
            if steps[0] > budget:
                return False
            chosen[node] = forms[choice]
            if _fits(node, joins, chosen) and place(position + 1):
                return True
            del chosen[node]
        return False

    if not place(0):
        return None
    return [chosen[node].records[int(rng.integers(len(chosen[node].records)))] for node in range(len(pattern.nodes))]


def _fits(node, joins, chosen):
    """Whether all edges between chosen forms can be wired at once."""
    for dst in {j.dst for j in joins if node in (j.src, j.dst) and j.dst in chosen}:
        wanted = [(j.label, _signature(chosen[j.src], j.output)) for j in joins if j.dst == dst and j.src in chosen]
        if _slots(chosen[dst].slots, wanted) is None:
            return False
    return True


def _signature(form, output):
    """Signature of an output of a ``_Form`` or a record; None if there is no such output."""
    found = form.outputs[output] if output < len(form.outputs) else None
    return found.signature if isinstance(found, TensorFeatures) else found


def _slots(slots, wanted):
    """A different slot for each wanted (label, signature), as paths; None if there is no such choice."""
    groups = defaultdict(list)
    for position, want in enumerate(wanted):
        groups[want].append(position)
    result = [None] * len(wanted)
    for (label, signature), positions in groups.items():
        free = [path for path, slot_label, slot in slots if slot_label == label and slot == signature]
        if signature is None or len(free) < len(positions):
            return None
        for position, path in zip(positions, free, strict=False):
            result[position] = path
    return result


def _wiring(node, joins, records):
    """Path -> join for every operand of a node that comes from inside the pattern, or None if they do not fit."""
    incoming = [j for j in joins if j.dst == node]
    slots = [(path, apis.edge_label(records[node].api, path), f.signature) for path, f in records[node].tensors()]
    paths = _slots(slots, [(j.label, _signature(records[j.src], j.output)) for j in incoming])
    return None if paths is None else dict(zip(paths, incoming, strict=True))


def _build(pattern, joins, records, seed, sampler, number, backward):
    order = _order(pattern)
    place = {node: position for position, node in enumerate(order)}
    nodes = []
    for node in order:
        wired = {path: [place[j.src], j.output] for path, j in _wiring(node, joins, records).items()}
        made = _case_node(records[node], wired, place[node])
        nodes.append(replace(made, backward=True, frozen=_frozen(records[node])) if backward else made)
    edges = tuple((place[j.src], place[j.dst], e.argument) for j, e in zip(joins, pattern.edges, strict=True))
    identity = json.dumps([pattern.id, [[n.target, n.arguments] for n in nodes], seed, sampler, number,
                           *([[n.frozen for n in nodes]] if backward else [])])  # fmt: skip
    return TestCase(hashlib.sha256(identity.encode()).hexdigest()[:16], pattern.id, tuple(nodes), edges, seed, sampler)


def _frozen(record) -> list:
    """Names of the operands that want no gradient."""
    with_gradients = any(output.requires_grad for output in record.outputs)
    return [".".join(map(str, path)) for path, features in record.tensors()
            if not features.requires_grad and (with_gradients or features.role in ("parameter", "buffer"))]  # fmt: skip


def _case_node(record, wired, position):
    # Arguments that were one tensor in the model stay one: wired together, or drawn once.
    first = dict(record.aliases)
    shared = {first.get(path, path): source for path, source in reversed(wired.items())}

    def form(path, features):
        root = first.get(path, path)
        if path in wired or root in shared:
            return _Wired(wired.get(path) or shared[root])
        return _Drawn(features, f"{position}." + ".".join(map(str, root)))

    arguments = [
        [a.name, encode(map_tensors(a.value, form, TensorFeatures, (a.name,)), _special), a.kind]
        for a in record.arguments
    ]
    # Through JSON, so that a case just made and one read from disk are equal.
    return CaseNode(
        record.api, record.target, json.loads(json.dumps(arguments)), record.key, record.module_path, record.source,
        record.inplace, record.random,
    )  # fmt: skip


def tensor_forms(form, name):
    """(place, form) of every tensor of an argument in the form of a case."""
    if isinstance(form, dict) and ("$from" in form or "$draw" in form or "$load" in form):
        yield name, form
    elif isinstance(form, dict):
        for key, value in form.items():
            yield from tensor_forms(value, f"{name}.{key}" if not key.startswith("$") else name)
    elif isinstance(form, list):
        for position, value in enumerate(form):
            yield from tensor_forms(value, f"{name}.{position}")


@dataclass(frozen=True)
class _Wired:
    place: list


@dataclass(frozen=True)
class _Drawn:
    features: TensorFeatures
    stream: str


def _special(value):
    if isinstance(value, _Wired):
        return {"$from": value.place}
    if isinstance(value, _Drawn):
        return {"$draw": [value.stream, encode(value.features)]}
    return None
