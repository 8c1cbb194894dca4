"""Checkpoints into models, and the parameters that random models leave idle."""

from __future__ import annotations

import re

from sortlib.errors import SortError

# Standard deviation that vision transformers draw their tokens, embeddings and bias tables with.
TOKEN_STD = 0.02
# Layer scale that CaiT (Touvron et al. 2021, section 2) starts shallow models with.
LAYER_SCALE = 0.1


def load_checkpoint(model, path, name):
    """Load a file of weights, plain tensors only (no Python objects are unpickled).

    Accepts a state dictionary, or a dictionary that holds one under ``state_dict`` or ``model``; a leading
    ``module.`` is dropped from the keys.

    Raises
    ------
    SortError
        File missing or no weights file, a parameter without a weight, or a shape that does not fit.
    """
    import torch

    where = f"model {name!r}: checkpoint {path}"
    try:
        with torch.serialization.safe_globals(_history_types()):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise SortError(f"{where} does not exist") from None
    except Exception as error:  # damaged files raise many types
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        if found:
            raise SortError(
                f"{where} holds {found[1]} beside tensors, which could run code: save its state_dict alone"
            ) from None
        raise SortError(f"{where} is no readable file of weights") from None
    state = content
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not any(isinstance(value, torch.Tensor) for value in state.values()):
        raise SortError(f"{where} holds no state dictionary of tensors")
    state = {key.removeprefix("module."): value for key, value in state.items()}
    try:
        missing = model.load_state_dict(state, strict=False).missing_keys
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SortError(f"{where} does not fit: {lines[min(1, len(lines) - 1)]}") from None
    parameters = dict(model.named_parameters())
    absent = [key for key in missing if key in parameters]
    if absent:
        shown = ", ".join(absent[:3])
        raise SortError(f"{where} lacks {len(absent)} of the model's {len(parameters)} parameters, first {shown}")


def _history_types():
    """The harmless classes that OpenMMLab's training runs leave in their checkpoints beside the weights."""
    import sys

    import numpy as np

    types = [np.ndarray, np.dtype, np._core.multiarray._reconstruct, *(type(np.dtype(code)) for code in "dfli")]
    if "mmengine" in sys.modules:
        from mmengine.logging.history_buffer import HistoryBuffer

        types.append(HistoryBuffer)
    return types


def wake(model) -> int:
    """Give idle parameters of a randomly initialised model a value that lets their branch compute something.

    Constructors leave tokens, position embeddings and bias tables at zero and layer scales at 1e-5 or 1e-6, all
    of which training moves. Left alone, additions would add nothing and whole branches would vanish in rounding.
    Tensors of two or more dimensions that are all zero are drawn from a truncated normal distribution (standard
    deviation 0.02); those that hold one value up to 1e-3 are set to 0.1. Parameters without memory (``sortlib.fake``)
    stay as they are. Call it under the model's seed.

    Returns
    -------
    number of parameters changed.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    changed = 0
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or not parameter.numel() or isinstance(parameter, FakeTensor):
                continue
            low, high = (float(bound) for bound in torch.aminmax(parameter))
            if low != high:
                continue
            if parameter.dim() > 1 and high == 0:
                torch.nn.init.trunc_normal_(parameter, std=TOKEN_STD)
            elif 0 < high <= 1e-3:
                parameter.fill_(LAYER_SCALE)
            else:
                continue
            changed += 1
    return changed
