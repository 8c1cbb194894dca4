"""The list of patterns: one row for each, how rows are filtered and in which order they stand."""

from __future__ import annotations

from sortlib import details
from sortlib.errors import SortError, choices, suggestion
from sortlib.judging import RANK

UNTESTED = "not run"
_SERIOUSNESS = {str(verdict): len(RANK) - place for place, verdict in enumerate(RANK)} | {UNTESTED: 0}
FILTERS = {
    "api": "words that each must be part of the name of some call; or the beginning of the pattern's id",
    "min_nodes": "smallest number of calls",
    "max_nodes": "largest number of calls",
    "min_support": "smallest number of models",
    "verdict": "most serious verdict of the pattern's cases under the evidence rule, or 'not run'",
}
_NUMBERS = ("min_nodes", "max_nodes", "min_support")
SORTS = {
    "calls": lambda row: row["calls"],
    "nodes": lambda row: row["nodes"],
    "support": lambda row: row["support"],
    "largest": lambda row: -1.0 if row["largest"] is None else row["largest"],
    "verdict": lambda row: _SERIOUSNESS[row["verdict"]],
}


def rows_of(study, judged) -> list[dict]:
    """A row per pattern, the most supported and largest first.

    Parameters
    ----------
    judged : DataFrame like ``study.judged``, or None where nothing was run.

    Returns
    -------
    list of dict
        id, calls (API names), nodes, support, cases (run), largest (propagated difference, None if there is none) and
        verdict (the most serious one, ``not run`` without a case).
    """
    table = details.patterns(study)
    largest, verdict, count = {}, {}, {}
    if judged is not None:
        by_pattern = judged.groupby("pattern", sort=False)
        largest = by_pattern["propagated_max_abs"].max().dropna().astype(float).to_dict()
        count = by_pattern["case"].nunique().to_dict()
        serious = judged.assign(seriousness=judged["evidence"].map(_SERIOUSNESS))
        worst = serious.loc[serious.groupby("pattern", sort=False)["seriousness"].idxmax()]
        verdict = dict(zip(worst["pattern"], worst["evidence"], strict=True))
    return [
        {
            "id": row["pattern"], "calls": row["calls"], "nodes": row["nodes"], "support": row["support"],
            "cases": count.get(row["pattern"], 0), "largest": largest.get(row["pattern"]),
            "verdict": verdict.get(row["pattern"], UNTESTED),
        }
        for row in table.to_dict("records")
    ]  # fmt: skip


def verdicts_in(rows) -> list[str]:
    """The verdicts that occur, the most serious first."""
    return sorted({row["verdict"] for row in rows}, key=lambda verdict: -_SERIOUSNESS[verdict])


def checked_filter(wanted) -> dict:
    """A filter without what is empty, its numbers as numbers.

    Raises
    ------
    SortError
        An unknown key or verdict, or no number where one is needed.
    """
    unknown = [key for key in wanted if key not in FILTERS]
    if unknown:
        raise SortError(f"unknown filter {unknown[0]!r}; valid: {choices(FILTERS)}")
    kept = {key: value for key, value in wanted.items() if value not in ("", None)}
    for key in _NUMBERS:
        if key in kept:
            try:
                kept[key] = int(kept[key])
            except (TypeError, ValueError):
                raise SortError(f"filter {key!r} needs a whole number, not {kept[key]!r}") from None
    if (verdict := kept.get("verdict", UNTESTED)) not in _SERIOUSNESS:
        raise SortError(f"filter 'verdict': no verdict {verdict!r}{suggestion(verdict, _SERIOUSNESS) or ';'} valid: "
                        f"{choices(_SERIOUSNESS, len(_SERIOUSNESS))}")  # fmt: skip
    return kept


def checked_sort(wanted) -> str:
    """The column to sort by; a minus in front puts the largest first.

    Raises
    ------
    SortError
        No such column.
    """
    if wanted.removeprefix("-") not in SORTS:
        raise SortError(f"cannot sort by {wanted!r}; valid, with or without a minus in front: {choices(SORTS)}")
    return wanted


def chosen(rows, wanted, order) -> list[int]:
    """Numbers of the rows that pass a checked filter, in a checked order; equal ones as they stand in ``rows``."""
    words = str(wanted.get("api", "")).lower().replace(",", " ").split()

    def passes(row):
        names = row["calls"].lower().split(", ")
        return (
            all(any(word in name for name in names) or row["id"].startswith(word) for word in words)
            and wanted.get("min_nodes", 0) <= row["nodes"] <= wanted.get("max_nodes", row["nodes"])
            and row["support"] >= wanted.get("min_support", 0)
            and wanted.get("verdict", row["verdict"]) == row["verdict"]
        )

    key = SORTS[order.removeprefix("-")]
    found = [number for number, row in enumerate(rows) if passes(row)]
    return sorted(found, key=lambda number: key(rows[number]), reverse=order.startswith("-"))
