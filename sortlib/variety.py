"""Spending a small budget of executed calls on cases that differ as much as possible in what they ask of one API."""

from __future__ import annotations

import math

from sortlib.features import TensorFeatures, map_tensors


def varied(cases, api: str, records: dict, budget: int) -> list:
    """Cases for one API within a budget, the most telling first.

    The next case is always the one that shows most new traits of the API's calls for each call that it costs: a dtype,
    a layout in memory, a shape, a range of values, other arguments, a neighbour in the pattern. When nothing new is
    left, traits count as new again, since further random inputs of the same kind may still show something.

    Parameters
    ----------
    cases : to choose from; earlier ones are preferred where the traits do not decide.
    api : canonical name.
    records : the recorded calls by their keys (``CallRecord.key``).
    budget : executed calls; a case costs as many as it has.

    Returns
    -------
    list of TestCase
        No case twice.
    """
    waiting = {case.id: case for case in cases if len(case.nodes) <= budget}
    known = {identity: traits(case, api, records) for identity, case in waiting.items()}
    chosen, left, seen = [], budget, set()
    while waiting:
        best = max(waiting.values(), key=lambda case: len(known[case.id] - seen) / len(case.nodes))
        if not known[best.id] - seen and seen:
            seen = set()
            continue
        chosen.append(waiting.pop(best.id))
        seen |= known[best.id]
        left -= len(best.nodes)
        waiting = {identity: case for identity, case in waiting.items() if len(case.nodes) <= left}
    return chosen


def traits(case, api: str, records: dict) -> set:
    """What a case's calls of an API are like, as hashable values."""
    found = set()
    for position, node in enumerate(case.nodes):
        if node.api != api:
            continue
        found.add(("spelling", node.target))
        found |= {("after", case.nodes[src].api, name) for src, dst, name in case.edges if dst == position}
        found |= {("before", case.nodes[dst].api, name) for src, dst, name in case.edges if src == position}
        record = records.get(tuple(node.record))
        if record is not None:
            found |= _of_record(record)
    return found


def _of_record(record) -> set:
    rest = [(a.name, map_tensors(a.value, lambda path, features: "tensor", TensorFeatures)) for a in record.arguments]
    found = {("arguments", repr(rest))}
    for path, features in record.tensors():
        ends = [end for end in (features.minimum, features.maximum) if end is not None and math.isfinite(end)]
        largest = max(map(abs, ends), default=0.0)
        found |= {
            ("dtype", path, features.dtype), ("shape", path, features.shape), ("layout", path, _layout(features)),
            ("zeros", path, bool(features.zeros)), ("negative", path, bool(ends) and min(ends) < 0),
            ("size", path, round(math.log10(largest)) if largest else None),
        }  # fmt: skip
    return found


def _layout(features) -> tuple:
    """Order of the dimensions in memory and whether elements follow each other without gaps or overlaps."""
    sized = [place for place, size in enumerate(features.shape) if size > 1]
    order = tuple(sorted(sized, key=lambda place: (-features.strides[place], place)))
    dense, step = True, 1
    for place in reversed(order):
        dense &= features.strides[place] == step
        step *= features.shape[place]
    return order, dense
