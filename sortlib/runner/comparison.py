"""The candidate's side of a case: its own chain, the same calls on the reference's values, and the differences."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import torch

from sortlib import thresholds
from sortlib.features import dtype_name, map_tensors
from sortlib.runner import backward, bounds, evidence, invariants, opinions
from sortlib.runner.execution import Executor, figures, full_precision, seed_of, shortcuts
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
        order = given["inf_inputs"] and bounds.depends_on_order(node["api"])
        row |= {"nan_inputs": given["nan_inputs"], "inf_inputs": given["inf_inputs"], "by_order": order,
                "truth_missing": given["truth_missing"],
                "second_opinion": given["opinion"], "shared": given["compared"] is not None,
                "family": bounds.family_of(node)}  # fmt: skip
        failed = next((call for call in (own, local) if call is not None and call.error is not None), None)
        if failed is not None:
            message = f"{type(failed.error).__name__}: {bounds.first_line(failed.error)}"
            return {**row, "status": "exception", "side": "candidate", "message": message}
        row["seconds_candidate"] = self._timed(node, local, given, seed)
        arrays = [load_array(form) for form in given["outputs"]]
        shapes = [tuple(array.shape) for array in arrays]
        for call in filter(None, (own, local)):
            if [tuple(t.shape) for t in call.outputs] != shapes:
                found = [tuple(t.shape) for t in call.outputs]
                return {**row, "status": "mismatch", "side": "candidate",
                        "message": f"output shapes {found}, reference {shapes}"}  # fmt: skip
        if given.get("platform_dtype") == self.executor.precision:
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
        return self.executor.place(load_tensor(self.reference[str(node)]["outputs"][output], shared=True))

    def _features(self, side, form):
        content = form["$tensor"] if form else {}
        names = ("minimum", "maximum", "mean", "std", "zeros", "nan", "posinf", "neginf")
        values = {f"{side}_{name}": content.get(name, 0.0 if name in names[5:] else None) for name in names}
        lists = {f"{side}_{name}": json.dumps(content.get(name, [])) for name in ("quantiles", "shape")}
        return {**values, **lists, f"{side}_dtype": content.get("dtype")}

    def _compare(self, node, position, own, local, arrays, given, seed):
        mine = [as_array(tensor) for tensor in local.outputs]
        # What is equal to the last bit becomes one object, which nobody needs to compare again.
        mine = [b if not evidence.same_bits(a, b) else a for a, b in zip(arrays, mine, strict=True)]
        result, locals_, owns = {}, [], []
        for output, array in enumerate(arrays):
            # Positions are judged by the elements they name: equal values may be chosen in any order.
            counts = not (node["api"] in thresholds.INDICES and array.dtype.kind in "iu")
            found = _differences(node, array, mine[output])
            locals_ += [found] * counts
            if own is not None:
                if own is not local:
                    found = _differences(node, array, as_array(own.outputs[output]))
                owns += [found] * counts
                self._keep((position, output), own.outputs[output], given["outputs"][output], found)
        if mine:
            same = mine[0] is arrays[0] and local.outputs[0].dtype == _dtype(given["outputs"][0])
            features = given["features"][0] if same else figures(local.outputs[0])
            result |= self._features("candidate", features)
        judged = self._judged(node, given, arrays, mine, local)
        if not locals_:  # nothing but positions: the elements they name stand for them
            locals_ = owns = [evidence.compare(a, b) for a, b, _ in judged if a.dtype.kind in "fc"] or [evidence.EQUAL]
        result |= {f"local_{name}": value for name, value in _worst(locals_).items()}
        result |= {f"propagated_{name}": value for name, value in _worst(owns).items()}
        result["propagated_broken"] = own is None
        if node["random"] and node["api"] in thresholds.MASKED and given["truth"][0]:
            right = _truth(given["truth"][0], arrays[0])
            result |= _dropped(node, right, {"reference": arrays[0], "candidate": mine[0]})
        limits = [bounds.unpack(form, load_array) for form in given["bound"]]
        result |= self._errors(given, judged, limits, self._names(node, given), node["random"])
        if any(limit and limit.partial for limit in limits) and _near(result):
            limits, reason = self._complete(node, given, arrays, seed)
            result |= self._errors(given, judged, limits, self._names(node, given), node["random"])
            result |= {"truth_missing": reason} if reason else {}
        result["partial"] = any(limit and limit.partial for limit in limits)
        result["samples"] = min((limit.samples for limit in limits if limit), default=None)
        doubtful = _doubtful(result)
        if (result["candidate_own_ratio"] or 0.0) > 1:
            result |= self._repeated(result, doubtful, partial(self._again, node, given, arrays, limits, seed))
        if not given["opinion"] and doubtful:
            result["second_opinion"] = self._second_opinion(node, given, judged, limits, seed)
        asked = doubtful or bool(result["local_one_sided"] or result["truth_finite_lost"])
        asked = asked and self.executor.dtype is not None
        result["rounded_inputs"] = asked and self._explained_by_inputs(node, given, judged, seed)
        if node.get("backward") and result["truth_finite_lost"]:
            result["gradient_overflows"] = self._overflows(node, given, judged, arrays, seed)
        return result

    def _overflows(self, node, given, judged, arrays, seed):
        """Whether every element of a gradient that is not finite though float64 is comes of a result that is infinite,
        or of a derivative that leaves the dtype's range before the upstream gradient makes it smaller."""
        arguments = self._arguments(node)
        count, wide = backward.count(node, arguments), self._on_cpu(bounds.widen(arguments))
        slopes = bounds.outputs_in_double(self._plain(), {**node, "upstream": "ones"}, wide, seed)
        if slopes is None or len(slopes) != len(judged):
            return False
        infinite = any(np.isinf(array).any() for array in arrays[:-count] if array.dtype.kind in "fc")
        for output, (array, mine, dtypes) in enumerate(judged):
            if array.dtype.kind not in "fc" or given["truth"][output] is None:
                continue
            right = _truth(given["truth"][output], array).whole(array)
            largest = _range(dtypes[0])[2]
            lost = np.isfinite(right) & (np.abs(right) <= largest) & ~(np.isfinite(array) & np.isfinite(mine))
            gradient = output >= len(judged) - count
            steep = np.abs(as_array(slopes[output])) > largest / thresholds.OVERFLOW_MARGIN
            if (lost & ~(steep | infinite) if gradient else lost).any():
                return False
        return True

    def _explained_by_inputs(self, node, given, judged, seed):
        """Whether the candidate is right about the inputs that it has rounded itself, and the reference finite where
        float64 is: near a pole, a step or the largest number no bound describes what rounding an input does."""
        if given["compared"] is not None or node["random"]:
            return False
        reference = [(array, array, (dtypes[0], dtypes[0])) for array, _, dtypes in judged]
        limits = [None] * len(judged)
        if self._errors(given, reference, limits, [""] * len(judged), False)["truth_finite_lost"]:
            return False
        arguments = self._on_cpu(self._arguments(node))
        wide = bounds.outputs_in_double(self._plain(), node, bounds.widen(arguments), seed)
        if wide is None or [tuple(t.shape) for t in wide] != [array.shape for array, *_ in judged]:
            return False
        limits, missing = self._bounds(node, arguments, wide, seed)
        if missing:
            return False
        for (_, mine, dtypes), right, limit in zip(judged, wide, limits, strict=True):
            if mine.dtype.kind not in "fc":
                if not np.array_equal(mine, as_array(right)):
                    return False
                continue
            if limit is None:
                return False
            unit, step, largest = _range(dtypes[1])
            unit = max(unit, bounds.unit_roundoff(self.executor.dtype))
            found = evidence.errors(mine, evidence.Truth(values=as_array(right)), limit, unit, step, largest)
            if (found["ratio"] or 0.0) > 1 or found["lost"] or found["nan_wrong"] or found["nan_missing"]:
                return False
        return True

    def _complete(self, node, given, arrays, seed):
        """The bounds of a call with what conditioning excuses, and why there are none; computed on the CPU from the
        reference's values."""
        right = [torch.from_numpy(_truth(form, array).whole(array) if form else array)
                 for form, array in zip(given["truth"], arrays, strict=True)]  # fmt: skip
        return self._bounds(node, self._on_cpu(self._arguments(node)), right, seed)

    def _bounds(self, node, arguments, right, seed):
        """The bounds of a call of these arguments, computed on the CPU, and why there are none."""
        try:
            with torch.no_grad():
                limits = bounds.bound(self._plain(), node, arguments, right, seed)
        except Exception as error:
            return [None] * len(right), f"no bound: {type(error).__name__}: {bounds.first_line(error)}"
        return [limit and bounds.as_arrays(limit, as_array) for limit in limits], ""

    def _plain(self):
        """An executor on the CPU, since the device's own kernels are what is in question."""
        return Executor({**self.executor.platform, "device": "cpu", "compile": False, "autocast": None})

    def _on_cpu(self, arguments):
        return [a._replace(value=map_tensors(a.value, lambda _, tensor: tensor.cpu())) for a in arguments]

    def _timed(self, node, local, given, seed):
        """Seconds of the call; one that seems slow runs again, since first calls load and compile things."""
        if local.seconds < max(thresholds.SLOW_SECONDS, thresholds.SLOW_TIMES * (given.get("seconds") or 0.0)):
            return local.seconds
        return min(local.seconds, self.executor.call(node, self._arguments(node), seed).seconds)

    def _judged(self, node, given, arrays, mine, local):
        """(reference's array, candidate's array, dtypes that computed them) of everything that may have a truth."""
        dtypes = [(_dtype(form), tensor.dtype) for form, tensor in zip(given["outputs"], local.outputs, strict=True)]
        if given["compared"] is None:
            return list(zip(arrays, mine, dtypes, strict=True))
        shared = invariants.invariants(node["api"], self._arguments(node), local.outputs)
        computed = next((pair for pair in dtypes if _continuous(pair[0])), (torch.float64, torch.float64))
        values = [load_array(form) for form in given["compared"]]
        mine = [as_array(value) for value, _ in shared] if shared else values
        return [(a, b, computed) for a, b in zip(values, mine, strict=True)]

    def _arguments(self, node):
        """The call's arguments with the reference's values in them."""
        return self.executor.arguments(node, self.external, _Values(self.fed, self._feed))

    def _names(self, node, given):
        """What each output is called in a reason: nothing for the first result."""
        gradients = []
        if node.get("backward"):
            _, leaves = backward.leaves(self._arguments(node), node.get("frozen", ()))
            gradients = [f"gradient of {name}" for name, _ in leaves]
        return [f"output {k}" if k else "" for k in range(len(given["truth"]) - len(gradients))] + gradients

    def _second_opinion(self, node, given, judged, limits, seed):
        """What the decomposition in float64 says where something looks wrong: agrees, disagrees, or nothing."""
        if given["compared"] is not None or node["random"]:
            return ""
        plain, arguments = self._plain(), self._on_cpu(bounds.widen(self._arguments(node)))
        outputs = opinions.decomposed(lambda: bounds.outputs_in_double(plain, node, arguments, seed))
        if outputs is None or len(outputs) != len(judged):
            return ""
        worst = 0.0
        for output, (array, _, dtypes) in enumerate(judged):
            right, limit = given["truth"][output], limits[output]
            if right is None or limit is None or tuple(outputs[output].shape) != array.shape:
                continue
            found = evidence.errors(as_array(outputs[output]), _truth(right, array), limit, *_range(dtypes[0]))
            worst = max(worst, found["own_ratio"] or 0.0)
        # Two float64 results may differ by their own rounding, which is far below the bound of a narrower dtype.
        return "agrees" if worst < 0.5 else "disagrees"

    def _keep(self, key, tensor, form, found):
        """Remember an output of the own chain, and whether the reference's is the same to the last bit."""
        self.own[key] = tensor
        self.difference[key] = found["max_abs"]
        layout = tensor.layout == torch.strided and list(tensor.stride()) == form["strides"]
        self.same[key] = found["differing"] == 0 and layout and tensor.dtype == _dtype(form)

    def _repeated(self, result, doubtful, again):
        """Whether the error vanishes with reduced-precision shortcuts off, and whether it stays with them on.

        A flaky call can be right by chance in the run with shortcuts off. So there are two of each kind, of which the
        worse with shortcuts off and the better as before count; in this order no call that is wrong in every k-th run
        looks like one that shortcuts make wrong.
        """
        strict, same = [], []

        def exact():
            with full_precision(self.executor.device.type):
                strict.append(again())

        if shortcuts(self.executor.device.type):
            exact()
        vanished = bool(strict) and _better(strict[0], result)
        if doubtful or vanished:
            same.append(again())
        if vanished and not _better(same[0], result):
            same.append(again())
            exact()
        found = {}
        for name, runs, choose in (("strict", strict, max), ("again", same, min)):
            if runs and all(None not in run for run in runs):
                found[f"{name}_ratio"], found[f"{name}_error"] = (choose(values) for values in zip(*runs, strict=True))
        return found

    def _again(self, node, given, arrays, limits, seed):
        """(error over the rounding of the result, error) of the same call made again; None where it raises."""
        call = self.executor.call(node, self._arguments(node), seed)
        if call.error is not None or [t.shape for t in call.outputs] != [array.shape for array in arrays]:
            return None, None
        judged = self._judged(node, given, arrays, [as_array(tensor) for tensor in call.outputs], call)
        found = self._errors(given, judged, limits, [""] * len(judged), node["random"])
        return found["candidate_own_ratio"], found["candidate_error"]

    def _errors(self, given, judged, limits, names, masked):
        sides = {"reference": [], "candidate": []}
        worst_output, worst_ratio, worst_case = "", 0.0, dict.fromkeys(sides)
        for output, (array, mine, dtypes) in enumerate(judged):
            if given["truth"][output] is None or array.dtype.kind not in "fc":
                continue
            limit = limits[output]
            right = _truth(given["truth"][output], array)
            units = [_range(dtype) for dtype in dtypes]
            if masked:  # what a side has dropped says nothing about its arithmetic
                pair = [evidence.errors(values, right.where(array, values != 0), limit, *unit)
                        for values, unit in zip((array, mine), units, strict=True)]  # fmt: skip
            else:
                same = dtypes[0] == dtypes[1] and evidence.same_bits(array, mine)
                pair = evidence.errors_of_both(array, None if same else mine, right, limit, units)
            for side, found in zip(sides, (pair[0], pair[-1]), strict=True):
                sides[side].append(found)
                ratio = found["ratio"]
                if ratio is not None and limit.worst is not None:
                    worst_case[side] = max(worst_case[side] or 0.0, ratio / limit.worst)
                if (ratio or 0.0) > worst_ratio:
                    worst_output, worst_ratio = names[output], ratio
        nothing = {"error": None, "rms": None, "ratio": None, "own_ratio": None, "lost": 0.0, "nan_wrong": 0.0,
                   "nan_missing": 0.0}  # fmt: skip
        result = {f"{side}_{name}": value for side, found in sides.items()
                  for name, value in (_worst(found) or nothing).items()}  # fmt: skip
        for name, column in (("lost", "truth_finite_lost"), ("nan_wrong", "truth_nan_wrong"),
                             ("nan_missing", "truth_nan_missing")):  # fmt: skip
            result[column] = max(result.pop(f"reference_{name}"), result.pop(f"candidate_{name}"))
        result |= {f"{side}_worst_case_ratio": value for side, value in worst_case.items()}
        return {**result, "worst_output": worst_output}


def _better(run, result) -> bool:
    """Whether a call that was made again is within its bound, or clearly closer to float64 than the first time."""
    ratio, error = run
    return ratio is not None and (ratio <= 1 or error * thresholds.CLEARLY_WORSE <= result["candidate_error"])


def _near(result) -> bool:
    """Whether an error comes near a bound that is partial, so that the whole bound is worth its price."""
    owns = [result[f"{side}_own_ratio"] or 0.0 for side in ("reference", "candidate")]
    return max(owns) > thresholds.NEAR


def _doubtful(result) -> bool:
    """Whether the errors may lead to an accusation, so that a second opinion is worth its price."""
    sides = ("reference", "candidate")
    if min((result.get(f"{side}_ratio") or 0.0) for side in sides) > 1:
        return True
    error = {side: result.get(f"{side}_error") or 0.0 for side in sides}
    own = {side: result.get(f"{side}_own_ratio") or 0.0 for side in sides}
    worse, better = sorted(sides, key=error.get, reverse=True)
    return own[worse] > 1 and error[worse] >= thresholds.CLEARLY_WORSE * error[better]


def _differences(node, array, mine):
    """Differences of one output; where each side drew its own mask, of what both have kept."""
    if not (node["random"] and node["api"] in thresholds.MASKED and array.dtype.kind in "fc"):
        return evidence.compare(array, mine)
    kept = array != 0, mine != 0
    both = kept[0] & kept[1]
    found = evidence.compare(array[both], mine[both])
    return {**found, "other_mask": float((kept[0] != kept[1]).mean()) if array.size else 0.0}


def _dropped(node, right, sides):
    """Share that each side of a dropout drops, and its distance from p in standard deviations of a binomial share."""
    share = next((value for name, value, _ in node["arguments"] if name == "p"), 0.5)
    result, single = {}, node["api"] in ("dropout", "native_dropout")
    for side, array in sides.items():
        kept = np.concatenate([truth for *_, truth in right.blocks(array.reshape(-1))] or [np.empty(0)]) != 0
        if not kept.any():
            continue
        found = result[f"{side}_dropped"] = float((array.reshape(-1)[kept] == 0).mean())
        if single and 0 < share < 1 and (count := np.count_nonzero(kept)) >= thresholds.FEW:
            result[f"{side}_drop_sigmas"] = abs(found - share) / (share * (1 - share) / count) ** 0.5
    return result


def _continuous(dtype):
    return dtype.is_floating_point or dtype.is_complex


def _dtype(form):
    return getattr(torch, form["dtype"])


def _truth(form, base):
    if "residual" in form:
        return evidence.Truth(residual=load_array(form["residual"]), base=base)
    if form.get("exact"):
        return evidence.Truth(base=base)
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
        elif "$draw" not in form:  # features are many and hold no sources
            for value in form.values():
                _find_sources(value, found)
    elif isinstance(form, list):
        for value in form:
            _find_sources(value, found)


def _worst(comparisons) -> dict:
    """The largest of each figure over a call's outputs."""
    if len(comparisons) == 1:
        return dict(comparisons[0])
    names = {name: None for found in comparisons for name in found}
    return {name: max((c[name] for c in comparisons if c.get(name) is not None), default=None) for name in names}
