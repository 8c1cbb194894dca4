"""What a platform is, and which ones this machine has (DESIGN decision 6).

A platform is a specification: device, environment, backend flags, memory format, dtype, autocast, eager or compiled,
and the Python interpreter to use. It becomes real only in a worker process of its own, since some settings are read
once at the start of a process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from sortlib.arguments import flag
from sortlib.errors import SortError, choices, suggestion
from sortlib.runner import launch
from sortlib.runner.about import about
from sortlib.simdev.platforms import SIMDEV, simdev_missing, simdev_variants

OWN_FILE = "SORTLIB_PLATFORMS"  # environment variable that names a person's own file of platforms
TWIN = Path(__file__).with_name("runner") / "platforms.json"  # data/platforms.yaml once more; see platform_files
_ABOUT_TIMEOUT = 180  # seconds; importing torch from a cold disk can take a minute


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
    python : path of the worker's interpreter; None is the running one. It needs torch 2.10 or newer and numpy.
    imports : modules that register an out-of-tree backend.
    autocast : calls run under ``torch.autocast`` to this dtype; None is without.
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
    autocast: str | None = None

    @property
    def precision(self) -> str | None:
        """The dtype that the platform itself rounds inputs to, if any."""
        return self.dtype or self.autocast

    def rounds_more_than(self, reference: Platform) -> bool:
        """Whether this platform rounds its inputs otherwise than the reference, so that even exact APIs differ."""
        return self.precision not in (None, reference.precision)

    def to_json(self) -> dict:
        """The form that workers read."""
        return {**asdict(self), "imports": list(self.imports)}

    @classmethod
    def from_json(cls, form: dict) -> Platform:
        """Read ``to_json``'s form."""
        return cls(**{**form, "imports": tuple(form["imports"])})


def _table() -> dict:
    """Devices, variants and named platforms of ``data/platforms.yaml`` and of the file in ``SORTLIB_PLATFORMS``."""
    try:
        from sortlib.platform_files import known

        return known()
    except ModuleNotFoundError as error:  # only torch and numpy here: the same table as Python itself can read it
        if os.environ.get(OWN_FILE):
            raise SortError(f"{OWN_FILE} names a YAML file, and reading it needs {error.name}") from None
        return {"platforms": {}, **json.loads(TWIN.read_text(encoding="utf-8"))}


def parse(text: str, own: dict | None = None) -> Platform:
    """The platform behind a name.

    Parameters
    ----------
    text : ``device``, ``device:variant+variant`` or a named platform, each also with ``@interpreter``:
        ``cpu:baseline``, ``cuda:no-tf32+channels_last``, ``cpu@/opt/torch-2.10/bin/python``.
    own : further named platforms, name -> settings, as a study file defines them.

    Raises
    ------
    SortError
        An unknown device or variant, a variant that makes no sense on the device, or no such interpreter.
    """
    table = _table()
    named = {**table["platforms"], **(own or {})}
    for name in named:
        if name in table["devices"]:
            raise SortError(f"platform {name!r}: is a device, which a definition cannot replace; give it another name")
    text = str(text)
    name, at, python = text.partition("@")
    merged = _parsed(text, name, table, named)
    if at or merged.get("python"):
        merged["python"] = _interpreter(text, python if at else merged["python"])
        merged["what"] += f"; run by {merged['python']}"
    return Platform(name=text, **{**merged, "imports": tuple(merged["imports"])})


def _parsed(text, name, table, named) -> dict:
    head, _, rest = name.partition(":")
    if head in table["devices"]:
        merged = _add({"device": head, "what": "", "env": {}, "backends": {}, "imports": []}, table["devices"][head])
    elif head in named:
        settings = dict(named[head])
        base, what = settings.pop("base", None), settings.pop("what", None)
        start = {"device": settings.pop("device", None), "what": head, "env": {}, "backends": {}, "imports": []}
        # A base is a device with variants and no named platform, so definitions cannot run in circles.
        merged = _add(_parsed(text, base, table, {}) if base else start, settings)
        merged["what"] = what or merged["what"]
    else:
        known = f"valid devices: {choices(table['devices'])}"
        known += f"; named platforms: {choices(named)}" if named else ""
        near = suggestion(head, [*table["devices"], *named]) or ";"
        raise SortError(f"unknown platform {text!r}: no device {head!r}{near} {known}")
    device = merged["device"]
    variants = table["variants"] if device != SIMDEV else {**table["variants"], **simdev_variants()}
    known = {n for n, v in variants.items() if device in v.get("devices", [device])}
    alone = merged["what"]
    for variant in filter(None, rest.split("+")):
        if variant not in known:
            near = suggestion(variant, known) or ";"
            raise SortError(
                f"unknown platform {text!r}: no variant {variant!r} of {head}{near} valid: {choices(known)}"
            )
        settings = {key: value for key, value in variants[variant].items() if key != "devices"}
        what = settings.pop("what", variant)
        merged = _add(merged, settings)
        merged["what"] = what if merged["what"] == alone and head == device else f"{merged['what']}; {what}"
    return merged


def _add(merged, settings) -> dict:
    """Settings over others: environment and flags are joined, all else is replaced."""
    joined = {key: {**merged[key], **settings.get(key, {})} for key in ("env", "backends")}
    imports = [*merged["imports"], *(m for m in settings.get("imports", ()) if m not in merged["imports"])]
    return {**merged, **settings, **joined, "imports": imports}


def _interpreter(text, python) -> str:
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise SortError(f"platform {text!r}: no Python interpreter {python!r}")
    return os.path.abspath(found)


def describe(platform: Platform) -> dict:
    """What the platform's interpreter says: ``python``, ``torch``, ``numpy`` and ``missing``, see ``runner.about``."""
    if platform.python is None and not platform.imports:
        return about(platform.device)
    if platform.python is None and platform.device == SIMDEV:  # answered without building it
        return {**about("cpu"), "missing": simdev_missing()}
    try:
        changed = os.stat(platform.python).st_mtime_ns if platform.python else 0
    except OSError as error:
        return {"python": "", "torch": "", "numpy": "", "missing": f"{platform.python}: {error.strerror}"}
    return dict(_asked(platform.python, platform.device, platform.imports, tuple(platform.env.items()), changed))


@lru_cache(maxsize=32)
def _asked(python, device, imports, env, changed) -> dict:
    nothing = {"python": "", "torch": "", "numpy": ""}
    try:
        answer = subprocess.run(
            launch.command("sortlib.runner.about", python, device, *imports), capture_output=True, text=True,
            env=launch.environment(python, dict(env)), timeout=_ABOUT_TIMEOUT, check=False,
        )  # fmt: skip
        return json.loads(answer.stdout.splitlines()[-1])
    except OSError as error:
        return {**nothing, "missing": f"{python} cannot be started: {error.strerror}"}
    except subprocess.TimeoutExpired:
        return {**nothing, "missing": f"{python} did not answer within {_ABOUT_TIMEOUT} s"}
    except (json.JSONDecodeError, IndexError):  # it ended before it could say anything
        lines = answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"]
        return {**nothing, "missing": f"{python or 'the interpreter'}: {lines[-1][:200]}"}


def missing(platform: Platform) -> str:
    """Why this machine lacks the platform, or an empty text where it has it."""
    return describe(platform)["missing"]


def require(platform: str | Platform, own: dict | None = None) -> Platform:
    """``parse``, and a clear line where this machine lacks the platform.

    A ``Platform`` made by hand is taken as it is, once the machine has its device.

    Raises
    ------
    SortError
        Names what is missing and which platforms exist here.
    """
    found = platform if isinstance(platform, Platform) else parse(platform, own)
    # A module that registers a backend is imported in the worker, which says what is wrong with it; the worker by the
    # interpreter of a Platform made by hand likewise.
    by_hand = isinstance(platform, Platform) and platform.python is not None
    reason = "" if (found.imports and found.device != SIMDEV) or by_hand else missing(found)
    if reason:
        here = [row["platform"] for row in listing() if row["available"]]
        raise SortError(f"platform {found.name!r} is not available: {reason}; this machine has {choices(here)}")
    return found


def default_candidate() -> str:
    """The machine's accelerator, or ``cpu:baseline`` where there is none."""
    for device in ("cuda", "mps", "xpu"):
        if not missing(parse(device)):
            return device
    return "cpu:baseline"


def names(own: dict | None = None) -> list[str]:
    """Every device, every device with one variant, and every named platform."""
    table = _table()
    found = []
    for device in table["devices"]:
        found.append(device)
        found += [f"{device}:{n}" for n, v in table["variants"].items() if device in v.get("devices", [device])]
    return [*found, *table["platforms"], *(own or {})]


def listing(more=(), own: dict | None = None) -> list[dict]:
    """A row for every known platform and for each in ``more``: platform, what, available, torch, missing."""
    rows = []
    for name in dict.fromkeys([*names(own), *more]):
        try:
            platform = parse(name, own)
        except SortError as error:
            if name in more:
                raise
            rows.append({"platform": name, "what": "", "available": False, "torch": "", "missing": str(error)})
            continue
        said = describe(platform)
        rows.append({"platform": name, "what": platform.what, "available": not said["missing"],
                     "torch": said["torch"], "missing": said["missing"]})  # fmt: skip
    return rows


def platforms(*more: str, worth: bool = False, own: dict | None = None, progress: bool = True):
    """What this machine offers.

    Parameters
    ----------
    more : further platforms to list, for example ``cpu@/opt/torch-2.10/bin/python``.
    worth : also run one realistic call of each of the paper's 15 APIs on every available platform; see
        ``sortlib.worth``. The first time takes some seconds for each platform.
    own : further named platforms, name -> settings, as a study file defines them.
    progress : show a progress bar while measuring.

    Returns
    -------
    pandas.DataFrame
        A row per platform: ``platform``, ``what``, ``available``, ``torch`` (the version in its interpreter),
        ``missing`` (the reason); with ``worth`` also ``differs`` (APIs whose results differ in bits from ``cpu``),
        ``equal`` (APIs whose results do not) and ``failed`` (API -> why it gave no result).
    """
    import pandas as pd

    rows = listing(more, own)
    if flag(worth, "platforms: worth"):
        from sortlib.worth import measure

        found = measure([row["platform"] for row in rows if row["available"]], own, progress)
        rows = [{**row, **found.get(row["platform"], {})} for row in rows]
    return pd.DataFrame(rows)


def worker_threads(workers: int = 2) -> int:
    """Threads for each of several worker processes that run at the same time."""
    return max(1, (os.cpu_count() or 1) // workers)
