"""The second Python environment of the tests: another torch and numpy, and nothing else of sortlib's libraries."""

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
_WHERE = "name it with SORTLIB_SECOND_PYTHON, or run 'make second'"


@lru_cache
def _found():
    """(interpreter, what it has) or (None, why there is none)."""
    beside = Path(sys.prefix).parent / ".venv-second" / "bin" / "python"
    python = os.environ.get("SORTLIB_SECOND_PYTHON") or (str(beside) if beside.is_file() else "")
    if not python:
        return None, f"no second Python environment; {_WHERE}"
    code = (
        "import importlib.util as u, json, torch, numpy; print(json.dumps([torch.__version__, "
        "[n for n in ('pandas', 'pydantic', 'yaml', 'ruamel', 'tqdm', 'typer', 'mmengine') if u.find_spec(n)]]))"
    )
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if answer.returncode:
        return None, f"{python} has no torch and numpy: {answer.stderr.strip().splitlines()[-1]}; {_WHERE}"
    return python, json.loads(answer.stdout)


@pytest.fixture(scope="session")
def second():
    """(path, torch version) of an interpreter with another torch than this one's and no library beside it."""
    python, found = _found()
    if python is None:
        pytest.skip(found)
    version, more = found
    if version == torch.__version__ or more:
        pytest.skip(f"{python} has torch {version} and {more}: not another torch alone; {_WHERE}")
    return python, version
