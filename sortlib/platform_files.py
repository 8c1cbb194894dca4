"""Platforms as data: ``data/platforms.yaml``, a person's own file, and the definitions in a study file."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from sortlib.config import data_dir, read_yaml, validated
from sortlib.errors import SortError, choices
from sortlib.platform import OWN_FILE, TWIN


def _text(value):
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_Text = Annotated[str, BeforeValidator(_text)]  # YAML reads 0 as a number; environment variables are text
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def _name(value):
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name of a platform: letters, digits, '.', '_' and '-'")
    return value


PlatformName = Annotated[str, AfterValidator(_name)]


class Settings(BaseModel):
    """What a device, a variant or a named platform may set; see ``sortlib.platform.Platform``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str = ""
    env: dict[str, _Text] = {}
    backends: dict[str, bool | int | str] = {}
    dtype: Literal["float64", "float32", "float16", "bfloat16"] | None = None
    memory_format: Literal["channels_last"] | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    compile: bool = False
    threads: Annotated[int, Field(ge=1, strict=True)] | None = None
    python: str | None = None
    imports: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _given(self, dump):
        # Only what was written, so that a definition read back from a manifest still leaves the rest to its base.
        return {key: value for key, value in dump(self).items() if key in self.model_fields_set and value is not None}


class Device(Settings):
    """A torch device type."""

    what: str


class Variant(Settings):
    """A setting that can be added to a device after a colon or a plus."""

    devices: tuple[str, ...] = ()


class OwnPlatform(Settings):
    """A named platform: a known one (``base``) or a torch device type (``device``), and what is different."""

    base: str | None = None
    device: str | None = None

    @model_validator(mode="after")
    def _one_start(self):
        if (self.base is None) == (self.device is None):
            raise ValueError("give one of base (a known platform) and device (a torch device type)")
        return self


class Table(BaseModel):
    """A file of platforms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    devices: dict[PlatformName, Device] = {}
    variants: dict[PlatformName, Variant] = {}
    platforms: dict[PlatformName, OwnPlatform] = {}


def plain(table: BaseModel) -> dict:
    """A table, or one definition, as plain values: only the keys that were given."""
    return table.model_dump(mode="json", exclude_unset=True)


def known() -> dict:
    """Devices, variants and named platforms: ``data/platforms.yaml`` and the file that ``SORTLIB_PLATFORMS`` names.

    Raises
    ------
    SortError
        A file is missing or wrong: the file, the key and what is valid.
    """
    files = [data_dir() / "platforms.yaml"]
    if os.environ.get(OWN_FILE):
        files.append(Path(os.environ[OWN_FILE]).expanduser())
    merged = {"devices": {}, "variants": {}, "platforms": {}}
    for file in files:
        try:
            changed = file.stat().st_mtime_ns
        except OSError as error:
            place = f"{file} (named by {OWN_FILE})" if len(files) == 2 and file is files[1] else file
            raise SortError(f"{place}: cannot be read: {error.strerror}") from None
        for part, content in _read(file, changed).items():
            merged[part].update(content)
            if part == "variants":
                _check_devices(file, content, merged["devices"])
    return merged


@lru_cache(maxsize=8)
def _read(file, changed) -> dict:
    return _beside(plain(validated(Table, read_yaml(file), file)), file.parent)


def _check_devices(file, variants, devices):
    for name, variant in variants.items():
        for device in variant.get("devices", ()):
            if device not in devices:
                raise SortError(f"{file}: variants.{name}.devices: no device {device!r}; valid: {choices(devices)}")


def _beside(table, folder) -> dict:
    """Interpreters given by a relative path lie beside the file that names them."""
    for part in table.values():
        for content in part.values():
            if "python" in content:
                content["python"] = python_beside(content["python"], folder)
    return table


def python_beside(python: str, folder: Path) -> str:
    """The path of an interpreter that a file in ``folder`` names; a bare command stays as it is."""
    given = Path(python).expanduser()
    # Not resolved: the python of a virtual environment is a link, and the path of the link is what names it.
    return python if len(given.parts) == 1 else os.path.abspath(folder / given)


def write_twin() -> Path:
    """Write the form of ``data/platforms.yaml`` from which a machine without a YAML reader knows its platforms."""
    source = data_dir() / "platforms.yaml"
    TWIN.write_text(json.dumps(plain(validated(Table, read_yaml(source), source)), indent=1) + "\n", encoding="utf-8")
    return TWIN


if __name__ == "__main__":
    print(write_twin())
