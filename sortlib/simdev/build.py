"""The C++ half of the device: built at first use, kept for as long as neither it nor PyTorch changes."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from sortlib.errors import SortError

SOURCES = ("runtime.cpp", "operators.cpp")
_HERE = Path(__file__).resolve().parent
_FLAGS = ("-O1",)  # the work is done by PyTorch's own kernels


def folder() -> Path:
    """Where the built device lies; ``TORCH_EXTENSIONS_DIR`` moves it, as for every extension of PyTorch."""
    import torch

    content = hashlib.sha256()
    for name in (*SOURCES, "simdev.h"):
        content.update((_HERE / name).read_bytes())
    identity = (torch.__version__, platform.machine(), sys.version_info[:2], _FLAGS, os.environ.get("CXX", ""))
    content.update(repr(identity).encode())
    cache = os.environ.get("TORCH_EXTENSIONS_DIR") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sortlib"
    )
    return Path(cache) / f"simdev-{content.hexdigest()[:16]}"


def _library() -> Path:
    return folder() / "sortlib_simdev.so"


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "c++")


def _search_path() -> str:
    # ninja from PyPI lies beside the interpreter, which is not on the path of an environment that is not activated.
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def missing() -> str:
    """Why the device cannot be had on this machine, or an empty text."""
    if _library().is_file():
        return ""
    if sys.platform == "win32":
        return "simdev is built with g++ or clang++, on Linux and macOS"
    if _compiler() is None:
        return f"no C++ compiler ({os.environ.get('CXX') or 'c++'}) to build it with; install g++ or set CXX"
    if shutil.which("ninja", path=_search_path()) is None:
        return "no ninja to build it with; pip install ninja"
    return ""


def library() -> Path:
    """The shared library, built if need be (about 15 s).

    Raises
    ------
    SortError
        There is no compiler or no ninja, or the build fails; one line with the compiler's first error.
    """
    if _library().is_file():
        return _library()
    reason = missing()
    if reason:
        raise SortError(f"simdev is not available: {reason}")
    target = folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target / "building"):
            if not _library().is_file():
                _build(target)
    except OSError as error:
        raise SortError(f"simdev cannot be built in {target}: {error.strerror or error}") from None
    return _library()


@contextlib.contextmanager
def _alone(path):
    """One process builds; the others wait, and go on if it is killed, since the system then frees the lock."""
    import fcntl

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target):
    # Its import warns where CUDA's compiler is installed without a GPU, which is of no interest here.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import cpp_extension

    # Built aside and moved when it is whole: of a build that is killed, neither half a library remains nor PyTorch's
    # own lock, for which it would wait for ever.
    work = target / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    before = os.environ.get("PATH")
    os.environ["PATH"] = _search_path()
    try:
        cpp_extension.load(
            "sortlib_simdev", [str(_HERE / name) for name in SOURCES], extra_cflags=list(_FLAGS),
            build_directory=str(work), is_python_module=False,
        )  # fmt: skip
        os.replace(work / _library().name, _library())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        lines = str(error).splitlines()
        first = next((line for line in lines if "error:" in line), lines[0] if lines else type(error).__name__)
        raise SortError(f"simdev cannot be built: {first.strip()[:300]}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if before is not None:
            os.environ["PATH"] = before
