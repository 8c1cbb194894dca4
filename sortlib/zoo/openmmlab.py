"""Models of OpenMMLab's mmpretrain, the model zoo of the SORT paper."""

from __future__ import annotations

import contextlib
import logging
import warnings

from sortlib.config import suggestion
from sortlib.errors import SortError
from sortlib.zoo.weights import load_checkpoint, wake


def load(entry, seed):
    """Model of ``mmpretrain.get_model``; random weights depend on torch's seed alone, which the caller has set."""
    with _quiet():
        mmpretrain = _package()
        if entry.model not in set(mmpretrain.list_models()):
            names = mmpretrain.list_models()
            raise SortError(
                f"model {entry.name!r}: OpenMMLab has no model {entry.model!r}"
                f"{suggestion(entry.model, names) or ';'} {len(names)} names by mmpretrain.list_models()"
            )
        try:
            model = mmpretrain.get_model(entry.model, pretrained=False, **entry.options)
        except ImportError as error:
            package = error.name or str(error)
            raise SortError(f"model {entry.name!r} needs the package {package}: pip install {package}") from None
        except Exception as error:
            # The constructors check options by many means; without options the fault is not the zoo file's.
            if not entry.options:
                raise
            text = " ".join(str(error).split())
            raise SortError(f"model {entry.name!r}: options: {entry.model} refuses them: {text}") from error
    if entry.pretrained:
        load_checkpoint(model, _published(entry), entry.name)
    elif entry.checkpoint:
        load_checkpoint(model, entry.checkpoint, entry.name)
    else:
        wake(model)
    return model, None


def call(images, entry):
    """``mode="tensor"`` is the bare forward pass, head included, without preprocessing and loss."""
    return (images,), {"mode": "tensor"}


def _package():
    try:
        import mmpretrain
    except ImportError as error:
        raise SortError(
            f"source openmmlab needs the packages mmpretrain, mmengine and mmcv-lite (missing: {error.name}):"
            " pip install mmpretrain mmengine mmcv-lite"
        ) from None
    return mmpretrain


@contextlib.contextmanager
def _quiet():
    """Without the notices that mmcv and mmengine give on import and on building a model; errors pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _published(entry):
    """Path of the published checkpoint, downloaded into torch's hub cache the first time."""
    from pathlib import Path

    import torch
    from mmpretrain.apis.model import ModelHub

    with _quiet():
        url = ModelHub.get(entry.model).weights
    advice = "set pretrained: false, or load the file by hand and name it in checkpoint: /path/file.pth"
    if not url:
        raise SortError(f"model {entry.name!r}: OpenMMLab publishes no checkpoint of {entry.model}; {advice}")
    name = url.rpartition("/")[2]
    target = Path(torch.hub.get_dir(), "checkpoints", name)
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(target), progress=False)
        except Exception as error:  # no network shows itself in many types
            reason = " ".join(str(getattr(error, "reason", error)).split())
            raise SortError(
                f"model {entry.name!r}: checkpoint {name} could not be downloaded from {url} ({reason}); {advice}"
            ) from None
    return target
