"""The candidate's side of a case: its own chain, the same calls on the reference's values, and the differences."""

from __future__ import annotations

import json

import numpy as np
import torch

from sortlib.features import encode, measure
from sortlib.runner import evidence
from sortlib.runner.execution import full_precision, has_precision_flags, seed_of
from sortlib.runner.transport import as_array, load_array, load_tensor


class Comparison:
    """Runs the candidate and compares node by node.

    Parameters
    ----------
    executor : the candidate platform.
    case : JSON form of a ``TestCase``.
    reference : node number (as text) -> what the reference worker sent for it.
    drawn : stream -> CPU tensor.
    """

    def __init__(self, executor, case, reference, drawn):
        self.executor, self.case, self.reference = executor, case, reference
        self.external = {stream: executor.place(tensor) for stream, tensor in drawn.items()}
        self.own = {}  # (node, output) -> tensor of the candidate's own chain
        self.fed = {}  # (node, output) -> the reference's value on this platform
        self.difference = {}  # (node, output) -> largest difference of the own chain, None where it broke
        self.same = {}  # (node, output) -> whether bits and layout agree with the reference

    def row(self, position: int) -> dict | None:
        """The outcome of one node; None where an earlier node of the own chain and the local run both broke."""
        node, given = self.case["nodes"][position], self.reference[str(position)]
        seed = seed_of(self.case, position)
        own, local, incoming = self._run(node, position, seed)
        row = {"node": position, "incoming": incoming, "seconds_reference": given.get("seconds")}
        if "error" in given:
            ours = local or own
            both = ours is not None and ours.error is not None
            return {**row, "status": "exception", "side": "both" if both else "reference", "message": given["error"]}
        row |= self._features("reference", given["features"][0] if given["features"] else None)
        row |= {"nan_inputs": given["nan_inputs"], "truth_missing": given["truth_missing"]}
        failed = next((call for call in (own, local) if call is not None and call.error is not None), None)
        if failed is not None:
            message = f"{type(failed.error).__name__}: {evidence.first_line(failed.error)}"
            return {**row, "status": "exception", "side": "candidate", "message": message}
        row["seconds_candidate"] = local.seconds
        arrays = [load_array(form) for form in given["outputs"]]
        shapes = [tuple(array.shape) for array in arrays]
        for call in filter(None, (own, local)):
            if [tuple(t.shape) for t in call.outputs] != shapes:
                found = [tuple(t.shape) for t in call.outputs]
                return {**row, "status": "mismatch", "side": "candidate",
                        "message": f"output shapes {found}, reference {shapes}"}  # fmt: skip
        row |= self._compare(node, position, own, local, arrays, given, seed)
        return {**row, "status": "ok", "side": "", "message": ""}

    def _run(self, node, position, seed):
        """(call on own values, call on the reference's values, largest incoming difference)."""
        sources = self._inputs(node)
        arrived = [self.difference.get(source) for source in sources]
        incoming = max(arrived, default=0.0) if None not in arrived else None
        arguments = self.executor.arguments(node, self.external, _Values(self.fed, self._feed))
        local = self.executor.call(node, arguments, seed)
        if any(source not in self.own for source in sources):
            return None, local, None
        if all(self.same.get(source) for source in sources):
            return local, local, incoming  # equal inputs: the own chain is the local run
        own = self.executor.call(node, self.executor.arguments(node, self.external, self.own), seed)
        return own, local, incoming

    def _inputs(self, node):
        found = []
        _find_sources(node["arguments"], found)
        return found

    def _feed(self, key):
        node, output = key
        return self.executor.place(load_tensor(self.reference[str(node)]["outputs"][output]))

    def _features(self, side, form):
        content = form["$tensor"] if form else {}
        names = ("minimum", "maximum", "mean", "std", "nan", "posinf", "neginf")
        values = {f"{side}_{name}": content.get(name, 0.0 if name in names[4:] else None) for name in names}
        return {**values, f"{side}_dtype": content.get("dtype"), f"{side}_shape": json.dumps(content.get("shape", []))}

    def _compare(self, node, position, own, local, arrays, given, seed):
        result = self._features("candidate", encode(measure(local.outputs[0])) if local.outputs else None)
        locals_, owns = [], []
        for output, array in enumerate(arrays):
            mine = as_array(local.outputs[output])
            locals_.append(evidence.compare(array, mine))
            if own is None:
                continue
            chain = mine if own is local else as_array(own.outputs[output])
            owns.append(locals_[-1] if own is local else evidence.compare(array, chain))
            tensor, key = own.outputs[output], (position, output)
            self.own[key] = tensor
            self.difference[key] = owns[-1]["max_abs"]
            layout = list(tensor.stride()) == given["outputs"][output]["strides"]
            self.same[key] = (
                layout
                and owns[-1]["differing"] == 0
                and tensor.dtype == getattr(torch, given["outputs"][output]["dtype"])
            )
        result |= {f"local_{name}": value for name, value in _worst(locals_).items()}
        result |= {f"propagated_{name}": value for name, value in _worst(owns).items()}
        result["propagated_broken"] = own is None
        result |= self._errors(given, arrays, local)
        ratio = result.get("candidate_ratio")
        if ratio and ratio > 1 and has_precision_flags(self.executor.device.type):
            result["strict_ratio"] = self._strict(node, given, arrays, seed)
        return result

    def _strict(self, node, given, arrays, seed):
        """Largest error over bound of the same call with reduced-precision shortcuts off."""
        arguments = self.executor.arguments(node, self.external, _Values(self.fed, self._feed))
        with full_precision(self.executor.device.type):
            call = self.executor.call(node, arguments, seed)
        return None if call.error is not None else self._errors(given, arrays, call)["candidate_ratio"]

    def _errors(self, given, arrays, local):
        sides = {"reference": [], "candidate": []}
        wrong = 0.0
        for output, array in enumerate(arrays):
            if given["truth"][output] is None or array.dtype.kind not in "fc":
                continue
            right = load_array(given["truth"][output])
            limit = None if given["bound"][output] is None else load_array(given["bound"][output])
            mine = local.outputs[output]
            unit = {
                "reference": evidence.unit_roundoff(getattr(torch, given["outputs"][output]["dtype"])),
                "candidate": evidence.unit_roundoff(mine.dtype),
            }
            limits = {
                "reference": torch.finfo(getattr(torch, given["outputs"][output]["dtype"])).max,
                "candidate": torch.finfo(mine.dtype).max,
            }
            for side, values in (("reference", array), ("candidate", as_array(mine))):
                sides[side].append(evidence.error_against(values, right, limit, unit[side]))
                # Overflow of the output's own range is legitimate, so only truths within it count.
                lost = (np.abs(right) <= limits[side]) & ~np.isfinite(values)
                wrong = max(wrong, float(lost.mean()) if lost.size else 0.0)
        result = {f"{side}_{name}": value for side, found in sides.items() for name, value in
                  (_worst(found) or {"error": None, "rms": None, "ratio": None}).items()}  # fmt: skip
        return {**result, "truth_finite_lost": wrong}


class _Values(dict):
    """A dictionary that makes missing values with a function."""

    def __init__(self, store, make):
        super().__init__(store)
        self.store, self.make = store, make

    def __missing__(self, key):
        value = self.store[key] = self.make(key)
        self[key] = value
        return value


def _find_sources(form, found):
    if isinstance(form, dict):
        if "$from" in form:
            found.append(tuple(form["$from"]))
        for value in form.values():
            _find_sources(value, found)
    elif isinstance(form, list):
        for value in form:
            _find_sources(value, found)


def _worst(comparisons) -> dict:
    """The largest of each figure over a call's outputs."""
    names = comparisons[0] if comparisons else ()
    return {name: max((c[name] for c in comparisons if c[name] is not None), default=None) for name in names}
