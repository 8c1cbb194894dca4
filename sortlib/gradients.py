"""Training mode of the tracer: features of the gradients of every call's inputs and outputs.

Hooks on the tensors measure each gradient as it passes and keep nothing of it, so the backward pass holds no more than
autograd does anyway.
"""

from __future__ import annotations

import dataclasses
import weakref
from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from sortlib.errors import RAISED, SortError
from sortlib.features import measure
from sortlib.producers import version


def mean_square(output) -> torch.Tensor:
    """The loss where none is given: the sum over all tensors in a model's output of the mean of their squares."""
    found = [t for t in _tensors(output) if t.requires_grad and t.numel()]
    return sum((tensor.abs().square().mean() for tensor in found), start=torch.zeros(()))


class Gradients:
    """The gradients of one run; the recorder tells it every call."""

    def __init__(self):
        self.slots = []  # features of each gradient; None until it passes
        self.calls = []  # for each call: ((path, slot), ...), (slot or None, ...)
        self._known = {}  # id -> (weak reference, count of writes, slot)
        self._leaves = {}  # id -> parameter or other leaf, whose ``grad`` is put back
        self._handles = []

    def read(self, tensors):
        """Watch the tensors that a call is about to read, before it may write them."""
        return [(path, self._slot(tensor)) for path, tensor in tensors]

    def call(self, read, outputs):
        """Note a call that returned."""
        inputs = tuple((path, slot) for path, slot in read if slot is not None)
        self.calls.append((inputs, tuple(map(self._slot, outputs))))

    def _slot(self, tensor):
        if not tensor.requires_grad or tensor.is_inference():
            return None
        reference, writes, slot = self._known.get(id(tensor), (None, None, None))
        if reference is not None and reference() is tensor and writes == version(tensor):
            return slot
        slot = len(self.slots)
        self.slots.append(None)
        self._known[id(tensor)] = (weakref.ref(tensor), version(tensor), slot)
        self._handles.append(tensor.register_hook(partial(self._passed, slot)))
        if tensor.is_leaf:
            self._leaves[id(tensor)] = tensor
        return slot

    def _passed(self, slot, gradient):
        if gradient is not None:  # of an output that nothing reads, while another one of the call is read
            self.slots[slot] = measure(gradient, "gradient")

    def run(self, name, output, loss=None):
        """Backward pass from ``loss(output)``; ``grad`` of parameters is left as it was.

        Raises
        ------
        SortError
            There is nothing to differentiate, or the backward pass raised.
        """
        value = (loss or mean_square)(output)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            form = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            )
            raise SortError(f"{name}: the loss must be a tensor with one element, not {form}")
        if not value.requires_grad:
            raise SortError(
                f"{name}: the loss depends on no tensor that requires a gradient; is the model frozen, or does it run"
                " under torch.no_grad?"
            )
        before = [(leaf, leaf.grad) for leaf in self._leaves.values()]
        try:
            for leaf, _ in before:
                leaf.grad = None
            value.backward()
        except RAISED as error:  # an own autograd function may raise anything
            text = " ".join(str(error).split())
            raise SortError(f"{name}: the backward pass raised {type(error).__name__}: {text}") from error
        finally:
            self.close()
            for leaf, gradient in before:
                leaf.grad = gradient

    def close(self):
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def added(self, records):
        """The records with the features of their gradients."""
        return [
            dataclasses.replace(
                record,
                input_gradients=tuple(
                    (path, self.slots[slot]) for path, slot in inputs if self.slots[slot] is not None
                ),
                output_gradients=tuple(None if slot is None else self.slots[slot] for slot in outputs),
            )
            for record, (inputs, outputs) in zip(records, self.calls, strict=True)
        ]


def _tensors(output):
    if hasattr(output, "__dataclass_fields__"):
        output = [getattr(output, name) for name in output.__dataclass_fields__]
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
