"""The paper's Figure 13: what testing APIs in patterns shows beside testing each API alone."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.ticker import FuncFormatter, PercentFormatter

from sortlib import tables
from sortlib.figures.style import FAINT, INK, RULE, SINGLE_COLOUR, SORT_COLOUR, THRESHOLD, StudyFigure, styled

_METHODS = {  # column of the table -> how it is drawn
    "sort": {"label": "SORT (in patterns)", "color": SORT_COLOUR, "marker": "o"},
    "single": {"label": "single-API (alone)", "color": SINGLE_COLOUR, "marker": "s"},
}


@styled
def average_difference(study, apis=None):
    """Figure 13(a): mean of the largest absolute output difference of each API, in patterns and alone.

    Parameters
    ----------
    study : study with outcomes.
    apis : canonical names; the paper's 15 if not given.

    Returns
    -------
    matplotlib.figure.Figure
        Logarithmic axis with a place of its own for differences of exactly 0; the threshold dotted in red. Numbers
        from ``tables.average_difference``.
    """
    table = tables.average_difference(study, apis=apis)
    figure, axes = _panel(table, 6.6)
    threshold = study.config.threshold
    values = [v for v in pd.concat([table["sort"], table["single"]]).dropna() if v > 0]
    low = math.floor(math.log10(min([*values, threshold]) * 0.999))
    high = math.ceil(math.log10(max([*values, threshold]) * 1.001))
    zero = low - 0.9  # centre of the strip for exact zeros, in decades

    def place(value):
        return zero if value == 0 else math.log10(value)

    axes.axvspan(zero - 0.45, low - 0.45, color="#f4f4f4", zorder=0)
    for row, (_, entry) in enumerate(table.iterrows()):
        pair = [place(entry[method]) for method in _METHODS if not pd.isna(entry[method])]
        if len(pair) == 2:
            axes.plot(pair, [row, row], color=FAINT, linewidth=1.2, zorder=2)
        for method, look in _METHODS.items():
            if not pd.isna(entry[method]):
                _dot(axes, place(entry[method]), row, look)
        _absent(axes, entry, row)
    axes.axvline(math.log10(threshold), color=THRESHOLD, linestyle=":", linewidth=1.8, zorder=1)
    axes.annotate(f"threshold {threshold:g}", (math.log10(threshold), 1), (4, 3), xycoords=("data", "axes fraction"),
                  textcoords="offset points", color=THRESHOLD, fontsize=8)  # fmt: skip
    axes.set_xlim(zero - 0.45, high + 0.15)
    step = max(1, math.ceil((high - low) / 10))
    axes.set_xticks([zero, *range(low, high + 1, step)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: "0" if at == zero else f"1e{round(at)}"))
    axes.set_xlabel("Average of the largest absolute difference")
    _finish(figure, axes, table, _dots())
    return figure


@styled
def involvement(study, apis=None):
    """Figure 13(b): share of an API's executions that are involved in erroneous behaviour.

    An execution in a pattern is involved when its own output or that of a call it feeds inside the pattern exceeds
    the threshold; an execution alone, when its own output does (paper section V-C).

    Parameters
    ----------
    study : study with outcomes.
    apis : canonical names; the paper's 15 if not given.

    Returns
    -------
    matplotlib.figure.Figure
        Numbers from ``tables.involvement``; the value stands at the end of each bar.
    """
    table = tables.involvement(study, apis=apis)
    figure, axes = _panel(table, 6.6)
    height = 0.36
    largest = pd.concat([table["sort"], table["single"]]).max()
    right = 1.0 if pd.isna(largest) or largest > 0.5 else max(0.05, math.ceil(largest * 20) / 20)
    for offset, (method, look) in zip((-height / 2, height / 2), _METHODS.items(), strict=True):
        for row, value in enumerate(table[method]):
            if pd.isna(value):
                continue
            hatch = "" if method == "sort" else "/////"
            axes.barh(row + offset, value, height * 0.92, color=look["color"], hatch=hatch, hatchcolor="white")
            axes.annotate(_percent(value), (value, row + offset), (3, 0), textcoords="offset points", va="center",
                          fontsize=7, color=INK)  # fmt: skip
    for row, (_, entry) in enumerate(table.iterrows()):
        _absent(axes, entry, row)
    axes.set_xlim(0, right * 1.09)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("Executions involved in erroneous behaviour")
    if largest == 0:
        axes.text(0.5, 0.5, f"no difference exceeds the threshold {study.config.threshold:g}", ha="center", color=FAINT,
                  transform=axes.transAxes, bbox={"facecolor": "white", "edgecolor": "none"})  # fmt: skip
    _finish(figure, axes, table, _bars())
    return figure


def _percent(share) -> str:
    """A share as text: 0 % only for exactly 0, 100 % only for all."""
    if share in (0, 1):
        return f"{share:.0%}"
    return f"{share:.1%}" if 0.001 <= share < 0.9995 else "<0.1%" if share < 0.5 else ">99.9%"


def _panel(table, width):
    figure = StudyFigure(figsize=(width, 1.25 + 0.3 * max(1, len(table))), layout="constrained")
    return figure, figure.subplots()


def _dot(axes, x, y, look):
    # The smaller square lies on the larger circle, so that equal values show both.
    size = 58 if look["marker"] == "o" else 26
    axes.scatter([x], [y], s=size, color=look["color"], marker=look["marker"], edgecolor="white", linewidth=0.8,
                 zorder=3 if look["marker"] == "o" else 4)  # fmt: skip


def _absent(axes, entry, row):
    """Say which method never executed the API, instead of a value that could be read as zero."""
    absent = [method for method in _METHODS if pd.isna(entry[method])]
    if absent:
        alone = {"sort": "in no tested pattern", "single": "not run alone"}
        axes.annotate(
            "not executed" if len(absent) == 2 else alone[absent[0]], (1, row), (4, 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center", fontsize=7, color=FAINT,
            style="italic",
        )  # fmt: skip


def _dots():
    from matplotlib.lines import Line2D

    return [Line2D([], [], linestyle="", markersize=7 if look["marker"] == "o" else 5.5, **look)
            for look in _METHODS.values()]  # fmt: skip


def _bars():
    from matplotlib.patches import Patch

    return [Patch(facecolor=look["color"], label=look["label"], hatch="" if method == "sort" else "/////",
                  hatchcolor="white") for method, look in _METHODS.items()]  # fmt: skip


def _finish(figure, axes, table, handles):
    axes.set_yticks(range(len(table)), list(table["paper_name"]))
    axes.set_ylim(len(table) - 0.4, -0.6)
    axes.grid(axis="x", color=RULE)
    axes.tick_params(axis="y", length=0)
    figure.legend(handles=handles, loc="outside lower left", ncols=2)
