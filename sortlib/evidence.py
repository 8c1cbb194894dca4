"""What the proof of a trace needs beside graph and records, kept while the model runs.

No activation is kept: tensors made outside the traced calls (parameters, buffers, inputs, constants) are referred to,
their memory is copied only where the model writes it, and every output leaves a checksum.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from sortlib import apis
from sortlib.api_tables import UNINITIALISED
from sortlib.errors import SortError
from sortlib.features import Opaque, memory_order

COLUMNS = 1021  # prime, so that no step of a tensor's own shape is a whole number of rows
WHOLE = 1 << 14  # bytes up to which a tensor is hashed as it is


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
    exact : whether the digests are BLAKE2b of all bytes instead of checksums (see ``checksum``).
    sources : (node, argument path) -> the ``Made`` object or the position in ``externals`` that the call was given,
        where no edge of the graph says so.
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

    exact: bool = False
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


class Keeper:
    """Collects the evidence of one run; the recorder tells it every call."""

    def __init__(self, producers, exact=False):
        self.producers, self.evidence = producers, Evidence(exact, random=random_states())
        self.known = {}  # id -> position in externals, which hold the tensor
        self.storages = set()  # that externals lie in
        self.function = None  # of the call in progress

    def before(self, func, names, tensors, found):
        """Note where the arguments come from, and save memory that the call will write.

        Parameters
        ----------
        names : names of the arguments that are written.
        tensors, found : (path, tensor) of every tensor argument, and its last writer or None.
        """
        self.function = func
        pending = {}
        for (path, tensor), source in zip(tensors, found, strict=True):
            if source is None or source.alias:
                pending[path] = self.origin(tensor)
            if path[0] in names:
                key = _storage(tensor)
                if key in self.storages and key not in self.evidence.before:
                    self.evidence.before[key] = tensor.untyped_storage().clone()
        return pending

    def origin(self, tensor) -> Made | int:
        """The object that the replay must give."""
        made = self.producers.returned(tensor)
        return self._external(tensor) if made is None else Made(*made)

    def pointed(self, tensor, origin):
        """Note ``tensor.data = value``, where ``origin`` is that of the value."""
        if isinstance(origin, int):
            self.known[id(tensor)] = origin
        else:
            self.known.pop(id(tensor), None)

    def _external(self, tensor) -> int:
        place = self.known.get(id(tensor))
        if place is None:
            place = self.known[id(tensor)] = len(self.evidence.externals)
            form = (0, (), None)
            if _settable(tensor):
                form = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
            key = _storage(tensor)
            self.evidence.externals.append(External(tensor, key, *form))
            self.storages.add(key)
        return place

    def after(self, node, api, arguments, pending, tensors, outputs, written):
        """Note a call that returned; ``written`` are the tensors that it wrote."""
        evidence = self.evidence
        if _functorch.peek_interpreter_stack() is not None and any(
            _functorch.is_functorch_wrapped_tensor(t) for t in (*outputs, *(t for _, t in tensors))
        ):
            evidence.skipped[node] = "below a transform of torch.func"
        elif any(_opaque(a.value) for a in arguments):
            evidence.given[node] = tuple(self._external(tensor) for tensor in outputs)
        elif api.name in UNINITIALISED:
            for tensor in outputs:
                tensor.zero_()
        for path, origin in pending.items():
            evidence.sources[node, path] = origin
        if outputs is written:
            paths = {id(tensor): path for path, tensor in reversed(tensors)}
            evidence.written[node] = tuple(paths[id(tensor)] for tensor in outputs)
        if not resolved(api.target):
            evidence.unnamed[node] = self.function
        if torch.is_autocast_enabled("cpu"):
            evidence.autocast[node] = torch.get_autocast_dtype("cpu")
        if torch.is_grad_enabled():
            evidence.grad.add(node)


def digest(tensor, exact: bool = False) -> Digest:
    """Form and ``checksum`` of a tensor."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return Digest(*form(tensor), checksum(tensor, exact))


def form(tensor) -> tuple:
    """dtype, shape and strides as a ``Digest`` has them."""
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return (
        str(tensor.dtype),
        tuple(tensor.shape) if not tensor.is_nested else (),
        tuple(tensor.stride()) if dense else (),
    )


def checksum(tensor, exact: bool = False) -> str:
    """128 bits over every bit of a tensor's elements in the order of memory.

    Up to 16 KiB, and always where ``exact``, they are the BLAKE2b hash of the bytes. A larger tensor is read as rows of
    1021 words of 64 bits, the rows are added column by column modulo 2**64, and the sums are hashed with the words that
    are left over; that costs one pass at the speed of memory. Whatever changes one word is seen. A change that does
    not depend on the checksum passes unseen where the sums of all columns stay the same: with probability 2**-64
    for each changed column if the differences are spread over all bits. Rows that change places are not seen, nor is
    the top bit changed an even number of times in every column: ask for ``exact`` where that could be.

    Returns
    -------
    32 hexadecimal digits; empty where there are no values (meta, fake, nested, below a transform of ``torch.func``).
    """
    if tensor.is_nested or tensor.is_meta or isinstance(tensor, FakeTensor):
        return ""
    if _functorch.peek_interpreter_stack() is not None:
        if _functorch.is_functorch_wrapped_tensor(tensor):
            return ""
        with temporarily_clear_interpreter_stack():
            return checksum(tensor, exact)
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    elif tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = memory_order(tensor.detach().resolve_conj().resolve_neg()).contiguous()
    if flat.device.type != "cpu" and not exact and flat.nbytes > WHOLE:
        return _on_device(flat)
    data = flat.cpu().view(torch.uint8).numpy()
    if exact or data.size <= WHOLE:
        return hashlib.blake2b(data.data, digest_size=16).hexdigest()
    rows = data.size // (8 * COLUMNS)
    end = rows * 8 * COLUMNS
    words = torch.from_numpy(data[:end].view(np.int64))  # flat.view(int64) wants a whole number of words
    return _hashed(words.view(rows, COLUMNS).sum(0).numpy(), data[end:])


def _on_device(flat) -> str:
    """The same sums where the tensor is, so that little is copied."""
    data = flat.view(torch.uint8)
    if data.storage_offset() % 8:
        data = data.clone()
    rows = data.numel() // (8 * COLUMNS)
    end = rows * 8 * COLUMNS
    sums = data[:end].view(torch.int64).view(rows, COLUMNS).sum(0)
    return _hashed(sums.cpu().numpy(), data[end:].cpu().numpy())


def _hashed(sums, rest) -> str:
    state = hashlib.blake2b(sums.data, digest_size=16)
    state.update(rest.data)
    return state.hexdigest()


def _settable(tensor) -> bool:
    """Whether storage, offset, shape and strides are all that there is to the tensor."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    lazy = tensor.is_conj() or tensor.is_neg()
    return type(tensor) in _PLAIN and dense and not lazy and not _functorch.is_functorch_wrapped_tensor(tensor)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage(tensor):
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0


_RESOLVED = {}


def resolved(target) -> bool:
    """Whether the name in a record leads back to a function."""
    known = _RESOLVED.get(target)
    if known is None:
        try:
            apis.resolve(target)
            known = True
        except SortError:
            known = False
        _RESOLVED[target] = known
    return known


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
