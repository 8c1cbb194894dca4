"""One run of a model seen as API calls: graph and records in the same pass.

Everything stands on ``TorchFunctionMode``, which sees the calls that the paper's labels name, on any model and
without a change to its code. Its pitfalls are listed in the README under "What the tracer cannot see"; each has a test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import types
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from sortlib.arguments import wrong
from sortlib.errors import RAISED, SortError
from sortlib.features import CallRecord
from sortlib.graph import ApiGraph
from sortlib.recorder import Recorder


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
    ``graph.replay(records)`` proves both: it runs the recorded calls again and compares every output bit for bit. For
    that the graph refers to the model's parameters and inputs (``graph.without_evidence()`` lets go of them).

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

    backward : record the gradients of a training step too: the model runs with gradients on, in the mode it is in (call
        ``model.train()`` first), then backward from the loss. Batch norm updates its buffers as in training; ``grad``
        of the parameters is left as it was.
    loss : function of the model's output that returns a tensor with one element, for ``backward``; by default the mean
        of the squares of every tensor in the output, added.
    exact : prove with BLAKE2b hashes of all bytes instead of checksums that cost one pass at the speed of memory
        (``sortlib.evidence.checksum`` says what these cannot see).

    Raises
    ------
    SortError
        A name in ``open`` that is no API or has no calls inside; ``backward`` without records.
    """

    def __init__(self, name: str | None = None, sample: int = 0, records: bool = True, open: tuple[str, ...] = (),
                 backward: bool = False, loss=None, exact: bool = False):  # fmt: skip
        self.name, self.sample, self.records = name, sample, records
        self.backward, self.loss, self.exact = backward, loss, exact
        if backward and not records:
            raise SortError("backward=True needs records=True, since gradients are kept in the records")
        self.opened = {}
        if open:
            from sortlib.opening import open_calls

            self.opened = open_calls((open,) if isinstance(open, str) else open)

    def run(self, model, *args, **kwargs) -> tuple[ApiGraph, list[CallRecord]]:
        """See ``trace``."""
        if not callable(model):
            raise wrong("trace: model", "a torch.nn.Module or a function, and its inputs after it", model)
        name = self.name or (getattr(model, "__name__", None) or type(model).__name__)
        modules = list(model.named_modules()) if isinstance(model, torch.nn.Module) else []
        added = [_own_attributes(module) for _, module in modules]
        if modules:
            _refuse_unseen(name, modules, added)
        else:
            _refuse_unseen(name, [("", model)], [_own_attributes(model)])
        mode = self.recorder(name, modules, _roles(modules, added, (args, kwargs)))
        try:
            with torch.set_grad_enabled(self.backward), _same_attention(), _young_garbage(), mode:
                output = model(*args, **kwargs)
        except RAISED as error:
            if mode.gradients:
                mode.gradients.close()
            text = "".join(str(error).splitlines()[:1])
            message = f"{name} raised {type(error).__name__} in {mode.place(error)}{text and ': '}{text}"
            if isinstance(error, ModuleNotFoundError) and error.name:
                message += f"; pip install {error.name.partition('.')[0]}"
            raise TraceError(message, mode.graph(), mode.calls) from error
        finally:
            mode.readings.finish()
        if mode.gradients is None:
            return mode.graph(), mode.calls
        with torch.enable_grad():
            mode.gradients.run(name, output, self.loss)
        return mode.graph(), mode.gradients.added(mode.calls)

    def recorder(self, name, modules, roles) -> Recorder:
        """The mode that sees the calls of one run; ``modules`` are (path, module) pairs, ``roles`` as in ``_roles``."""
        gradients = None
        if self.backward:
            from sortlib.gradients import Gradients

            gradients = Gradients()
        return Recorder(name, self.sample, modules, roles, self.records, self.opened, self.exact, gradients)


def _refuse_unseen(name, modules, added):
    """Raise a SortError for a model with scripted or compiled parts, whose calls no mode sees.

    ``added`` are ``_own_attributes`` of each module.
    """
    for (path, module), own in zip(modules, added, strict=True):
        kind = _unseen(module)
        if not kind:
            for key, value in own:
                kind = _unseen(value) if isinstance(value, _FUNCTIONS) else ""
                if kind:
                    path = f"{path}.{key}".strip(".")
                    break
        if kind:
            raise SortError(f"{name}: {path or '(top)'} is {kind}, its calls cannot be seen; "
                            "trace the original nn.Module instead")  # fmt: skip


_STANDARD = frozenset(torch.nn.Module().__dict__)
_HOLD_NONE = {bool, int, float, str, type(None), torch.Size, torch.dtype, torch.device, type, np.ndarray}


def _own_attributes(module):
    """(name, value) of what a module's class has added, but for values that hold neither tensors nor functions."""
    held = getattr(module, "__dict__", {})
    return [(name, value) for name, value in held.items() if type(value) not in _HOLD_NONE and name not in _STANDARD]


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
def _young_garbage():
    """Garbage collection that looks at objects made within the block only.

    A trace makes many small objects, and each collection they cause would walk through everything that is imported.
    """
    if gc.get_freeze_count():  # somebody else's decision
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _same_attention():
    """Without the fused path of attention, which PyTorch leaves anyway as soon as somebody watches."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _roles(modules, added, inputs) -> dict[int, tuple[torch.Tensor, str]]:
    """id -> (tensor, role) of all tensors that exist before the run; holding them keeps their ids from being reused."""
    roles = {}
    for (_, module), own in zip(modules, added, strict=True):
        for name, value in own:
            if not name.startswith("_"):
                for tensor in _tensors_within(value, 2):
                    roles[id(tensor)] = (tensor, "constant")
        for held, role in ((module._buffers, "buffer"), (module._parameters, "parameter")):
            for tensor in held.values():
                if tensor is not None:
                    roles[id(tensor)] = (tensor, role)
    for tensor in _tensors_within(inputs, 8):
        roles[id(tensor)] = (tensor, "input")
    return roles


def _tensors_within(value, depth) -> Iterable[torch.Tensor]:
    """Tensors in nested containers and plain objects such as dataclasses."""
    if isinstance(value, (tuple, list)) and all(type(item) in _HOLD_NONE for item in value):
        return ()  # most containers in modules, such as the size of a kernel
    return _found_within(value, depth)


def _found_within(value, depth) -> Iterator[torch.Tensor]:
    if type(value) in _HOLD_NONE:
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _found_within(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _found_within(item, depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _found_within(vars(value), depth - 1)
