"""Everything about one call of a case, as words for the browser: record, drawn values, outputs, source, verdicts."""

from __future__ import annotations

import json
import linecache
import sys
from functools import cache
from pathlib import Path

import pandas as pd

from sortlib import details
from sortlib.explorer.values import SHARES, drawn, outputs, recorded
from sortlib.features import TensorFeatures, decode
from sortlib.generation import tensor_forms
from sortlib.judging import Verdict

_FEATURES = ("dtype", "shape", "minimum", "maximum", "mean", "std", *SHARES, "error", "ratio")
_NAMES = {"nan": "NaN", "posinf": "+inf", "neginf": "-inf", "error": "off float64", "ratio": "times the bound"}
_DIFFERENCES = {
    "incoming": ("arriving", "largest difference among the inputs that come from inside the pattern"),
    "propagated_max_abs": ("propagated", "largest difference, each platform on its own intermediate values"),
    "local_max_abs": ("local", "largest difference, both platforms on the reference's values"),
    "propagated_differing": ("differing", "share of the elements that differ, propagated"),
    "local_scale_ulp": ("local, in ULP", "in units of the last place of the output's largest magnitude"),
}
MEANING = {  # of verdicts whose reason does not say it
    Verdict.SUSPECT: "one side is beyond the rounding bound and clearly farther from float64 than the other",
    Verdict.BOTH_SUSPECT: "both sides are beyond the rounding bound, about equally far from float64",
    Verdict.NAN: "NaN or infinity where the other platform or float64 has a number",
    Verdict.UNCONFIRMED: "a crash or a timeout that did not come again in a fresh process",
    Verdict.CONFIG: "within the bound once reduced-precision arithmetic is off",
    Verdict.SLOW: "right, but a hundred times slower than the other side, twice",
    Verdict.AMPLIFIED: "a difference that arrived was passed on or enlarged; on equal inputs the call only rounds",
    Verdict.RANDOM: "random numbers, which the platforms draw differently",
    Verdict.UNJUDGED: "no float64 reference or bound says who is wrong",
    Verdict.UNREACHED: "an earlier call gave no result",
}


def of_case(entry, threshold, position, record) -> dict:
    """One call of a case that was run; ``record`` is the recorded call that it repeats."""
    node, row = entry.case.nodes[position], entry.rows(threshold)[position]
    return {
        **_call(record, position),
        "verdicts": _verdicts(row),
        "differences": _differences(row),
        "outputs": _outputs(row, entry.reference, entry.candidate, len(record.outputs)),
        "inputs": [
            _input(entry.case, record, *found) for name, form, _ in node.arguments for found in tensor_forms(form, name)
        ],
    }


def of_pattern(position, record) -> dict:
    """One call of a pattern that was not run, as its first occurrence has it."""
    return {**_call(record, position), "verdicts": [], "differences": [], "outputs": None, "inputs": []}


def _call(record, position) -> dict:
    file, _, line = record.source.rpartition(":")
    facts = [
        ["called as", record.target],
        ["recorded in", f"{record.graph}, input {record.sample}, call {record.node}"],
        ["module", record.module_path or "(the model itself)"],
    ]
    return {
        "title": f"Call {position}: {record.api}",
        "facts": facts,
        "source": {"place": record.source or "unknown", "code": source_line(file, int(line)) if line.isdigit() else ""},
        "record": _record(record),
    }


def _record(record) -> dict:
    columns = details.ARGUMENT_COLUMNS  # not as a DataFrame, which takes milliseconds to make
    rows = [[_cell(row.get(name)) for name in columns] for row in details.argument_rows(record)]
    return {"columns": list(columns), "rows": rows}


def _cell(value) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@cache
def source_line(file: str, number: int) -> str:
    """The text of a line of code named relative to an installed package, or an empty text where it is not found."""
    folders = [folder for folder in sys.path if (Path(folder) / file).is_file()]
    if folders:
        return linecache.getline(str(Path(folders[0]) / file), number).strip()
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    found = [path for path in loaded if path and f"/{Path(path).as_posix()}".endswith(f"/{file}")]
    return linecache.getline(found[0], number).strip() if len(found) == 1 else ""


def _verdicts(row) -> list[dict]:
    return [
        {"rule": "paper", "verdict": row["paper"], "reason": row["paper_reason"], "meaning": ""},
        {"rule": "evidence", "verdict": row["evidence"], "reason": row["reason"],
         "meaning": MEANING.get(row["evidence"], "")},
    ]  # fmt: skip


def _number(row, name):
    value = row.get(name)
    return None if value is None or (isinstance(value, float) and pd.isna(value)) else value


def _differences(row) -> list[list[str]]:
    found = []
    for name, (label, meaning) in _DIFFERENCES.items():
        value = _number(row, name)
        if value is not None:
            found.append([label, f"{value:.2%}" if name.endswith("differing") else f"{value:.4g}", meaning])
    incoming, propagated = _number(row, "incoming"), _number(row, "propagated_max_abs")
    if incoming and propagated is not None:
        found.append(["gain", f"{propagated / incoming:.3g}", "propagated / arriving"])
    return found


def _outputs(row, reference, candidate, count) -> dict:
    def said(side, name):
        value = _number(row, f"{side}_{name}")
        if value is None:
            return "/"
        return f"{value:.2%}" if name in SHARES else _cell(value)

    rows = [[_NAMES.get(name, name), said("reference", name), said("candidate", name)] for name in _FEATURES]
    times = [_number(row, f"seconds_{side}") for side in ("reference", "candidate")]
    rows.append(["milliseconds", *("/" if time is None else f"{1000 * time:.3g}" for time in times)])
    name = "output" if count < 2 else "output 0"
    return {"columns": [name, f"reference ({reference})", f"candidate ({candidate})"], "rows": rows,
            "histogram": outputs(row)}  # fmt: skip


def _input(case, record, name, form) -> dict:
    if "$from" in form:
        node, output = form["$from"]
        seen = {".".join(map(str, path)): features for path, features in record.tensors()}.get(name)
        values = recorded(seen) if seen else None
        return {"name": name, "origin": f"output {output} of call {node}", "values": values}
    stream, content = form["$draw"]
    features: TensorFeatures = decode(content)
    origin = f"drawn, {features.dtype} {json.dumps(list(features.shape))}"
    return {"name": name, "origin": origin, "values": drawn(features, f"{case.id}/{stream}", case.sampler)}
