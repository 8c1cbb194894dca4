"""Which files of the user's own code are loaded, so that a later change in one of them is seen."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path

_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).resolve().parent)


def loaded() -> dict[str, str]:
    """Source file -> SHA-256 of its content, of every loaded module that is not Python's, installed or sortlib's.

    The script or notebook that runs is none of them: it decides nothing about a model that a zoo names.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            continue
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if isinstance(file, str) and file.endswith(".py") else None
        if path is not None and not str(path).startswith((*_INSTALLED, _OURS)) and (state := _hash(path)):
            found[str(path)] = state
    return found


def unchanged(files: dict[str, str]) -> bool:
    """Whether files are still as ``loaded`` found them."""
    return all(_hash(Path(path)) == state for path, state in files.items())


def _hash(path):
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
