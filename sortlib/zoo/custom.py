"""A user's own model: a function ``package.module:function`` or ``path/to/file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

from sortlib.config import suggestion
from sortlib.errors import RAISED, SortError, choices
from sortlib.zoo.raised import told
from sortlib.zoo.weights import load_checkpoint


def load(entry, seed):
    """What the function returns: a model, ``(model, args)``, or ``(model, args, kwargs)``.

    A class serves as the function too. It is called with the entry's ``options`` as keyword arguments and with
    torch, NumPy and ``random`` seeded. ``args`` is what to call the model with (a single tensor or a tuple);
    without it the model is run on the entry's images. The user's weights stay as they are.
    """
    import torch

    if entry.pretrained:
        raise SortError(f"model {entry.name!r}: source custom has no pretrained: true; load weights in the function")
    function = find(entry)
    try:
        result = function(**entry.options)
    except (SortError, ModuleNotFoundError):
        raise
    except RAISED as error:
        # Chained, so that a notebook shows the user's own frames as well.
        raise SortError(f"model {entry.name!r}: {entry.model} raised {told(error)}") from error
    parts = result if isinstance(result, tuple) else (result,)
    model, *rest = parts
    named = rest[1] if len(rest) > 1 else {}
    if not isinstance(model, torch.nn.Module) or len(rest) > 2 or not isinstance(named, Mapping):
        raise SortError(
            f"model {entry.name!r}: {entry.model} must return a torch.nn.Module, (module, args) or"
            f" (module, args, kwargs), not {', '.join(type(part).__name__ for part in parts)}"
        )
    if entry.checkpoint:
        load_checkpoint(model, entry.checkpoint, entry.name)
    if not rest:
        return model, None
    args = tuple(rest[0]) if isinstance(rest[0], (tuple, list)) else (rest[0],)
    return model, [(args, dict(named))]


def call(images, entry):
    """A batch of images, token ids or sound."""
    return (images,), {}


def find(entry):
    """The function that an entry names."""
    place, colon, name = entry.model.rpartition(":")
    if not colon or not place or not name:
        raise SortError(
            f"model {entry.name!r}: {entry.model!r} must be package.module:function or path/to/file.py:function"
        )
    module = _from_file(entry, Path(place)) if place.endswith(".py") else _from_package(entry, place)
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
               and getattr(value, "__module__", None) == module.__name__]  # fmt: skip
        raise SortError(
            f"model {entry.name!r}: {place} has no function {name!r}{suggestion(name, own) or ';'}"
            f" it has: {choices(own) or 'none'}"
        )
    return function


def _from_file(entry, path):
    if not path.is_file():
        raise SortError(f"model {entry.name!r}: file {path} does not exist")
    # Registered, since dataclasses and pickling look a class's module up by name.
    name = f"sortlib_custom_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return _executed(entry, path, path.resolve().parent, lambda: spec.loader.exec_module(module) or module)


def _from_package(entry, place):
    return _executed(entry, place, Path.cwd(), lambda: importlib.import_module(place))


def _executed(entry, place, folder, run):
    """``run()`` with ``folder`` at the end of the import path, as Python has it for a script that lies there."""
    sys.path.append(str(folder))
    try:
        return run()
    except ModuleNotFoundError as error:
        if error.name and (str(place) == error.name or str(place).startswith(f"{error.name}.")):
            raise SortError(
                f"model {entry.name!r}: no module {error.name!r}; install it, or run where its folder lies"
            ) from None
        raise SortError(
            f"model {entry.name!r}: {place} needs the package {error.name}: pip install {error.name}"
        ) from None
    except SyntaxError as error:
        raise SortError(f"model {entry.name!r}: {error.filename}, line {error.lineno}: {error.msg}") from None
    except RAISED as error:
        raise SortError(f"model {entry.name!r}: {place} raised {told(error)}") from error
    finally:
        sys.path.remove(str(folder))
