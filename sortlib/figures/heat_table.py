"""APIs by platforms: how far apart each API's outputs are, and how often they are not the same bits."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.patches import Rectangle

from sortlib.apis import paper_name
from sortlib.errors import SortError, choices
from sortlib.figures.drawing import sheet, text_width
from sortlib.figures.heatmap import SIDES, WHITE, Colours, draw_scale, magnitude
from sortlib.figures.style import FAINT, INK, styled

_ROW, _CELL, _GAP = 0.22, 0.78, 0.45  # inches: height of a row, least width of a cell, between the two tables
_SHARES = ("#ffffff", "#e3ecf5", "#b9d0e6", "#86aed4", "#4f86bb", "#1f4e79")  # from no call to every call


@styled
def heat_table(studies, names=None, side="local"):
    """A row per API, a column per platform: the largest difference, and the share of calls that differ in any bit.

    Parameters
    ----------
    studies : a study, or several whose platform pairs stand side by side.
    names : heading of each study's column; its platforms if not given.
    side : ``local`` (both platforms on the same inputs) or ``propagated``.

    Returns
    -------
    matplotlib.figure.Figure
        APIs with the largest difference first. The left table has the scale of Figure 14's logarithmic form; in both a
        cell that holds no call is empty.

    Raises
    ------
    SortError
        Unknown side, or another number of names than of studies.
    """
    if side not in SIDES:
        raise SortError(f"unknown difference {side!r}; valid: {choices(SIDES)}")
    several = list(studies) if isinstance(studies, (list, tuple)) else [studies]
    if names is not None and len(names) != len(several):
        raise SortError(f"{len(names)} names for {len(several)} studies")
    names = list(names) if names is not None else [_pair(study) for study in several]
    largest, share = (
        pd.concat(parts, axis=1) for parts in zip(*(_columns(study, side) for study in several), strict=True)
    )
    order = largest.assign(_most=largest.max(axis=1)).reset_index(names="api")
    order = order.sort_values(["_most", "api"], ascending=[False, True])["api"]
    return _drawn(largest.loc[order], share.loc[order], names, side, several[0].config.threshold)


def _pair(study) -> str:
    stage = study.stage("run")
    return f"{stage['reference']} against {stage['candidate']}"


def _columns(study, side):
    """For each API the largest difference (NaN without a value) and the share of calls with other bits."""
    rows = study.outcomes
    rows = rows[rows["status"] == "ok"]
    by_api = rows.assign(
        _largest=rows[f"{side}_max_abs"].astype(float), _differs=rows[f"{side}_differing"].astype(float) > 0
    ).groupby("api")
    return by_api["_largest"].max(), by_api["_differs"].mean()


def _drawn(largest, share, names, side, threshold):
    colours = Colours("log", threshold, [value for value in largest.to_numpy().ravel() if value > 0])
    apis = [paper_name(api) for api in largest.index]
    left = max(text_width(api, 8) for api in ["API", *apis]) + 0.15
    lines = [_wrapped(name) for name in names]
    cell = max(_CELL, *(text_width(line, 7) + 0.12 for block in lines for line in block))
    across = cell * len(names)
    second = left + across + _GAP
    head, foot = 0.85 + 0.14 * max(map(len, lines)), 0.85
    width = max(second + across, left + 4.2)
    figure, axes = sheet(width, head + _ROW * len(apis) + foot)
    axes.text(0, 0.08, f"{SIDES[side].partition(':')[0]} differences of each API", fontsize=10, fontweight="bold",
              va="center")  # fmt: skip
    axes.text(0, 0.27, SIDES[side].partition(": ")[2], fontsize=8, color=FAINT, va="center")
    for x, heading in ((left, "Largest difference"), (second, "Calls that differ in a bit")):
        axes.text(x, 0.56, heading, fontsize=8.5, fontweight="bold", va="center")
        for number, block in enumerate(lines):
            for row, line in enumerate(block):
                axes.text(x + cell * (number + 0.5), head - 0.12 - 0.14 * (len(block) - 1 - row), line, fontsize=7,
                          ha="center", va="center")  # fmt: skip
    for row, api in enumerate(apis):
        y = head + _ROW * row
        axes.text(left - 0.1, y + _ROW / 2, api, fontsize=8, ha="right", va="center_baseline")
        for column in range(len(names)):
            value, part = largest.iloc[row, column], share.iloc[row, column]
            known = not pd.isna(value)
            face, ink = colours(float(value)) if known else (WHITE, INK)
            _cell(axes, left + cell * column, y, cell, face, ink, magnitude(value) if known else "",
                  known and value > threshold, f"largest-{row}-{column}")  # fmt: skip
            face, ink = _shade(part)
            _cell(axes, second + cell * column, y, cell, face, ink, _percent(part), False, f"share-{row}-{column}")
    y = head + _ROW * len(apis) + 0.4
    draw_scale(axes, colours, min(3.6, width - left), y, left)
    return figure


def _wrapped(name) -> list[str]:
    """A heading in lines: the candidate below the reference, settings of a sweep below each other."""
    return name.replace(" against ", "\nagainst ").replace(", ", ",\n").split("\n")


def _shade(share) -> tuple[str, str]:
    if pd.isna(share) or share == 0:
        return WHITE, INK
    step = min(len(_SHARES) - 1, max(1, math.ceil(share * (len(_SHARES) - 1))))
    return _SHARES[step], "white" if step >= len(_SHARES) - 2 else INK


def _percent(share) -> str:
    """A share as text: 0 % only for exactly 0, 100 % only for all."""
    if pd.isna(share):
        return ""
    if share in (0, 1):
        return f"{share:.0%}"
    return "<1%" if share < 0.01 else ">99%" if share > 0.99 else f"{share:.0%}"


def _cell(axes, x, y, width, face, ink, text, thick, name):
    edge, line, order = (INK, 1.8, 3) if thick else ("#c9c9c9", 0.5, 2)
    place, size = (x + 0.01, y + 0.01), (width - 0.02, _ROW - 0.02)
    box = Rectangle(place, *size, facecolor=face, edgecolor=edge, linewidth=line, zorder=order)
    box.set_gid(name)
    axes.add_patch(box)
    axes.text(x + width / 2, y + _ROW / 2, text, color=ink, fontsize=7.5, ha="center", va="center_baseline", zorder=4)
