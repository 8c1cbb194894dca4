"""The device and its faults as platforms, for ``sortlib.platform``. Nothing here imports torch or builds anything."""

from __future__ import annotations

SIMDEV = "simdev"
# Environment variables with this beginning hold names of built-in faults, separated by commas, for a worker process;
# each platform uses one of its own, so that simdev:add-bf16+mul-flaky has both.
VARIABLE = "SORTLIB_SIMDEV_FAULT"


def simdev_variants() -> dict:
    """Every built-in fault as a variant of the platform ``simdev``, in the form of ``data/platforms.yaml``."""
    from sortlib.simdev.catalogue import FAULTS

    return {
        name: {"what": f"simdev with a fault of {fault.api}: {fault.what}", "env": {f"{VARIABLE}_{name}": name}}
        for name, fault in FAULTS.items()
    }


def simdev_missing() -> str:
    """Why this machine cannot have the device, or an empty text."""
    from sortlib.simdev import build

    return build.missing()
