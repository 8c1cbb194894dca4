"""Layered drawing of a data-flow graph: where nodes stand and how edges run (after Sugiyama et al. 1981).

A node's layer is the longest way that leads to it. Edges that skip layers get a bend in every layer they pass, which
takes part in ordering and spacing, so that no edge runs through a node. Pure functions without a drawing library.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from math import inf
from typing import NamedTuple

import networkx as nx

from sortlib.errors import SortError

# How strongly a segment pulls towards being vertical, by the number of bends at its ends. A straight chain of calls
# matters more than a straight start of an edge that goes round it.
_PULL = {0: 2.0, 1: 1.0, 2: 8.0}


class Layout(NamedTuple):
    """Places in the unit of ``widths``; x grows to the right and y downwards.

    Attributes
    ----------
    positions : (x, y) of each node's centre.
    routes : for each edge the points from the source's centre over its bends to the destination's centre.
    layers : node numbers of each layer, from left to right.
    """

    positions: tuple[tuple[float, float], ...]
    routes: tuple[tuple[tuple[float, float], ...], ...]
    layers: tuple[tuple[int, ...], ...]


def layout(nodes, edges, widths=None, bend_width=0.3, gap=0.4, step=1.0, sweeps=12, ranks=None) -> Layout:
    """Place the nodes of an acyclic graph in layers along the flow of data.

    Parameters
    ----------
    nodes : anything with a length; node i is number i.
    edges : tuples that begin with (src, dst); parallel ones are kept.
    widths : width of each node, 1 if not given.
    bend_width : width that is kept free for an edge that passes a layer.
    gap : free space between neighbours of a layer.
    step : distance of two layers.
    sweeps : passes of the ordering, upwards and downwards in turn.
    ranks : layer of each node, larger than that of every node before it; ``longest_ways`` if not given.

    Raises
    ------
    SortError
        The edges form a cycle or name a node that does not exist.
    """
    count = len(nodes)
    pairs = [(edge[0], edge[1]) for edge in edges]
    rank = list(ranks) if ranks is not None else longest_ways(count, pairs)
    chains, segments = _bends(pairs, rank)
    size = [*(widths or [1.0] * count), *[bend_width] * (len(rank) - count)]
    above, below = _neighbours(len(rank), segments, count)
    layers = _ordered(rank, above, below, segments, sweeps)
    x = _straightened(_columns(layers, above, below, size, gap), layers, above, below, size, gap)
    points = [(x[item], rank[item] * step) for item in range(len(rank))]
    return Layout(
        tuple(points[:count]),
        tuple(tuple(points[item] for item in chain) for chain in chains),
        tuple(tuple(item for item in layer if item < count) for layer in layers),
    )


def longest_ways(count, pairs) -> list[int]:
    """The layer of each node: the number of edges on the longest way that leads to it."""
    graph = nx.DiGraph(pairs)
    if any(not 0 <= node < count for node in graph):
        raise SortError(f"an edge names a node outside 0..{count - 1}")
    graph.add_nodes_from(range(count))
    rank = [0] * count
    try:
        for layer, members in enumerate(nx.topological_generations(graph)):
            for node in members:
                rank[node] = layer
    except nx.NetworkXUnfeasible:
        raise SortError("the edges form a cycle; only the flow of data without one can be drawn in layers") from None
    return rank


def _bends(pairs, rank):
    """Items that each edge passes, bends included, and the segments between layers; ``rank`` grows by the bends."""
    chains = []
    for src, dst in pairs:
        chain = [src]
        for layer in range(rank[src] + 1, rank[dst]):
            chain.append(len(rank))
            rank.append(layer)
        chains.append([*chain, dst])
    return chains, [pair for chain in chains for pair in zip(chain, chain[1:], strict=False)]


def _neighbours(total, segments, count):
    """(item, pull) lists of every item, upwards and downwards."""
    above, below = [[] for _ in range(total)], [[] for _ in range(total)]
    for upper, lower in segments:
        pull = _PULL[(upper >= count) + (lower >= count)]
        above[lower].append((upper, pull))
        below[upper].append((lower, pull))
    return above, below


def _ordered(rank, above, below, segments, sweeps):
    """Layers ordered by the mean place of neighbours, upwards and downwards in turn; the fewest crossings win, then
    the shortest edges."""
    layers = [[] for _ in range(max(rank, default=-1) + 1)]
    for item, layer in enumerate(rank):
        layers[layer].append(item)
    best, least = [list(layer) for layer in layers], _cost(layers, segments)
    for sweep in range(sweeps):
        down = sweep % 2 == 1
        side = above if down else below
        for number in range(len(layers)) if down else reversed(range(len(layers))):
            other = number - 1 if down else number + 1
            if 0 <= other < len(layers):
                layers[number] = _by_mean(layers[number], layers[other], side, flip=sweep % 4 > 1)
        found = _cost(layers, segments)
        if found < least:
            best, least = [list(layer) for layer in layers], found
    return best


def _by_mean(layer, other, side, flip):
    """The layer sorted by the mean place of its neighbours; equal ones in their order, or in reverse to try that."""
    place = {item: position for position, item in enumerate(other)}

    def mean(position):
        near = [place[item] for item, _ in side[layer[position]]]
        return sum(near) / len(near) if near else position

    positions = range(len(layer))
    return [layer[position] for position in sorted(reversed(positions) if flip else positions, key=mean)]


def _cost(layers, segments) -> tuple[int, int]:
    """(crossings, sum of sideways steps)."""
    place = {item: position for layer in layers for position, item in enumerate(layer)}
    rank = {item: number for number, layer in enumerate(layers) for item in layer}
    between = {}
    for upper, lower in segments:
        between.setdefault(rank[upper], []).append((place[upper], place[lower]))
    total = 0
    for ends in between.values():
        seen = []
        for _, lower in sorted(ends):
            total += len(seen) - bisect_right(seen, lower)
            insort(seen, lower)
    return total, sum(abs(place[upper] - place[lower]) for upper, lower in segments)


def _columns(layers, above, below, size, gap):
    """x of every item: first close to the mean of its neighbours, at the end to their median, which makes chains
    straight; the order and the gaps of each layer are kept."""
    x = {}
    for layer in layers:
        x.update(zip(layer, spaced([0.0] * len(layer), [size[item] for item in layer], gap), strict=True))
    for turn, centre in enumerate([_mean] * 8 + [_median] * 8):
        for number in range(len(layers)) if turn % 2 == 0 else reversed(range(len(layers))):
            layer = layers[number]
            pulls = [[(x[other], pull) for other, pull in above[item] + below[item]] for item in layer]
            wanted = [centre(pull) if pull else x[item] for item, pull in zip(layer, pulls, strict=True)]
            weights = [sum(strength for _, strength in pull) or 0.1 for pull in pulls]
            x.update(zip(layer, spaced(wanted, [size[item] for item in layer], gap, weights), strict=True))
    return x


def _straightened(x, layers, above, below, size, gap):
    """Give chains (bends, and calls with one way in and one way out) one x where every layer has room for it."""
    beside = {}
    for layer in layers:
        beside.update(zip(layer, zip([None, *layer[:-1]], [*layer[1:], None], strict=True), strict=True))

    def room(item):
        left, right = beside[item]
        low = -inf if left is None else x[left] + (size[left] + size[item]) / 2 + gap
        high = inf if right is None else x[right] - (size[item] + size[right]) / 2 - gap
        return low, high

    runs = _runs(above, below)
    for run in sorted(runs, key=len, reverse=True) * 2:  # long ones first; the second turn has the others to lean on
        lows, highs = zip(*map(room, run), strict=True)
        low, high = max(lows), min(highs)
        if low > high:
            continue
        outside = [(x[other], pull) for other, pull in above[run[0]] + below[run[-1]]]
        wanted = sorted(x[item] for item in run)[len(run) // 2] if len(run) > 1 or not outside else _median(outside)
        x.update(dict.fromkeys(run, min(max(wanted, low), high)))
    return x


def _runs(above, below):
    """All items as maximal chains in which each is the only lower neighbour of the only upper neighbour it has."""

    def follower(item):
        lower = {other for other, _ in below[item]}
        if len(lower) != 1:
            return None
        (other,) = lower
        return other if len({upper for upper, _ in above[other]}) == 1 else None

    after = {item: follower(item) for item in range(len(above))}
    inner = set(after.values())
    runs = []
    for item in after:
        if item not in inner:
            run = [item]
            while after[run[-1]] is not None:
                run.append(after[run[-1]])
            runs.append(run)
    return runs


def _mean(pulls):
    return sum(place * pull for place, pull in pulls) / sum(pull for _, pull in pulls)


def _median(pulls):
    """Weighted median; the middle of the interval where it is not unique."""
    half, passed = sum(pull for _, pull in pulls) / 2, 0.0
    ordered = sorted(pulls)
    for position, (place, pull) in enumerate(ordered):
        passed += pull
        if passed > half:
            return place
        if passed == half:
            return (place + ordered[position + 1][0]) / 2
    return ordered[-1][0]


def spaced(wanted, widths, gap, weights=None) -> list[float]:
    """Centres in the given order, as near to ``wanted`` as ``gap`` between neighbours allows (weighted least squares).

    With the widths taken off, the centres must only not decrease, which pooling adjacent violators solves exactly.
    """
    weights = weights or [1.0] * len(wanted)
    offsets, edge = [], 0.0
    for position, width in enumerate(widths):
        edge += (widths[position - 1] + width) / 2 + gap if position else 0.0
        offsets.append(edge)
    pools = []  # [mean, weight, members]
    for place, offset, weight in zip(wanted, offsets, weights, strict=True):
        pools.append([place - offset, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, heavy, members = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += members
    means = [mean for mean, _, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
