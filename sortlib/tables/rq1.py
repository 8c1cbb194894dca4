"""RQ1: how many of the inputs are valid (paper section V-A, Table I)."""

from __future__ import annotations

import re
from collections import Counter

import pandas as pd

from sortlib import published
from sortlib.tables.frames import NOTHING, as_column, frame, noted, table_of
from sortlib.tables.methods import absences, attempts, is_valid, methods, shortfalls, wanted_apis


def validity(study, apis=None) -> pd.DataFrame:
    """RQ1 (paper Table I): per API the attempts, the valid ones, their ratio in percent, and why others were not.

    An attempt is every input set handed to an API on the reference platform; it is valid if the API returned there.
    Nothing is retried. Columns ``<method>_*`` are ours, ``paper_*`` the published ratios.
    A baseline's attempt is valid by its own definition (``sortlib.baselines``).

    Parameters
    ----------
    apis : canonical names; the paper's 15 if not given, every tested API for ``"tested"``.
    """
    wanted = wanted_apis(study, apis)
    table, notes, missing, found = frame(wanted), [], {}, {}
    for method in methods(study):
        tried = attempts(method.outcomes(study))
        shown = tried[tried["api"].isin(wanted)]
        cells = {api: _validity_row(group) for api, group in shown.groupby("api")}
        if len(shown):
            cells["Total"] = _validity_row(shown)
        for column in ("attempts", "valid", "ratio", "reasons"):
            table[f"{method.key}_{column}"] = as_column(table["api"], {api: row[column] for api, row in cells.items()})
        found[method] = cells
        missing[method] = [api for api in wanted if api not in cells]
        unreached = len(method.outcomes(study)) - len(tried)
        if unreached:
            notes.append(f"{method.name}: {unreached} calls are no attempts, since an earlier call gave no result")
        others = tried[~tried["api"].isin(wanted)]
        if len(others):
            notes.append(f"{method.name}: {others['api'].nunique()} APIs not listed were tested too: {len(others)} "
                         f"attempts, {int(is_valid(others).sum())} valid")  # fmt: skip
    theirs = published.table1()
    for method in theirs:
        table[f"paper_{method}"] = as_column(table["api"], theirs[method].dropna().to_dict())
    notes.append("paper_*: Table I of the paper; / where the method cannot generate tests for the API")
    return noted(table, [*absences(study, missing), *shortfalls(study, found), *_budget(study), *notes])


def _budget(study):
    """What a reader must know of the number of inputs."""
    settings, further = study.config.generation, study.stage("generate").get("further_cases", 0)
    if settings.valid_per_api:
        yield (f"published methods went on until {settings.valid_per_api:,} inputs of an API were valid, or "
               f"{settings.most_attempts:,} were made")  # fmt: skip
    if further:
        yield (f"SORT: {settings.per_pattern} cases of each pattern, and {further:,} further ones so that no API has "
               f"fewer than {settings.budget:,} inputs")  # fmt: skip


def _validity_row(rows):
    good = is_valid(rows)
    kinds = Counter(message_kind(message) for message in rows.loc[~good, "message"])
    reasons = "; ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda k: (-k[1], k[0])))
    ratio = 100.0 * int(good.sum()) / len(rows) if len(rows) else NOTHING
    return {"attempts": len(rows), "valid": int(good.sum()), "ratio": ratio, "reasons": reasons}


def invalid(study) -> pd.DataFrame:
    """Invalid attempts by method, API and kind of message: how many, and one of them as an example."""
    rows = []
    for method in methods(study):
        tried = attempts(method.outcomes(study))
        failed = tried[~is_valid(tried)]
        failed = failed.assign(kind=[message_kind(message) for message in failed["message"]])
        for (api, kind), group in failed.groupby(["api", "kind"]):
            first = group.iloc[0]
            rows.append({"method": method.name, "api": api, "kind": kind, "attempts": len(group), "side": first["side"],
                         "example": first["message"], "case": first["case"], "node": first["node"]})  # fmt: skip
    return table_of(rows, ["method", "api", "kind", "attempts", "side", "example", "case", "node"])


def message_kind(message: str) -> str:
    """An error message without its particulars, so that equal mistakes read the same.

    Examples
    --------
    >>> message_kind("RuntimeError: shape '[1, 3]' is invalid for input of size 4")
    "RuntimeError: shape '...' is invalid for input of size #"
    """
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", str(message))
    text = re.sub(r"\[[^\[\]]*\]|\((?:\s*-?\d[\d\s,.]*)\)", "[...]", text)
    return re.sub(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "#", text)
