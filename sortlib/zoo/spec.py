"""What a zoo file may say: the models of a study and the inputs they see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from sortlib.config import suggestion
from sortlib.errors import SortError, choices

# Mean and deviation of ImageNet's training images in [0, 1], the values that torchvision documents for its weights.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def _pair(value):
    """One number is a square: 224 means (224, 224)."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


IMAGE_KINDS = ("photographs", "folder", "cifar10", "imagenet")
Positive = Annotated[int, Field(ge=1, strict=True)]
Triple = tuple[float, float, float]


class Inputs(BaseModel):
    """What a model is run on: images, text or sound.

    Attributes
    ----------
    kind : ``photographs`` (colour photographs that ship inside scikit-image), ``folder`` (every image below a
        folder), ``cifar10`` (the dataset's python batches) or ``imagenet`` (a folder per class); ``text`` (the
        passage in ``data/text``, or a text file) or ``sound`` (vowels made from formants, or a WAV file).
    path : the folder on disk, needed by every kind of image but ``photographs``; the file of a text or sound.
    batch : images, stretches of text or of sound in one forward pass.
    count : forward passes, each with other ones.
    size : height and width in pixels, or one number for a square. An image is resized so that its short side
        is 256/224 of that and cut at the centre.
    mean, std : per channel (red, green, blue) on the scale 0 to 1; ImageNet's unless given.
    tokens : length of a stretch of text.
    seconds : length of a stretch of sound.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["photographs", "folder", "cifar10", "imagenet", "text", "sound"] = "photographs"
    path: Path | None = None
    batch: Positive = 1
    count: Positive = 1
    size: Annotated[tuple[Positive, Positive], BeforeValidator(_pair)] = (224, 224)
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    tokens: Positive = 32
    seconds: Annotated[float, Field(gt=0, le=60)] = 1.0

    @field_validator("std")
    @classmethod
    def _divides(cls, value):
        if min(value) <= 0:
            raise ValueError(f"must be above 0 for every channel, not {value}")
        return value

    @model_validator(mode="after")
    def _path_where_needed(self):
        if self.kind == "photographs" and self.path is not None:
            raise ValueError("path: not used by kind photographs; kinds that read a path: folder, cifar10, imagenet,"
                             " text, sound")  # fmt: skip
        if self.kind in ("folder", "cifar10", "imagenet") and self.path is None:
            raise ValueError(f"path: required by kind {self.kind}")
        return self


class ZooEntry(BaseModel):
    """One model of a zoo.

    Attributes
    ----------
    name : name in graphs, tables and file names; the model's own name unless given.
    source : ``openmmlab``, ``torchvision``, ``timm``, ``transformers`` or ``custom``.
    model : the source's name for the model; for ``custom`` a function or class, ``package.module:function`` or
        ``path/to/file.py:function``.
    pretrained : load the source's published weights, which needs a network unless they are cached.
    checkpoint : file of weights to load instead.
    options : keyword arguments for the source's constructor.
    inputs : what the model is run on; keys that are not given come from the zoo's own ``inputs``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: Literal["openmmlab", "torchvision", "timm", "transformers", "custom"]
    model: str
    pretrained: bool = False
    checkpoint: Path | None = None
    options: dict[str, Any] = {}
    inputs: Inputs = Inputs()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw):
        if isinstance(raw, dict) and "name" not in raw:
            raw = {"name": str(raw.get("model", "unnamed")).rpartition(":")[2], **raw}
        return raw

    @field_validator("name")
    @classmethod
    def _fits_a_file_name(cls, value):
        if not value or value.startswith(".") or not all(c.isalnum() or c in "._+-" for c in value):
            raise ValueError(f"{value!r} must be letters, digits and . _ + - only, since files are named after it")
        return value

    @model_validator(mode="after")
    def _one_origin_of_weights(self):
        if self.pretrained and self.checkpoint:
            raise ValueError("checkpoint: not together with pretrained: true; choose one")
        return self

    @model_validator(mode="after")
    def _inputs_that_fit(self):
        if self.source in ("openmmlab", "torchvision", "timm") and self.inputs.kind not in IMAGE_KINDS:
            raise ValueError(
                f"inputs.kind: source {self.source} takes images, not {self.inputs.kind}; valid: {choices(IMAGE_KINDS)}"
            )
        return self


class Zoo(BaseModel):
    """The content of a zoo file.

    Attributes
    ----------
    seed : seed of all random weights.
    inputs : inputs of every entry that does not give its own.
    models : the entries, in order, with distinct names.
    name : name of the zoo, the file's name without ``.yaml`` unless given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "zoo"
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    inputs: Inputs = Inputs()
    models: Annotated[list[ZooEntry], Field(min_length=1)]
    _file: Path | None = PrivateAttr(None)  # where it was read from, for messages

    @model_validator(mode="before")
    @classmethod
    def _share_inputs(cls, raw):
        """Fill every entry's inputs from the zoo's, so that an entry stands alone afterwards."""
        if not isinstance(raw, dict) or not isinstance(raw.get("models"), list):
            return raw
        shared = raw.get("inputs", {})
        try:
            Inputs.model_validate(shared)
        except ValidationError:
            return raw  # reported once, at the zoo's own inputs
        entries = [
            {**entry, "inputs": _merged(shared, entry.get("inputs", {}))} if isinstance(entry, dict) else entry
            for entry in raw["models"]
        ]
        return {**raw, "models": entries}

    @model_validator(mode="after")
    def _distinct_names(self):
        names = [entry.name for entry in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: the name {name!r} occurs {names.count(name)} times; give each its own name")
        return self

    def entry(self, name) -> ZooEntry:
        """The entry with this name; ``SortError`` with the near matches and the names there are."""
        found = next((entry for entry in self.models if entry.name == name), None)
        if found is None:
            names = [entry.name for entry in self.models]
            near = suggestion(name, names) or ";"
            raise SortError(f"zoo {self.name!r} has no model {name!r}{near} models: {choices(names)}")
        return found


def _merged(shared, own):
    """An entry's inputs over the zoo's; a path belongs to its kind and is not handed on to another one."""
    if not isinstance(own, dict):
        return own
    if own.get("kind", shared.get("kind")) != shared.get("kind"):
        shared = {key: value for key, value in shared.items() if key != "path"}
    return {**shared, **own}
