"""Models of torchvision."""

from __future__ import annotations

from sortlib.config import suggestion
from sortlib.errors import SortError
from sortlib.zoo.weights import load_checkpoint, wake


def load(entry, seed):
    """Model of ``torchvision.models.get_model``."""
    try:
        from torchvision import models
    except ImportError:
        raise SortError(
            f"model {entry.name!r}: source torchvision needs the package torchvision: pip install torchvision"
        ) from None
    names = models.list_models()
    if entry.model not in names:
        raise SortError(
            f"model {entry.name!r}: torchvision has no model {entry.model!r}"
            f"{suggestion(entry.model, names) or ';'} {len(names)} names by torchvision.models.list_models()"
        )
    # Detection and segmentation models would otherwise fetch weights for their backbone.
    backbone = {"weights_backbone": None} if entry.model.partition("_")[0] in _WITH_BACKBONE else {}
    options = {"weights": "DEFAULT" if entry.pretrained else None, **backbone, **entry.options}
    try:
        model = models.get_model(entry.model, **options)
    except OSError as error:
        raise SortError(
            f"model {entry.name!r}: torchvision's weights of {entry.model} could not be downloaded"
            f" ({getattr(error, 'reason', error)}); set pretrained: false, or name a file in checkpoint: /path/file.pth"
        ) from None
    except TypeError as error:
        raise SortError(f"model {entry.name!r}: options: {error}") from None
    if entry.checkpoint:
        load_checkpoint(model, entry.checkpoint, entry.name)
    elif not entry.pretrained:
        wake(model)
    return model, None


def call(images, entry):
    """A batch of images; detection models take a list of images, which may differ in size."""
    return (list(images) if entry.model.partition("_")[0] in _DETECTION else images,), {}


_DETECTION = {"fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd300", "ssdlite320"}
_WITH_BACKBONE = _DETECTION | {"fcn", "deeplabv3", "lraspp"}
