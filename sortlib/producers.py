"""Which call wrote a tensor last: by object and by memory, without keeping any tensor alive."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import torch
from torch._C import _functorch


class Source(NamedTuple):
    """The last writer of a tensor: ``alias`` where it wrote other memory or another view of it than this object."""

    node: int
    output: int
    alias: bool


class _Region(NamedTuple):
    """Bytes of a storage that a view covers."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


class _Write(NamedTuple):
    node: int
    output: int
    region: _Region


class Memory:
    """One storage: the output that it was made for (empty if no traced call made it), and all later writes.

    A weak reference keeps the storage's address from being given to another one, not the values. It is PyTorch's bare
    one: ``torch.multiprocessing.reductions.StorageWeakRef`` around it takes ten times as long. A storage that lives on
    anyway is held itself (``kept``).
    """

    __slots__ = ("maker", "writes", "exposed", "_weak", "_kept", "__weakref__")

    def __init__(self, storage, maker=(), kept=False):
        self.maker, self.writes = maker, []
        self.exposed = False  # code outside PyTorch may write at any time
        self._kept = storage if kept else None
        self._weak = None if kept else storage._weak_ref()

    def gone(self) -> bool:
        """Whether the storage is no more."""
        return self._weak is not None and _expired(self._weak)

    def let_go(self, free=torch.UntypedStorage._free_weak_ref):
        """Give the address free."""
        if self._weak is not None:
            free(self._weak)
            self._weak = None

    def __del__(self):
        self.let_go()


_expired = torch.UntypedStorage._expired


class Producers:
    """Bookkeeping of outputs and writes of all traced calls.

    The latest writer wins. Writes through views are found by memory: a tensor depends on the last call that wrote any
    of its own bytes, so that the halves of a chunked tensor stay apart.
    """

    def __init__(self):
        self._objects = {}  # id -> (weak reference, source, memory, how many writes of the memory had happened)
        self._memories = {}
        self._passing, self._limit = [], 8  # memory that calls have made, not yet known to be gone
        self._held = {}  # id -> (tensor, its memory) of tensors that no call had made when they were met

    def made(self, tensor, node, output):
        """Note that call ``node`` returned the tensor as its output number ``output``."""
        memory = self.memory(tensor, node, output)
        writes = len(memory.writes) if memory is not None else 0
        self._objects[id(tensor)] = (weakref.ref(tensor), Source(node, output, False), memory, writes)

    def wrote(self, tensor, node, output=0):
        """Note that call ``node`` wrote into the tensor's memory."""
        memory = self.memory(tensor)
        if memory is not None:
            memory.writes.append(_Write(node, output, _region(tensor)))

    def expose(self, tensor):
        """Note that the tensor's memory was given to code that PyTorch does not see."""
        memory = self.memory(tensor)
        if memory is not None:
            memory.exposed = True

    def replace(self, tensor, value):
        """Note that the tensor now holds another one's memory (``tensor.data = value``)."""
        source = self.find(value)
        self._objects.pop(id(tensor), None)
        self._held.pop(id(tensor), None)
        if source is not None:
            self.made(tensor, source.node, source.output)

    def returned(self, tensor) -> tuple[int, int] | None:
        """(node, output) of the call that returned this very object last, whoever wrote into it since."""
        reference, source, _, _ = self._objects.get(id(tensor), _NEVER)
        return source[:2] if reference() is tensor else None

    def find(self, tensor) -> Source | None:
        """The last writer, or None for a tensor that no traced call wrote.

        Memory met here first was made by no traced call.
        """
        reference, source, made, before = self._objects.get(id(tensor), _NEVER)
        if reference is _nothing:
            held, memory = self._held.get(id(tensor), _NOT_HELD)
            if held is tensor:
                if not memory.writes:
                    return None
            elif type(tensor) is torch.nn.Parameter and self._hold(tensor):
                return None
        memory = self.memory(tensor)
        # Otherwise its id belonged to an object that is dead, or it was pointed to other memory.
        returned = reference() is tensor and made is memory
        if memory is not None:
            writes = memory.writes
            if writes and not (returned and before == len(writes)):
                region = _region(tensor)
                for write in reversed(writes[before if returned else 0 :]):
                    if _overlap(write.region, region):
                        return Source(write.node, write.output, True)
            if not returned and memory.maker:
                return Source(*memory.maker, True)
        return source if returned else None

    def _hold(self, tensor) -> bool:
        """Keep a parameter whose memory is met here first; it lives on anyway, and most have no other way to be met."""
        key = _key(tensor)
        if key is None or key in self._memories:
            return False
        memory = self._memories[key] = Memory(_inner(tensor).untyped_storage(), kept=True)
        self._held[id(tensor)] = (tensor, memory)
        return True

    def memory(self, tensor, *maker) -> Memory | None:
        """The record of the tensor's storage; ``maker`` (node, output) is taken where it is met for the first time."""
        key = _key(tensor)
        memory = self._memories.get(key)
        if memory is None and key is not None:
            memory = self._memories[key] = Memory(_inner(tensor).untyped_storage(), maker)
            if maker:
                self._passing.append((key, memory))
                if len(self._passing) >= self._limit:
                    self._forget()
        return memory

    def _forget(self):
        """Let go of memory that is gone, since even a weak reference keeps a few bytes of it, which divide the heap."""
        alive = []
        for key, memory in self._passing:
            if memory.gone():
                del self._memories[key]
                memory.let_go()
            else:
                alive.append((key, memory))
        self._passing, self._limit = alive, 8 + 2 * len(alive)


def _nothing():
    return None


_NEVER = (_nothing, None, None, 0)  # of an object that no traced call has returned
_NOT_HELD = (None, None)


def versions_of(tensors) -> list:
    """``version`` of the tensors of (path, tensor) pairs."""
    try:
        return [tensor._version for _, tensor in tensors]
    except RuntimeError:  # an inference tensor among them
        return [version(tensor) for _, tensor in tensors]


def version(tensor) -> int | None:
    """PyTorch's count of writes; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def _inner(tensor):
    """The tensor below the wrappers that ``torch.func`` transforms put around it."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _key(tensor):
    if _functorch.peek_interpreter_stack() is not None:
        tensor = _inner(tensor)
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None  # sparse and similar tensors have no storage to share


def _region(tensor) -> _Region:
    tensor = _inner(tensor)
    size = tensor.element_size()
    strides = tuple(int(step) * size for step in tensor.stride())
    return _Region(int(tensor.storage_offset()) * size, tuple(map(int, tensor.shape)), strides, size)


class _Ghost:
    """A region as an array at a made-up address, which NumPy compares and nobody reads."""

    def __init__(self, region):
        self.__array_interface__ = {
            "version": 3,
            "data": ((1 << 40) + region.offset, True),
            "shape": region.shape,
            "strides": region.strides,
            "typestr": f"|V{region.itemsize}",
        }


def _overlap(one: _Region, other: _Region) -> bool:
    if one == other:
        return 0 not in one.shape
    one, other = np.asarray(_Ghost(one)), np.asarray(_Ghost(other))
    try:
        return np.shares_memory(one, other, max_work=10_000)
    except np.exceptions.TooHardError:
        return True
