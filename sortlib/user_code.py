"""Which files of the user's own code a model stands on, so that a later change in one of them is seen."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).resolve().parent)


def behind(model, *files) -> dict[str, str]:
    """Source file -> SHA-256 of its content, of the user's modules that a model's classes or given files come from, and
    of those that they import.

    Parameters
    ----------
    model : ``torch.nn.Module``.
    files : further files, for example that of the function that built the model.
    """
    given = {str(Path(file).resolve()) for file in files}
    waiting = [sys.modules.get(type(part).__module__) for part in model.modules()]
    waiting += [module for module in list(sys.modules.values()) if _file(module) in given]
    seen, found = set(), {}
    while waiting:
        module = waiting.pop()
        path = _file(module)
        if path is None or id(module) in seen:
            continue
        seen.add(id(module))
        if state := _hash(path):
            found[path] = state
        waiting += [value if isinstance(value, ModuleType) else sys.modules.get(str(getattr(value, "__module__", "")))
                    for value in list(vars(module).values())]  # fmt: skip
    return dict(sorted(found.items()))


def unchanged(files: dict[str, str]) -> bool:
    """Whether files are still as ``behind`` found them."""
    return all(_hash(path) == state for path, state in files.items())


def _file(module) -> str | None:
    """The file of a module that belongs to no installed package, to Python or to sortlib."""
    file = getattr(module, "__file__", None)
    path = str(Path(file).resolve()) if isinstance(file, str) and file.endswith(".py") else None
    return None if path is None or path.startswith((*_INSTALLED, _OURS)) else path


def _hash(path) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
