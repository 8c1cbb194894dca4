"""The interface of a baseline: it makes attempts for an API, and says what its own oracle sees in their outcomes.

An attempt is a ``TestCase`` like any other, so the same workers run it and the same rules judge it. Its first call is
the call under test; further calls are there for the method's oracle only. Nothing is executed and no tensor is made
while attempts are generated, unless a method says so, and then in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sortlib import apis
from sortlib.apis import Argument
from sortlib.errors import SortError
from sortlib.features import CallRecord, Opaque, TensorFeatures, encode, map_tensors
from sortlib.generation import CaseNode, TestCase

DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "bfloat16", "complex64", "complex128",
    "bool",
)  # fmt: skip
ASSERTION = "INTERNAL ASSERT"  # in a message, it is a bug whatever the input was


@dataclass(frozen=True)
class Context:
    """What a method may draw on.

    Attributes
    ----------
    records : calls of real models.
    seed : decides every attempt.
    max_elements : leave out recorded calls with a larger tensor, where the API has smaller ones; None keeps all.
    options : a method's own settings by name, as ``constraints`` (DocTer) or ``model`` (TitanFuzz).
    """

    records: list[CallRecord]
    seed: int = 0
    max_elements: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def by_api(self) -> dict[str, list[CallRecord]]:
        """Records that can be repeated, by canonical API name."""
        found = {}
        for record in self.records:
            tensors = [features for _, features in record.tensors()]
            opaque = []
            map_tensors([a.value for a in record.arguments], lambda _, item, seen=opaque: seen.append(item), Opaque)
            if not opaque and not any(f.shape and not f.strides for f in tensors):
                largest = max((features.numel for features in tensors), default=0)
                found.setdefault(record.api, []).append((largest, record))
        kept = {}
        for api, sized in found.items():
            limit = max(self.max_elements or math.inf, min(size for size, _ in sized))
            kept[api] = [record for size, record in sized if size <= limit]
        return kept

    def target(self, api: str) -> str:
        """The spelling under which an API is tested: the most frequent one, and the functional one without records."""
        counts = {}
        for record in self.by_api.get(api, ()):
            counts[record.target] = counts.get(record.target, 0) + 1
        if counts:
            return min(counts, key=lambda target: (-counts[target], target))
        return functional(api)

    def rng(self, *place) -> np.random.Generator:
        """A generator that depends on the seed and on ``place`` only."""
        digest = hashlib.sha256("/".join(map(str, (self.seed, *place))).encode()).digest()
        return np.random.Generator(np.random.Philox(int.from_bytes(digest[:16], "little")))


def functional(api: str) -> str:
    """The spelling of a canonical name that is a function rather than a method.

    Raises
    ------
    SortError
        This PyTorch has no such function.
    """
    for home in ("torch.nn.functional", "torch", "torch.Tensor"):
        try:
            apis.resolve(f"{home}.{api}")
        except SortError:
            continue
        return f"{home}.{api}"
    raise SortError(f"torch has no function {api!r}")


# ---- from a call to a test case ----


class Drawn(NamedTuple):
    """A tensor to be drawn; equal streams of one case are one tensor."""

    features: TensorFeatures
    stream: str


class Made(NamedTuple):
    """An output of an earlier call of the case."""

    call: int
    output: int = 0


class Call(NamedTuple):
    """One call of an attempt; tensors among the arguments are ``TensorFeatures``, ``Drawn`` or ``Made``."""

    target: str
    arguments: tuple[Argument, ...]
    record: tuple = ("", 0, 0)
    source: str = ""


def tensor(dtype: str, shape, low: float | None = 0.0, high: float | None = 1.0) -> TensorFeatures:
    """Features of a contiguous tensor with values uniform in [low, high]; its memory is not made here."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(int(size), 1)
    values = {"minimum": None if low is None else float(low), "maximum": None if high is None else float(high)}
    mean = 0.5 if dtype == "bool" else None
    sizes = tuple(int(size) for size in shape)
    return TensorFeatures(dtype, sizes, tuple(reversed(strides)), role="input", mean=mean, **values)


def build(method: str, variant: str, api: str, number: int, calls: list[Call], seed: int) -> TestCase:
    """An attempt as a test case; edges follow from the ``Made`` among the arguments."""
    pattern = pattern_id(method, variant, api)
    nodes = tuple(_node(call, position) for position, call in enumerate(calls))
    edges = []
    for position, call in enumerate(calls):
        for argument in call.arguments:
            for made in _found(argument.value, Made):
                edges.append((made.call, position, apis.edge_label(nodes[position].api, (argument.name,))))
    identity = json.dumps([pattern, [[n.target, n.arguments] for n in nodes], seed, number])
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return TestCase(name, pattern, nodes, tuple(edges), seed, "uniform")


def _found(value, kind) -> list:
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        return [item for part in value.values() for item in _found(part, kind)]
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in _found(part, kind)]
    return []


def _node(call, position):
    api = apis.identify(apis.resolve(call.target))
    arguments = tuple(call.arguments)
    forms = [[a.name, encode(_streams(a.value, (a.name,), position), _special), a.kind] for a in arguments]
    inplace = apis.writes_in_place(api, arguments)
    random = apis.is_random(api.name, arguments)
    # Through JSON, so that a case just made and one read from disk are equal.
    forms = json.loads(json.dumps(forms))
    return CaseNode(api.name, call.target, forms, tuple(call.record), "", call.source, inplace, random)


class _Form:
    """The finished JSON form of a tensor."""

    def __init__(self, form):
        self.form = form


def _streams(value, path, position):
    if isinstance(value, Made):
        return _Form({"$from": [value.call, value.output]})
    if isinstance(value, Drawn):
        return _Form({"$draw": [value.stream, encode(value.features)]})
    if isinstance(value, TensorFeatures):
        return _Form({"$draw": [f"{position}." + ".".join(map(str, path)), encode(value)]})
    if isinstance(value, dict):
        return {name: _streams(item, (*path, name), position) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_streams(item, (*path, place), position) for place, item in enumerate(value))
    return value


def _special(value):
    return value.form if isinstance(value, _Form) else None


# ---- pattern ids ----


def pattern_id(method: str, variant: str, api: str) -> str:
    """``freefuzz-C-relu``: what marks a case as an attempt of a baseline."""
    return "-".join(filter(None, (method, variant, api)))


# ---- the interface ----


class Method:
    """A baseline.

    Attributes
    ----------
    key : beginning of its pattern ids.
    name : as in the paper's tables.
    variants : letters that the paper's tables add to the name; empty for none.
    paper : column of Table II.
    timed : whether its oracle compares times.
    ends : why it makes fewer attempts than it may, in the words of a footnote.
    whole : whether all calls of an attempt are under test, not only the first.
    """

    key = ""
    name = ""
    variants: tuple[str, ...] = ()
    paper = ""
    timed = False
    whole = False
    ends = "it has no further attempt to make"

    def available(self, context: Context | None = None) -> str:
        """What this machine lacks for the method, empty if nothing."""
        return ""

    def attempts(self, api: str, count: int, context: Context, variant: str = "") -> Iterator[TestCase]:
        """``count`` attempts of each variant; fewer, or none, where the method has no tests for the API.

        They are made as they are taken, and a larger count begins with the same ones (unless ``repeats`` says no).

        Parameters
        ----------
        api : canonical name.
        count : attempts of each variant.
        context : records, seed, options.
        variant : make those of one variant only. Without a meaning where all variants judge the same attempts.
        """
        raise NotImplementedError

    def repeats(self, context: Context) -> bool:
        """Whether ``attempts`` gives the same when it is called again."""
        return True

    def judges(self, variant: str, candidate: str) -> bool:
        """Whether a variant has anything to say of a candidate platform."""
        return True

    def reason(self, api: str, context: Context) -> str:
        """Why ``attempts`` gives none for an API, in the words of a footnote."""
        raise NotImplementedError

    def close(self):
        """End what the method keeps running between APIs."""

    def verdicts(self, outcomes, variant: str = ""):
        """What the method's own oracle says of its attempts.

        Parameters
        ----------
        outcomes : rows of ``sl.run`` of this method's cases, of any variants.
        variant : the variant to judge.

        Returns
        -------
        pandas.DataFrame
            One row per attempt: the columns of its first call, with ``api`` the API under test, ``status``, ``side``
            and ``message`` of the whole attempt (``status`` is ok if it is valid), ``paper`` (pass or fail),
            ``symptom`` (perf, crash, nan, precision or empty) and ``oracle`` (the reason); ``evidence`` and
            ``reason`` are the verdict of the evidence rule on the calls under test, the most serious one.
        """
        import pandas as pd

        from sortlib.judging import judge

        rows = []
        mine = outcomes.loc[[self.is_of(pattern, variant) for pattern in outcomes["pattern"]]]
        judged = judge(mine, "evidence").rename(columns={"verdict": "evidence"})
        cases = {}
        for node in judged.to_dict("records"):  # at once: a table for each case would cost a hundred times as much
            cases.setdefault(node["case"], []).append(node)
        for nodes in cases.values():
            row = {**nodes[0], "api": self.api_of(nodes[0]["pattern"]), **self.ending(nodes, variant)}
            symptom, why = self.oracle(nodes, row, variant)
            verdict = {"paper": "fail" if symptom else "pass", "symptom": symptom, "oracle": why}
            rows.append({**row, **verdict, **self._evidence(nodes, row)})
        added = ["paper", "symptom", "oracle", "evidence", "reason"]
        return pd.DataFrame(rows, columns=[*outcomes.columns, *added])

    def _evidence(self, nodes, row):
        from sortlib.judging import RANK, Verdict

        if row["status"] not in ("ok", "mismatch"):
            return {"evidence": str(Verdict(row["status"])), "reason": row["message"]}
        tested = nodes if self.whole else nodes[:1]
        worst = min(tested, key=lambda node: RANK.index(Verdict(node["evidence"])))
        return {"evidence": str(worst["evidence"]), "reason": worst["reason"]}

    def ending(self, nodes: list[dict], variant: str) -> dict:
        """Status, side and message of an attempt from its rows: those of its first call."""
        return {name: nodes[0][name] for name in ("status", "side", "message")}

    def oracle(self, nodes: list[dict], row: dict, variant: str) -> tuple[str, str]:
        """(symptom, reason) under the method's own oracle: a crash, as all of them see it."""
        return crash(row)

    def api_of(self, pattern: str) -> str:
        """The API under test of a pattern id of this method."""
        rest = pattern.removeprefix(f"{self.key}-")
        head, _, tail = rest.partition("-")
        return tail if head in self.variants else rest

    def pattern_of(self, api: str, variant: str = "") -> str:
        """The pattern id of its attempts on an API."""
        return pattern_id(self.key, variant, api)

    def is_of(self, pattern: str, variant: str = "") -> bool:
        """Whether a pattern id marks an attempt of this method that a variant judges; of any variant if empty."""
        if not pattern.startswith(f"{self.key}-"):
            return False
        head = pattern.removeprefix(f"{self.key}-").partition("-")[0]
        return not variant or head not in self.variants or head == variant


def crash(row: dict) -> tuple[str, str]:
    """A dead process, or a failed internal assertion."""
    if row["status"] == "crash":
        return "crash", row["message"]
    if ASSERTION in str(row["message"]):
        return "crash", row["message"]
    return "", ""
