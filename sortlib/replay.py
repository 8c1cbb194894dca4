"""The proof of a trace: its calls run again, in order, must give every tensor back bit for bit.

What a graph and its records do not hold is kept as ``Evidence`` while the model runs: the tensors that no traced call
made (parameters, buffers, inputs, constants) and a digest of every output. Then the model is no longer needed::

    graph, records, evidence = capture(model, *args, **kwargs)
    print(replay(graph, records, evidence).describe())
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch._C import _functorch

from sortlib import apis
from sortlib.errors import SortError
from sortlib.features import Opaque, TensorFeatures, map_tensors, plain
from sortlib.graph import ApiGraph
from sortlib.tracing import (
    _OWN,
    TraceError,
    Tracer,
    _output_tensors,
    _Recorder,
    _same_attention,
    _tensor_arguments,
    refuse_unseen,
)

_OWN.add(__file__)  # a call's source line is not this file's

# Return memory as it is found. It is set to zero in the run and in the replay, so that both see the same.
UNINITIALISED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


class Digest(NamedTuple):
    """Form and values of a tensor; ``values`` is empty where memory cannot be read (meta, sparse, quantised)."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    values: str


class Made(NamedTuple):
    """A tensor object that a traced call returned."""

    node: int
    output: int


class External(NamedTuple):
    """A tensor that no traced call made, and its form when it was met first (strides None: keeps its own)."""

    tensor: torch.Tensor
    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@dataclass
class Evidence:
    """What a replay needs beside graph and records.

    Attributes
    ----------
    sources : (node, argument path) -> the ``Made`` object or the position in ``externals`` that the call was given.
    externals : tensors made outside the traced calls; held, not copied.
    before : storage -> copy of the memory of externals that the model writes, from before the first write.
    digests : for each node the ``Digest`` of each output.
    written : node -> paths of the arguments that stand for the outputs of a call that returns nothing.
    given : node -> positions in ``externals`` of the outputs of a call that cannot be repeated.
    skipped : node -> why the call is left out.
    unnamed : node -> function of a call whose name in the record does not lead back to it.
    autocast : node -> dtype that autocast was on for.
    grad : nodes at which gradients were on.
    random : states of the random generators before the run.
    """

    sources: dict[tuple[int, tuple], Made | int] = field(default_factory=dict)
    externals: list[External] = field(default_factory=list)
    before: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    digests: list[tuple[Digest, ...]] = field(default_factory=list)
    written: dict[int, tuple] = field(default_factory=dict)
    given: dict[int, tuple[int, ...]] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    unnamed: dict[int, object] = field(default_factory=dict)
    autocast: dict[int, torch.dtype] = field(default_factory=dict)
    grad: set[int] = field(default_factory=set)
    random: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Replay:
    """Result of a replay.

    Attributes
    ----------
    graph : the model's name.
    calls, outputs : how many calls ran again and how many of their outputs agree.
    skipped : calls that were left out, node -> reason.
    unnamed : names in the records that do not lead back to the function that was called.
    node : first call that differs; None if every one agrees.
    difference : that call and what differs.
    """

    graph: str
    calls: int
    outputs: int
    skipped: dict[int, str]
    unnamed: tuple[str, ...] = ()
    node: int | None = None
    difference: str = ""

    @property
    def ok(self) -> bool:
        """Whether every output of every repeated call agreed bit for bit."""
        return self.node is None

    def describe(self) -> str:
        """One line."""
        left = f"; {len(self.skipped)} calls left out ({next(iter(self.skipped.values()))})" if self.skipped else ""
        left += f"; names that lead to no operator: {', '.join(self.unnamed)}" if self.unnamed else ""
        if self.ok:
            return f"{self.graph}: {self.calls} calls replayed, {self.outputs} outputs identical bit for bit{left}"
        return f"{self.graph}: differs first in {self.difference}{left}"


def capture(model, *args, name=None, sample=0, open=(), **kwargs):
    """Trace ``model(*args, **kwargs)`` like ``sortlib.trace`` and keep the evidence for a replay.

    Returns
    -------
    graph, records, evidence.

    Raises
    ------
    SortError, TraceError
        As ``sortlib.trace``.
    """
    tracer = Tracer(name, sample, open=open)
    name = name or (getattr(model, "__name__", None) or type(model).__name__)
    refuse_unseen(model, name)
    mode = _Keeper(name, sample, True, tracer.opened, model, (args, kwargs))
    mode.evidence.random.update(_random_states())
    try:
        with torch.no_grad(), _same_attention(), mode.modules(), mode:
            model(*args, **kwargs)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        message = f"{name} raised {type(error).__name__} in {mode.place(error)}: {lines[0]}"
        raise TraceError(message, mode.graph(), mode.calls) from error
    return mode.graph(), mode.calls, mode.evidence


class _Keeper(_Recorder):
    """Records as usual and keeps the evidence."""

    def __init__(self, *args):
        super().__init__(*args)
        self.evidence = Evidence()
        self.made = {}  # id -> (weak reference, Made)
        self.known = {}  # id -> position in externals, which hold the tensor
        self.storages = {}  # storage -> whether an external lies in it
        self.pending, self.function = {}, None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in self.opened:
            self.function = func
            self._before(apis.identify(func), args, kwargs)
        result = super().__torch_function__(func, types, args, kwargs)
        if apis.identify(func).target == "torch.Tensor.data.__set__":
            origin = self._origin(args[1])
            self.made.pop(id(args[0]), None)
            self.known.pop(id(args[0]), None)
            if isinstance(origin, Made):
                self.made[id(args[0])] = (weakref.ref(args[0]), origin)
            else:
                self.known[id(args[0])] = origin
        return result

    def _before(self, api, args, kwargs):
        if api.query:
            return
        arguments = [a._replace(value=plain(a.value)) for a in apis.bind(api, args, kwargs)]
        tensors = _tensor_arguments(arguments)
        self.pending = {path: self._origin(tensor) for path, tensor in tensors}
        names = apis.written_arguments(api, arguments)
        for path, tensor in tensors:
            key = _storage(tensor)
            if path[0] in names and self.storages.get(key) and key not in self.evidence.before:
                self.evidence.before[key] = tensor.untyped_storage().clone()

    def _origin(self, tensor) -> Made | int:
        reference, made = self.made.get(id(tensor), (None, None))
        if made is not None and reference() is tensor:
            return made
        return self._external(tensor)

    def _external(self, tensor) -> int:
        place = self.known.get(id(tensor))
        if place is None:
            place = self.known[id(tensor)] = len(self.evidence.externals)
            form = (
                (tensor.storage_offset(), tuple(tensor.shape), tensor.stride()) if _settable(tensor) else (0, (), None)
            )
            self.evidence.externals.append(External(tensor, _storage(tensor), *form))
            self.storages[_storage(tensor)] = True
        return place

    def _note(self, api, arguments, bound, tensors, found, outputs, written):
        node, evidence, pending = len(self.nodes), self.evidence, self.pending
        if any(_functorch.is_functorch_wrapped_tensor(t) for t in (*outputs, *(t for _, t in tensors))):
            evidence.skipped[node] = "below a transform of torch.func"
        elif any(map(_opaque, arguments)):
            evidence.given[node] = tuple(self._external(tensor) for tensor in outputs)
        elif api.name in UNINITIALISED:
            for tensor in outputs:
                tensor.zero_()
        evidence.sources.update({(node, path): origin for path, origin in pending.items()})
        if outputs is written:
            paths = {id(tensor): path for path, tensor in reversed(tensors)}
            evidence.written[node] = tuple(paths[id(tensor)] for tensor in outputs)
        if not _resolved(api.target):
            evidence.unnamed[node] = self.function
        if torch.is_autocast_enabled("cpu"):
            evidence.autocast[node] = torch.get_autocast_dtype("cpu")
        if torch.is_grad_enabled():
            evidence.grad.add(node)
        super()._note(api, arguments, bound, tensors, found, outputs, written)
        evidence.digests.append(tuple(map(digest, outputs)))
        for position, tensor in enumerate(outputs):
            self.made[id(tensor)] = (weakref.ref(tensor), Made(node, position))


def digest(tensor) -> Digest:
    """Form and a 128-bit BLAKE2 hash of the bytes of a tensor."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        dense = tensor.layout == torch.strided and not tensor.is_nested
        wrapped = _functorch.is_functorch_wrapped_tensor(tensor)
        strides = tuple(tensor.stride()) if dense else ()
        values = ""
        if dense and not wrapped and not tensor.is_quantized and not tensor.is_meta:
            flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            values = hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=16).hexdigest()
        return Digest(str(tensor.dtype), tuple(tensor.shape) if not tensor.is_nested else (), strides, values)


def replay(graph: ApiGraph, records, evidence: Evidence) -> Replay:
    """Run the recorded calls again and compare every output with its digest.

    Arguments come from the edges (the output of the producing call), from the records (everything that is no
    tensor) and from the evidence (tensors made elsewhere, and objects that only share memory with a call's output).
    The model itself is not used and not changed.

    Parameters
    ----------
    graph, records, evidence : of one ``capture``.

    Returns
    -------
    ``Replay``; it ends at the first call that raises or differs.
    """
    memory = _Memory(evidence)
    wired = {(e.dst, w.path): Made(e.src, w.output) for e, w in zip(graph.edges, graph.wires, strict=True)
             if not w.alias}  # fmt: skip
    sources = {**evidence.sources, **wired}
    last = {}  # the call that reads an output last, after which it is let go
    for (node, _), source in sources.items():
        if isinstance(source, Made):
            last[source] = max(node, last.get(source, node))
    ending = {}
    for source, node in last.items():
        ending.setdefault(node, []).append(source)
    unnamed = tuple(sorted({graph.nodes[node].target for node in evidence.unnamed}))
    live, calls, compared, failed, difference = {}, 0, 0, None, ""
    with torch.no_grad(), _restored(evidence.random):
        for node, record in enumerate(records):
            if node in evidence.skipped:
                continue
            if node in evidence.given:
                outputs = [memory.tensor(place) for place in evidence.given[node]]
            else:
                try:
                    outputs = _again(node, record, sources, live, memory, evidence)
                    difference = _difference(outputs, evidence.digests[node])
                except Exception as error:  # whatever a call can raise is the result here
                    difference = f"raised {type(error).__name__}: {' '.join(str(error).split())}"
                if difference:
                    failed, difference = node, _place(record, difference)
                    break
                calls, compared = calls + 1, compared + len(outputs)
            live.update({Made(node, k): output for k, output in enumerate(outputs) if Made(node, k) in last})
            for source in ending.get(node, ()):
                live.pop(source, None)
    return Replay(graph.name, calls, compared, evidence.skipped, unnamed, failed, difference)


def _again(node, record, sources, live, memory, evidence):
    given = {}

    def fetch(path, _):
        source = sources[node, path]
        if isinstance(source, Made) and source not in live:
            raise LookupError(f"argument {'.'.join(map(str, path))}: call {source.node} has no output {source.output}")
        given[path] = live[source] if isinstance(source, Made) else memory.tensor(source)
        return given[path]

    arguments = [a._replace(value=map_tensors(a.value, fetch, TensorFeatures, (a.name,))) for a in record.arguments]
    args, kwargs = apis.unbind(arguments)
    dtype = evidence.autocast.get(node)
    autocast = torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()
    with torch.set_grad_enabled(node in evidence.grad), autocast:
        function = evidence.unnamed.get(node) or apis.resolve(record.target)
        result = function(*args, **kwargs)
    if node in evidence.written:
        return [given[path] for path in evidence.written[node]]
    outputs = _output_tensors(result)
    if record.api in UNINITIALISED:
        for tensor in outputs:
            tensor.zero_()
    return outputs


def _difference(outputs, digests) -> str:
    if len(outputs) != len(digests):
        return f"{len(outputs)} outputs instead of {len(digests)}"
    for position, (output, then) in enumerate(zip(outputs, digests, strict=True)):
        now = digest(output)
        for part in Digest._fields:
            before, after = getattr(then, part), getattr(now, part)
            if before != after:
                told = "values differ" if part == "values" else f"{part} {after} instead of {before}"
                return f"output {position}: {told}"
    return ""


def _place(record, text) -> str:
    return f"call {record.node} ({record.api}, module {record.module_path or '(top)'}, {record.source}): {text}"


class _Memory:
    """The externals as a replay reads them: those that the model wrote start again from the copy of before."""

    def __init__(self, evidence):
        self.evidence, self.storages, self.tensors = evidence, {}, {}

    def tensor(self, place):
        if place not in self.tensors:
            self.tensors[place] = self._fresh(self.evidence.externals[place])
        return self.tensors[place]

    def _fresh(self, external):
        tensor, found = external.tensor, external.tensor.detach()
        copy = self.evidence.before.get(external.storage)
        if copy is not None and external.storage not in self.storages:
            self.storages[external.storage] = copy.clone()
        if external.strides is not None:
            storage = self.storages.get(external.storage, tensor.untyped_storage())
            found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            found.set_(storage, external.offset, external.shape, external.strides)
        # Some calls choose their way by this flag, for example a product of a batch with one matrix.
        return found.requires_grad_(tensor.requires_grad)


def _settable(tensor) -> bool:
    """Whether storage, offset, shape and strides are all that there is to the tensor."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    lazy = tensor.is_conj() or tensor.is_neg()
    return dense and not lazy and not _functorch.is_functorch_wrapped_tensor(tensor) and type(tensor) in _PLAIN


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage(tensor):
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


def _resolved(target) -> bool:
    try:
        apis.resolve(target)
    except SortError:
        return False
    return True


def _opaque(value) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_opaque, value))
    if isinstance(value, dict):
        return any(map(_opaque, value.values()))
    return isinstance(value, Opaque)


def _random_states() -> dict:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


@contextlib.contextmanager
def _restored(states):
    """The random generators as they were before the run; afterwards as they are now."""
    now = _random_states()
    try:
        _set_random(states)
        yield
    finally:
        _set_random(now)


def _set_random(states):
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
