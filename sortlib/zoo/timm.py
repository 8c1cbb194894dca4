"""Models of timm (PyTorch Image Models)."""

from __future__ import annotations

from sortlib.config import suggestion
from sortlib.errors import SortError
from sortlib.zoo.weights import load_checkpoint, wake


def load(entry, seed):
    """Model of ``timm.create_model``."""
    try:
        import timm
    except ImportError:
        raise SortError(f"model {entry.name!r}: source timm needs the package timm: pip install timm") from None
    names = timm.list_models()
    if entry.model.partition(".")[0] not in names:
        raise SortError(
            f"model {entry.name!r}: timm has no model {entry.model!r}"
            f"{suggestion(entry.model, names) or ';'} {len(names)} names by timm.list_models()"
        )
    try:
        model = timm.create_model(entry.model, pretrained=entry.pretrained, **entry.options)
    except TypeError as error:
        raise SortError(f"model {entry.name!r}: options: {error}") from None
    except Exception as error:  # the hub client raises many types
        if not entry.pretrained:
            raise
        reason = " ".join(str(error).split())
        raise SortError(
            f"model {entry.name!r}: timm's weights of {entry.model} could not be downloaded ({reason});"
            " set pretrained: false, or name a file in checkpoint: /path/file.pth"
        ) from None
    if entry.checkpoint:
        load_checkpoint(model, entry.checkpoint, entry.name)
    elif not entry.pretrained:
        wake(model)
    return model, None


def call(images, entry):
    """A batch of images."""
    return (images,), {}
