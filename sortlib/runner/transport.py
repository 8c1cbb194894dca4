"""Tensors between worker processes: raw files in memory (``/dev/shm`` where it exists), removed after each case."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

# NumPy has no bfloat16 or float8: their bits travel as integers of the same size.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAPPED = 1 << 18  # bytes from which mapping a file is cheaper than reading it
_PREFIX = "sortlib-"
_LOCK = "in-use"


def memory_dir() -> str:
    """A directory in memory where the system has one, else the temporary directory."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


@contextlib.contextmanager
def exchange_folder():
    """A folder for the tensors of one campaign, removed at the end.

    A process that is killed cannot tidy up, so folders that no living process holds are removed here first. The
    lock on a folder ends with its process, whatever ended it.
    """
    home = Path(memory_dir())
    for folder in home.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(folder / _LOCK) as lock:
            if _locked(lock):
                shutil.rmtree(folder, ignore_errors=True)
    # Locked before it bears the name that others look for.
    new = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=home))
    folder = new.with_name(new.name[1:])
    try:
        with open(new / _LOCK, "w") as lock:
            _locked(lock)
            new.rename(folder)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _locked(file) -> bool:
    """Take the lock of an open file; False where another process holds it, or the system has no such locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def save_tensor(tensor: torch.Tensor, path) -> dict:
    """Write a tensor's bits; the returned form finds and rebuilds it, strides included."""
    strides = list(tensor.stride())
    tensor = tensor.detach().cpu().contiguous()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        array = tensor.view(_BITS[tensor.element_size()]).numpy()
    else:
        array = tensor.resolve_conj().resolve_neg().numpy()
    array.tofile(path)  # without a header, since parsing one costs more than a small tensor
    return {"path": str(path), "dtype": str(tensor.dtype).removeprefix("torch."), "numpy": array.dtype.str,
            "shape": list(array.shape), "strides": strides}  # fmt: skip


def _read(form, mapped):
    shape, dtype = tuple(form["shape"]), np.dtype(form["numpy"])
    if mapped and math.prod(shape) * dtype.itemsize >= _MAPPED:
        return np.memmap(form["path"], dtype, "r", shape=shape)
    return np.fromfile(form["path"], dtype).reshape(shape)


def load_array(form: dict) -> np.ndarray:
    """The values as a NumPy array (bfloat16 and float8 as float32), mapped from the file where it is large."""
    array = _read(form, mapped=True)
    dtype = getattr(torch, form["dtype"])
    if dtype.is_floating_point and dtype not in (torch.float16, torch.float32, torch.float64):
        return torch.from_numpy(np.array(array)).view(dtype).float().numpy()
    return array


def load_tensor(form: dict) -> torch.Tensor:
    """The tensor with its dtype and strides, in memory of its own."""
    array = _read(form, mapped=False)
    tensor = torch.from_numpy(array).view(getattr(torch, form["dtype"]))
    if 0 in form["strides"] or list(tensor.stride()) == form["strides"]:
        return tensor
    return torch.empty_strided(tensor.shape, form["strides"], dtype=tensor.dtype).copy_(tensor)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """An output tensor as NumPy array on the CPU (bfloat16 and float8 as float32)."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    return tensor.numpy()
