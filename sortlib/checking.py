"""One expression, judged: what a developer with a suspicious call types first.

The expression is run once to see which API calls it makes, with which values; each call then runs on both platforms
like the node of any other case.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from sortlib import apis
from sortlib.arguments import flag, instance, shown, wrong
from sortlib.config import read_yaml, suggestion
from sortlib.errors import RAISED, SortError, choices
from sortlib.features import encode, map_tensors
from sortlib.generation import CaseNode, TestCase
from sortlib.judging import RANK, Verdict, judge
from sortlib.platform import Platform, require
from sortlib.reproducing.checked import accused, reproduce_checked
from sortlib.runner import evidence
from sortlib.runner.campaign import campaign
from sortlib.runner.execution import tensors_in
from sortlib.runner.files import writable
from sortlib.runner.transport import exchange_folder, save_tensor
from sortlib.thresholds import Table


def check(
    expression,
    inputs=None,
    reference="cpu",
    candidate="cpu:baseline",
    timeout: float = 60,
    backward=False,
    thresholds=None,
):
    """Run one expression on two platforms and judge every API call in it.

    Parameters
    ----------
    expression : Python text such as ``"F.gelu(x)"``, evaluated with ``torch``, ``F``, ``np`` and the inputs in scope;
        or a function that takes the inputs by name.
    inputs : name -> NumPy array, tensor or plain value; at least one.
    reference, candidate : platforms, as in ``sl.run``.
    timeout : seconds on one platform.
    backward : also run each call's backward pass, from an upstream gradient drawn for it, and judge the gradient of
        every floating-point input like an output.
    thresholds : ``sortlib.thresholds.Table``, or a file for ``Table.read``; None is the table of this package.

    Returns
    -------
    pandas.DataFrame
        A row per API call that depends on an input: the columns of ``sl.run`` and ``paper``, ``symptom``,
        ``evidence`` and ``reason``.

    Raises
    ------
    SortError
        The expression fails or calls no API on its inputs; a platform is unknown or missing here.
    """
    return check_many([(expression, inputs)], reference, candidate, timeout, backward, thresholds)[0]


def check_many(
    entries, reference="cpu", candidate="cpu:baseline", timeout: float = 60, backward=False, thresholds=None
) -> list:
    """``check`` for a list of (expression, inputs) on one pair of platforms, whose processes start only once.

    ``backward`` is one truth value, or one for each entry.
    """
    table = thresholds if thresholds is None or isinstance(thresholds, Table) else Table.read(thresholds)
    entries = list(entries)
    wanted = backward if isinstance(backward, (list, tuple)) else [backward] * len(entries)
    wanted = [flag(value, "check: backward") for value in wanted]
    for expression, inputs in entries:
        _check_entry(expression, inputs)
    with exchange_folder() as folder:
        cases = _cases(entries, wanted, folder)
        for case in cases:
            if isinstance(case, SortError):
                raise case
        return [_both_rules(rows, table) for _, rows in campaign(cases, reference, candidate, timeout)]


def _cases(entries, backward, folder) -> list:
    """A case for each entry, or the ``SortError`` that says why there is none."""
    made = []
    for number, ((expression, inputs), gradients) in enumerate(zip(entries, backward, strict=True)):
        try:
            _check_entry(expression, inputs)
            made.append(_case(expression, inputs, folder / str(number), gradients))
        except SortError as error:
            made.append(error)
    return made


def compare_values(reference, candidate, api: str = ""):
    """Judge two given results of one call, of which nothing else is known.

    Parameters
    ----------
    reference, candidate : arrays of equal shape.
    api : what is said to have made them.

    Returns
    -------
    pandas.DataFrame
        One row, as from ``check``.
    """
    sides = [np.asarray(value) for value in (reference, candidate)]
    if sides[0].shape != sides[1].shape:
        raise SortError(f"the shapes differ: {sides[0].shape} and {sides[1].shape}")
    found = evidence.compare(*sides)
    row = {f"{part}_{name}": value for part in ("local", "propagated") for name, value in found.items()}
    nans = [float(np.isnan(side).mean()) if side.dtype.kind in "fc" else 0.0 for side in sides]
    row |= {"api": api, "node": 0, "status": "ok", "side": "", "message": "", "random": False, "incoming": 0.0,
            "reference_dtype": str(sides[0].dtype), "reference_nan": nans[0], "candidate_nan": nans[1],
            "nan_inputs": False, "truth_missing": "the inputs are not known"}  # fmt: skip
    return _both_rules([row])


def _both_rules(rows, table=None):
    import pandas as pd

    outcomes = pd.DataFrame(rows)
    paper, ours = judge(outcomes, "paper"), judge(outcomes, "evidence", thresholds=table)
    return outcomes.assign(paper=paper["verdict"], symptom=paper["symptom"], evidence=ours["verdict"].astype(str),
                           reason=ours["reason"])  # fmt: skip


# ---- from an expression to a case ----


def _check_entry(expression, inputs):
    if not isinstance(expression, str) and not callable(expression):
        raise wrong("check: expression", "Python text such as 'F.gelu(x)', or a function", expression)
    if not inputs and (inputs is None or isinstance(inputs, Mapping)):
        raise SortError("check: inputs: give the values that the expression names, such as {'x': torch.ones(3)}; calls "
                        "that depend on no input are not compared")  # fmt: skip
    instance(inputs, Mapping, "check: inputs", "a mapping from names to values such as {'x': torch.ones(3)}")
    for name in inputs:
        if not isinstance(name, str) or not name.isidentifier():
            raise SortError(f"check: inputs: {shown(name)} is no name that a Python expression can use")


def _case(expression, inputs, folder: Path, backward=False) -> TestCase:
    values = {name: _value(item) for name, item in inputs.items()}
    folder.mkdir()
    capture = _Capture(values.values(), folder)
    text = expression if isinstance(expression, str) else getattr(expression, "__name__", "function")
    try:
        with torch.no_grad(), capture:
            if callable(expression):
                expression(**values)
            else:
                eval(expression, {"torch": torch, "F": F, "np": np, **values})  # noqa: S307 - the user's own code
    except RAISED as error:
        # A call that raises is an outcome, unless no call was reached.
        if not capture.raised:
            message = error.msg if isinstance(error, SyntaxError) else (str(error).splitlines() or [""])[0]
            raise SortError(f"{text}: {type(error).__name__}: {message}") from None
    if not capture.nodes:
        raise SortError(f"{text}: calls no PyTorch API on its inputs ({', '.join(values) or 'none given'})")
    nodes = tuple(replace(node, backward=backward) for node in capture.nodes)
    identity = json.dumps([text, backward, [[n.target, n.arguments] for n in nodes], capture.digests])
    name = hashlib.sha256(identity.replace(str(folder), "").encode()).hexdigest()[:16]
    return TestCase(name, text, nodes, tuple(capture.edges), 0, "given")


def _value(item):
    if isinstance(item, (np.ndarray, np.generic)):
        return torch.from_numpy(np.ascontiguousarray(item)).clone()
    return item


class _Capture(TorchFunctionMode):
    """Sees every API call of an expression and keeps the values that do not come from an earlier call.

    Calls that depend on no input are constants. A tensor that was written to through a view or another name is a new
    value, which PyTorch's version counter shows.
    """

    def __init__(self, inputs, folder):
        super().__init__()
        self.folder = folder
        self.nodes, self.edges, self.digests, self.raised = [], [], [], False
        self.known = {}  # id -> (tensor, its version then, what stands for it in a case)
        self.depends = {}  # id -> tensor that depends on an input
        for tensor in tensors_in(list(inputs)):
            self.depends[id(tensor)] = tensor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        api = apis.identify(func)
        arguments = apis.bind(api, args, kwargs)
        given = tensors_in([a.value for a in arguments])
        if api.query or not any(id(tensor) in self.depends for tensor in given):
            return func(*args, **kwargs)
        number = len(self.nodes)
        forms = [[a.name, encode(map_tensors(a.value, self._stand_in), _special), a.kind] for a in arguments]
        inplace = apis.writes_in_place(api, arguments)
        node = CaseNode(api.name, api.target, forms, ("", 0, number), inplace=inplace,
                        random=apis.is_random(api.name, arguments))  # fmt: skip
        try:
            result = func(*args, **kwargs)
        except Exception:
            self.raised = True
            self._add(node, arguments, given)
            raise
        outputs = [args[0]] if api.name == "setitem" else tensors_in(result)
        if outputs:
            self._add(node, arguments, given)
        for position, tensor in enumerate(outputs):
            self.known[id(tensor)] = (tensor, tensor._version, {"$from": [number, position]})
            self.depends[id(tensor)] = tensor
        return result

    def _add(self, node, arguments, given):
        for argument in arguments:
            for tensor in tensors_in(argument.value):
                form = self.known[id(tensor)][2]
                if "$from" in form and form["$from"][0] < len(self.nodes):
                    self.edges.append((form["$from"][0], len(self.nodes), apis.edge_label(node.api, (argument.name,))))
        self.nodes.append(node)

    def _stand_in(self, _, tensor):
        found = self.known.get(id(tensor))
        if found is None or found[1] != tensor._version:
            stream = f"value{len(self.digests)}"
            form = save_tensor(tensor, self.folder / f"{stream}.bin")
            self.digests.append(hashlib.sha256(Path(form["path"]).read_bytes()).hexdigest())
            found = self.known[id(tensor)] = (tensor, tensor._version, {"$load": [stream, form]})
        return _Form(found[2])


class _Form:
    def __init__(self, form):
        self.form = form


def _special(value):
    return value.form if isinstance(value, _Form) else None


# ---- files of known behaviour ----


def check_file(path, thresholds=None, reproduce=None) -> list[dict]:
    """Check every entry of a YAML file in the form of known behaviour.

    An entry has ``id``, ``inputs`` (name -> NumPy expression, with ``rng`` a fresh Philox generator of seed 0) and
    ``call``, or ``compare: values`` for two given results; ``reference`` and ``candidate`` are platforms, also as
    "cpu with memory format channels_last" and with alternatives after a comma. ``backward: true`` judges the gradients
    too. ``paper`` and ``evidence`` are expected verdicts. The file's expressions are executed: it is code, not data.

    Returns
    -------
    list of dict
        For each entry ``id``, ``paper``, ``evidence`` and ``reason`` of its most serious call, ``expected`` and
        ``ok`` (None where nothing was expected or the entry was skipped, false where its expression fails),
        ``skipped`` and ``error`` (why it was not judged) and ``calls``. With
        ``reproduce``, a folder, an entry that accuses a platform also has ``script`` and ``reproducer`` (its state).
    """
    entries = _read(path)
    table = None if thresholds is None else Table.read(thresholds)
    if reproduce is not None:
        writable(reproduce)  # before anything is run
    results, groups = {}, {}
    for number, entry in enumerate(entries):
        where = f"{path}: {entry['id']}"
        values = _inputs(entry, where)
        if entry.get("compare") == "values":
            if len(values) != 2:
                raise SortError(f"{where}: 'compare: values' needs two inputs, not {len(values)}")
            results[number] = _result(entry, compare_values(*values.values(), api=entry.get("api", "")))
            continue
        pair, missing = _platforms(entry)
        if missing:
            results[number] = _result(entry, None, missing)
        else:
            groups.setdefault(pair, []).append((number, entry["call"], values, entry.get("backward", False)))
    for pair, members in groups.items():
        for (number, call, values, gradients), frame in zip(members, _frames(members, pair, table), strict=True):
            results[number] = _result(entries[number], frame)
            if isinstance(frame, SortError):
                continue
            if reproduce is not None and accused(frame):
                made = reproduce_checked(partial(_case, call, values, backward=gradients), entries[number]["id"], frame,
                                         pair, reproduce, table)  # fmt: skip
                results[number] |= {"script": str(made.script), "reproducer": made.state}
    return [results[number] for number in range(len(entries))]


def _frames(members, pair, table) -> list:
    """What ``check`` gives for each member, or the ``SortError`` of an expression that fails."""
    entries, backward = [(call, values) for _, call, values, _ in members], [member[-1] for member in members]
    with exchange_folder() as folder:
        cases = _cases(entries, backward, folder)
        good = [case for case in cases if not isinstance(case, SortError)]
        frames = iter([_both_rules(rows, table) for _, rows in campaign(good, *pair)] if good else [])
        return [case if isinstance(case, SortError) else next(frames) for case in cases]


_KEYS = {"id", "issue", "inputs", "call", "compare", "api", "reference", "candidate", "paper", "evidence",
         "backward"}  # fmt: skip


def _read(path) -> list[dict]:
    entries, places = read_yaml(path, listed="entries, each with id, inputs and call"), {}
    for number, entry in enumerate(entries):
        where = f"{path}: {entry.get('id', f'entry {number + 1}')}"
        needed = {"id", "inputs"} | ({"call"} if entry.get("compare") != "values" else set())
        for key in entry:  # before the missing ones: a misspelt key is often the reason why one is missing
            if key not in _KEYS:
                near = suggestion(key, _KEYS) or ";"
                raise SortError(f"{where}: unknown key {key!r}{near} valid: {', '.join(sorted(_KEYS))}")
        for key in sorted(needed - set(entry)):
            raise SortError(f"{where}: key {key!r} is missing")
        first = places.setdefault(str(entry["id"]), number)
        if first != number:
            raise SortError(f"{where}: entries {first + 1} and {number + 1} have this id; each needs one of its own")
        if not isinstance(entry.get("call", ""), str):
            raise SortError(f"{where}: call: must be a Python expression as text, not {entry['call']!r}")
        for rule, valid in (("paper", {"pass", "fail"}), ("evidence", {str(verdict) for verdict in Verdict})):
            if rule in entry and str(entry[rule]) not in valid:
                raise SortError(f"{where}: {rule}: {entry[rule]!r} is no verdict; valid: {choices(valid, len(valid))}")
        if not isinstance(entry.get("backward", False), bool):
            raise SortError(f"{where}: backward: must be true or false, not {entry['backward']!r}")
        if not isinstance(entry["inputs"], dict):
            raise SortError(f"{where}: inputs must be names and NumPy expressions")
    return entries


def _inputs(entry, where) -> dict:
    scope = {"np": np, "torch": torch, "rng": np.random.Generator(np.random.Philox(0))}
    values = {}
    for name, text in entry["inputs"].items():
        try:
            values[name] = eval(text, scope) if isinstance(text, str) else text  # noqa: S307 - the file is code
        except RAISED as error:
            raise SortError(f"{where}: input {name!r}: {type(error).__name__}: {error}") from None
    return values


def _platforms(entry):
    """((reference, candidate), "") of the first alternatives that this machine has, or (None, why not)."""
    chosen = []
    for side, default in (("reference", "cpu"), ("candidate", "cpu:baseline")):
        reasons = []
        for text in re.sub(r"\(.*?\)", "", str(entry.get(side, default))).split(", or "):
            name = re.sub(r"\s+with memory format\s+", ":", text.strip())
            try:
                chosen.append(require(name))
                break
            except SortError as error:
                reasons.append(str(error))
        else:
            return None, "; ".join(reasons)
    return _Pair(*chosen), ""


class _Pair(tuple):
    """Two platforms, equal where their names are."""

    def __new__(cls, reference: Platform, candidate: Platform):
        return super().__new__(cls, (reference, candidate))

    def __hash__(self):
        return hash(tuple(side.name for side in self))

    def __eq__(self, other):
        return [side.name for side in self] == [side.name for side in other]


def _result(entry, frame, skipped=""):
    expected = {rule: entry[rule] for rule in ("paper", "evidence") if rule in entry}
    result = {
        "id": entry["id"],
        "call": entry.get("call", "compare: values"),
        "paper": None,
        "evidence": None,
        "reason": skipped,
        "expected": expected,
        "ok": None,
        "skipped": skipped,
        "error": "",
        "calls": [],
    }
    if isinstance(frame, SortError):
        return result | {"reason": str(frame), "error": str(frame), "ok": False}
    if frame is None:
        return result
    rank = {str(verdict): place for place, verdict in enumerate(RANK)}
    rows = frame.to_dict("records")
    worst = min(rows, key=lambda row: rank[row["evidence"]])
    result |= {"evidence": worst["evidence"], "reason": worst["reason"],
               "paper": "fail" if any(row["paper"] == "fail" for row in rows) else worst["paper"]}  # fmt: skip
    result["calls"] = [{name: _plain(row.get(name)) for name in _SHOWN} for row in rows]
    if expected:
        result["ok"] = all(result[rule] == wanted for rule, wanted in expected.items())
    return result


_SHOWN = ("api", "reference", "candidate", "paper", "evidence", "reason", "local_max_abs", "local_scale_ulp",
          "reference_error", "candidate_error", "reference_ratio", "candidate_ratio", "worst_output")  # fmt: skip


def _plain(value):
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
