"""What the code of a user's model raises, told in one line."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

from sortlib.errors import RAISED, SortError

_SORTLIB = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def reported(what):
    """Run a user's code; what it raises becomes a ``SortError``: ``<what>: ValueError: text (file.py, line 3)``.

    The error is chained, so that a notebook shows the user's own frames as well. An interrupt goes on.
    """
    try:
        yield
    except SortError:
        raise
    except RAISED as error:
        raise SortError(f"{what}: {told(error)}") from error


def told(error) -> str:
    """``ValueError: text (file.py, line 3)``, the place being the innermost frame outside PyTorch and sortlib."""
    import torch

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    libraries = (_SORTLIB, Path(torch.__file__).resolve().parent)
    own = [frame for frame in frames if not any(map(Path(frame.filename).resolve().is_relative_to, libraries))]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{text and ': '}{text}{place}"
