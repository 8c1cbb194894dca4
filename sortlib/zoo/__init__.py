"""Where models and real inputs come from.

A zoo file names models by source and the inputs they are run on; ``load_zoo`` reads one and ``prepare`` makes
an entry ready to be traced::

    zoo = load_zoo("quick")
    for entry in zoo.models:
        model, samples = prepare(entry, zoo)
        args, kwargs = samples[0]
        model(*args, **kwargs)

A source is one module of this package with ``load(entry, seed) -> (model, samples or None)`` and
``call(images, entry) -> (args, kwargs)``.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from pathlib import Path

from sortlib.config import data_file, read_yaml, validated
from sortlib.errors import RAISED, SortError
from sortlib.zoo.raised import told
from sortlib.zoo.spec import Inputs, Zoo, ZooEntry

__all__ = ["Inputs", "Zoo", "ZooEntry", "build", "load_zoo", "prepare", "samples"]


def load_zoo(name_or_path) -> Zoo:
    """Read a zoo file.

    Parameters
    ----------
    name_or_path : name of a bundled zoo (``data/zoo/<name>.yaml``) or path of a file. Relative paths inside
        the file start at its own folder or, if nothing lies there, at the working directory.

    Raises
    ------
    SortError
        Unknown zoo, unreadable file, broken YAML, or a key that is unknown, missing or has a value it cannot have.
    """
    path = data_file(name_or_path, "zoo")
    raw = read_yaml(path)
    zoo = validated(Zoo, {"name": path.stem, **raw}, path)
    zoo = zoo.model_copy(update={"models": [_anchored(entry, path.parent) for entry in zoo.models]})
    zoo._file = path
    return zoo


def build(entry: ZooEntry, seed: int = 0):
    """The entry's model in evaluation mode; weights not loaded are drawn from ``seed``, the same on every call.

    Batch-norm statistics are those of the constructor or the checkpoint; ``prepare`` calibrates them.
    """
    return _load(entry, seed)[0]


def samples(inputs) -> list[tuple[tuple, dict]]:
    """What to call a model with: ``model(*args, **kwargs)`` for every ``(args, kwargs)`` of the list.

    Parameters
    ----------
    inputs : a ``ZooEntry``, or an ``Inputs`` for models that take one batch and nothing else. A custom entry whose
        function brings its own arguments, and models of transformers, get them from ``prepare``.

    Returns
    -------
    ``inputs.count`` pairs; images are float32 tensors (batch, 3, height, width), text is int64 (batch, tokens),
    sound is float32 (batch, samples) at 16 kHz.
    """
    from sortlib.zoo.inputs import batches

    if isinstance(inputs, ZooEntry):
        call = _source(inputs.source).call
        return [call(batch, inputs) for batch in batches(inputs.inputs)]
    return [((batch,), {}) for batch in batches(inputs)]


def prepare(entry: ZooEntry, zoo: Zoo | None = None):
    """A model ready to be traced, and what to call it with.

    Random weights get batch-norm statistics calibrated on real images (``sortlib.zoo.calibration``); loaded
    weights keep their own.

    Parameters
    ----------
    entry : entry of a zoo.
    zoo : the zoo it belongs to, for its seed; seed 0 without one.

    Returns
    -------
    model : ``torch.nn.Module`` in evaluation mode, on the CPU.
    samples : list of ``(args, kwargs)``.

    Raises
    ------
    SortError
        Unknown model, missing package, weights or images that cannot be read; the model's own code raised.
    """
    from sortlib.zoo.calibration import calibrate, calibration_inputs

    with _named(f"{zoo._file}: " if zoo and zoo._file else ""):
        model, own = _load(entry, zoo.seed if zoo else 0)
        with _named(f"model {entry.name!r}: inputs: "):
            calls = samples(entry) if own is None else own
        if not entry.pretrained and not entry.checkpoint:
            calibrate(model, lambda: own or samples(calibration_inputs(entry)), entry.name)
    return model, calls


@contextlib.contextmanager
def _named(prefix):
    """Put the place in the zoo file before the message of a ``SortError``."""
    try:
        yield
    except SortError as error:
        raise SortError(f"{prefix}{error}") from error.__cause__


def _load(entry, seed):
    """Model in evaluation mode and its own samples or None."""
    try:
        with seeded(seed):
            model, own = _source(entry.source).load(entry, seed)
            return model.eval(), own
    except SortError:
        raise
    except ModuleNotFoundError as error:  # of what the model needs; a source itself is missing with its own words
        package = (error.name or str(error)).partition(".")[0]
        raise SortError(f"model {entry.name!r} needs the package {package}: pip install {package}") from error
    except ImportError as error:
        raise SortError(f"model {entry.name!r} cannot be imported: {' '.join(str(error).split())}") from error
    except RAISED as error:
        raise SortError(f"model {entry.name!r}: {entry.model} of source {entry.source} raised {told(error)}") from error


def _source(name):
    return importlib.import_module(f"sortlib.zoo.{name}")


@contextlib.contextmanager
def seeded(seed):
    """Seed torch, NumPy and ``random`` for a block and put their states back afterwards."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _anchored(entry, folder):
    """The entry with absolute paths."""
    update = {}
    if entry.checkpoint:
        update["checkpoint"] = _absolute(entry.checkpoint, folder)
    if entry.inputs.path:
        update["inputs"] = entry.inputs.model_copy(update={"path": _absolute(entry.inputs.path, folder)})
    file, colon, function = entry.model.rpartition(":")
    if entry.source == "custom" and colon and file.endswith(".py"):
        update["model"] = f"{_absolute(file, folder)}:{function}"
    return entry.model_copy(update=update)


def _absolute(path, folder) -> Path:
    path = Path(path).expanduser()
    beside = Path(folder, path)
    return (beside if beside.exists() else path).resolve()
