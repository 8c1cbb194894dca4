"""Every tensor is read once: features and checksums by memory, shared by its views, readers and later runs.

During the run only a sample of each tensor is taken, with its exact range; quantiles and the rest are computed for all
tensors together when the run is over.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch._C import _functorch

from sortlib.evidence import checksum
from sortlib.features import SKETCH_SIZE, Sample, TensorFeatures, dtype_name, measure, summarise, take
from sortlib.producers import version

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KEPT = ("parameter", "buffer", "constant")
_NUMPY = {torch.float32, torch.float64, torch.int64}
PROBE = 64  # elements of a parameter that must be as they were before a reading of an earlier run is used again
_earlier = {}  # id -> (weak reference, stamp, values, {}): parameters that this process has read


class Readings:
    """Readings of one run.

    A reading is found again by the memory that the tensor covers and the number of writes into it, so that views
    of the same elements share it. Parameters are also read only once in a process, as long as PyTorch has counted no
    write and about ``PROBE`` of their elements are the same (a write through ``.data`` is not counted).
    """

    def __init__(self, producers):
        self.producers = producers
        self._found = {}  # memory -> what was read of it
        self._pool = _Pool()
        self._later = []  # (values to fill in, sample)
        self._open = []  # (features to fill in, values)
        self._read = []  # (parameter, stamp, values)

    def features(self, tensor, role) -> TensorFeatures:
        """As ``features.measure``."""
        known = self._known(tensor)
        return measure(tensor, role) if known is None else self._features(tensor, role, *known)

    def kept(self, tensor, role) -> TensorFeatures:
        """The same of a parameter or another tensor that outlives the run and that no call of this run has written."""
        reference, stamp, values, found = _earlier.get(id(tensor), _NOTHING)
        if reference() is not tensor or stamp != _stamp(tensor):
            return self.features(tensor, role)
        key = (role, tensor.requires_grad)
        if key not in found:
            found[key] = TensorFeatures.made(
                dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), role, tensor.requires_grad, values
            )
        return found[key]

    def output(self, tensor, exact) -> tuple[TensorFeatures, str]:
        """Features and ``evidence.checksum`` of a call's output."""
        known = self._known(tensor)
        if known is None:
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                return measure(tensor), checksum(tensor, exact)
        place, stamp, shape, strides = known
        key = ("checksum", stamp, _covered(tensor, shape, strides))
        found = place.get(key)
        if found is None:
            found = place[key] = _quietly(checksum, tensor, exact)
        return self._features(tensor, "call", *known), found

    def _features(self, tensor, role, place, stamp, shape, strides):
        key = (stamp, shape, strides, role, tensor.requires_grad)
        found = place.get(key)
        if found is None:
            values = self._values(tensor, place, stamp, shape, strides, role)
            found = place[key] = TensorFeatures.made(
                dtype_name(tensor.dtype), shape, strides, role, tensor.requires_grad, values
            )
            if not values:  # not yet
                self._open.append((found, values))
        return found

    def finish(self):
        """Fill in what was left for the end of the run, where it costs a third."""
        for values, found in zip(self._later, summarise([sample for _, sample in self._later]), strict=True):
            values[0].update(found)
        for features, values in self._open:
            features.__dict__.update(values)
        for tensor, stamp, values in self._read:
            _remember(tensor, stamp, values)
        self._later, self._open, self._read = [], [], []
        self._pool = _Pool()

    def _known(self, tensor):
        """(what was read of the memory, a stamp of its elements, shape, strides); None where none is kept."""
        if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            return None
        if _functorch.peek_interpreter_stack() is not None:
            return None
        memory = self.producers.memory(tensor)
        if memory is None or memory.exposed:
            return None
        place = self._found.get(memory)
        if place is None:
            place = self._found[memory] = {}
        lazy = (tensor.is_conj(), tensor.is_neg())
        stamp = (len(memory.writes), version(tensor), tensor.dtype, tensor.storage_offset(), lazy)
        return place, stamp, tuple(tensor.shape), tensor.stride()

    def _values(self, tensor, place, stamp, shape, strides, role):
        key = (stamp, _covered(tensor, shape, strides))
        values = place.get(key)
        if values is None:
            values = place[key] = self._once(tensor) if role in _KEPT else self._take(tensor)
        return values

    def _take(self, tensor):
        taken = _quietly(take, tensor)
        if isinstance(taken, Sample):
            values = {}
            self._later.append((values, taken._replace(numbers=self._pool.keep(taken.numbers))))
            return values
        return taken

    def _once(self, tensor):
        """Values of a tensor that outlives the run."""
        if not _outlives(tensor):
            return self._take(tensor)
        stamp = _stamp(tensor)
        reference, known, values, _ = _earlier.get(id(tensor), _NOTHING)
        if reference() is not tensor or known != stamp:
            values = self._take(tensor)
            self._read.append((tensor, stamp, values))
        return values


def _outlives(tensor):
    return tensor.is_contiguous() and tensor.is_cpu and not tensor.is_inference() and not tensor.is_conj()


def _stamp(tensor):
    """What shows whether a parameter has been written since."""
    data = tensor.detach().view(-1)
    data = (data if tensor.dtype in _NUMPY else data.view(torch.uint8)).numpy()
    return tensor._version, tensor.shape, tensor.dtype, data[:: (data.size // PROBE) | 1].tobytes()


_NOTHING = (lambda: None, None, None, None)


class _Pool:
    """Copies of samples, side by side in a few large blocks.

    One by one they would come to lie between the activations, whose memory could then not be used again in one piece.
    """

    def __init__(self):
        self._blocks = {}  # dtype -> (block, place of the next copy)

    def keep(self, numbers):
        block, place = self._blocks.get(numbers.dtype, (None, _BLOCK))
        if place + numbers.size > _BLOCK:
            block, place = np.empty(_BLOCK, numbers.dtype), 0
        copy = block[place : place + numbers.size]
        copy[:] = numbers
        self._blocks[numbers.dtype] = (block, place + numbers.size)
        return copy


_BLOCK = 512 * SKETCH_SIZE


def _remember(tensor, stamp, values):
    place = id(tensor)
    _earlier[place] = (weakref.ref(tensor, lambda _: _earlier.pop(place, None)), stamp, values, {})


def _covered(tensor, shape, strides):
    """The number of elements for dense memory in one of the usual orders, else the form."""
    if tensor.is_contiguous() or (len(shape) == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor.numel()
    return shape, strides


def _quietly(read, *args):
    """Without gradients; the block that switches them off costs as much as reading a small tensor."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            return read(*args)
    return read(*args)
