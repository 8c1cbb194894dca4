"""One run of a model seen as API calls: graph and records in the same pass.

Everything stands on ``TorchFunctionMode``, which sees the calls that the paper's labels name, on any model and
without a change to its code. Its pitfalls are listed in the README under "What the tracer cannot see".
"""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sortlib import apis
from sortlib.apis import Argument
from sortlib.errors import SortError
from sortlib.features import CallRecord, TensorFeatures, map_tensors, measure
from sortlib.graph import ApiGraph, Edge, Node, Wire

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


class TraceError(SortError):
    """A model raised while it was traced.

    Attributes
    ----------
    graph, records : what was seen until then.
    """

    def __init__(self, message, graph, records):
        super().__init__(message)
        self.graph, self.records = graph, records


def trace(model, *args, **kwargs) -> tuple[ApiGraph, list[CallRecord]]:
    """Run ``model(*args, **kwargs)`` once without gradients and return its graph of API calls and their records.

    Node i and record i are the same call. The model runs in the mode it is in: call ``model.eval()`` first.

    Raises
    ------
    SortError
        The model is (or holds) a scripted or compiled module, whose calls cannot be seen.
    TraceError
        The model raised; the trace until there hangs on the exception.

    Examples
    --------
    >>> import torch
    >>> graph, records = trace(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.ones(1, 4))
    >>> [node.api for node in graph.nodes], [tuple(edge) for edge in graph.edges]
    (['linear', 'relu'], [(0, 1, 'input')])
    """
    return Tracer().run(model, *args, **kwargs)


class Tracer:
    """``trace`` with options.

    Parameters
    ----------
    name : the graph's name; the model's class by default.
    sample : number of the real input, kept in the records.
    records : whether to record features; without them the pass is cheaper.
    """

    def __init__(self, name: str | None = None, sample: int = 0, records: bool = True):
        self.name, self.sample, self.records = name, sample, records

    def run(self, model, *args, **kwargs) -> tuple[ApiGraph, list[CallRecord]]:
        """See ``trace``."""
        name = self.name or type(model).__name__
        paths, roles = _module_paths(model, name), _roles(model)
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                roles[id(leaf)] = "input"
        mode = _Recorder(name, self.sample, self.records, paths, roles)
        try:
            with torch.no_grad(), mode.modules(), mode:
                model(*args, **kwargs)
        except Exception as error:
            last = mode.nodes[-1] if mode.nodes else None
            after = f"after call {len(mode.nodes) - 1} ({last.api})" if last else "before the first call"
            where = f"module {mode.current or '(top)'} {after}"
            message = (
                f"{name} raised {type(error).__name__} in {where}: {str(error).splitlines()[0] if str(error) else ''}"
            )
            raise TraceError(message, mode.graph(), mode.calls) from error
        return mode.graph(), mode.calls


def _module_paths(model, name) -> dict[int, str]:
    paths = {}
    if not isinstance(model, torch.nn.Module):
        return paths
    for path, module in model.named_modules():
        if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            raise SortError(f"{name}: module {path or '(top)'} is scripted (TorchScript); its calls cannot be seen. "
                            "Trace the original nn.Module instead")  # fmt: skip
        if type(module).__name__ == "OptimizedModule":
            raise SortError(f"{name}: module {path or '(top)'} is compiled; trace the original nn.Module instead")
        paths.setdefault(id(module), path)
    return paths


def _roles(model) -> dict[int, str]:
    if not isinstance(model, torch.nn.Module):
        return {}
    roles = {id(buffer): "buffer" for buffer in model.buffers()}
    roles.update({id(parameter): "parameter" for parameter in model.parameters()})
    return roles


class _Producers:
    """Which call wrote a tensor last, by object and by memory, without keeping any tensor alive."""

    def __init__(self):
        self._by_object = {}  # id -> (weak reference, node, output, writes of its storage at that time)
        self._writes = {}  # storage address -> (weak reference, number of writes, last writer, its output)

    def _storage(self, tensor):
        try:
            return tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return None  # sparse and similar tensors have no storage to share

    def writes(self, tensor) -> int:
        """How often a traced call wrote into this tensor's memory."""
        entry = self._writes.get(self._storage(tensor))
        return entry[1] if entry and not entry[0].expired() else 0

    def wrote(self, tensor, node):
        """Note that ``node`` wrote into the tensor in place."""
        key = self._storage(tensor)
        if key is not None:
            self._writes[key] = (StorageWeakRef(tensor.untyped_storage()), self.writes(tensor) + 1, node)

    def made(self, tensor, node, output):
        """Note that ``node`` returned the tensor."""
        self._by_object[id(tensor)] = (weakref.ref(tensor), node, output, self.writes(tensor))

    def find(self, tensor) -> tuple[int, int, bool] | None:
        """(node, output, alias) of the last writer, or None for a tensor that no traced call wrote."""
        known = self._by_object.get(id(tensor))
        known = known if known and known[0]() is tensor else None  # an id may have been given to another object
        written = self._writes.get(self._storage(tensor))
        written = written if written and not written[0].expired() else None
        if written and written[1] > (known[3] if known else 0):
            return written[2], 0, True
        return (known[1], known[2], False) if known else None


class _Recorder(TorchFunctionMode):
    def __init__(self, name, sample, records, paths, roles):
        super().__init__()
        self.name, self.sample, self.recording = name, sample, records
        self.paths, self.roles = paths, roles
        self.nodes, self.edges, self.wires, self.calls, self.notes = [], [], [], [], []
        self.producers = _Producers()
        self.outputs_of = []  # number of output tensors of each node
        self.measured = {}  # id -> (weak reference, writes, features): a tensor is measured once for all its readers
        self.stack = []

    # -- modules --

    @property
    def current(self) -> str:
        return self.stack[-1] if self.stack else ""

    def modules(self):
        return _ModuleHooks(self)

    # -- calls --

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        api = apis.identify(func)
        if api.query:
            return func(*args, **kwargs)
        arguments = apis.bind(api, args, kwargs)
        tensors = _tensor_arguments(arguments)
        inplace = apis.writes_in_place(api, arguments)
        inputs = self._features_before(tensors) if self.recording else {}
        found = [self.producers.find(tensor) for _, tensor in tensors]
        result = func(*args, **kwargs)
        outputs = _output_tensors(result)
        if api.name == "setitem":  # returns nothing; what it wrote is its first argument
            outputs = [args[0]]
        if not outputs:
            return result
        node = len(self.nodes)
        source = _source_line()
        self.nodes.append(Node(api.name, api.target, self.current, source, inplace))
        self.outputs_of.append(len(outputs))
        self._connect(node, api, tensors, found)
        if inplace and tensors:
            self.producers.wrote(tensors[0][1], node)
        for written in (argument.value for argument in arguments if argument.name == "out"):
            for tensor in _output_tensors(written):
                self.producers.wrote(tensor, node)
        for position, tensor in enumerate(outputs):
            self.producers.made(tensor, node, position)
        if self.recording:
            self._record(node, api, arguments, tensors, inputs, outputs, inplace, source)
        return result

    def _connect(self, node, api, tensors, found):
        for (path, _), producer in zip(tensors, found, strict=True):
            if producer is None:
                continue
            src, output, alias = producer
            several = self.outputs_of[src] > 1
            self.edges.append(Edge(src, node, apis.edge_label(api.name, path, output, several, alias)))
            self.wires.append(Wire(path, output, alias))

    def _features_before(self, tensors):
        return {path: self._measure(tensor) for path, tensor in tensors}

    def _measure(self, tensor) -> TensorFeatures:
        writes = self.producers.writes(tensor)
        known = self.measured.get(id(tensor))
        if known and known[0]() is tensor and known[1] == writes:
            return known[2]
        role = self.roles.get(id(tensor)) or ("call" if self.producers.find(tensor) else "constant")
        features = measure(tensor, role)
        self.measured[id(tensor)] = (weakref.ref(tensor), writes, features)
        return features

    def _record(self, node, api, arguments, tensors, inputs, outputs, inplace, source):
        bound = tuple(
            Argument(a.name, map_tensors(a.value, lambda path, _: inputs[path], path=(a.name,)), a.kind)
            for a in arguments
        )
        first, aliases = {}, []
        for path, tensor in tensors:
            if id(tensor) in first:
                aliases.append((path, first[id(tensor)]))
            first.setdefault(id(tensor), path)
        self.calls.append(
            CallRecord(
                self.name, node, self.sample, api.name, api.target, self.current, source, bound,
                tuple(self._measure(tensor) for tensor in outputs), tuple(aliases), inplace,
                apis.is_random(api.name, arguments),
            )
        )  # fmt: skip

    def graph(self) -> ApiGraph:
        return ApiGraph(self.name, tuple(self.nodes), tuple(self.edges), tuple(self.wires), tuple(self.notes))


class _ModuleHooks:
    """Keeps the path of the innermost running module; one that raises leaves its path for the error message."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __enter__(self):
        stack, paths = self.recorder.stack, self.recorder.paths

        def enter(module, args):
            stack.append(paths.get(id(module), stack[-1] if stack else ""))

        def leave(module, args, output):
            stack.pop()

        register = torch.nn.modules.module
        self.handles = [
            register.register_module_forward_pre_hook(enter),
            register.register_module_forward_hook(leave),
        ]

    def __exit__(self, *exception):
        for handle in self.handles:
            handle.remove()


def _tensor_arguments(arguments):
    found = []

    def note(path, tensor):
        found.append((path, tensor))
        return tensor

    for argument in arguments:
        map_tensors(argument.value, note, path=(argument.name,))
    return found


def _output_tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list, dict)):
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return []


def _source_line() -> str:
    """``file.py:line`` of the innermost frame outside torch and this package."""
    frame = sys._getframe(2)
    while frame:
        filename = frame.f_code.co_filename
        if not filename.startswith((_TORCH, _HERE)):
            marker = "site-packages/"
            short = filename.split(marker, 1)[1] if marker in filename else Path(filename).name
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
