"""Figures of a study; each function returns a matplotlib figure, in one style.

``save(figure, "name.svg")`` writes SVG, PNG or PDF; a notebook shows a figure that stands at the end of a cell.
"""

from sortlib.figures.differences import difference_histogram, error_by_magnitude
from sortlib.figures.heat_table import heat_table
from sortlib.figures.heatmap import amplification
from sortlib.figures.interactions import average_difference, involvement
from sortlib.figures.layered import Layout, layout
from sortlib.figures.outputs import outputs
from sortlib.figures.patterns import pattern, pattern_sizes, patterns_grid
from sortlib.figures.sampling import value_distributions
from sortlib.figures.style import save, to_svg
from sortlib.figures.whole import whole_model

__all__ = [
    "Layout",
    "amplification",
    "average_difference",
    "difference_histogram",
    "error_by_magnitude",
    "heat_table",
    "involvement",
    "layout",
    "outputs",
    "pattern",
    "pattern_sizes",
    "patterns_grid",
    "save",
    "to_svg",
    "value_distributions",
    "whole_model",
]
