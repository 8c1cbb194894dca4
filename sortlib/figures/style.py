"""One look for every figure: sizes, colours, and how a figure is shown and saved.

The style is a set of matplotlib settings that holds only while a figure is made, so that a user's own settings stay
as they are. Colours are told apart by lightness too, so that they survive grey printing and colour blindness.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sortlib.errors import SortError, choices

INK = "#222222"
FAINT = "#6b6b6b"  # secondary text; 5:1 against white
RULE = "#d9d9d9"
THRESHOLD = "#c4161c"  # the paper draws the threshold as a red dotted line

# Methods, by darkness and marker as well as by hue.
SORT_COLOUR, SINGLE_COLOUR = "#1f4e79", "#e69f00"
# Two kinds of patterns.
TREE_COLOUR, JOIN_COLOUR = "#9dc3e6", "#1f4e79"

SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so text has the same width everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "path",  # looks alike without the font
    "svg.hashsalt": "sortlib",  # the same file for the same figure
    "pdf.fonttype": 42,
}
_FORMATS = {".svg": {"metadata": {"Date": None}}, ".png": {}, ".pdf": {"metadata": {"CreationDate": None}}}


class StudyFigure(Figure):
    """A matplotlib figure that a notebook shows once, whatever its backend."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def _repr_png_(self):
        width, height = self.get_size_inches()
        size = {"width": round(width * 96), "height": round(height * 96)}
        return _bytes(self, ".png"), size


def styled(function):
    """Decorate a function that makes a figure: the style holds inside it."""

    @functools.wraps(function)
    def inside(*args, **kwargs):
        with matplotlib.rc_context(SETTINGS):
            return function(*args, **kwargs)

    return inside


def save(figure, path) -> Path:
    """Write a figure as SVG, PNG or PDF, by the file's suffix; equal figures give equal files.

    Raises
    ------
    SortError
        Another suffix, or a place that cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise SortError(f"{path}: unknown figure format {path.suffix!r}; valid: {choices(_FORMATS)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(figure, path.suffix.lower()))
    except OSError as error:
        raise SortError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def to_svg(figure) -> str:
    """A figure as the text of an SVG file."""
    return _bytes(figure, ".svg").decode()


def _bytes(figure, suffix) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(buffer, format=suffix[1:], **_FORMATS[suffix])
    return buffer.getvalue()
