"""How another process of sortlib is started, also by an interpreter in which sortlib is not installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import sortlib

# Makes this package importable there without its neighbours: on the path, the folder that holds an installed sortlib
# would also offer the torch beside it.
_BOOT = (
    "import importlib.util as u, sys; f = sys.argv.pop(1); "
    "s = u.spec_from_file_location('sortlib', f + '/__init__.py', submodule_search_locations=[f]); "
    "m = sys.modules['sortlib'] = u.module_from_spec(s); s.loader.exec_module(m); "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def command(module: str, python: str | None = None, *arguments: str) -> list[str]:
    """The command line that runs a module of sortlib; ``python`` is another interpreter, None is the running one."""
    if python is None:
        return [sys.executable, "-m", module, *arguments]
    return [python, "-c", _BOOT.format(module=module), str(Path(sortlib.__file__).resolve().parent), *arguments]


def environment(python: str | None = None, extra: dict | None = None) -> dict:
    """The environment of that process: this one's, with ``extra``, and what lets it find sortlib."""
    found = {**os.environ, **(extra or {}), "PYTHONUNBUFFERED": "1"}
    if python is None:
        home = str(Path(sortlib.__file__).resolve().parent.parent)
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [home, found.get("PYTHONPATH")]))
    else:
        found.pop("PYTHONHOME", None)  # the running interpreter's
    return found
