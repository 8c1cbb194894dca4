"""Mined patterns: one of them, the most frequent ones, and how many there are."""

from __future__ import annotations

from collections import Counter

from matplotlib.ticker import FixedLocator, MaxNLocator

from sortlib.apis import paper_name
from sortlib.errors import SortError
from sortlib.figures.drawing import Box, Link, nothing, paint, place, sheet, text_width
from sortlib.figures.style import FAINT, JOIN_COLOUR, TREE_COLOUR, StudyFigure, styled

_JOIN_FACE = "#d6e6f5"


@styled
def pattern(pattern):
    """Draw one pattern: API names in boxes, the argument that each edge feeds beside its arrow.

    Calls that join tensors from several pattern nodes are shaded.

    Parameters
    ----------
    pattern : ``Pattern``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    picture, title = _picture(pattern), _title(pattern)
    width = max(picture.size[0], text_width(title[0], 10, True), text_width(title[1], 8))
    figure, axes = sheet(width, picture.size[1] + 0.5)
    _cell(axes, picture, title, 0, 0, width)
    return figure


@styled
def patterns_grid(patterns, count=12, columns=4):
    """Draw the patterns with the highest support, side by side in one scale.

    Parameters
    ----------
    patterns : list of ``Pattern``, or a study.
    count : how many; of equal support the larger pattern comes first.
    columns : patterns in a row.

    Returns
    -------
    matplotlib.figure.Figure
    """
    every = _patterns_of(patterns)
    chosen = sorted(every, key=lambda p: (-p.support, -len(p.nodes), p.id))[: max(1, count)]
    if not chosen:
        return nothing("No pattern was found.")
    cells = [(_picture(p), _title(p)) for p in chosen]
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    need = [max(picture.size[0], text_width(title[0], 10, True), text_width(title[1], 8)) for picture, title in cells]
    widths = [max(need[column::columns]) for column in range(min(columns, len(cells)))]
    heights = [max(picture.size[1] for picture, _ in row) + 0.5 for row in rows]
    gap, below = 0.4, 0.35
    figure, axes = sheet(sum(widths) + gap * (len(widths) - 1), sum(heights) + below * (len(heights) - 1))
    y = 0.0
    for row, (members, height) in enumerate(zip(rows, heights, strict=True)):
        for column, (picture, title) in enumerate(members):
            x = sum(widths[:column]) + gap * column
            _cell(axes, picture, title, x, y, widths[column], f"pattern-{row * columns + column}-")
        y += height + below
    return figure


def _picture(pattern):
    producers = {}
    for edge in pattern.edges:
        producers.setdefault(edge[1], set()).add(edge[0])
    boxes = [
        Box((paper_name(api),), face=_JOIN_FACE if len(producers.get(node, ())) > 1 else "white")
        for node, api in enumerate(pattern.nodes)
    ]
    return place(boxes, [Link(src, dst, (argument,)) for src, dst, argument in pattern.edges])


def _title(pattern):
    models = "1 model" if pattern.support == 1 else f"{pattern.support} models"
    return str(pattern.id), f"{len(pattern.nodes)} calls, in {models}"


def _cell(axes, picture, title, x, y, width, prefix=""):
    axes.text(x, y + 0.08, title[0], fontsize=10, fontweight="bold", va="center")
    axes.text(x, y + 0.26, title[1], fontsize=8, color=FAINT, va="center")
    paint(axes, picture, x + (width - picture.size[0]) / 2, y + 0.46, prefix)


@styled
def pattern_sizes(patterns_or_study):
    """How many patterns there are by number of calls and by support, with and without joins.

    Parameters
    ----------
    patterns_or_study : list of ``Pattern``, or a study.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels of stacked bars; the count stands above each bar.
    """
    patterns = _patterns_of(patterns_or_study)
    if not patterns:
        return nothing("No pattern was found.")
    figure = StudyFigure(figsize=(7.2, 3.0), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    _stack(panels[0], patterns, lambda p: len(p.nodes), "Calls in the pattern", "Size")
    _stack(panels[1], patterns, lambda p: p.support, "Models that hold the pattern", "Support")
    panels[0].set_ylabel("Patterns")
    panels[1].tick_params(axis="y", length=0)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower left", ncols=2)
    return figure


def _stack(axes, patterns, key, label, title):
    total = Counter(map(key, patterns))
    joins = Counter(key(p) for p in patterns if p.has_join)
    places = range(min(total), max(total) + 1)
    lower = [total[at] - joins[at] for at in places]
    upper = [joins[at] for at in places]
    axes.bar(places, lower, width=0.75, color=TREE_COLOUR, edgecolor="white", label="without a join")
    axes.bar(places, upper, bottom=lower, width=0.75, color=JOIN_COLOUR, edgecolor="white",
             label="with a join (a call fed by two pattern nodes)")  # fmt: skip
    for at in places if len(places) <= 20 else ():
        axes.annotate(f"{total[at]:,}", (at, total[at]), (0, 2), textcoords="offset points", ha="center",
                      fontsize=8)  # fmt: skip
    spare = max(0.8, 2.5 - len(places) / 2)  # a single bar shall not fill the panel
    axes.set_xlim(min(places) - spare, max(places) + spare)
    axes.xaxis.set_major_locator(FixedLocator(places) if len(places) <= 12 else MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.margins(y=0.12)
    axes.grid(axis="y")
    axes.set_xlabel(label)
    axes.set_title(title)


def _patterns_of(patterns_or_study):
    found = getattr(patterns_or_study, "patterns", patterns_or_study)
    try:
        return list(found)
    except TypeError:
        raise SortError(f"{type(found).__name__} is no list of patterns and no study") from None
