"""Tensors between worker processes: raw bits in files in memory (``/dev/shm`` where it exists), removed at the end.

What a case exchanges lies in one file that both workers keep mapped and that the next case uses again, since making
and mapping memory costs more than copying into it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch

# NumPy has no bfloat16 or float8: their bits travel as integers of the same size.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAPPED = 1 << 18  # bytes from which mapping a file is cheaper than reading it
_ALIGNED = 64  # bytes; as PyTorch aligns its own memory, so that kernels take the same paths
_STEP = 1 << 22  # bytes by which a shelf grows at least
_KEPT = 1 << 25  # bytes; a larger shelf is not kept for the next case, since many wait at one time
_SHELF = "tensors"
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


def claim(folder: Path) -> Path:
    """A new folder for what one case exchanges, with memory that ``release`` left behind, if there is any."""
    place = Path(tempfile.mkdtemp(prefix="case-", dir=folder))
    for used in folder.glob("free-*"):
        with contextlib.suppress(OSError):  # another thread was faster
            used.rename(place)
            break
    return place


def release(place: Path):
    """Give a claimed folder back: its memory serves the next case, unless it is a lot."""
    try:
        if (place / _SHELF).stat().st_size <= _KEPT:
            place.rename(place.with_name(f"free-{place.name}"))
            return
    except OSError:  # nothing was exchanged, or it is gone already
        pass
    shutil.rmtree(place, ignore_errors=True)


class Room:
    """Keeps what waits between two threads within bounds: one fills claimed folders, the other empties them in turn.

    Parameters
    ----------
    limit : bytes of waiting folders beyond which no further one is begun, as long as there is one to empty.
    """

    def __init__(self, limit: int):
        self._limit, self._sizes, self._closed = limit, {}, False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def fill(self, place: Path):
        """Wait until there is room; after the block, the size of what it wrote to the folder counts."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or sum(self._sizes.values()) < self._limit)
        try:
            yield
        finally:
            with self._changed, contextlib.suppress(OSError):  # nothing was written
                self._sizes[place] = (place / _SHELF).stat().st_size

    @contextlib.contextmanager
    def empty(self, place: Path):
        """After the block, the folder no longer counts."""
        try:
            yield
        finally:
            with self._changed:
                self._sizes.pop(place, None)
                self._changed.notify_all()

    def close(self):
        """Let everybody go on who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Shelf:
    """Where one case's tensors are written for the other worker, one after the other.

    Parameters
    ----------
    folder : from ``claim``.

    Raises
    ------
    OSError
        From ``save``: the memory is full.
    """

    def __init__(self, folder):
        self.path, self.used = Path(folder) / _SHELF, 0
        self.path.touch()
        self.file = self.path.stat().st_ino  # tells the files apart that bear one name after the other

    def save(self, tensor: torch.Tensor) -> dict:
        """Write a tensor's bits; the form is that of ``save_tensor``."""
        layout, tensor = _dense(tensor.detach())
        array, strides = _bits(tensor.cpu()), list(tensor.stride())
        form, memory = self._room(array.shape, array.dtype)
        np.copyto(memory, array)
        return {**form, "dtype": str(tensor.dtype).removeprefix("torch."), "strides": strides, **layout}

    def empty(self, shape) -> tuple[dict, torch.Tensor]:
        """The form of a contiguous float32 tensor and the tensor itself, for the caller to write its values."""
        form, memory = self._room(tuple(shape), np.dtype(np.float32))
        tensor = torch.from_numpy(memory)
        return {**form, "dtype": "float32", "strides": list(tensor.stride())}, tensor

    def drop(self, form: dict):
        """Take back the room of the last tensor."""
        self.used = form["offset"]

    def _room(self, shape, dtype) -> tuple[dict, np.ndarray]:
        """Memory for an array, and the part of its form that finds it."""
        start = -(-self.used // _ALIGNED) * _ALIGNED
        self.used = start + math.prod(shape) * dtype.itemsize
        memory = _mapped(self.path, self.file, self.used)[start : self.used].view(dtype).reshape(shape)
        return {"path": str(self.path), "file": self.file, "offset": start, "numpy": dtype.str,
                "shape": list(shape)}, memory  # fmt: skip


_maps = {}  # inode -> (file descriptor, memory as bytes)


def _mapped(path, inode, size) -> np.ndarray:
    """The bytes of a file of at least ``size`` bytes, grown where it is smaller."""
    descriptor, memory = _maps.get(inode, (None, np.empty(0, np.uint8)))
    if memory.size >= size:
        return memory
    if descriptor is None:
        _forget_removed()
        descriptor = os.open(path, os.O_RDWR)
    if os.fstat(descriptor).st_size < size:
        _grow(descriptor, max(size, 2 * memory.size, _STEP))
    memory = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
    _maps[inode] = descriptor, memory
    return memory


def _grow(descriptor, size):
    """Make a file longer and its memory real: a hole would be filled on first use, which kills where none is left."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    start, zeros = os.fstat(descriptor).st_size, bytes(1 << 20)
    while start < size:
        start += os.pwrite(descriptor, zeros[: size - start], start)


def _forget_removed():
    """Unmap files that are gone, whose memory would stay taken."""
    for inode, (descriptor, _) in list(_maps.items()):
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            del _maps[inode]


def _dense(tensor):
    """(what a form says of a sparse tensor's layout, the same values in every place)."""
    if tensor.layout == torch.strided:
        return {}, tensor
    return {"layout": str(tensor.layout).removeprefix("torch.")}, tensor.to_dense()


def _foreign(dtype) -> bool:
    """Whether NumPy lacks a type."""
    own = (torch.float16, torch.float32, torch.float64)
    return dtype == torch.complex32 or dtype.is_floating_point and dtype not in own


def _bits(tensor) -> np.ndarray:
    """A CPU tensor as an array; types that NumPy lacks as integers of the same size."""
    if _foreign(tensor.dtype):
        return tensor.contiguous().view(_BITS[tensor.element_size()]).numpy()
    return tensor.resolve_conj().resolve_neg().numpy()


def save_tensor(tensor: torch.Tensor, path) -> dict:
    """Write a tensor's bits; the returned form finds and rebuilds it, strides included.

    A sparse tensor is written with its zeros; rebuilding gives its layout back, not its order of elements.
    """
    layout, tensor = _dense(tensor.detach())
    strides = list(tensor.stride())
    array = np.ascontiguousarray(_bits(tensor.cpu())).reshape(tensor.shape)
    array.tofile(path)  # without a header, since parsing one costs more than a small tensor
    return {"path": str(path), "dtype": str(tensor.dtype).removeprefix("torch."), "numpy": array.dtype.str,
            "shape": list(array.shape), "strides": strides, **layout}  # fmt: skip


def _read(form, mapped):
    """The array behind a form; ``mapped`` allows memory that others share."""
    shape, dtype = tuple(form["shape"]), np.dtype(form["numpy"])
    if "offset" in form:
        start, stop = form["offset"], form["offset"] + math.prod(shape) * dtype.itemsize
        array = _mapped(form["path"], form["file"], stop)[start:stop].view(dtype).reshape(shape)
        return array if mapped else array.copy()
    if mapped and math.prod(shape) * dtype.itemsize >= _MAPPED:
        return np.memmap(form["path"], dtype, "r", shape=shape)
    return np.fromfile(form["path"], dtype).reshape(shape)


def _native(tensor):
    """The same values in a type that NumPy has."""
    if not _foreign(tensor.dtype):
        return tensor
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)


def load_array(form: dict) -> np.ndarray:
    """The values as a NumPy array (bfloat16 and float8 as float32), mapped from the file where it is large."""
    array = _read(form, mapped=True)
    dtype = getattr(torch, form["dtype"])
    return _native(torch.from_numpy(np.array(array)).view(dtype)).numpy() if _foreign(dtype) else array


def load_tensor(form: dict, shared: bool = False) -> torch.Tensor:
    """The tensor with its dtype and strides; in memory of its own, or where ``shared`` is true in the case's shelf."""
    array = _read(form, mapped=shared and "offset" in form)
    tensor = torch.from_numpy(array).view(getattr(torch, form["dtype"]))
    if "layout" in form:
        return tensor.to_sparse(layout=getattr(torch, form["layout"]))
    if 0 in form["strides"] or list(tensor.stride()) == form["strides"]:
        return tensor
    return torch.empty_strided(tensor.shape, form["strides"], dtype=tensor.dtype).copy_(tensor)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """An output tensor as NumPy array on the CPU (bfloat16 and float8 as float32)."""
    tensor = _dense(tensor.detach())[1].cpu().resolve_conj().resolve_neg().contiguous()
    return _native(tensor).numpy()
