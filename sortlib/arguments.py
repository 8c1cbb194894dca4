"""Checks of what is given to a public function: one helper for each kind of mistake, one line for each mistake."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path

from sortlib.errors import SortError

LARGEST_SEED = 2**63 - 1  # what 64 bits hold with a sign, as every tool that reads a study's JSON and Parquet does


def shown(value) -> str:
    """A value in a message: as it is written where that is short, else by its type."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return _one(type(value))


def _one(kind) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def wrong(what, wanted, value, hint="") -> SortError:
    """``judge: outcomes must be a DataFrame of sl.run, not None``."""
    return SortError(f"{what} must be {wanted}, not {shown(value)}{f'; {hint}' if hint else ''}")


def instance(value, kind, what, wanted, hint=""):
    """The value, which must be of a class or one of several.

    Raises
    ------
    SortError
        It is of another class.
    """
    if not isinstance(value, kind):
        raise wrong(what, wanted, value, hint)
    return value


def items(values, kind, what, hint="") -> list:
    """The values as a list, each of which must be of one class.

    Raises
    ------
    SortError
        No list, or an item of another class, with its position.
    """
    if isinstance(values, kind | str | bytes | Mapping) or not isinstance(values, Iterable):
        raise wrong(what, f"a list of {kind.__name__}", values, hint)
    values = list(values)
    for place, value in enumerate(values):
        if not isinstance(value, kind):
            raise wrong(f"{what}[{place}]", _one(kind), value, hint)
    return values


def path(value, what) -> Path:
    """The path that a text or a path names.

    Raises
    ------
    SortError
        Neither of both.
    """
    return Path(instance(value, str | os.PathLike, what, "a path"))


def flag(value, what) -> bool:
    """A truth value; texts such as ``"no"``, which Python takes for true, are refused.

    Raises
    ------
    SortError
        Neither True nor False.
    """
    import numpy as np

    return bool(instance(value, bool | np.bool_, what, "True or False"))


def above_zero(value, what, unit="number") -> float:
    """A finite number above 0.

    Raises
    ------
    SortError
        No number, not above 0, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise wrong(what, f"a {unit} above 0", value)
    return value


def whole(value, what, low, high=None) -> int:
    """A whole number from ``low`` to ``high``.

    Raises
    ------
    SortError
        No whole number, or one out of this range.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low or (high is not None and value > high):
        raise wrong(what, f"a whole number from {low} {f'to {high}' if high is not None else 'on'}", value)
    return int(value)
