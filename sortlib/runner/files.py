"""Files that a run appends to: neither a kill nor a full disk costs what was completed. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from sortlib.errors import SortError


class Journal:
    """Append-only JSON lines. A line is there whole or not at all, and is in the system's hands once written.

    Parameters
    ----------
    path : of the file; made with the first line. A torn last line of a killed process is cut off.
    what : of what a line is, for messages.

    Raises
    ------
    SortError
        The file cannot be read or written, or holds a line that is no JSON.
    """

    def __init__(self, path, what: str = "case"):
        self.path, self.what, self.lines = Path(path), what, 0
        self._file = None

    def read(self) -> list:
        """The values of all whole lines."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SortError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self._trouble(), self.path.open("r+b") as file:
                file.truncate(len(whole))
        values = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                values.append(json.loads(line))
            except ValueError:
                raise SortError(f"{self.path}, line {number}: is damaged: no JSON; delete the line, and the same "
                                "command makes it anew") from None  # fmt: skip
        self.lines = len(values)
        return values

    def append(self, value):
        """Write one line."""
        data = json.dumps(value).encode() + b"\n"
        with self._trouble():
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed in close()
            before = os.fstat(self._file.fileno()).st_size
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                self._file.truncate(before)
                raise
        self.lines += 1

    @contextlib.contextmanager
    def _trouble(self):
        try:
            yield
        except OSError as error:
            raise SortError(f"{self.path}: cannot be written: {error.strerror}; {self.lines} {self.what}s in it are "
                            "complete and kept, and the same command goes on from there") from None  # fmt: skip

    def close(self):
        """Close the file; a later ``append`` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


@contextlib.contextmanager
def only_one(folder):
    """Keep a second process from working in the same folder at the same time.

    Raises
    ------
    SortError
        Another process holds the folder, or it cannot be written to.
    """
    with _locked(folder, wait=False):
        yield


@contextlib.contextmanager
def alone(folder):
    """Keep other processes out of a folder for the moment that a change takes, and wait while one is in it.

    Raises
    ------
    SortError
        The folder cannot be written to.
    """
    with _locked(folder, wait=True):
        yield


@contextlib.contextmanager
def _locked(folder, wait):
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")  # not touched where it exists
    except OSError as error:
        raise SortError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise SortError(f"{folder}: another process runs these cases; wait for it, or stop it first") from None
        yield


@contextlib.contextmanager
def replacing(path, kept=""):
    """A file beside ``path`` to write to, which takes its place when the block ends.

    An interrupt, an error or a full disk leaves the old file, or none. Two processes may write the same file.

    Parameters
    ----------
    kept : for the message: what is not lost.

    Raises
    ------
    SortError
        The file cannot be written.
    """
    path = Path(path)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield new
        os.replace(new, path)
    except OSError as error:
        raise SortError(f"{path}: cannot be written: {error.strerror or error}{kept and '; '}{kept}") from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def writable(folder) -> Path:
    """A folder made where it is missing, into which files can be written: asked before the work, not after it.

    Raises
    ------
    SortError
        It cannot be made, is a file, or takes no file.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise SortError(f"{folder}: is a file; a folder is needed there") from None
    except OSError as error:
        raise SortError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return folder


def write_whole(path, data: bytes):
    """Replace a file at once; errors as ``replacing``."""
    with replacing(path) as new:
        new.write_bytes(data)
