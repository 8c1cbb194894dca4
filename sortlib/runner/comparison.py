"""The candidate's side of a case: its own chain, the same calls on the reference's values, and the differences."""

from __future__ import annotations

import json

import torch

from sortlib import thresholds
from sortlib.features import dtype_name, encode, measure
from sortlib.runner import bounds, evidence
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

    def row(self, position: int) -> dict:
        """The outcome of one node that the reference has run, or died of."""
        node, given = self.case["nodes"][position], self.reference[str(position)]
        seed = seed_of(self.case, position)
        own, local, incoming = self._run(node, position, seed)
        row = {"node": position, "incoming": incoming, "seconds_reference": given.get("seconds")}
        if "error" in given:
            status = given.get("status", "exception")
            both = status == "exception" and local.error is not None
            message = given["error"] if both or local.error is None else f"{given['error']}; the candidate raised " \
                f"{type(local.error).__name__}: {bounds.first_line(local.error)}"  # fmt: skip
            return {**row, "status": status, "side": "both" if both else "reference", "message": message}
        row |= self._features("reference", given["features"][0] if given["features"] else None)
        row |= {"nan_inputs": given["nan_inputs"], "truth_missing": given["truth_missing"]}
        failed = next((call for call in (own, local) if call is not None and call.error is not None), None)
        if failed is not None:
            message = f"{type(failed.error).__name__}: {bounds.first_line(failed.error)}"
            return {**row, "status": "exception", "side": "candidate", "message": message}
        row["seconds_candidate"] = local.seconds
        arrays = [load_array(form) for form in given["outputs"]]
        shapes = [tuple(array.shape) for array in arrays]
        for call in filter(None, (own, local)):
            if [tuple(t.shape) for t in call.outputs] != shapes:
                found = [tuple(t.shape) for t in call.outputs]
                return {**row, "status": "mismatch", "side": "candidate",
                        "message": f"output shapes {found}, reference {shapes}"}  # fmt: skip
        if given.get("platform_dtype") == self.executor.platform["dtype"]:
            wanted = [form["dtype"] for form in given["outputs"]]
            found = [dtype_name(t.dtype) for t in local.outputs]
            if found != wanted:
                return {**row, "status": "mismatch", "side": "candidate",
                        "message": f"output dtypes {found}, reference {wanted}"}  # fmt: skip
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
        mine = [as_array(tensor) for tensor in local.outputs]
        result, locals_, owns = {}, [], []
        # Where values and their positions are returned, the values decide: ties may be broken in any order.
        values_only = node["api"] in thresholds.INDICES and any(array.dtype.kind == "f" for array in arrays)
        for output, array in enumerate(arrays):
            counts = not (values_only and array.dtype.kind in "iu")
            found = evidence.compare(array, mine[output])
            locals_ += [found] * counts
            if own is not None:
                if own is not local:
                    found = evidence.compare(array, as_array(own.outputs[output]))
                owns += [found] * counts
                self._keep((position, output), own.outputs[output], given["outputs"][output], found)
        if mine:
            same = evidence.same_bits(arrays[0], mine[0]) and local.outputs[0].dtype == _dtype(given["outputs"][0])
            features = given["features"][0] if same else encode(measure(local.outputs[0]))
            result |= self._features("candidate", features)
        result |= {f"local_{name}": value for name, value in _worst(locals_).items()}
        result |= {f"propagated_{name}": value for name, value in _worst(owns).items()}
        result["propagated_broken"] = own is None
        limits = [bounds.unpack(form, load_array) for form in given["bound"]]
        result |= self._errors(given, arrays, mine, local, limits)
        result["samples"] = min((limit.samples for limit in limits if limit), default=None)
        ratio = result.get("candidate_own_ratio")
        if ratio and ratio > 1 and has_precision_flags(self.executor.device.type):
            result["strict_ratio"], result["strict_error"] = self._strict(node, given, arrays, limits, seed)
        return result

    def _keep(self, key, tensor, form, found):
        """Remember an output of the own chain, and whether the reference's is the same to the last bit."""
        self.own[key] = tensor
        self.difference[key] = found["max_abs"]
        layout = list(tensor.stride()) == form["strides"]
        self.same[key] = found["differing"] == 0 and layout and tensor.dtype == _dtype(form)

    def _strict(self, node, given, arrays, limits, seed):
        """Error over bound, and error, of the same call with reduced-precision shortcuts off."""
        arguments = self.executor.arguments(node, self.external, _Values(self.fed, self._feed))
        with full_precision(self.executor.device.type):
            call = self.executor.call(node, arguments, seed)
        if call.error is not None:
            return None, None
        found = self._errors(given, arrays, [as_array(tensor) for tensor in call.outputs], call, limits)
        return found["candidate_own_ratio"], found["candidate_error"]

    def _errors(self, given, arrays, mine, local, limits):
        sides = {"reference": [], "candidate": []}
        for output, array in enumerate(arrays):
            if given["truth"][output] is None or array.dtype.kind not in "fc":
                continue
            right = _truth(given["truth"][output], array)
            dtypes = {"reference": _dtype(given["outputs"][output]), "candidate": local.outputs[output].dtype}
            for side, values in (("reference", array), ("candidate", mine[output])):
                if side == "candidate" and dtypes["reference"] == dtypes[side] and evidence.same_bits(array, values):
                    sides[side].append(sides["reference"][-1])
                else:
                    sides[side].append(evidence.errors(values, right, limits[output], *_range(dtypes[side])))
        nothing = {"error": None, "rms": None, "ratio": None, "own_ratio": None, "lost": 0.0}
        result = {f"{side}_{name}": value for side, found in sides.items()
                  for name, value in (_worst(found) or nothing).items()}  # fmt: skip
        lost = max(result.pop("reference_lost"), result.pop("candidate_lost"))
        return {**result, "truth_finite_lost": lost}


def _dtype(form):
    return getattr(torch, form["dtype"])


def _truth(form, base):
    if "residual" in form:
        return evidence.Truth(residual=load_array(form["residual"]), base=base)
    return evidence.Truth(values=load_array(form))


def _range(dtype):
    """Unit roundoff, smallest positive and largest number of a dtype."""
    info = torch.finfo(dtype)
    return bounds.unit_roundoff(dtype), info.smallest_normal * info.eps, info.max


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
