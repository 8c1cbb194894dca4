"""Which call wrote a tensor last: by object and by memory, without keeping any tensor alive."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import torch
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef


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
    """One storage: the output that it was made for (None if no traced call made it), and all later writes."""

    __slots__ = ("reference", "maker", "writes", "exposed", "__weakref__")

    def __init__(self, reference, maker=None):
        self.reference, self.maker = reference, maker
        self.writes = []
        self.exposed = False  # code outside PyTorch may write at any time


class _Made(NamedTuple):
    reference: weakref.ref
    node: int
    output: int
    memory: Memory | None
    writes: int  # how many writes of the memory had happened


class Producers:
    """Bookkeeping of outputs and writes of all traced calls.

    The latest writer wins. Writes through views are found by memory: a tensor depends on the last call that wrote any
    of its own bytes, so that the halves of a chunked tensor stay apart.
    """

    def __init__(self):
        self._objects = {}
        self._memories = {}
        self._passing, self._limit = [], 8  # memory that calls have made, not yet known to be gone
        self._held = {}  # id -> (tensor, its memory) of tensors that no call had made when they were met

    def made(self, tensor, node, output):
        """Note that call ``node`` returned the tensor as its output number ``output``."""
        memory = self.memory(tensor, (node, output))
        writes = len(memory.writes) if memory is not None else 0
        self._objects[id(tensor)] = _Made(weakref.ref(tensor), node, output, memory, writes)

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
        made = self._objects.get(id(tensor))
        return (made.node, made.output) if made is not None and made.reference() is tensor else None

    def find(self, tensor) -> Source | None:
        """The last writer, or None for a tensor that no traced call wrote.

        Memory met here first was made by no traced call.
        """
        made = self._objects.get(id(tensor))
        if made is None:
            held, memory = self._held.get(id(tensor), (None, None))
            if held is tensor:
                if not memory.writes:
                    return None
            elif type(tensor) is torch.nn.Parameter and self._hold(tensor):
                return None
        if made is not None and made.reference() is not tensor:  # the id of a dead object was given to another
            made = None
        memory = self.memory(tensor)
        if made is not None and made.memory is not memory:
            made = None  # the object was pointed to other memory
        if memory is not None and memory.writes and (made is None or made.writes < len(memory.writes)):
            region = _region(tensor)
            for write in reversed(memory.writes[made.writes if made else 0 :]):
                if _overlap(write.region, region):
                    return Source(write.node, write.output, True)
        if made is not None:
            return Source(made.node, made.output, False)
        return Source(*memory.maker, True) if memory is not None and memory.maker else None

    def _hold(self, tensor) -> bool:
        """Keep a parameter whose memory is met here first; it lives on anyway, and most have no other way to be met."""
        key = _key(tensor)
        if key is None or key in self._memories:
            return False
        # The storage itself, not a weak reference, which costs more than all the rest of this.
        memory = self._memories[key] = Memory(_inner(tensor).untyped_storage())
        self._held[id(tensor)] = (tensor, memory)
        return True

    def memory(self, tensor, maker=None) -> Memory | None:
        """The record of the tensor's storage; ``maker`` is taken where it is met for the first time."""
        key = _key(tensor)
        memory = self._memories.get(key)
        if memory is None and key is not None:
            # The weak reference keeps the address from being given to another storage, not the values.
            memory = self._memories[key] = Memory(StorageWeakRef(_inner(tensor).untyped_storage()), maker)
            if maker:
                self._passing.append((key, memory))
                if len(self._passing) >= self._limit:
                    self._forget()
        return memory

    def _forget(self):
        """Let go of memory that is gone, since even a weak reference keeps a few bytes of it, which divide the heap."""
        alive = []
        for key, memory in self._passing:
            if memory.reference.expired():
                del self._memories[key]
                memory.reference = None
            else:
                alive.append((key, memory))
        self._passing, self._limit = alive, 8 + 2 * len(alive)


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
