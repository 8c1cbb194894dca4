"""The paper's Figure 14 for any case: where a difference arises and how it grows from call to call."""

from __future__ import annotations

import functools
import math

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap, LogNorm, to_hex, to_rgb
from matplotlib.patches import Rectangle

from sortlib.apis import paper_name
from sortlib.errors import SortError, choices
from sortlib.figures.drawing import Box, Link, paint, place_alike, sheet, text_width
from sortlib.figures.style import FAINT, INK, styled

# The paper's colours in a red that is dark, a yellow that is mid-grey and a white in a grey print.
RED, YELLOW, WHITE = "#c4161c", "#f7c948", "#ffffff"
_SCALES = ("paper", "log")
SIDES = {
    "propagated": "Propagated: each platform on its own values",
    "local": "Local: every call on the reference's values",
}
_HATCH = "/////"


@styled
def amplification(study, case_id, scale="paper", which="propagated"):
    """Figure 14 for one case: a node for each call with the largest absolute difference of its output.

    Parameters
    ----------
    study : study with outcomes.
    case_id : id of one of its cases.
    scale : ``paper``: red beyond ``study.config.threshold``, yellow above zero, white at zero; ``log``: shades by
        the logarithm of the difference.
    which : ``propagated`` (each platform works on its own intermediate values), ``local`` (every call gets the
        reference's values) or ``both``, side by side.

    Returns
    -------
    matplotlib.figure.Figure
        Data flows downwards. An edge names the argument it feeds; where a difference arrives, the edge that brings
        the largest one also shows the gain (propagated difference / largest difference that arrives). Calls
        without a value are hatched and say why. Source: paper section V-C; local and gain are ours.

    Raises
    ------
    SortError
        Unknown scale or side, or no such case.
    """
    if scale not in _SCALES:
        raise SortError(f"unknown scale {scale!r}; valid: {choices(_SCALES)}")
    if which not in (*SIDES, "both"):
        raise SortError(f"unknown difference {which!r}; valid: {choices([*SIDES, 'both'])}")
    case, rows = study.case(case_id), rows_of(study, case_id)
    sides = list(SIDES) if which == "both" else [which]
    colours = Colours(scale, study.config.threshold, [value_of(row, side) for side in sides for row in rows])
    pictures = place_alike([case_graph(case, rows, side, colours) for side in sides])
    return _compose(case, rows, sides, pictures, colours)


def rows_of(study, case_id) -> list[dict]:
    """The outcomes of a case, one for each call in order.

    Raises
    ------
    SortError
        No such case, or it was not run.
    """
    case, rows = study.case(case_id), study.all_outcomes
    rows = rows[rows["case"] == case_id].sort_values("node").to_dict("records")
    if len(rows) != len(case.nodes):
        raise SortError(f"case {case_id!r} has {len(case.nodes)} calls but {len(rows)} outcomes; run it first")
    return rows


def value_of(row, side) -> float | None:
    """The difference of a call, or None where there is none."""
    value = row.get(f"{side}_max_abs")
    return None if row["status"] != "ok" or value is None or pd.isna(value) else float(value)


def _one_sided(row, side) -> float:
    share = row.get(f"{side}_one_sided")
    return 0.0 if row["status"] != "ok" or share is None or pd.isna(share) else float(share)


def magnitude(value) -> str:
    """A difference as text: 0 only for exactly 0."""
    return "0" if value == 0 else f"{value:.2e}" if value < 0.01 or value >= 1e4 else f"{value:.3g}"


@functools.cache
def _shades():
    """Shades of a difference; the lightest are left out, since they could be taken for the white of exactly 0."""
    return ListedColormap(matplotlib.colormaps["YlOrRd"](np.linspace(0.15, 1, 256)))


class Colours:
    """What a difference is painted in."""

    def __init__(self, scale, threshold, values):
        self.scale, self.threshold = scale, threshold
        positive = [value for value in values if value]
        low = 10.0 ** math.floor(math.log10(min(positive, default=threshold) * 0.999))
        high = 10.0 ** math.ceil(math.log10(max(positive, default=threshold) * 1.001))
        self.norm = LogNorm(min(low, threshold / 10), max(high, threshold * 10))
        self.map = _shades()

    def __call__(self, value) -> tuple[str, str]:
        """(face, ink)."""
        if value == 0:
            return WHITE, INK
        if self.scale == "paper":
            return (RED, "white") if value > self.threshold else (YELLOW, INK)
        rgb = self.map(self.norm(value))
        return to_hex(rgb), max((INK, "white"), key=lambda ink: _contrast(ink, rgb))


def _contrast(one, other) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2)."""

    def luminance(colour):
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def case_graph(case, rows, side, colours):
    """A case as a picture: a box per call with its difference on one side, a link per edge with its gain."""
    boxes = [_node(node, row, side, colours) for node, row in zip(case.nodes, rows, strict=True)]
    gains = _gains(case, rows) if side == "propagated" else {}
    links = []
    for number, (src, dst, argument) in enumerate(case.edges):
        lines = (argument, _gain_text(gains[number])) if number in gains else (argument,)
        links.append(Link(src, dst, lines, strong=number in gains))
    return boxes, links


def _node(node, row, side, colours):
    name, value = paper_name(node.api), value_of(row, side)
    if value is None:
        why = row["status"] if row["status"] != "ok" else "unreached"
        where = f" on {row['side']}" if row.get("side") in ("reference", "candidate") else ""
        return Box((name, f"{why}{where}"), face="#f2f2f2", hatch=_HATCH, edge=INK, thick=0.9)
    share = _one_sided(row, side)
    if share:
        # Finite on one platform only: worse than any difference, and no number can say it.
        return Box((name, f"not finite: {share:.2%}"), face=RED, ink="white", thick=2.2)
    face, ink = colours(value)
    return Box((name, magnitude(value)), face=face, ink=ink, thick=2.2 if value > colours.threshold else 0.9)


def _gains(case, rows) -> dict[int, float]:
    """Gain of a call by the number of the edge that brings the largest difference to it."""
    found = {}
    for dst, row in enumerate(rows):
        incoming, value = row.get("incoming"), value_of(row, "propagated")
        if value is None or incoming is None or pd.isna(incoming) or incoming <= 0 or _one_sided(row, "propagated"):
            continue
        edges = [number for number, edge in enumerate(case.edges) if edge[1] == dst]
        brought = {number: value_of(rows[case.edges[number][0]], "propagated") or 0.0 for number in edges}
        if brought:
            found[max(brought, key=brought.get)] = value / incoming
    return found


def _gain_text(gain) -> str:
    number = f"{gain:.3g}" if gain < 1000 else f"{gain:,.0f}" if gain < 1e6 else f"{gain:.1e}"
    return f"\N{MULTIPLICATION SIGN}{number}"


# ---- title, legend, panels ----


def _compose(case, rows, sides, pictures, colours):
    title = f"Case {case.id}"
    pair = f"{rows[0]['reference']} against {rows[0]['candidate']}, pattern {case.pattern}"
    heads = [SIDES[side] for side in sides]
    widths = [max(picture.size[0], text_width(head, 8.5, True)) for picture, head in zip(pictures, heads, strict=True)]
    gap, top = 0.45, 0.8
    gains = any(link.strong for picture in pictures for link in picture.links)
    legend = _legend_items(rows, sides, colours, gains)
    least = max(text_width(title, 10, True), text_width(pair, 8), 2.6 if colours.scale == "log" else 0.0)
    width = max(sum(widths) + gap * (len(widths) - 1), least)
    lines = _wrapped(legend, width)
    foot = 0.25 * len(lines) + (0.75 if colours.scale == "log" else 0.0)
    height = top + max(picture.size[1] for picture in pictures) + 0.28 + foot
    figure, axes = sheet(width, height)
    axes.text(0, 0.08, title, fontsize=10, fontweight="bold", va="center")
    axes.text(0, 0.27, pair, fontsize=8, color=FAINT, va="center")
    spare = (width - sum(widths) - gap * (len(widths) - 1)) / len(widths)
    x = 0.0
    for side, head, picture, own in zip(sides, heads, pictures, widths, strict=True):
        axes.text(x, 0.55, head, fontsize=8.5, fontweight="bold", va="center")
        paint(axes, picture, x + (own + spare - picture.size[0]) / 2, top, f"{side}-")
        x += own + spare + gap
    _draw_legend(axes, lines, height - foot)
    if colours.scale == "log":
        draw_scale(axes, colours, min(width, 3.6), height - 0.42)
    return figure


def _legend_items(rows, sides, colours, gains):
    limit = f"{colours.threshold:g}"
    items = []
    if colours.scale == "paper":
        items = [({"facecolor": RED, "linewidth": 2}, f"above {limit}"), ({"facecolor": YELLOW}, f"up to {limit}")]
    items.append(({"facecolor": WHITE}, "exactly 0"))
    if colours.scale == "log":
        items.append(({"facecolor": "white", "linewidth": 2}, f"thick border: above {limit}"))
    if any(value_of(row, side) is None for row in rows for side in sides):
        items.append(({"facecolor": "#f2f2f2", "hatch": _HATCH, "hatchcolor": "#c9c9c9"}, "no value"))
    if gains:
        items.append((None, "\N{MULTIPLICATION SIGN}: gain = difference / largest that arrives"))
    return items


def _wrapped(items, width):
    """Legend items in lines that fit: [(x, patch, text)]."""
    lines, x = [[]], 0.0
    for patch, text in items:
        need = (0.28 if patch else 0.0) + text_width(text, 8)
        if x and x + need > width:
            lines.append([])
            x = 0.0
        lines[-1].append((x, patch, text))
        x += need + 0.22
    return lines


def _draw_legend(axes, lines, y):
    for number, line in enumerate(lines):
        middle = y + 0.12 + 0.25 * number
        for x, patch, text in line:
            if patch:
                look = {"edgecolor": INK, "linewidth": 0.9, **patch}
                axes.add_patch(Rectangle((x, middle - 0.06), 0.2, 0.12, **look))
            axes.text(x + (0.28 if patch else 0.0), middle, text, fontsize=8, va="center", color=INK)


def draw_scale(axes, colours, width, y, x=0.0):
    """A bar of the logarithmic colours with its decades and the threshold, its upper left corner at (x, y)."""
    low, high = math.log10(colours.norm.vmin), math.log10(colours.norm.vmax)
    shades = [[colours.norm(10 ** (low + (high - low) * (step + 0.5) / 256)) for step in range(256)]]
    axes.imshow(shades, cmap=colours.map, vmin=0, vmax=1, extent=(x, x + width, y + 0.14, y), aspect="auto", zorder=1)
    axes.add_patch(Rectangle((x, y), width, 0.14, fill=False, edgecolor=FAINT, linewidth=0.8, zorder=2))
    place = x + (math.log10(colours.threshold) - low) / (high - low) * width
    axes.plot([place, place], [y - 0.05, y + 0.19], color=INK, linestyle=":", linewidth=1.6, zorder=3)
    axes.text(place, y - 0.1, f"threshold {colours.threshold:g}", fontsize=7, ha="center", va="center")
    decades = list(range(round(low), round(high) + 1))
    for decade in decades[:: max(1, math.ceil(len(decades) * 0.42 / width))]:
        at = (decade - low) / (high - low) * width
        axes.text(x + at, y + 0.29, f"1e{decade}", fontsize=7, ha="center" if 0 < at < width else "left" if not at else
                  "right", va="center", color=INK)  # fmt: skip
