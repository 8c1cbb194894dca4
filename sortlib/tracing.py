"""One run of a model seen as API calls: graph and records in the same pass.

Everything stands on ``TorchFunctionMode``, which sees the calls that the paper's labels name, on any model and
without a change to its code. Its pitfalls are listed in the README under "What the tracer cannot see"; each has a test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sortlib import apis
from sortlib.errors import SortError
from sortlib.features import CallRecord, TensorFeatures, map_tensors, measure, plain
from sortlib.graph import ApiGraph, Edge, Node, Wire
from sortlib.producers import Producers, version

_OWN = {__file__, str(Path(__file__).with_name("opening.py"))}
_TORCH = str(Path(torch.__file__).parent) + os.sep
# Calls after which code outside PyTorch may write into a tensor's memory.
_EXPOSING = {"numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage"}


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
    open : canonical names of composite calls whose inner calls shall be seen instead, for example
        ``("multi_head_attention_forward", "lstm")``. Recurrent networks then run as single steps, which agree with
        the fused kernels up to rounding.

    Raises
    ------
    SortError
        A name in ``open`` that is no API or has no calls inside.
    """

    def __init__(self, name: str | None = None, sample: int = 0, records: bool = True, open: tuple[str, ...] = ()):
        self.name, self.sample, self.records = name, sample, records
        self.opened = {}
        if open:
            from sortlib.opening import open_calls

            self.opened = open_calls((open,) if isinstance(open, str) else open)

    def run(self, model, *args, **kwargs) -> tuple[ApiGraph, list[CallRecord]]:
        """See ``trace``."""
        name = self.name or (getattr(model, "__name__", None) or type(model).__name__)
        refuse_unseen(model, name)
        mode = _Recorder(name, self.sample, self.records, self.opened, model, (args, kwargs))
        try:
            with torch.no_grad(), _same_attention(), mode.modules(), mode:
                model(*args, **kwargs)
        except Exception as error:
            lines = str(error).splitlines() or [""]
            message = f"{name} raised {type(error).__name__} in {mode.place(error)}: {lines[0]}"
            raise TraceError(message, mode.graph(), mode.calls) from error
        return mode.graph(), mode.calls


def refuse_unseen(model, name):
    """Raise a SortError for a model with scripted or compiled parts, whose calls no mode sees."""
    named = model.named_modules() if isinstance(model, torch.nn.Module) else [("", model)]
    for path, module in named:
        parts = [(path, module)]
        parts += [
            (f"{path}.{k}".strip("."), f)
            for k, f in getattr(module, "__dict__", {}).items()
            if isinstance(f, _FUNCTIONS)
        ]
        for place, part in parts:
            kind = _unseen(part)
            if kind:
                raise SortError(f"{name}: {place or '(top)'} is {kind}, its calls cannot be seen; "
                                "trace the original nn.Module instead")  # fmt: skip


_FUNCTIONS = (types.FunctionType, types.MethodType, torch.jit.ScriptFunction)


def _unseen(part) -> str:
    if isinstance(part, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return "scripted (TorchScript)"
    if isinstance(part, torch.nn.Module):
        compiled = type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
    else:
        compiled = isinstance(part, _FUNCTIONS) and hasattr(part, "_torchdynamo_orig_callable")
    return "compiled" if compiled else ""


@contextlib.contextmanager
def _same_attention():
    """Without the fused path of attention, which PyTorch leaves anyway as soon as somebody watches."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _roles(model, inputs) -> dict[int, tuple[torch.Tensor, str]]:
    """id -> (tensor, role) of all tensors that exist before the run; holding them keeps their ids from being reused."""
    roles = {}
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    for module in modules:
        own = [value for name, value in vars(module).items() if not name.startswith("_")]
        roles.update({id(t): (t, "constant") for t in _tensors_within(own, 2)})
        roles.update({id(t): (t, "buffer") for t in module.buffers(recurse=False)})
        roles.update({id(t): (t, "parameter") for t in module.parameters(recurse=False)})
    roles.update({id(t): (t, "input") for t in _tensors_within(inputs, 8)})
    return roles


def _tensors_within(value, depth) -> Iterator[torch.Tensor]:
    """Tensors in nested containers and plain objects such as dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_within(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors_within(item, depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors_within(vars(value), depth - 1)


class _Recorder(TorchFunctionMode):
    def __init__(self, name, sample, records, opened, model, inputs):
        super().__init__()
        self.name, self.sample, self.recording, self.opened = name, sample, records, opened
        self.paths = {}
        if isinstance(model, torch.nn.Module):
            for path, module in model.named_modules():
                self.paths.setdefault(id(module), path)
        self.roles = _roles(model, inputs)
        self.nodes, self.edges, self.wires, self.calls = [], [], [], []
        self.producers = Producers()
        self.outputs_of = []  # number of output tensors of each node
        self.measured = {}  # id -> (weak reference, stamp, features): a tensor is measured once for all its readers
        self.stack = [""]
        self.strange = []  # places of tensors of unknown origin
        self.strange_ids = {}
        self.remarks = {}  # notes without their number
        self.failed = None  # (exception, API) of the last call that raised

    # -- modules --

    def modules(self):
        return _ModuleHooks(self)

    def place(self, error) -> str:
        """Module and call at which an exception left the model."""
        path, step = "", error.__traceback__
        while step:
            path = self.paths.get(id(step.tb_frame.f_locals.get("self")), path)
            step = step.tb_next
        last = f"after call {len(self.nodes) - 1} ({self.nodes[-1].api})" if self.nodes else "before the first call"
        if self.failed and self.failed[0] is error:
            last = f"call {len(self.nodes)} ({self.failed[1]}), {last}"
        return f"module {path or '(top)'}, {last}"

    # -- calls --

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.opened:
            with self:
                return self.opened[func](*args, **kwargs)
        api = apis.identify(func)
        if api.query:
            return self._query(api, func, args, kwargs)
        arguments = tuple(a._replace(value=plain(a.value)) for a in apis.bind(api, args, kwargs))
        tensors = _tensor_arguments(arguments)
        found = [self.producers.find(tensor) for _, tensor in tensors]
        bound = self._bound(arguments, tensors, found) if self.recording else ()
        versions = [version(tensor) for _, tensor in tensors]
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self.failed = (error, api.name)
            raise
        outputs = _output_tensors(result)
        written = self._written(api, arguments, tensors, versions)
        if not outputs and result is None:
            outputs = written  # for example __setitem__, which returns nothing
        if not outputs:
            if api.name in _EXPOSING:
                for _, tensor in tensors:
                    self.producers.expose(tensor)
            return result
        self._note(api, arguments, bound, tensors, found, outputs, written)
        return result

    def _written(self, api, arguments, tensors, versions):
        """Tensors that the call wrote: those that names and flags tell, else those whose count of writes has grown."""
        names = apis.written_arguments(api, arguments)
        if names or apis.form_only(api):
            return [tensor for path, tensor in tensors if path[0] in names]
        return [t for (_, t), before in zip(tensors, versions, strict=True) if before != version(t)]

    def _query(self, api, func, args, kwargs):
        result = func(*args, **kwargs)
        if api.target == "torch.Tensor.data.__set__":
            self.producers.replace(*args)
        elif api.target == "torch.autograd.grad":
            self._remark("gradients that the model computes are constants here")
        return result

    def _note(self, api, arguments, bound, tensors, found, outputs, written):
        node = len(self.nodes)
        source = _source_line()
        inplace = apis.writes_in_place(api, arguments)
        self.nodes.append(Node(api.name, api.target, self.stack[-1], source, inplace))
        self.outputs_of.append(len(outputs))
        self._connect(node, api, tensors, found)
        place = {id(tensor): position for position, tensor in enumerate(outputs)}
        for tensor in written:
            self.producers.wrote(tensor, node, place.get(id(tensor), 0))
        for position, tensor in enumerate(outputs):
            self.producers.made(tensor, node, position)
        if self.recording:
            self._record(node, api, bound, tensors, outputs, inplace, apis.is_random(api.name, arguments), source)

    def _connect(self, node, api, tensors, found):
        for (path, tensor), producer in zip(tensors, found, strict=True):
            if producer is None:
                self._meet(tensor, node, api, path)
                continue
            several = self.outputs_of[producer.node] > 1
            label = apis.edge_label(api.name, path, producer.output, several, producer.alias)
            self.edges.append(Edge(producer.node, node, label))
            self.wires.append(Wire(path, producer.output, producer.alias))

    def _meet(self, tensor, node, api, path):
        """Note a tensor that no traced call wrote, and whether its origin is known."""
        self.producers.seen(tensor)
        known = self.strange_ids.get(id(tensor))
        if id(tensor) not in self.roles and not (known and known() is tensor):
            self.strange_ids[id(tensor)] = weakref.ref(tensor)
            self.strange.append(f"call {node} ({api.name}), argument {'.'.join(map(str, path))}")

    def _remark(self, text):
        self.remarks[text] = self.remarks.get(text, 0) + 1

    # -- records --

    def _bound(self, arguments, tensors, found):
        """The arguments with features in place of tensors, taken before the call."""
        inputs = {path: self._measure(tensor, source) for (path, tensor), source in zip(tensors, found, strict=True)}
        return tuple(
            a._replace(value=map_tensors(a.value, lambda path, _: inputs[path], path=(a.name,))) for a in arguments
        )

    def _measure(self, tensor, produced=True) -> TensorFeatures:
        role = "call" if produced else self.roles.get(id(tensor), (None, "constant"))[1]
        stamp = self.producers.stamp(tensor)
        reference, known_stamp, features = self.measured.get(id(tensor), (None, None, None))
        if features is None or reference() is not tensor or known_stamp != stamp:
            features = measure(tensor, role)
            self.measured[id(tensor)] = (weakref.ref(tensor), stamp, features)
        if features.role != role or features.requires_grad != tensor.requires_grad:
            features = dataclasses.replace(features, role=role, requires_grad=tensor.requires_grad)
        return features

    def _record(self, node, api, bound, tensors, outputs, inplace, random, source):
        first, aliases = {}, []
        for path, tensor in tensors:
            if id(tensor) in first:
                aliases.append((path, first[id(tensor)]))
            first.setdefault(id(tensor), path)
        features = tuple(self._measure(tensor) for tensor in outputs)
        self.calls.append(
            CallRecord(
                self.name, node, self.sample, api.name, api.target, self.stack[-1], source, bound, features,
                tuple(aliases), inplace, random,
            )
        )  # fmt: skip

    def graph(self) -> ApiGraph:
        notes = [f"{text} ({number} times)" for text, number in self.remarks.items()]
        if self.strange:
            notes.append(f"tensors that come from unseen code: {len(self.strange)}, the first in {self.strange[0]}")
        return ApiGraph(self.name, tuple(self.nodes), tuple(self.edges), tuple(self.wires), tuple(notes))


class _ModuleHooks:
    """Keeps the path of the innermost running module."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __enter__(self):
        stack, paths = self.recorder.stack, self.recorder.paths

        def enter(module, args):
            stack.append(paths.get(id(module), stack[-1]))

        def leave(module, args, output):
            stack.pop()

        register = torch.nn.modules.module
        self.handles = [
            register.register_module_forward_pre_hook(enter),
            register.register_module_forward_hook(leave, always_call=True),  # also where the model catches an error
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
    """``file.py:line`` of the innermost frame outside torch and the tracer."""
    frame = sys._getframe(2)
    while frame:
        filename = frame.f_code.co_filename
        if filename not in _OWN and not filename.startswith(_TORCH):
            marker = "site-packages/"
            short = filename.split(marker, 1)[1] if marker in filename else Path(filename).name
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
