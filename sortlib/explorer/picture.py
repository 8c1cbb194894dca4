"""A graph as numbers and words for the browser, placed and painted exactly as in the static figures."""

from __future__ import annotations

from sortlib.apis import paper_name
from sortlib.figures.drawing import Box, Link, Picture, place, place_alike
from sortlib.figures.heatmap import SIDES, Colours, case_graph, magnitude, value_of

DPI = 96  # pixels of an inch in a browser
SCALES = ("paper", "log")
_JOIN_FACE = "#d6e6f5"


def of_case(entry, threshold, side, scale) -> dict:
    """A case's calls, painted by their difference; both sides stand alike, so that switching moves nothing."""
    rows = entry.rows(threshold)
    colours = Colours(scale, threshold, [value_of(row, each) for each in SIDES for row in rows])
    alike = place_alike([case_graph(entry.case, rows, each, colours) for each in SIDES])
    picture = dict(zip(SIDES, alike, strict=True))
    said = [
        f"{box.lines[0]}, {'difference ' if value_of(row, side) is not None else ''}{box.lines[1]}, "
        f"paper {row['paper']}, evidence {row['evidence']}"
        for box, row in zip(picture[side].boxes, rows, strict=True)
    ]
    return {**_form(picture[side], said), "legend": _legend(threshold, scale, picture[side], colours, rows)}


def of_pattern(pattern) -> dict:
    """A pattern that was not run; calls that join several pattern nodes are shaded."""
    sources = [{src for src, dst, _ in pattern.edges if dst == node} for node in range(len(pattern.nodes))]
    boxes = [
        Box((paper_name(api),), face=_JOIN_FACE if len(producers) > 1 else "white")
        for api, producers in zip(pattern.nodes, sources, strict=True)
    ]
    links = [Link(src, dst, (argument,)) for src, dst, argument in pattern.edges]
    return {**_form(place(boxes, links), [box.lines[0] for box in boxes]), "legend": []}


def _form(picture: Picture, said) -> dict:
    boxes = [
        {
            "x": _px(x - width / 2), "y": _px(y - picture.height / 2), "width": _px(width),
            "height": _px(picture.height), "lines": box.lines, "face": box.face, "ink": box.ink, "thick": box.thick,
            "empty": bool(box.hatch), "said": f"call {number}: {words}",
        }
        for number, (box, (x, y), width, words) in enumerate(
            zip(picture.boxes, picture.centres, picture.widths, said, strict=True))
    ]  # fmt: skip
    links = [
        {"src": link.src, "dst": link.dst, "path": _path(route), "x": _px(x), "y": _px(y), "lines": link.lines,
         "strong": link.strong}
        for link, route, (x, y) in zip(picture.links, picture.routes, picture.labels, strict=True)
    ]  # fmt: skip
    return {"width": _px(picture.size[0]), "height": _px(picture.size[1]), "boxes": boxes, "links": links}


def _px(inches) -> float:
    return round(inches * DPI, 1)


def _path(route) -> str:
    """An SVG path with the same curves as ``figures.drawing``."""
    points = [(_px(x), _px(y)) for x, y in route]
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        middle = round((y0 + y1) / 2, 1)
        parts.append(f"C{x0} {middle} {x1} {middle} {x1} {y1}")
    return "".join(parts)


def _legend(threshold, scale, picture, colours, rows) -> list[dict]:
    limit = f"{threshold:g}"
    if scale == "paper":
        items = [
            {"face": colours(2 * threshold)[0], "thick": 2.2, "text": f"above {limit}"},
            {"face": colours(threshold / 2)[0], "thick": 0.9, "text": f"up to {limit}"},
        ]
    else:
        values = sorted({value for row in rows for side in SIDES if (value := value_of(row, side))})
        ends = [values[0], values[-1]] if len(values) > 1 else values
        items = [{"face": colours(value)[0], "thick": 0.9, "text": magnitude(value)} for value in ends]
        items.append({"face": "#ffffff", "thick": 2.2, "text": f"thick border: above {limit}"})
    items.append({"face": colours(0)[0], "thick": 0.9, "text": "exactly 0"})
    if any(box.hatch for box in picture.boxes):
        items.append({"face": "", "thick": 0.9, "text": "no value"})
    if any(link.strong for link in picture.links):
        items.append({"text": "\N{MULTIPLICATION SIGN}: gain = difference / largest that arrives"})
    return items
