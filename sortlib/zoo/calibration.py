"""Batch-norm statistics for random weights.

A model with random weights and untouched statistics (mean 0, variance 1) lets activations grow or die from
layer to layer. Statistics from real images put every normalised activation where it is in a trained model.
"""

from __future__ import annotations

from sortlib.zoo.raised import reported
from sortlib.zoo.spec import IMAGE_KINDS, ZooEntry

# Some batch norms see one value per channel and image (after global pooling), so a batch needs several images;
# two passes of four show every photograph of scikit-image once.
BATCH, PASSES = 4, 2


def calibration_inputs(entry: ZooEntry) -> ZooEntry:
    """The entry with the inputs that its statistics are taken on: photographs at its own size and normalisation,
    or its own inputs where it takes no images."""
    if entry.inputs.kind not in IMAGE_KINDS:
        return entry
    shape = entry.inputs.model_dump(include={"size", "mean", "std"})
    inputs = type(entry.inputs)(kind="photographs", batch=BATCH, count=PASSES, **shape)
    return entry.model_copy(update={"inputs": inputs})


def calibrate(model, calls, name="model") -> int:
    """Replace the running statistics of every batch norm by the average over forward passes.

    Only the norm layers are in training mode, so dropout and stochastic depth stay off and the result is the
    same on every run; the model is in evaluation mode afterwards.

    Parameters
    ----------
    model : ``torch.nn.Module``, changed in place.
    calls : function without arguments that returns a list of ``(args, kwargs)``; called only if needed.
    name : for the message.

    Returns
    -------
    number of layers calibrated.

    Raises
    ------
    SortError
        A forward pass raised, whatever it was.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    model.eval()
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return 0
    inputs = calls()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average: every pass has the same weight
        norm.train()
    try:
        with torch.no_grad(), reported(f"model {name!r}: forward pass for batch-norm calibration failed"):
            for args, kwargs in inputs:
                model(*args, **kwargs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.eval()
    return len(norms)
