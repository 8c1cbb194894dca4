"""The paper's published numbers, to stand beside ours (``data/paper``, whose README says what they are worth)."""

from __future__ import annotations

import functools

import pandas as pd

from sortlib.apis import PAPER_APIS
from sortlib.config import data_dir

_CANONICAL = {spelling: api for api, spelling in PAPER_APIS.items()}
SYMPTOMS = ("perf", "crash", "nan", "precision")  # the columns of Table II


@functools.cache
def _read(name) -> pd.DataFrame:
    return pd.read_csv(data_dir() / "paper" / f"{name}.csv")


def table1() -> pd.DataFrame:
    """Table I: ratio of valid inputs in percent; a row per canonical API and ``Total``, a column per method.

    NaN is the paper's ``/``: the method cannot generate tests for that API.
    """
    long = _read("table1_validity")
    wide = long.pivot(index="api", columns="method", values="ratio")
    return _canonical(wide[list(dict.fromkeys(long["method"]))])


def table2() -> pd.DataFrame:
    """Table II: bugs found; a row per canonical API and ``Total``, columns ``<method>_<symptom>``; NaN is ``/``."""
    long = _read("table2_bugs")
    parts = []
    for method in dict.fromkeys(long["method"]):
        rows = long[long["method"] == method].set_index("api")
        parts.append(rows[list(SYMPTOMS)].add_prefix(f"{method}_"))
    return _canonical(pd.concat(parts, axis=1))


def statistics() -> pd.DataFrame:
    """Sizes of the paper's experiment: fact, value, source."""
    return _read("statistics").copy()


def patterns() -> pd.Series:
    """Number of the paper's patterns (all out-trees) by number of nodes."""
    return _read("patterns").set_index("nodes")["patterns"]


def _canonical(table):
    """The same rows under canonical names, in the paper's order, ``Total`` last."""
    named = table.rename(index=_CANONICAL).rename_axis(index=None, columns=None)
    return named.reindex([*PAPER_APIS, "Total"])
