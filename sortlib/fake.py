"""The graph of a model that is too big to run: every call is seen, none is computed.

Under PyTorch's ``FakeTensorMode`` a tensor has a dtype, a shape and strides but no memory, so a model of any size is
built and run in seconds. Patterns can be mined from such a graph; its records have no values to draw inputs from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_map_only

from sortlib import zoo
from sortlib.errors import SortError
from sortlib.tracing import TraceError, Tracer

NOTE = (
    "captured without values (FakeTensorMode): the records hold dtypes, shapes and strides only, and a model that looks"
    " at values or notices the capture may make other calls (transformers builds masks that it would leave out)"
)


def fake_trace(entry, seed: int = 0, records: bool = True):
    """Graph and records of a zoo entry on its first input, without memory for parameters and activations.

    Parameters
    ----------
    entry : ``ZooEntry``, for example ``ZooEntry(source="transformers", model="LlamaForCausalLM")``.
    seed : seed of the inputs that a custom entry draws.
    records : whether to record features.

    Returns
    -------
    graph : ``ApiGraph``, whose notes say that it was captured without values.
    records : list of ``CallRecord`` without value features (``minimum`` and the like are None).

    Raises
    ------
    SortError
        As ``sortlib.zoo.prepare``; or the model takes decisions by values, which are not there.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model, own = _built(entry, seed, mode)
    args, kwargs = (own or zoo.samples(entry))[0]
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, mode), (args, kwargs))
    try:
        with mode, _quiet():
            graph, found = Tracer(entry.name, records=records).run(model, *args, **kwargs)
    except TraceError as error:
        if not isinstance(error.__cause__, _VALUES):
            raise
        last = error.graph.nodes[-1] if error.graph.nodes else None
        where = f"after call {len(error.graph.nodes) - 1} ({last.api}, {last.source})" if last else "at its first call"
        raise SortError(
            f"model {entry.name!r}: takes a decision by the values of a tensor {where}; it cannot be captured without"
            " values, trace it as usual"
        ) from error
    return dataclasses.replace(graph, notes=(*graph.notes, NOTE), evidence=None), found


@contextlib.contextmanager
def _quiet():
    """Without PyTorch's log of the error that is about to be raised."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def _built(entry, seed, mode):
    """The model without memory; one whose constructor computes with values is built as usual and emptied."""
    try:
        with mode:
            return zoo._load(entry, seed)
    except (*_VALUES, SortError) as error:
        if not isinstance(error.__cause__ or error, _VALUES):
            raise
    model, own = zoo._load(entry, seed)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: _fake(tensor, mode) for name, tensor in tensors.items() if tensor is not None})
    return model, own


def _fake(tensor, mode):
    return tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor)
