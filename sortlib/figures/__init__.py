"""Figures of a study; each function returns a matplotlib figure, in one style.

``save(figure, "name.svg")`` writes SVG, PNG or PDF; a notebook shows a figure that stands at the end of a cell.
"""

from sortlib.figures.heatmap import amplification
from sortlib.figures.interactions import average_difference, involvement
from sortlib.figures.layered import Layout, layout
from sortlib.figures.patterns import pattern, pattern_sizes, patterns_grid
from sortlib.figures.style import save, to_svg

__all__ = [
    "Layout",
    "amplification",
    "average_difference",
    "involvement",
    "layout",
    "pattern",
    "pattern_sizes",
    "patterns_grid",
    "save",
    "to_svg",
]
