"""What a platform is, and which ones this machine has (DESIGN decision 6).

A platform is a specification: device, environment, backend flags, memory format, dtype, eager or compiled, and the
Python interpreter to use. It becomes real only in a worker process of its own, since some settings are read once at
the start of a process.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field

from sortlib.errors import SortError, choices


@dataclass(frozen=True)
class Platform:
    """Where and how calls are executed.

    Attributes
    ----------
    name : as the user wrote it, for example ``cpu:baseline``.
    device : torch device type.
    what : for people.
    env : environment variables of the worker process.
    backends : flags below ``torch.backends``, by dotted name.
    dtype : floating-point inputs are rounded to it; None leaves them.
    memory_format : ``channels_last`` or None.
    compile : run every call through ``torch.compile``.
    threads : intra-operator threads; None leaves PyTorch's choice.
    python : interpreter of the worker; None is the running one.
    imports : modules that register an out-of-tree backend.
    """

    name: str
    device: str
    what: str = ""
    env: dict = field(default_factory=dict)
    backends: dict = field(default_factory=dict)
    dtype: str | None = None
    memory_format: str | None = None
    compile: bool = False
    threads: int | None = None
    python: str | None = None
    imports: tuple[str, ...] = ()

    def to_json(self) -> dict:
        """The form that workers read."""
        return {**asdict(self), "imports": list(self.imports)}


def _table() -> dict:
    from sortlib.config import data_dir, read_yaml

    return read_yaml(data_dir() / "platforms.yaml")


def parse(text: str) -> Platform:
    """The platform behind a name such as ``cpu``, ``cpu:baseline`` or ``cuda:no-tf32+channels_last``.

    Raises
    ------
    SortError
        An unknown device or variant, or a variant that makes no sense on the device.
    """
    table = _table()
    device, _, rest = str(text).partition(":")
    if device not in table["devices"]:
        raise SortError(f"unknown platform {text!r}: no device {device!r}; valid devices: {choices(table['devices'])}")
    merged = {"what": table["devices"][device]["what"], "env": {}, "backends": {}}
    for variant in filter(None, rest.split("+")):
        known = {n for n, v in table["variants"].items() if device in v.get("devices", [device])}
        if variant not in known:
            raise SortError(f"unknown platform {text!r}: no variant {variant!r} of {device}; valid: {choices(known)}")
        for key, value in table["variants"][variant].items():
            if key == "devices":
                continue
            if key in ("env", "backends"):
                merged[key].update(value)
            elif key == "what":
                merged["what"] = (
                    f"{value}" if merged["what"] == table["devices"][device]["what"] else (f"{merged['what']}; {value}")
                )
            else:
                merged[key] = value
    return Platform(name=str(text), device=device, **merged)


def missing(platform: Platform) -> str:
    """Why this machine lacks the platform, or an empty text where it has it."""
    import torch

    if platform.device == "cpu":
        return ""
    if platform.device == "cuda":
        if not torch.backends.cuda.is_built():
            return "this PyTorch is built without CUDA"
        return "" if torch.cuda.is_available() else "no CUDA device or driver"
    if platform.device == "mps":
        return "" if torch.backends.mps.is_available() else "no Apple GPU"
    if platform.device == "xpu":
        return "" if torch.xpu.is_available() else "no Intel GPU or driver"
    return ""


def require(platform: str | Platform) -> Platform:
    """``parse``, and a clear line where this machine lacks the platform.

    A ``Platform`` made by hand is taken as it is, once the machine has its device.

    Raises
    ------
    SortError
        Names what is missing and which platforms exist here.
    """
    found = platform if isinstance(platform, Platform) else parse(platform)
    # A module that registers a backend is imported in the worker, which says what is wrong with it.
    reason = "" if found.imports else missing(found)
    if reason:
        available = platforms().query("available")["platform"]
        raise SortError(f"platform {found.name!r} is not available: {reason}; this machine has {choices(available)}")
    return found


def default_candidate() -> str:
    """The machine's accelerator, or ``cpu:baseline`` where there is none."""
    for device in ("cuda", "mps", "xpu"):
        if not missing(parse(device)):
            return device
    return "cpu:baseline"


def platforms():
    """Every known platform as a DataFrame: platform, what, available, missing (the reason)."""
    import pandas as pd

    table = _table()
    names = []
    for device in table["devices"]:
        names.append(device)
        names += [f"{device}:{n}" for n, v in table["variants"].items() if device in v.get("devices", [device])]
    rows = []
    for name in names:
        platform = parse(name)
        reason = missing(platform)
        rows.append({"platform": name, "what": platform.what, "available": not reason, "missing": reason})
    return pd.DataFrame(rows)


def worker_threads(workers: int = 2) -> int:
    """Threads for each of several worker processes that run at the same time."""
    return max(1, (os.cpu_count() or 1) // workers)
