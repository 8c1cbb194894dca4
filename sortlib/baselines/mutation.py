"""FreeFuzz's mutations of recorded arguments, which DeepREL uses with gentler constants.

Tensors are features here; what a mutation asks for is never allocated. The probabilities are those that were published
with the two tools (see ``freefuzz`` and ``deeprel`` for the papers).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sortlib.baselines.base import DTYPES, tensor
from sortlib.features import TensorFeatures

STRINGS = ("mean", "sum", "max", "zeros", "reflect", "circular", "replicate")


@dataclass(frozen=True)
class Constants:
    """The numbers of a mutator.

    Attributes
    ----------
    type, database : probabilities of the first two kinds of mutation; otherwise a value mutation.
    listed : probability that a number comes from ``integers`` or ``floats``, else it moves by U{-step..step-1}.
    exponents : new bounds of integer tensors are -2^k and 2^k with k below this.
    rank, append, size, dtype : a tensor's type mutation changes the rank, by a new last dimension rather than by
        dropping the last one; mutates each size; takes another dtype.
    """

    type: float = 0.2
    database: float = 0.2
    listed: float = 0.2
    integers: tuple[int, ...] = (-1024, -16, -1, 0, 1, 16, 1024)
    floats: tuple[float, ...] = (0.0, 1.0, -1.0, 63.0, -63.0, 1024.0, -1024.0, 1e20, -1e20)
    step: int = 64
    exponents: int = 16
    rank: float = 0.3
    append: float = 0.5
    size: float = 0.3
    dtype: float = 0.3


FREEFUZZ = Constants()
# DeepREL publishes integers -16..16, steps of 4, exponents below 4 and the three tensor probabilities; the floats
# within the same range are ours.
DEEPREL = Constants(
    integers=tuple(range(-16, 17)), floats=(0.0, 1.0, -1.0, 16.0, -16.0), step=4, exponents=4, rank=0.1, append=0.2,
    size=0.5,
)  # fmt: skip


class Mutator:
    """Mutates argument values, deterministically from its generator."""

    def __init__(self, rng: np.random.Generator, constants: Constants = FREEFUZZ):
        self.rng, self.constants = rng, constants

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < probability)

    def pick(self, values):
        """One of the values."""
        return values[int(self.rng.integers(len(values)))]

    def value(self, value):
        """Value mutation: another value of the same type."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self.integer(value)
        if isinstance(value, float):
            return self.pick(self.constants.floats) if self.chance(self.constants.listed) else value + self._step()
        if isinstance(value, str):
            # The published text gives no other source of strings, so one not taken from the list stays.
            return self.pick(STRINGS) if self.chance(self.constants.listed) else value
        if type(value) in (list, tuple):
            return type(value)(self.value(item) for item in value)
        if isinstance(value, TensorFeatures):
            low, high = self._bounds(value.dtype)
            return tensor(value.dtype, value.shape, low, high)
        if isinstance(value, torch.dtype):
            return getattr(torch, self.pick(DTYPES))
        return value

    def type(self, value):
        """Type mutation: a value of another type; for tensors another rank, size and dtype."""
        if value is None:
            return self.pick(self._anything())()
        if isinstance(value, bool):
            return self._other(bool)
        for kind in (int, float, str):
            if isinstance(value, kind):
                return self._other(kind)
        if type(value) in (list, tuple):
            return type(value)(self.type(item) for item in value)
        if isinstance(value, TensorFeatures):
            return self._tensor_type(value)
        return value

    def integer(self, value: int) -> int:
        """Value mutation of an integer."""
        return int(self.pick(self.constants.integers)) if self.chance(self.constants.listed) else value + self._step()

    def plain(self, value):
        """A recorded value as a method that ignores values sees it: tensors keep dtype and shape only."""
        if isinstance(value, TensorFeatures):
            return tensor(value.dtype, value.shape)
        if type(value) in (list, tuple):
            return type(value)(self.plain(item) for item in value)
        return value

    def _step(self) -> int:
        return int(self.rng.integers(-self.constants.step, self.constants.step))

    def _bounds(self, dtype):
        # Floating-point and complex values stay uniform in [0, 1): only integers get new bounds.
        if dtype.startswith(("float", "bfloat", "complex", "bool")):
            return 0.0, 1.0
        high = 1 << int(self.rng.integers(self.constants.exponents))
        low = -(1 << int(self.rng.integers(self.constants.exponents)))
        return (0 if dtype == "uint8" else low), high

    def _other(self, kind):
        makers = {int: self._int, float: self._float, str: lambda: self.pick(STRINGS), bool: lambda: self.chance(0.5)}
        return self.pick([make for other, make in makers.items() if other is not kind])()

    def _int(self):
        return self.integer(0)

    def _float(self):
        return self.value(0.0)

    def _anything(self):
        """Ten kinds of value that may stand for None."""
        return (
            self._int, self._float, lambda: self.pick(STRINGS), lambda: self.chance(0.5), lambda: [self._int()] * 2,
            lambda: (self._int(),) * 2, lambda: tensor("float32", (2, 2)), lambda: getattr(torch, self.pick(DTYPES)),
            lambda: complex(self._int(), self._int()), lambda: None,
        )  # fmt: skip

    def _tensor_type(self, features):
        shape = list(features.shape)
        if self.chance(self.constants.rank):
            if self.chance(self.constants.append):
                shape.append(1)
            else:
                shape = shape[:-1]
        shape = [max(0, self.integer(size)) if self.chance(self.constants.size) else size for size in shape]
        dtype = self.pick(DTYPES) if self.chance(self.constants.dtype) else features.dtype
        return tensor(dtype, shape)


def mutate(arguments, mutator: Mutator, database=None) -> tuple:
    """``n = U{1..#arguments}`` mutations, each of an argument picked with replacement.

    Parameters
    ----------
    arguments : bound arguments of a recorded call.
    mutator : with its generator and constants.
    database : function of an argument name that gives another API's value for it, or None where there is none.
    """
    result = [a._replace(value=mutator.plain(a.value)) for a in arguments]
    if not result:
        return ()
    for _ in range(int(mutator.rng.integers(1, len(result) + 1))):
        place = int(mutator.rng.integers(len(result)))
        argument = result[place]
        if mutator.chance(mutator.constants.type):
            value = mutator.type(argument.value)
        elif database is not None and mutator.chance(mutator.constants.database):
            found = database(argument.name)
            value = argument.value if found is None else mutator.plain(found[0])
        else:
            value = mutator.value(argument.value)
        if argument.kind != "variadic" or isinstance(value, tuple):
            result[place] = argument._replace(value=value)
    return tuple(result)
