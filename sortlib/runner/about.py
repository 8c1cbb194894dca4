"""What an interpreter offers to a platform: versions, and why a device is missing. Needs only torch and numpy.

Also run as a program in other interpreters: ``about.py DEVICE [MODULE ...]`` prints one JSON line.
"""

from __future__ import annotations

import importlib
import json
import sys

OLDEST = (2, 10)  # torch


def about(device: str, imports=()) -> dict:
    """Versions of this interpreter, and the reason why it lacks a device.

    Parameters
    ----------
    device : torch device type.
    imports : modules that register an out-of-tree backend; they are imported here.

    Returns
    -------
    dict
        ``python``, ``torch`` and ``numpy`` (versions; empty where not importable) and ``missing`` (empty where all is
        there).
    """
    found = {"python": sys.version.split()[0], "torch": "", "numpy": "", "missing": ""}
    for name in ("torch", "numpy"):
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError as error:
            return {**found, "missing": f"{name} cannot be imported there: {error}"}
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST:
        return {**found, "missing": f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}"}
    for module in imports:
        try:
            importlib.import_module(module)
        except Exception as error:  # a backend may fail in any way
            return {**found, "missing": f"{module} cannot be imported: {type(error).__name__}: {error}"}
    return {**found, "missing": _device(torch, device)}


def _device(torch, device) -> str:
    if device == "cpu":
        return ""
    if device == "cuda":
        if not torch.backends.cuda.is_built():
            return "this PyTorch is built without CUDA"
        return "" if torch.cuda.is_available() else "no CUDA device or driver"
    if device == "mps":
        return "" if torch.backends.mps.is_available() else "no Apple GPU"
    if device == "xpu":
        return "" if torch.xpu.is_available() else "no Intel GPU or driver"
    try:
        torch.empty(1, device=device)
    except Exception as error:  # of the backend, whatever it is
        return f"no device {device}: {(str(error).strip().splitlines() or ['unknown'])[0]}"
    return ""


if __name__ == "__main__":
    print(json.dumps(about(sys.argv[1], sys.argv[2:])))
