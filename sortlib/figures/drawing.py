"""Boxes and arrows: a graph drawn with matplotlib, in inches, so that text always fits its box."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from sortlib.figures.layered import layout, spaced
from sortlib.figures.style import FAINT, INK, SETTINGS, StudyFigure

NAME_SIZE, NUMBER_SIZE, LABEL_SIZE = 9, 9, 7  # points
_LINE = 0.165  # height of a line in a box
_PAD = 0.11  # between text and the side of its box
_LABEL_LINE = 0.12
_CHANNEL = 0.34  # what an arrow needs between two layers besides its label


@dataclass(frozen=True)
class Box:
    """One node: lines of text (the first is the name), and how it is painted."""

    lines: tuple[str, ...]
    face: str = "white"
    ink: str = INK
    edge: str = INK
    thick: float = 0.9
    hatch: str = ""


@dataclass(frozen=True)
class Link:
    """One arrow with a short label, of which the last line may be emphasised."""

    src: int
    dst: int
    lines: tuple[str, ...] = ()
    strong: bool = False  # whether the last line matters most


@dataclass(frozen=True)
class Picture:
    """A placed graph: everything that ``paint`` needs, in inches from the upper left corner, y downwards."""

    boxes: tuple
    links: tuple
    widths: tuple
    height: float  # of a box
    centres: tuple
    routes: tuple
    labels: tuple  # (x, y) of each link's label
    size: tuple


@functools.cache
def text_width(text: str, points: float, bold: bool = False) -> float:
    """Width of a line in inches."""
    font = FontProperties(family=SETTINGS["font.family"], weight="bold" if bold else "normal")
    return TextPath((0, 0), text, size=points, prop=font).get_extents().width / 72 if text.strip() else 0.0


def place(boxes, links) -> Picture:
    """Lay a graph out; boxes are as wide as their text and their arriving labels need."""
    return place_alike([(boxes, links)])[0]


def place_alike(graphs) -> list[Picture]:
    """Lay out several (boxes, links) of the same shape in the same way, so that they can be compared side by side."""
    first_boxes, links = graphs[0]
    label_widths = [max(_label_width(each[number]) for _, each in graphs) for number in range(len(links))]
    arriving = [[number for number, link in enumerate(links) if link.dst == box] for box in range(len(first_boxes))]
    widths = [
        max(*(_text_width(boxes[position]) + 2 * _PAD for boxes, _ in graphs),
            sum(label_widths[number] for number in arriving[position]) * 0.8, 0.7)
        for position in range(len(first_boxes))
    ]  # fmt: skip
    height = _LINE * max((len(box.lines) for boxes, _ in graphs for box in boxes), default=1) + 0.11
    lines = max((len(link.lines) for _, each in graphs for link in each), default=0)
    step = height + _CHANNEL + lines * _LABEL_LINE
    pairs = [(link.src, link.dst) for link in links]
    placed = layout(first_boxes, pairs, widths, max(label_widths, default=0.2), 0.22, step)
    ports = _ports(placed.routes, links, arriving, placed.positions, widths, label_widths)
    routes = [_route(route, port, height) for route, port in zip(placed.routes, ports, strict=True)]
    labels = _labels(routes, label_widths)
    return [_shifted(boxes, each, widths, height, placed.positions, routes, labels, label_widths)
            for boxes, each in graphs]  # fmt: skip


def _label_width(link):
    return max((text_width(line, LABEL_SIZE, link.strong) for line in link.lines), default=0.0) + 0.08


def _text_width(box):
    sizes = [NAME_SIZE, *[NUMBER_SIZE] * (len(box.lines) - 1)]
    return max(text_width(line, size, bold=not row) for row, (line, size) in
               enumerate(zip(box.lines, sizes, strict=True)))  # fmt: skip


def _ports(routes, links, arriving, centres, widths, label_widths):
    """x where each arrow arrives: straight below where it comes from if the box is wide enough, apart from others."""
    ports = [0.0] * len(links)
    for box, numbers in enumerate(arriving):
        numbers = sorted(numbers, key=lambda number: (routes[number][-2][0], number))
        centre, half = centres[box][0], max(0.0, widths[box] / 2 - 0.14)
        wanted = [min(max(routes[number][-2][0], centre - half), centre + half) for number in numbers]
        room = 2 * half / (len(numbers) - 1) if len(numbers) > 1 else 0.0
        apart = spaced(wanted, [min(label_widths[number], room) for number in numbers], 0.0)
        shift = min(0.0, centre + half - max(apart, default=0)) or max(0.0, centre - half - min(apart, default=0))
        for number, x in zip(numbers, apart, strict=True):
            ports[number] = x + shift
    return ports


def _route(route, port, height):
    """Points of an arrow: out of the lower side, straight through the layers it passes, into the upper side."""
    points = [(route[0][0], route[0][1] + height / 2)]
    for x, y in route[1:-1]:
        points += [(x, y - height / 2), (x, y + height / 2)]
    return [*points, (port, route[-1][1] - height / 2)]


def _labels(routes, label_widths):
    """Places on the last stretch of each arrow, moved apart where labels of one layer would touch."""
    places, layers = [None] * len(routes), {}
    for number, route in enumerate(routes):
        (x0, y0), (x1, y1) = route[-2:]
        # Nearer to the head, where arrows that leave one node have parted.
        places[number] = (x0 + (x1 - x0) * 0.62, y0 + (y1 - y0) * 0.47)
        layers.setdefault(round(y1, 3), []).append(number)
    for members in layers.values():
        members.sort(key=lambda number: (places[number][0], number))
        moved = spaced([places[n][0] for n in members], [label_widths[n] for n in members], 0.02)
        for number, x in zip(members, moved, strict=True):
            places[number] = (x, places[number][1])
    return places


def _shifted(boxes, links, widths, height, centres, routes, labels, label_widths):
    left = [x - width / 2 for (x, _), width in zip(centres, widths, strict=True)]
    right = [x + width / 2 for (x, _), width in zip(centres, widths, strict=True)]
    left += [x - width / 2 for (x, _), width in zip(labels, label_widths, strict=True)]
    right += [x + width / 2 for (x, _), width in zip(labels, label_widths, strict=True)]
    left += [x for route in routes for x, _ in route]
    right += [x for route in routes for x, _ in route]
    dx, dy = -min(left, default=0.0), height / 2

    def move(points):
        return tuple((x + dx, y + dy) for x, y in points)

    size = (max(right, default=0.0) + dx, max((y for _, y in centres), default=0.0) + height)
    return Picture(tuple(boxes), tuple(links), tuple(widths), height, move(centres), tuple(map(move, routes)),
                   move(labels), size)  # fmt: skip


def sheet(width, height, margin=0.15, **options):
    """A figure of that many inches and an axes over it, measured in inches with y downwards."""
    figure = StudyFigure(figsize=(width + 2 * margin, height + 2 * margin), **options)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-margin, width + margin)
    axes.set_ylim(height + margin, -margin)
    axes.axis("off")
    return figure, axes


def nothing(text):
    """A figure that says why there is nothing to draw."""
    figure, axes = sheet(max(4.0, text_width(text, 9)), 0.6)
    axes.text(0, 0.3, text, va="center", color=FAINT)
    return figure


def paint(axes, picture: Picture, x=0.0, y=0.0, prefix=""):
    """Draw a placed graph with its upper left corner at (x, y) of an axes that is measured in inches.

    Artists carry ids (``node-0``, ``edge-0``, after ``prefix``), which become ids in SVG.
    """
    for number, (link, route) in enumerate(zip(picture.links, picture.routes, strict=True)):
        axes.add_patch(_arrow([(px + x, py + y) for px, py in route], f"{prefix}edge-{number}"))
        _label(axes, link, picture.labels[number][0] + x, picture.labels[number][1] + y)
    for number, (box, (cx, cy)) in enumerate(zip(picture.boxes, picture.centres, strict=True)):
        _box(axes, box, cx + x, cy + y, picture.widths[number], picture.height, f"{prefix}node-{number}")


def _arrow(points, name):
    vertices, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        middle = (y0 + y1) / 2
        vertices += [(x0, middle), (x1, middle), (x1, y1)]
        codes += [Path.CURVE4] * 3
    arrow = FancyArrowPatch(path=Path(vertices, codes), arrowstyle="-|>,head_length=4.5,head_width=2.4",
                            mutation_scale=1, color=FAINT, linewidth=1.0, zorder=1, shrinkA=0, shrinkB=0)  # fmt: skip
    arrow.set_gid(name)
    return arrow


def _label(axes, link, x, y):
    if not link.lines:
        return
    for row, line in enumerate(link.lines):
        last = link.strong and row == len(link.lines) - 1
        middle = y + (row - (len(link.lines) - 1) / 2) * _LABEL_LINE
        # White only as wide as the line itself, so that little of a neighbouring arrow is hidden.
        width = text_width(line, LABEL_SIZE, last) + 0.04
        place = (x - width / 2, middle - _LABEL_LINE / 2)
        axes.add_patch(Rectangle(place, width, _LABEL_LINE, facecolor="white", zorder=1.5))
        axes.text(
            x, middle, line, ha="center", va="center", fontsize=LABEL_SIZE,
            color=INK if last else FAINT, fontweight="bold" if last else "normal", zorder=2,
        )  # fmt: skip


def _box(axes, box, x, y, width, height, name):
    round_box = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.07", facecolor=box.face,
        edgecolor=box.edge, linewidth=box.thick, hatch=box.hatch, hatchcolor="#c9c9c9", zorder=3,
    )  # fmt: skip
    round_box.set_gid(name)
    axes.add_patch(round_box)
    for row, line in enumerate(box.lines):
        axes.text(
            x, y + (row - (len(box.lines) - 1) / 2) * _LINE, line, ha="center", va="center_baseline", color=box.ink,
            fontsize=NUMBER_SIZE if row else NAME_SIZE, fontweight="normal" if row else "bold", zorder=4,
        )  # fmt: skip
