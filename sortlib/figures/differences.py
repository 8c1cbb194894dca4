"""Differences of all calls at once: against the size of the output, and as a histogram beside their bounds."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sortlib.figures.drawing import nothing
from sortlib.figures.style import INK, RULE, SINGLE_COLOUR, SORT_COLOUR, THRESHOLD, StudyFigure, styled
from sortlib.grouping import accuses

# Groups of calls, drawn in this order; by marker and lightness as well as by hue.
_GROUPS = {
    "rounding": {"label": "explained by rounding", "color": "#86aed4", "marker": "o", "s": 13},
    "amplified": {"label": "beyond the threshold, no call at fault", "color": SINGLE_COLOUR, "marker": "^", "s": 26},
    "open": {"label": "no float64 reference or bound", "color": "#8a8a8a", "marker": "x", "s": 20},
    "accused": {"label": "a platform is accused", "color": THRESHOLD, "marker": "D", "s": 30},
}
_OPEN = ("unjudged", "random", "config", "unconfirmed")
_EPS = 2.0**-23  # a unit in the last place of 1 in float32


@styled
def error_by_magnitude(study, api=""):
    """The difference of each call against the size of its output: why one threshold for all cannot be right.

    Parameters
    ----------
    study : study whose cases were run.
    api : canonical name of the only API to show; all if not given.

    Returns
    -------
    matplotlib.figure.Figure
        A mark per call of SORT's cases, both axes logarithmic; differences are propagated ones, and those of exactly 0
        have a strip of their own. Dotted: the paper's threshold; dashed: one unit in the last place of the output's
        largest value in float32. Marks above the dotted line are the paper's findings, whatever their size.
    """
    rows = _of(study, api)
    size = rows[["reference_minimum", "reference_maximum"]].astype(float).abs().max(axis=1)
    difference = rows["propagated_max_abs"].astype(float)
    known = (size > 0) & np.isfinite(size) & difference.notna() & np.isfinite(difference)
    if not known.any():
        return nothing("No call with a finite, non-zero output was run.")
    rows, size, difference = rows[known], size[known], difference[known]
    threshold = study.config.threshold
    low, high = _decades([*difference[difference > 0], threshold, float(size.max()) * _EPS])
    left, right = _decades(size)
    zero = low - 0.75
    figure = StudyFigure(figsize=(6.6, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.axhspan(zero - 0.4, low - 0.35, color="#f4f4f4", zorder=0)
    group = _groups(rows)
    for name, look in _GROUPS.items():
        chosen = (group == name).to_numpy()
        if chosen.any():
            x = np.log10(size[chosen])
            y = [math.log10(value) if value else zero for value in difference[chosen]]
            edge = {} if look["marker"] == "x" else {"edgecolor": "white", "linewidth": 0.3}
            axes.scatter(x, y, **{**look, "label": f"{look['label']} ({chosen.sum():,})"}, **edge, zorder=3,
                         rasterized=True)  # fmt: skip
    axes.axhline(math.log10(threshold), color=THRESHOLD, linestyle=":", linewidth=1.8, zorder=2)
    axes.annotate(f"threshold {threshold:g}", (0, math.log10(threshold)), (4, 3), xycoords=("axes fraction", "data"),
                  textcoords="offset points", color=THRESHOLD, fontsize=8)  # fmt: skip
    ends = np.array([left, right])
    axes.plot(ends, ends + math.log10(_EPS), color=INK, linestyle="--", linewidth=1.0, zorder=2,
              label="1 ULP (float32) of the largest value")  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(zero - 0.4, high + 0.2)
    _powers(axes.xaxis, left, right)
    _powers(axes.yaxis, low, high, zero)
    axes.set_xlabel("Largest magnitude of the output")
    axes.set_ylabel("Largest absolute difference of the output")
    axes.grid(color=RULE)
    figure.legend(loc="outside lower left", ncols=2, markerscale=1.3)
    return figure


@styled
def difference_histogram(study, api=""):
    """How large differences are, in the paper's unit and in ours: absolute, and as a multiple of the rounding bound.

    Parameters
    ----------
    study : study whose cases were run.
    api : canonical name of the only API to show; all if not given.

    Returns
    -------
    matplotlib.figure.Figure
        Left the largest absolute difference of each call of SORT's cases, on equal inputs and propagated, with the
        paper's threshold; right the error of each platform against float64, divided by the bound that this call has,
        with the bound at 1. Exactly 0 has a bar of its own.
    """
    rows = _of(study, api)
    figure = StudyFigure(figsize=(7.6, 3.6), layout="constrained")
    first, second = figure.subplots(1, 2)
    threshold = study.config.threshold
    _histogram(first, [("on equal inputs", rows["local_max_abs"], SORT_COLOUR),
                       ("propagated", rows["propagated_max_abs"], SINGLE_COLOUR)],
               threshold, f"threshold {threshold:g}")  # fmt: skip
    first.set_xlabel("Largest absolute difference of a call")
    first.set_ylabel("Calls")
    first.set_title("Difference, the paper's rule")
    stage = study.stage("run")
    _histogram(second, [(stage["reference"], rows["reference_ratio"], SORT_COLOUR),
                        (stage["candidate"], rows["candidate_ratio"], SINGLE_COLOUR)],
               1.0, "rounding bound")  # fmt: skip
    second.set_xlabel("Error against float64, in bounds of the call")
    second.set_title("Error, the evidence rule")
    return figure


def _of(study, api):
    rows = study.judged
    if api:
        from sortlib.errors import SortError, choices

        if api not in set(rows["api"]):
            raise SortError(
                f"{study.directory}: API {api!r} is in no executed case; there are: {choices(set(rows['api']))}"
            )
        rows = rows[rows["api"] == api]
    return rows


def _groups(rows) -> pd.Series:
    verdict = rows["evidence"]
    group = pd.Series("rounding", rows.index)
    group[verdict == "amplified"] = "amplified"
    group[verdict.isin(_OPEN)] = "open"
    group[accuses(rows)] = "accused"
    return group


def _decades(values) -> tuple[int, int]:
    values = [float(value) for value in values if value > 0]
    return math.floor(math.log10(min(values) * 0.999)), math.ceil(math.log10(max(values) * 1.001))


def _powers(axis, low, high, zero=None):
    """Whole powers of ten as marks of an axis of logarithms, with 0 at a place of its own."""
    step = max(1, math.ceil((high - low) / 9))
    axis.set_ticks([*([] if zero is None else [zero]), *range(low, high + 1, step)])
    axis.set_major_formatter(FuncFormatter(lambda at, _: "0" if at == zero else f"1e{round(at)}"))


def _histogram(axes, series, limit, said):
    """Bars of two series over half decades, with the bar of exact zeros and the limit."""
    values = [(label, column.astype(float).dropna(), colour) for label, column, colour in series]
    values = [(label, column[np.isfinite(column)], colour) for label, column, colour in values]
    positive = [value for _, column, _ in values for value in column if value > 0]
    low, high = _decades([*positive, limit])
    edges = np.arange(low, high + 0.25, 0.5)
    zero = low - 0.9
    axes.axvspan(zero - 0.5, zero + 0.5, color="#f4f4f4", zorder=0)
    width = 0.21
    for place, (label, column, colour) in enumerate(values):
        shift = (place - 0.5) * width
        counts = np.histogram(np.log10(column[column > 0]), edges)[0]
        look = {"color": colour, "hatch": "" if place == 0 else "/////", "hatchcolor": "white", "zorder": 2}
        axes.bar(edges[:-1] + 0.25 + shift, counts, width, label=label, **look)
        axes.bar([zero + 1.6 * shift], [(column == 0).sum()], 1.6 * width, **look)
    axes.axvline(math.log10(limit), color=THRESHOLD, linestyle=":", linewidth=1.8, zorder=3)
    axes.annotate(said, (math.log10(limit), 1), (3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
                  color=THRESHOLD, fontsize=8, va="top", rotation=90)  # fmt: skip
    axes.set_xlim(zero - 0.5, high + 0.1)
    _powers(axes.xaxis, low, high, zero)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.grid(axis="y", color=RULE)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
