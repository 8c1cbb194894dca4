"""FreeFuzz: recorded calls, mutated.

Anjiang Wei, Yinlin Deng, Chenyuan Yang, Lingming Zhang: "Free Lunch for Testing: Fuzzing Deep-Learning Libraries from
Open Source", ICSE 2022. An independent implementation of the published algorithm on our own records.

One attempt takes a random record of the API and mutates it (``mutation``). Variant C runs it and looks for crashes.
Variant P runs it first with a low-precision dtype and then with the recorded one, and only compares times.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sortlib.baselines import mutation
from sortlib.baselines.base import Call, Context, Method, build, crash
from sortlib.baselines.definitions import definition, edit_similarity
from sortlib.features import TensorFeatures, map_tensors

LOW = {"float32": "float16", "float64": "float16", "bfloat16": "float16", "int16": "int8", "int32": "int8",
       "int64": "int8", "complex64": "complex32", "complex128": "complex32"}  # fmt: skip
SLOWER = 10  # times: low precision should not be this much slower
SECONDS = 1e-3  # and the high-precision call takes at least this long


class FreeFuzz(Method):
    """See the module."""

    key, name, variants, paper, timed = "freefuzz", "FreeFuzz", ("C", "P"), "FreeFuzz", True

    def attempts(self, api, count, context, variant=""):
        records = context.by_api.get(api, [])
        if not records:
            return
        for name in [variant] if variant else self.variants:
            for number in range(count):
                mutator = mutation.Mutator(context.rng(self.key, name, api, number))
                record = mutator.pick(records)
                database = _Database(api, record.target, context, mutator.rng)
                arguments = mutation.mutate(record.arguments, mutator, database)
                high = Call(record.target, arguments, record.key, record.source)
                calls = [high] if name == "C" else [high._replace(arguments=_lowered(arguments)), high]
                yield build(self.key, name, api, number, calls, context.seed)

    def reason(self, api, context):
        return "no recorded call to mutate"

    def ending(self, nodes, variant):
        if variant != "P":
            return super().ending(nodes, variant)
        # Valid if both precisions run on the reference; what the candidate does is not asked.
        failed = [n for n in nodes if n["status"] not in ("ok", "unreached") and n["side"] != "candidate"]
        return {name: (failed or nodes)[0][name] for name in ("status", "side", "message")}

    def oracle(self, nodes, row, variant):
        if variant != "P":
            return crash(row)
        low, high = (node.get("seconds_reference") for node in nodes)
        if row["status"] == "ok" and _is_slow(low, high):
            return "perf", f"{low:.3g} s in low precision, {high:.3g} s in high"
        return "", ""


def _is_slow(low, high) -> bool:
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return False
    return high > SECONDS and low > SLOWER * high


def _lowered(arguments):
    def lower(_, features):
        return replace(features, dtype=LOW.get(features.dtype, features.dtype))

    return tuple(a._replace(value=map_tensors(a.value, lower, TensorFeatures)) for a in arguments)


class _Database:
    """Values of the same-named argument in records of similar APIs."""

    _tables: dict = {}

    def __init__(self, api, target, context: Context, rng):
        self.rng = rng
        key = (id(context), target)
        if key not in self._tables:
            self._tables.clear()  # one API at a time
            self._tables[key] = (context, _values_by_name(context), _similar(target, context))
        _, self.values, self.similarity = self._tables[key]

    def __call__(self, name):
        """A one-element list with the value, or None where no API has that argument."""
        apis = self.values.get(name)
        if not apis:
            return None
        names = list(apis)
        weights = np.exp([self.similarity[api] for api in names])
        chosen = names[int(self.rng.choice(len(names), p=weights / weights.sum()))]
        return [apis[chosen][int(self.rng.integers(len(apis[chosen])))]]


def _values_by_name(context):
    found = {}
    for api in sorted(context.by_api):
        for record in context.by_api[api]:
            for argument in record.arguments:
                if argument.kind != "variadic":
                    found.setdefault(argument.name, {}).setdefault(api, []).append(argument.value)
    return found


def _similar(target, context):
    text = definition(target).text
    return {api: edit_similarity(text, definition(context.target(api)).text) for api in context.by_api}
