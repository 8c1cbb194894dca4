"""What the proof of a trace needs beside graph and records, kept while the model runs."""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch._C import _functorch

from sortlib import apis
from sortlib.errors import SortError
from sortlib.features import Opaque, plain
from sortlib.tracing import _OWN, TraceError, Tracer, _Recorder, _same_attention, _tensor_arguments, refuse_unseen

_OWN.add(__file__)  # a call's source line is not this file's

# Return memory as it is found. It is set to zero in the run and in the replay, so that both see the same.
UNINITIALISED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


class Digest(NamedTuple):
    """Form and values of a tensor; ``values`` is empty where there are none to read (meta, nested)."""

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
    mode.evidence.random.update(random_states())
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
        strides = tuple(tensor.stride()) if dense else ()
        values = ""
        if not (tensor.is_nested or tensor.is_meta or _functorch.is_functorch_wrapped_tensor(tensor)):
            known = tensor.int_repr() if tensor.is_quantized else tensor if dense else tensor.to_dense()
            flat = known.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            values = hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=16).hexdigest()
        return Digest(str(tensor.dtype), tuple(tensor.shape) if not tensor.is_nested else (), strides, values)


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


def random_states() -> dict:
    """States of the random generators of the CPU and of CUDA devices in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states
