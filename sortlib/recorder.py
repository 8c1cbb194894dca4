"""The mode that sees every call: graph, records and evidence in one pass, without keeping any activation."""

from __future__ import annotations

import functools
import sys
import weakref
from pathlib import Path
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sortlib import apis
from sortlib.evidence import Digest, Keeper, form
from sortlib.features import CallRecord, TensorFeatures, map_tensors, plain
from sortlib.graph import ApiGraph, Edge, Node, Wire
from sortlib.producers import Producers, versions_of
from sortlib.readings import Readings

# Calls after which code outside PyTorch may write into a tensor's memory.
_EXPOSING = {"numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage"}
_POINTING = "torch.Tensor.data.__set__"
_GRADIENTS = "torch.autograd.grad"
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Types of arguments that hold no tensor and are recorded as they are.
_ATOMS = {
    bool, int, float, complex, str, type(None), torch.Size, torch.dtype, torch.device, torch.memory_format,
    torch.layout,
}  # fmt: skip


class _Plan(NamedTuple):
    """What is the same for all calls of one function with as many arguments.

    ``slots`` holds (path, kind, place of the value); None where the names depend on the values. A call names no
    argument that it writes if all values at the places ``switches`` are off; None where that cannot be told so.
    """

    api: apis.Api
    slots: tuple | None
    switches: tuple | None
    random: bool
    form_only: bool
    plain_query: bool  # with nothing to note


_PLANS = {}


def plan_of(func, count, keywords) -> _Plan:
    """The plan of a call with ``count`` positional arguments and these keywords."""
    key = (func, count, *keywords) if keywords else (func, count)
    found = _PLANS.get(key)
    if found is None:
        found = _PLANS[key] = _plan(apis.identify(func), count, keywords)
    return found


def _plan(api, count, keywords):
    by_value = api.name in apis.RECURRENT or any(api.name == name for name, _ in apis.IF_TENSOR)
    if by_value or (keywords and api.target.rpartition(".")[2] in apis.REFLECTED):
        slots = None
    else:
        bound = apis.bind(api, tuple(range(count)), {name: name for name in keywords})
        slots = tuple(
            ((name,), kind, value[0] if kind == "variadic" and value else value) for name, value, kind in bound
        )
        if any(kind == "variadic" and value == () for _, kind, value in slots):
            slots = None
    random = api.name in apis.RANDOM or api.name in apis.RANDOM_WITH
    plain_query = api.query and api.target not in (_POINTING, _GRADIENTS)
    return _Plan(api, slots, _switches(api, slots), random, apis.form_only(api), plain_query)


def _switches(api, slots):
    """Places of the arguments that decide whether a call names arguments that it writes (``_Plan.switches``)."""
    if slots is None or api.inplace:
        return None
    places = {path[0]: place for path, _, place in slots}
    _, flag, default = apis.HIDDEN_WRITES.get(api.name, ((), None, False))
    if "out" in places or (flag not in places and default not in (None, False)):
        return None
    return tuple(places[name] for name in ("inplace", flag) if name in places)


class Recorder(TorchFunctionMode):
    """One run of one model.

    Parameters
    ----------
    name, sample : of the graph and the records.
    modules : (path, module) of every module.
    roles : id -> (tensor, role) of the tensors that exist before the run.
    records : whether to keep records and the evidence for a replay.
    opened : function -> what runs in its place.
    exact : see ``sortlib.evidence.checksum``.
    gradients : ``sortlib.gradients.Gradients`` or None.
    """

    def __init__(self, name, sample, modules, roles, records=True, opened=None, exact=False, gradients=None):
        super().__init__()
        self.name, self.sample, self.recording, self.opened = name, sample, records, opened or {}
        self.paths = {}
        for path, module in modules:
            self.paths.setdefault(id(module), path)
        self.roles = roles
        # What nodes and edges are made of when the run is over, which costs less than making them between the calls.
        self.seen = []  # (API, module path, source, whether in place) of each call
        self.links = []  # (last writer, call, argument path) of each tensor that a call has read
        self.calls = []
        self.producers = Producers()
        self.readings = Readings(self.producers)
        self.keeper = Keeper(self.producers, exact) if records else None
        self.gradients = gradients
        self.outputs_of = []  # number of output tensors of each node
        self.strange = []  # places of tensors of unknown origin
        self.strange_ids = {}
        self.remarks = {}  # notes without their number
        self.failed = None  # (exception, API) of the last call that raised

    def place(self, error) -> str:
        """Module and call at which an exception left the model."""
        path, step = "", error.__traceback__
        while step:
            path = self.paths.get(id(step.tb_frame.f_locals.get("self")), path)
            step = step.tb_next
        last = f"after call {len(self.seen) - 1} ({self.seen[-1][0].name})" if self.seen else "before the first call"
        if self.failed and self.failed[0] is error:
            last = f"call {len(self.seen)} ({self.failed[1]}), {last}"
        return f"module {path or '(top)'}, {last}"

    # -- calls --

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.opened and func in self.opened:
            with self:
                return self.opened[func](*args, **kwargs)
        plan = plan_of(func, len(args), kwargs)
        if plan.plain_query:
            return func(*args, **kwargs)
        api = plan.api
        if api.query:
            return self._query(api, func, args, kwargs)
        silent = plan.switches is not None and not _any_on(plan.switches, args, kwargs)
        tensors = []  # (path, tensor)
        if silent and not self.recording:
            arguments = ()
            for path, value in _given(plan, args, kwargs):
                _note(path, value, tensors)
        else:
            arguments = _bound(plan, args, kwargs, tensors)
        found = [self.producers.find(tensor) for _, tensor in tensors]
        names = () if silent else apis.written_arguments(api, arguments)
        if self.recording:
            bound = self._features(arguments, tensors, found)
            pending = self.keeper.before(func, names, tensors, found)
        slots = self.gradients.read(tensors) if self.gradients else ()
        versions = versions_of(tensors)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self.failed = (error, api.name)
            raise
        outputs = _output_tensors(result)
        if names or plan.form_only:
            written = [tensor for path, tensor in tensors if path[0] in names]
        else:  # whose count of writes has grown
            after = versions_of(tensors)
            written = (
                []
                if after == versions
                else [t for (_, t), old, new in zip(tensors, versions, after, strict=True) if old != new]
            )
        if not outputs and result is None:
            outputs = written  # for example __setitem__, which returns nothing
        if not outputs:
            if api.name in _EXPOSING:
                for _, tensor in tensors:
                    self.producers.expose(tensor)
            return result
        node = len(self.seen)
        module_path, source = place_of(sys._getframe(1), self.paths)
        inplace = not silent and apis.writes_in_place(api, arguments)
        self.seen.append((api, module_path, source, inplace))
        self.outputs_of.append(len(outputs))
        for (path, tensor), producer in zip(tensors, found, strict=True):
            if producer is None:
                self._meet(tensor, node, api, path)
            else:
                self.links.append((producer, node, path))
        if self.recording:  # may still set fresh memory to zero
            self.keeper.after(node, api, arguments, pending, tensors, outputs, written)
        if written:
            place = {id(tensor): position for position, tensor in enumerate(outputs)}
            for tensor in written:
                self.producers.wrote(tensor, node, place.get(id(tensor), 0))
        for position, tensor in enumerate(outputs):
            self.producers.made(tensor, node, position)
        if self.gradients:
            self.gradients.call(slots, outputs)
        if self.recording:
            random = plan.random and apis.is_random(api.name, arguments)
            self._record(node, bound, tensors, outputs, random)
        return result

    def _query(self, api, func, args, kwargs):
        pointing = api.target == _POINTING
        origin = self.keeper.origin(args[1]) if pointing and self.recording else None
        result = func(*args, **kwargs)
        if pointing:
            self.producers.replace(*args)
            if self.recording:
                self.keeper.pointed(args[0], origin)
        elif api.target == _GRADIENTS:
            self._remark("gradients that the model computes are constants here")
        return result

    def _meet(self, tensor, node, api, path):
        """Note a tensor that no traced call wrote, and whether its origin is known."""
        if id(tensor) in self.roles:
            return
        known = self.strange_ids.get(id(tensor))
        if not (known and known() is tensor):
            self.strange_ids[id(tensor)] = weakref.ref(tensor)
            self.strange.append(f"call {node} ({api.name}), argument {'.'.join(map(str, path))}")

    def _remark(self, text):
        self.remarks[text] = self.remarks.get(text, 0) + 1

    # -- records --

    def _features(self, arguments, tensors, found):
        """The arguments with features in place of tensors, taken before the call."""
        inputs = {path: self._measure(tensor, source) for (path, tensor), source in zip(tensors, found, strict=True)}
        nested = any(len(path) > 1 for path in inputs)
        bound = []
        for argument in arguments:
            name, value, kind = argument
            if isinstance(value, torch.Tensor):
                argument = apis.Argument(name, inputs[name,], kind)
            elif nested and type(value) not in _ATOMS:
                argument = apis.Argument(name, map_tensors(value, lambda path, _: inputs[path], path=(name,)), kind)
            bound.append(argument)
        return tuple(bound)

    def _measure(self, tensor, produced=True) -> TensorFeatures:
        if produced:
            return self.readings.features(tensor, "call")
        role = self.roles.get(id(tensor), (None, "constant"))[1]
        return self.readings.features(tensor, role) if role == "input" else self.readings.kept(tensor, role)

    def _record(self, node, bound, tensors, outputs, random):
        api, module_path, source, inplace = self.seen[node]
        aliases = ()
        if len(tensors) > 1:
            first, aliases = {}, []
            for path, tensor in tensors:
                if id(tensor) in first:
                    aliases.append((path, first[id(tensor)]))
                first.setdefault(id(tensor), path)
        features, digests = [], []
        for tensor in outputs:
            read, values = self.readings.output(tensor, self.keeper.evidence.exact)
            features.append(read)
            digests.append(Digest(*form(tensor), values))
        self.keeper.evidence.digests.append(tuple(digests))
        self.calls.append(
            CallRecord(
                self.name, node, self.sample, api.name, api.target, module_path, source, bound, tuple(features),
                tuple(aliases), inplace, random,
            )
        )  # fmt: skip

    def graph(self) -> ApiGraph:
        """What was seen so far."""
        notes = [f"{text} ({number} times)" for text, number in self.remarks.items()]
        if self.strange:
            notes.append(f"tensors that come from unseen code: {len(self.strange)}, the first in {self.strange[0]}")
        nodes = tuple(Node.made(api.name, api.target, *where, inplace) for api, *where, inplace in self.seen)
        edges, wires = [], []
        for (src, output, alias), dst, path in self.links:
            several = self.outputs_of[src] > 1
            edges.append(Edge(src, dst, _label(nodes[dst].api, path, output, several, alias)))
            wires.append(Wire(path, output, alias))
        evidence = self.keeper.evidence if self.keeper else None
        return ApiGraph(self.name, nodes, tuple(edges), tuple(wires), tuple(notes), evidence)


_label = functools.lru_cache(1 << 14)(apis.edge_label)


def _any_on(switches, args, kwargs):
    for place in switches:
        value = kwargs[place] if type(place) is str else args[place]
        if value is not False and value is not None:
            return True
    return False


def _given(plan, args, kwargs):
    """(path, value) of the arguments of a call whose plan has slots."""
    return [
        (path, args[place] if kind == "positional" else kwargs[place] if kind == "keyword" else args[place:])
        for path, kind, place in plan.slots
    ]


def _bound(plan, args, kwargs, tensors):
    """The bound arguments, with their tensors noted in ``tensors``."""
    if plan.slots is None:
        given = [((name,), value, kind) for name, value, kind in apis.bind(plan.api, args, kwargs)]
    else:
        values = _given(plan, args, kwargs)
        given = [(path, value, kind) for (path, value), (_, kind, _) in zip(values, plan.slots, strict=True)]
    return tuple(apis.Argument(path[0], _note(path, value, tensors), kind) for path, value, kind in given)


def _note(path, value, tensors):
    """An argument as it is recorded; its tensors are noted in ``tensors``."""
    held = type(value)
    if held in _TENSORS:
        tensors.append((path, value))
    elif held not in _ATOMS and not (held is tuple and all(type(item) is int for item in value)):
        value = plain(value)

        def note(path, tensor):
            tensors.append((path, tensor))
            return tensor

        map_tensors(value, note, path=path)
    return value


def _output_tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list, dict)):
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return []


_TORCH = str(Path(torch.__file__).parent) + "/"
_TRACER = str(Path(__file__).with_name("tracing.py"))
_OWN = {_TRACER, *(str(Path(__file__).with_name(name)) for name in ("recorder.py", "opening.py"))}
_SHORT = {}  # file name -> how it is shown; empty for torch and the tracer
_CALL = torch.nn.Module._call_impl.__code__  # through which every call of a module goes


def place_of(frame, paths) -> tuple[str, str]:
    """Where the model is, seen from a frame of it.

    Read from the frames, since hooks on all modules would cost more than the rest of the tracer, also where a module
    makes no call.

    Parameters
    ----------
    paths : id of a module -> its path.

    Returns
    -------
    Path of the innermost running module that is known, and ``file.py:line`` of the innermost frame outside torch and
    the tracer; each empty if there is none.
    """
    path = source = None
    while frame is not None and (path is None or source is None):
        code = frame.f_code
        if code is _CALL:
            if path is None:
                running = frame.f_locals
                if running.get("result") is None:  # else its own forward hooks run, when it is over
                    path = paths.get(id(running["self"]))
        else:
            filename = code.co_filename
            short = _SHORT.get(filename)
            if short is None:
                short = _SHORT[filename] = _shown(filename)
            if short:
                if source is None:
                    source = f"{short}:{frame.f_lineno}"
            elif filename == _TRACER and path is None:
                path = ""  # modules further out do not belong to this run
        frame = frame.f_back
    return path or "", source or ""


def _shown(filename) -> str:
    if filename in _OWN or filename.startswith(_TORCH):
        return ""
    marker = "site-packages/"
    return filename.split(marker, 1)[1] if marker in filename else Path(filename).name
