"""DeepREL: pairs of APIs that should return the same, or fail together.

Yinlin Deng, Chenyuan Yang, Anjiang Wei, Lingming Zhang: "Fuzzing Deep-Learning Libraries via Automated Relational API
Inference", ESEC/FSE 2022. An independent implementation. The similarity of two APIs is not published as code; here it
is the larger of two TF-IDF cosines, of the signatures and of the documentation of the installed PyTorch. Pairs are
sought among functions and methods for the APIs under test; the published tool goes on from the pairs it finds.

An attempt is three calls: the source API on mutated inputs, the related one on the same tensors, and
``torch.isclose`` on both results. Variant V expects equal values, S that both succeed or both fail.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from sortlib import apis
from sortlib.apis import Argument
from sortlib.baselines import mutation
from sortlib.baselines.base import Call, Drawn, Made, Method, build, crash
from sortlib.baselines.definitions import Definition, definition, edit_similarity
from sortlib.baselines.probe import Probe
from sortlib.errors import SortError
from sortlib.features import TensorFeatures, map_tensors

CANDIDATES = 10  # related APIs considered
RECORDED = 100  # recorded inputs that a pair is verified on
LARGEST = 1 << 20  # elements of a recorded input, so that verification stays cheap
TOLERANCE = 1e-5  # absolute and relative
# A target that fails so has not the feature; it is no bug.
UNSUPPORTED = ("not implement", "invalid combination of argument", "not supported for")
HOMES = ("torch", "torch.nn.functional", "torch.Tensor", "torch.special", "torch.linalg")


@dataclass(frozen=True)
class Pair:
    """A related API and, for each of its parameters that is given, the source's parameter."""

    source: str
    target: str
    arguments: tuple[tuple[str, str], ...]  # (source's name, target's name)


class DeepREL(Method):
    """See the module."""

    key, name, variants, paper = "deeprel", "DeepREL", ("V", "S"), "DeepREL"

    def __init__(self):
        self._pairs, self._probe = {}, Probe()

    def close(self):
        self._probe.close()

    def attempts(self, api, count, context, variant=""):
        records = context.by_api.get(api, [])
        pairs = self._verified(api, context) if records else {}
        for name in [variant] if variant else self.variants:
            if not pairs.get(name):
                continue
            for number in range(count):
                mutator = mutation.Mutator(context.rng(self.key, name, api, number), mutation.DEEPREL)
                pair = pairs[name][number % len(pairs[name])]
                record = mutator.pick([r for r in records if r.target == pair.source])
                arguments = mutation.mutate(record.arguments, mutator)
                yield build(self.key, name, api, number, calls_of(pair, arguments, record), context.seed)

    def reason(self, api, context):
        if not context.by_api.get(api):
            return "no recorded call to verify a pair with"
        return "no related function agrees with it on recorded inputs"

    def _verified(self, api, context) -> dict[str, list[Pair]]:
        key = (id(context), api)
        if key not in self._pairs:
            self._pairs = {key: verify(api, context, self._probe)}
        return self._pairs[key]

    def oracle(self, nodes, row, variant):
        found = crash(nodes[0])
        if found[0] or len(nodes) < 3:
            return found
        source, target, equal = nodes
        if crash(target)[0]:
            return crash(target)
        failed = [_failed(node) for node in (source, target)]
        if failed[0] != failed[1]:
            message = str(target["message"] if failed[1] else source["message"])
            if failed[1] and any(text in message.lower() for text in UNSUPPORTED):
                return "", ""
            sides = "fails where its related API returns" if failed[0] else "returns where its related API fails"
            return "crash", f"{source['api']} {sides} ({target['target']}): {message}"
        if variant != "V" or failed[0]:
            return "", ""
        if _failed(equal) or equal.get("reference_minimum") == 0 or not _same_shape(source, target):
            nan = (source.get("reference_nan") or 0) != (target.get("reference_nan") or 0)
            return "nan" if nan else "precision", f"{source['target']} and {target['target']} return different values"
        return "", ""


def _failed(node) -> bool:
    return node["status"] not in ("ok", "mismatch") and node["side"] != "candidate"


def _same_shape(source, target) -> bool:
    return source.get("reference_shape") == target.get("reference_shape")


def calls_of(pair: Pair, arguments, record) -> list[Call]:
    """Source, target and comparison of one attempt; the target gets the source's tensors by their streams."""
    drawn = {
        a.name: map_tensors(a.value, lambda path, f: Drawn(f, ".".join(map(str, path))), TensorFeatures, (a.name,))
        for a in arguments
    }
    source = tuple(a._replace(value=drawn[a.name]) for a in arguments)
    names = [name for name, _ in pair.arguments]
    places = {parameter.name: parameter for parameter in definition(pair.target).parameters}
    order = list(places)
    given = sorted((order.index(theirs), theirs, drawn[ours]) for ours, theirs in pair.arguments if ours in drawn)
    target = []
    for position, (place, theirs, value) in enumerate(given):
        positional = place == position and not places[theirs].keyword_only
        target.append(Argument(theirs, value, "positional" if positional else "keyword"))
    closeness = (
        Argument("input", Made(0), "positional"), Argument("other", Made(1), "positional"),
        Argument("rtol", TOLERANCE, "keyword"), Argument("atol", TOLERANCE, "keyword"),
        Argument("equal_nan", True, "keyword"),
    )  # fmt: skip
    note = f"{pair.source} -> {pair.target} ({', '.join(names)})"
    return [
        Call(pair.source, source, record.key, note),
        Call(pair.target, tuple(target), record.key, note),
        Call("torch.isclose", closeness, record.key, note),
    ]


# ---- which APIs are related ----


def related(target: str, count: int = CANDIDATES) -> list[str]:
    """The functions most similar to ``target``, most similar first."""
    signatures, documents = _corpus()
    own = (signatures.vector(definition(target).text), documents.vector(definition(target).doc))
    scores = {
        other: max(_cosine(own[0], signatures.vectors[other]), _cosine(own[1], documents.vectors[other]))
        for other in signatures.vectors
        if other != target
    }
    return sorted(scores, key=lambda other: (-scores[other], other))[:count]


class _Tfidf:
    def __init__(self, texts: dict[str, str]):
        tokens = {name: Counter(_tokens(text)) for name, text in texts.items()}
        seen = Counter(token for counts in tokens.values() for token in counts)
        self.weights = {token: math.log((1 + len(texts)) / (1 + n)) + 1 for token, n in seen.items()}
        self.vectors = {name: self._vector(counts) for name, counts in tokens.items()}

    def vector(self, text):
        return self._vector(Counter(_tokens(text)))

    def _vector(self, counts):
        vector = {token: n * self.weights.get(token, 0.0) for token, n in counts.items()}
        length = math.sqrt(sum(value * value for value in vector.values())) or 1.0
        return {token: value / length for token, value in vector.items()}


def _tokens(text):
    return re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text.replace("_", " ")).lower())


def _cosine(a, b):
    small, large = sorted((a, b), key=len)
    return sum(value * large.get(token, 0.0) for token, value in small.items())


@functools.cache
def _corpus():
    found = {}
    for home in HOMES:
        space = functools.reduce(getattr, home.split(".")[1:], torch)
        for name in sorted(dir(space)):
            if name.startswith("_"):
                continue
            try:
                function = apis.resolve(f"{home}.{name}")
                if not apis.identify(function).query:
                    found[f"{home}.{name}"] = definition(f"{home}.{name}")
            except (SortError, RuntimeError, ValueError):
                continue
    return (_Tfidf({name: d.text for name, d in found.items()}), _Tfidf({name: d.doc for name, d in found.items()}))


# ---- which argument is which ----


def match(source: Definition, target: Definition) -> Pair | None:
    """The best assignment of arguments (Hungarian method), or None if a required argument of either has no partner."""
    ours, theirs = source.parameters, target.parameters
    if not ours or not theirs:
        return None
    method = source.target.startswith("torch.Tensor.") or target.target.startswith("torch.Tensor.")
    scores = np.array([[_likeness(a, b, i, j, max(len(ours), len(theirs)), method) for j, b in enumerate(theirs)]
                       for i, a in enumerate(ours)])  # fmt: skip
    chosen = assignment(scores)
    names = tuple((ours[i].name, theirs[j].name) for i, j in chosen)
    mine, others = {a for a, _ in names}, {b for _, b in names}
    if any(p.required and p.name not in mine for p in ours) or any(p.required and p.name not in others for p in theirs):
        return None
    return Pair(source.target, target.target, names)


def _likeness(a, b, i, j, longest, method):
    types = len(a.types & b.types) / len(a.types) if a.types else 0.0
    place = 0.0 if method else 1 - abs(i - j) / longest
    return edit_similarity(a.name, b.name) + types + place


def assignment(scores: np.ndarray) -> list[tuple[int, int]]:
    """(row, column) pairs with the largest total score, each row and column at most once."""
    try:
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(scores, maximize=True)
        return sorted((int(row), int(column)) for row, column in zip(rows, columns, strict=True))
    except ImportError:
        import networkx

        graph = networkx.Graph()
        for (row, column), score in np.ndenumerate(scores):
            graph.add_edge(("row", row), ("column", column), weight=float(score))
        pairs = networkx.max_weight_matching(graph, maxcardinality=True)
        return sorted((dict(pair)["row"], dict(pair)["column"]) for pair in pairs)


# ---- which pairs agree on recorded inputs ----


def verify(api: str, context, probe: Probe) -> dict[str, list[Pair]]:
    """The pairs of an API by variant: equal values (V) or, failing that, equal status (S), on recorded inputs."""
    source = context.target(api)
    records = _distinct([r for r in context.by_api.get(api, []) if r.target == source])
    found = {"V": [], "S": []}
    pairs = [match(definition(source), definition(target)) for target in related(source)]
    for pair in filter(None, pairs):
        kind = _agreement(api, pair, records, probe, context.seed)
        if kind:
            found[kind].append(pair)
    return found


def _distinct(records):
    """Records of different form, the smallest first."""
    forms = {}
    for record in records:
        size = sum(features.numel for _, features in record.tensors())
        form = (
            tuple((path, f.dtype, f.shape) for path, f in record.tensors()),
            repr([a.value for a in record.arguments if not any(p[0] == a.name for p, _ in record.tensors())]),
        )
        if size <= LARGEST:
            forms.setdefault(form, (size, len(forms), record))
    return [record for _, _, record in sorted(forms.values(), key=lambda entry: entry[:2])[:RECORDED]]


def _agreement(api, pair, records, probe, seed):
    """``V``, ``S`` or an empty text."""
    values, succeeded = True, False
    for number, record in enumerate(records):
        case = build("deeprel", "", api, number, calls_of(pair, record.arguments, record), seed)
        source, target, equal = probe.run(case)
        if bool(source["error"]) != bool(target["error"]):
            return ""
        if source["error"]:
            continue
        succeeded = True
        shapes = [part["output"].shape if part["output"] else None for part in (source, target)]
        same = not equal["error"] and equal["output"] is not None and shapes[0] == shapes[1]
        values = values and same and (equal["output"].numel == 0 or equal["output"].minimum == 1.0)
    return "" if not succeeded else "V" if values else "S"
