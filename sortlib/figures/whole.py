"""Amplification over a whole model: every API call, with what the tested patterns say about it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from matplotlib.collections import LineCollection
from matplotlib.patches import Circle, Rectangle

from sortlib.apis import paper_name
from sortlib.errors import SortError, choices
from sortlib.figures.drawing import sheet, text_width
from sortlib.figures.heatmap import SIDES, Colours, draw_scale, magnitude, value_of
from sortlib.figures.layered import layout, longest_ways
from sortlib.figures.style import FAINT, INK, RULE, styled
from sortlib.grouping import accuses
from sortlib.mining import mine

NAMED = 6  # APIs with the largest differences, numbered in the drawing and named below it
_STEP, _RADIUS, _BEND = 0.145, 0.06, 0.012  # inches: between layers, of a call, of an edge that passes a layer
_GAP, _BETWEEN, _STAGE = 0.05, 0.42, 0.16  # between neighbours, between columns, for the names of modules
_UNTESTED = "#b0b0b0"
_INSIDE, _THICK = "#7d7d7d", 0.9  # an edge inside an occurrence of a tested pattern
_UNIT = "largest difference, in the output's own unit"
_SHAPE = 1.15  # width over height that the columns come near to


@dataclass
class Seen:
    """What the cases of all tested patterns say about one call of a model."""

    value: float | None = None
    accused: bool = False
    patterns: set = field(default_factory=set)


@styled
def whole_model(study, model="", side="local"):
    """The graph of a whole model, its calls coloured by the largest difference that a tested pattern shows there.

    Parameters
    ----------
    study : study whose cases were run.
    model : name of one of its models; the one with most tested calls if not given.
    side : ``local`` (every call on the reference's values: what the call itself adds) or ``propagated`` (each platform
        on its own values since the beginning of the pattern).

    Returns
    -------
    matplotlib.figure.Figure
        Data flows downwards, and columns are read from left to right. A call takes the largest difference over the
        cases of all patterns that occur on it; calls in no tested pattern are small and grey, and edges inside an
        occurrence are dark. Calls that the evidence rule accuses are square. Artists carry ids (``call-0``).

    Raises
    ------
    SortError
        Unknown model or side, or nothing was run yet.
    """
    if side not in SIDES:
        raise SortError(f"unknown difference {side!r}; valid: {choices(SIDES)}")
    names = [graph.name for graph in study.graphs]
    if model and model not in names:
        raise SortError(f"{study.directory}: no model {model!r}; valid: {choices(names)}")
    tested = set(study.outcomes["pattern"])
    number = names.index(model) if model else _most_tested(study, tested)
    nodes, edges = _occurrences(study, tested, number)
    return _drawn(study, study.graphs[number], _seen(study, nodes, side), edges, side)


def _most_tested(study, tested) -> int:
    """The graph with most calls in the occurrences that the study keeps, one for each pattern and graph."""
    calls = [set() for _ in study.graphs]
    for pattern in study.patterns:
        for graph, nodes, _ in pattern.embeddings if pattern.id in tested else ():
            calls[graph].update(nodes)
    return max(range(len(calls)), key=lambda graph: (len(calls[graph]), -graph))


def _occurrences(study, tested, number):
    """All occurrences of tested patterns in one graph: {call: {(pattern, node)}}, and their edges.

    The study keeps one for each graph, so its graphs are mined again with the same settings; of a pattern with more
    than 2,000 occurrences in a graph the miner gives a sample.
    """
    calls, inside = {}, set()
    for pattern in mine(study.graphs, **study.config.mining.model_dump(), embeddings="all"):
        for _, nodes, edges in pattern.embeddings.in_graph(number) if pattern.id in tested else ():
            for place, node in enumerate(nodes):
                calls.setdefault(node, set()).add((pattern.id, place))
            inside.update(edges)
    return calls, inside


def _seen(study, nodes, side) -> dict[int, Seen]:
    values, accused = {}, set()
    rows = study.judged
    guilty = accuses(rows)
    read = rows[["pattern", "node", "status", f"{side}_max_abs"]].to_dict("records")
    for row, wrong in zip(read, guilty, strict=True):
        key, value = (row["pattern"], row["node"]), value_of(row, side)
        if value is not None:
            values[key] = max(value, values.get(key, 0.0))
        if wrong:
            accused.add(key)
    seen = {}
    for node, places in nodes.items():
        known = [values[place] for place in places if place in values]
        patterns = {pattern for pattern, _ in places}
        seen[node] = Seen(max(known, default=None), bool(places & accused), patterns)
    return seen


# ---- drawing ----


@dataclass(frozen=True)
class _Column:
    """Layers ``first`` to ``last`` of the graph, drawn with their left end at ``x``."""

    first: int
    last: int
    left: float
    right: float
    x: float


def _drawn(study, graph, seen, inside, side):
    points, chains, ranks = _placed(graph)
    columns = _columns(points, ranks)
    depth = max(column.last - column.first for column in columns) * _STEP + 2 * _STEP
    colours = Colours("log", study.config.threshold, [call.value for call in seen.values() if call.value is not None])
    worst = _worst(graph, seen)
    head, foot = 0.62, 1.1 + 0.17 * len(worst)
    pair = study.stage("run")
    title = f"{graph.name}: {'local' if side == 'local' else 'propagated'} differences of its calls"
    lines = [
        f"{pair['reference']} against {pair['candidate']}; {len(seen):,} of {len(graph.nodes):,} calls lie in one of "
        f"{len(set().union(*(call.patterns for call in seen.values()))):,} tested patterns",
        f"{SIDES[side]}; data flows downwards, columns from left to right",
    ]
    keys = [_named(graph, place, *group) for place, group in enumerate(worst, 1)]
    width = max(columns[-1].x + columns[-1].right - columns[-1].left, text_width(title, 10, True),
                3.75 + text_width(_UNIT, 7),
                *(text_width(line, 8) for line in (*lines, *keys)))  # fmt: skip
    figure, axes = sheet(width, head + depth + foot)
    axes.text(0, 0.08, title, fontsize=10, fontweight="bold", va="center")
    for row, line in enumerate(lines):
        axes.text(0, 0.27 + 0.16 * row, line, fontsize=8, color=FAINT, va="center")
    top = head + _STEP
    _draw_edges(axes, points, chains, ranks, columns, inside, top)
    _draw_stages(axes, graph, ranks, columns, top)
    _draw_calls(axes, points, ranks, columns, len(graph.nodes), seen, colours, worst, top)
    _draw_foot(axes, head + depth + 0.14, keys, colours, seen, len(seen) < len(graph.nodes))
    return figure


def _placed(graph):
    """Places of calls and bends, the chain of each edge, and the layers.

    All edges that leave a call share one line downwards, so that a concatenation of dozens of tensors stays narrow.
    """
    pairs = [(edge.src, edge.dst) for edge in graph.edges]
    ranks = _latest(len(graph.nodes), pairs)
    last = list(ranks)
    for src, dst in pairs:
        last[src] = max(last[src], ranks[dst] - 1)
    line, segments, total = {}, [], len(graph.nodes)
    for node in range(len(graph.nodes)):
        line[node] = [node, *range(total, total + last[node] - ranks[node])]
        ranks += range(ranks[node] + 1, last[node] + 1)
        total += last[node] - ranks[node]
        segments += zip(line[node], line[node][1:], strict=False)
    chains = [[*line[src][: ranks[dst] - ranks[src]], dst] for src, dst in pairs]
    segments += {(chain[-2], chain[-1]) for chain in chains}
    bends = total - len(graph.nodes)
    widths = [2 * _RADIUS] * len(graph.nodes) + [_BEND] * bends
    placed = layout(range(total), sorted(segments), widths, _BEND, _GAP, _STEP, ranks=ranks)
    return [x for x, _ in placed.positions], chains, ranks


def _latest(count, pairs) -> list[int]:
    """The layer of each call just above the first that reads it, so that constants stand where they are used."""
    ranks = longest_ways(count, pairs)
    readers = {}
    for src, dst in pairs:
        readers.setdefault(src, []).append(dst)
    latest = list(ranks)
    for node in sorted(readers, key=lambda node: -ranks[node]):  # what reads a call stands below it, and comes first
        latest[node] = min(latest[dst] for dst in readers[node]) - 1
    return latest


def _columns(points, ranks):
    """The layers cut into columns, as many as make the drawing about ``_SHAPE`` times as wide as high."""
    layers = max(ranks) + 1
    ends = [[math.inf, -math.inf] for _ in range(layers)]
    for x, rank in zip(points, ranks, strict=True):
        ends[rank] = [min(ends[rank][0], x), max(ends[rank][1], x)]
    best = None
    for count in range(1, max(2, layers // 8 + 1)):
        height = math.ceil(layers / count)
        found, x = [], _STAGE
        for first in range(0, layers, height):
            last = min(first + height, layers) - 1
            left = min(low for low, _ in ends[first : last + 1]) - _RADIUS
            right = max(high for _, high in ends[first : last + 1]) + _RADIUS
            found.append(_Column(first, last, left, right, x))
            x += right - left + _BETWEEN
        best = found
        if x - _BETWEEN >= _SHAPE * height * _STEP:
            break
    return best


def _at(points, ranks, columns, item, top):
    """Where an item is drawn: (x, y, number of its column)."""
    number = next(k for k, column in enumerate(columns) if ranks[item] <= column.last)
    column = columns[number]
    return points[item] - column.left + column.x, top + (ranks[item] - column.first) * _STEP, number


def _draw_edges(axes, points, chains, ranks, columns, inside, top):
    light, dark = {}, {}
    for number, chain in enumerate(chains):
        for upper, lower in zip(chain, chain[1:], strict=False):
            (dark if number in inside else light)[upper, lower] = None
    for found, colour, width, order in ((light, RULE, 0.6, 1), (dark, _INSIDE, _THICK, 1.5)):
        lines = []
        for upper, lower in found:
            (x0, y0, one), (x1, y1, other) = (_at(points, ranks, columns, item, top) for item in (upper, lower))
            if one == other:
                lines.append([(x0, y0), (x1, y1)])
            else:  # out of the foot of one column, into the head of the next
                lines += [[(x0, y0), (x0, y0 + 0.7 * _STEP)], [(x1, y1 - 0.7 * _STEP), (x1, y1)]]
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, zorder=order, capstyle="round"))


def _draw_stages(axes, graph, ranks, columns, top):
    """Beside each column the modules that its layers belong to."""
    stages = {}
    for name, rank in zip(_stage_names(graph), ranks, strict=False):
        stages.setdefault(rank, Counter())[name] += 1
    for column in columns:
        first = column.first
        for rank in range(column.first, column.last + 1):
            name = stages[rank].most_common(1)[0][0]
            if rank < column.last and stages[rank + 1].most_common(1)[0][0] == name:
                continue
            length = (rank - first + 1) * _STEP
            if name and text_width(name, 6.5) < length:
                y0 = top + (first - column.first) * _STEP
                x = column.x - 0.07
                axes.plot([x, x], [y0 - 0.35 * _STEP, y0 + length - 0.65 * _STEP], color=RULE, linewidth=1.2, zorder=1)
                axes.text(x - 0.06, y0 + length / 2 - _STEP / 2, name, rotation=90, fontsize=6.5, color=FAINT,
                          ha="center", va="center")  # fmt: skip
            first = rank + 1


def _stage_names(graph) -> list[str]:
    """For each call the name of its stage: a module path cut where its parts are few enough to be named."""
    paths = [node.module_path.split(".") if node.module_path else [] for node in graph.nodes]
    tops = {path[0] for path in paths if path}
    most = max(12, len(paths) // 8)
    depth = max((deep for deep in (1, 2, 3, 4) if len({tuple(path[:deep]) for path in paths}) <= most), default=1)
    # The name that nearly every call begins with says nothing.
    common = next((top for top in tops if sum(path[:1] == [top] for path in paths) > 0.8 * len(paths)), "")
    return [".".join(path[1:depth] if path[:1] == [common] else path[:depth]) for path in paths]


def _worst(graph, seen):
    """The APIs with the largest differences: (API, value, calls that have it), the largest first."""
    groups = {}
    for node, call in sorted(seen.items()):
        if call.value:
            value, calls = groups.get(graph.nodes[node].api, (0.0, []))
            if call.value >= value:
                groups[graph.nodes[node].api] = call.value, [*(calls if call.value == value else ()), node]
    ranked = sorted(groups.items(), key=lambda item: (-item[1][0], item[0]))
    return [(api, value, calls) for api, (value, calls) in ranked[:NAMED]]


def _named(graph, place, api, value, calls) -> str:
    where = graph.nodes[calls[0]].module_path or "the model itself"
    many = f"at {len(calls)} calls, first in {where}" if len(calls) > 1 else f"in {where}"
    return f"{place}  {paper_name(api)}: {magnitude(value)}, {many}"


def _draw_calls(axes, points, ranks, columns, count, seen, colours, worst, top):
    numbers = {node: place for place, (_, _, calls) in enumerate(worst, 1) for node in calls}
    for node in range(count):
        x, y, _ = _at(points, ranks, columns, node, top)
        mark = _mark(seen.get(node), colours, x, y)
        mark.set_gid(f"call-{node}")
        axes.add_patch(mark)
        if node in numbers:
            ink = colours(seen[node].value)[1]
            axes.text(x, y + 0.003, str(numbers[node]), fontsize=6, fontweight="bold", color=ink, ha="center",
                      va="center_baseline", zorder=5)  # fmt: skip


def _mark(call, colours, x, y):
    """A call as a shape: small and grey where it is not tested, square where a platform is accused."""
    if call is None:
        return Circle((x, y), 0.45 * _RADIUS, facecolor=_UNTESTED, edgecolor="none", zorder=2)
    look = {"facecolor": "#f2f2f2" if call.value is None else colours(call.value)[0], "edgecolor": INK, "zorder": 3}
    hatch = "//////" if call.value is None else ""
    if call.accused:
        side = 2.4 * _RADIUS
        return Rectangle((x - side / 2, y - side / 2), side, side, linewidth=1.8, hatch=hatch, **look)
    return Circle((x, y), _RADIUS, linewidth=0.5, hatch=hatch, **look)


def _draw_foot(axes, y, keys, colours, calls, untested):
    """Legend, scale and the names of the numbered calls."""
    seen = calls.values()
    shown = [("exactly 0", Seen(0.0))] if any(call.value == 0 for call in seen) else []
    shown += [("accused", Seen(colours.threshold, True))] if any(call.accused for call in seen) else []
    shown += [("no value", Seen())] if any(call.value is None for call in seen) else []
    shown += [("in no tested pattern", None)] if untested else []
    x = 0.06
    axes.plot([x - 0.06, x + 0.06], [y, y], color=_INSIDE, linewidth=_THICK, solid_capstyle="round")
    axes.text(x + 0.12, y, "inside a tested pattern", fontsize=8, va="center")
    x += 0.34 + text_width("inside a tested pattern", 8)
    for text, call in shown:
        axes.add_patch(_mark(call, colours, x, y))
        axes.text(x + 0.12, y, text, fontsize=8, va="center")
        x += 0.34 + text_width(text, 8)
    draw_scale(axes, colours, 3.6, y + 0.36)
    axes.text(3.75, y + 0.43, _UNIT, fontsize=7, va="center", color=FAINT)
    for row, key in enumerate(keys):
        number, _, rest = key.partition("  ")
        axes.text(0.06, y + 0.98 + 0.17 * row, number, fontsize=8, fontweight="bold", va="center", ha="center")
        axes.text(0.22, y + 0.98 + 0.17 * row, rest, fontsize=8, va="center")
