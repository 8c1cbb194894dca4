"""Tables about one pattern, one record or one case, for notebooks and the explorer."""

from __future__ import annotations

import json

import pandas as pd

from sortlib.errors import SortError, choices
from sortlib.features import CallRecord
from sortlib.generation import TestCase, tensor_forms
from sortlib.judging import RANK
from sortlib.tables.frames import table_of


def patterns(study) -> pd.DataFrame:
    """A row per mined pattern: id, nodes, calls (API names), join, support, cases; most supported and largest first."""
    tested = {}
    if study.stage("generate"):
        for case in study.cases:
            tested[case.pattern] = tested.get(case.pattern, 0) + 1
    rows = [
        {"pattern": p.id, "nodes": len(p.nodes), "calls": ", ".join(p.nodes), "join": p.has_join,
         "support": p.support, "cases": tested.get(p.id, 0)}
        for p in sorted(study.patterns, key=lambda p: (-p.support, -len(p.nodes), p.id))
    ]  # fmt: skip
    return table_of(rows, ["pattern", "nodes", "calls", "join", "support", "cases"])


def example_pattern(study) -> str:
    """The id of a pattern worth looking at: tested if any is, then with a join, and as large as possible."""
    if not study.patterns:
        raise SortError(f"{study.directory}: no pattern was mined; lower mining.min_support, now "
                        f"{study.config.mining.min_support}")  # fmt: skip
    tested = {case.pattern for case in study.cases} if study.stage("generate") else set()
    return max(study.patterns, key=lambda p: (p.id in tested, p.has_join, len(p.nodes), p.support, p.id)).id


def occurrences(study, pattern_id) -> pd.DataFrame:
    """Where a pattern occurs: a row per stored occurrence with the model and the module of each call."""
    pattern = study.pattern(pattern_id)
    rows = []
    for graph, nodes, _ in pattern.embeddings:
        found = study.graphs[graph]
        places = [found.nodes[node].module_path or "(model)" for node in nodes]
        rows.append({"model": found.name, "calls": " ".join(map(str, nodes)), "modules": ", ".join(places)})
    return table_of(rows, ["model", "calls", "modules"])


def records_of(study, api) -> list[CallRecord]:
    """All records of an API, in the order of models, samples and calls.

    Raises
    ------
    SortError
        No traced model calls it.
    """
    found = [record for record in study.records if record.api == api]
    if not found:
        known = {record.api for record in study.records}
        raise SortError(f"no record of API {api!r} in {study.directory}; recorded: {choices(known)}")
    return found


def pattern_records(study, pattern_id) -> list[CallRecord]:
    """The records of a pattern's first occurrence on the first real input, one for each node."""
    graph, nodes, _ = study.pattern(pattern_id).embeddings[0]
    name = study.graphs[graph].name
    found = {record.key: record for record in study.records}
    return [found[name, 0, node] for node in nodes]


def arguments(records) -> pd.DataFrame:
    """A row per argument and output of some records: what was recorded of it.

    Parameters
    ----------
    records : a ``CallRecord`` or several.
    """
    several = [records] if isinstance(records, CallRecord) else records
    rows = [{"node": number, "api": record.api, **row}
            for number, record in enumerate(several) for row in argument_rows(record)]  # fmt: skip
    return table_of(rows, ["node", "api", *ARGUMENT_COLUMNS]).astype(object).fillna("")


ARGUMENT_COLUMNS = ("argument", "dtype", "shape", "minimum", "maximum", "mean", "std", "zeros", "value")


def argument_rows(record: CallRecord) -> list[dict]:
    """What was recorded of each argument and output of a call; a row has the ``ARGUMENT_COLUMNS`` that it needs."""
    tensors = dict(record.tensors())
    held = {path[0] for path in tensors}
    others = [argument for argument in record.arguments if argument.name not in held]
    return [
        *(_tensor_row(".".join(map(str, path)), features) for path, features in tensors.items()),
        *({"argument": argument.name, "value": repr(argument.value)} for argument in others),
        *(_tensor_row(f"output {number}", features) for number, features in enumerate(record.outputs)),
    ]


def _tensor_row(name, features):
    values = {key: getattr(features, key) for key in ("dtype", "minimum", "maximum", "mean", "std", "zeros")}
    return {"argument": name, "shape": str(list(features.shape)), **values}


def cases(study) -> pd.DataFrame:
    """A row per executed SORT case, the most telling first.

    A case tells most when its heatmap shows all of white, yellow and red, then by how much a call enlarged the
    difference that arrived. Columns: case, pattern, calls, identical, below, beyond (numbers of nodes by propagated
    difference: zero, up to the threshold, above it), largest (propagated difference), gain (largest propagated over
    incoming), verdict (the most serious of the case under the evidence rule).
    """
    rows = study.judged
    order = {str(verdict): place for place, verdict in enumerate(RANK)}
    found = [_case_row(case, group, study.config.threshold, order) for case, group in rows.groupby("case", sort=False)]
    columns = ["case", "pattern", "calls", "identical", "below", "beyond", "largest", "gain", "verdict"]
    table = pd.DataFrame(found, columns=columns)
    colours = (table[["identical", "below", "beyond"]] > 0).sum(axis=1)
    keys = table.assign(colours=colours, nodes=table["calls"].str.count(",") + 1)
    place = keys.sort_values(["colours", "beyond", "gain", "nodes", "case"], ascending=[False] * 4 + [True]).index
    return table_of(table.loc[place].reset_index(drop=True), columns)


def _case_row(case, group, threshold, order):
    difference = group["propagated_max_abs"].astype(float)
    return {
        "case": case, "pattern": group["pattern"].iloc[0], "calls": ", ".join(group["api"]),
        "identical": int((difference == 0).sum()), "below": int(((difference > 0) & (difference <= threshold)).sum()),
        "beyond": int((difference > threshold).sum()), "largest": difference.max(), "gain": _gain(group).max(),
        "verdict": min(group["evidence"], key=order.get),
    }  # fmt: skip


def example_case(study) -> str:
    """The id of the case that tells most (first of ``cases``)."""
    return cases(study)["case"].iloc[0]


def _gain(rows):
    incoming = rows["incoming"].astype(float)
    return rows["propagated_max_abs"].astype(float) / incoming.where(incoming > 0)


def calls(study, case_id) -> pd.DataFrame:
    """A row per call of a case: differences, gain, errors against float64, and both rules' verdicts.

    ``propagated`` is the difference on each side's own intermediate values, ``local`` that on equal inputs, ``gain``
    propagated over incoming; errors are those of the local run.
    """
    rows = pd.concat([study.judged, study.judged_single])
    rows = rows[rows["case"] == study.case(case_id).id]
    if rows.empty:
        raise SortError(f"{study.directory}: case {case_id!r} was not run yet")
    taken = {
        "node": "node", "api": "api", "module_path": "module", "incoming": "incoming",
        "propagated_max_abs": "propagated", "local_max_abs": "local", "reference_error": "reference_error",
        "candidate_error": "candidate_error", "paper": "paper", "evidence": "evidence", "reason": "reason",
    }  # fmt: skip
    table = rows.reindex(columns=list(taken)).rename(columns=taken)
    table.insert(6, "gain", _gain(rows))
    return table_of(table.reset_index(drop=True), list(table))


def platform_pair(study) -> tuple[str, str]:
    """The reference and the candidate platform on which a study was run."""
    stage = study.stage("run")
    return stage["reference"], stage["candidate"]


def calls_with_gradients(study) -> int:
    """How many executed calls, of SORT and Single-API cases, had gradients of their inputs compared as well.

    Those that ran forward and backward (``generation.backward``) and have an operand that wants a gradient.
    """
    records, cases = {record.key: record for record in study.records}, {case.id: case for case in study.cases}
    rows = study.all_outcomes
    compared = rows[rows["status"] == "ok"]
    nodes = [cases[case].nodes[node] for case, node in zip(compared["case"], compared["node"], strict=True)]
    return sum(node.backward and _wants_gradient(node, records.get(tuple(node.record))) for node in nodes)


def _wants_gradient(node, record):
    return record is not None and any(
        features.dtype.startswith(_DIFFERENTIABLE) and ".".join(map(str, path)) not in node.frozen
        for path, features in record.tensors()
    )


_DIFFERENTIABLE = ("float", "bfloat", "complex")  # beginnings of dtypes that have gradients


def inputs(case: TestCase) -> pd.DataFrame:
    """A row per tensor argument of a case: from which call it comes, or from which recorded range it is drawn."""
    rows = []
    for position, node in enumerate(case.nodes):
        for name, form, _ in node.arguments:
            for place, content in _leaves(form, name):
                rows.append({"node": position, "api": node.api, "argument": place, **content})
    return table_of(rows, ["node", "api", "argument", "origin", "dtype", "shape", "minimum", "maximum"])


def _leaves(argument, name):
    for place, form in tensor_forms(argument, name):
        if "$from" in form:
            node, output = form["$from"]
            yield place, {"origin": f"output {output} of node {node}"}
        else:
            features = form["$draw"][1]["$tensor"]
            kept = {key: features.get(key) for key in ("dtype", "minimum", "maximum")}
            yield place, {"origin": "drawn", "shape": json.dumps(features["shape"]), **kept}


def mining_settings(study) -> dict:
    """The support and the largest size that the study mined with, as keyword arguments of ``sl.mine``."""
    settings = study.config.mining
    return {"min_support": settings.min_support, "max_nodes": settings.max_nodes}
