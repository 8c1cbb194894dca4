"""The baselines by the names that study files use."""

from __future__ import annotations

from sortlib.baselines.acetest import ACETest
from sortlib.baselines.base import Method
from sortlib.baselines.deeprel import DeepREL
from sortlib.baselines.docter import DocTer
from sortlib.baselines.freefuzz import FreeFuzz
from sortlib.baselines.titanfuzz import TitanFuzz
from sortlib.errors import SortError, choices

BASELINES: dict[str, type[Method]] = {method.key: method for method in (FreeFuzz, DeepREL, DocTer, ACETest, TitanFuzz)}


def baseline(key: str) -> Method:
    """A new instance of a baseline.

    Raises
    ------
    SortError
        There is none of that name.
    """
    if key not in BASELINES:
        raise SortError(f"unknown method {key!r}; valid: {choices(BASELINES)}")
    return BASELINES[key]()


def method_of(pattern: str) -> str:
    """The key of the baseline whose attempt a case's pattern id marks; empty for any other pattern."""
    head = pattern.partition("-")[0]
    return head if head in BASELINES else ""
