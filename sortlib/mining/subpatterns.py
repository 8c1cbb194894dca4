"""The next smaller patterns of a pattern, many at a time."""

from __future__ import annotations

import numpy as np

from sortlib.mining.canonical import NO_EDGE, Batch


def without_leaf(batch: Batch):
    """Yield (pattern numbers, those patterns without one node that hangs on a single edge), node by node."""
    for node in range(batch.nodes.shape[1]):
        touching = ((batch.src == node) | (batch.dst == node)) & (batch.argument != NO_EDGE)
        leaf = (batch.count * touching).sum(axis=1) == 1
        if leaf.any() and batch.nodes.shape[1] > 2:
            less = batch.take(leaf)
            less.argument[touching[leaf]] = NO_EDGE
            less.count[touching[leaf]] = 0
            yield np.flatnonzero(leaf), _without_node(less, node)


def without_edge(batch: Batch):
    """Yield (pattern numbers, those patterns without one edge, still connected), edge by edge."""
    for edge in range(batch.src.shape[1]):
        live = np.flatnonzero(batch.argument[:, edge] != NO_EDGE)
        less = batch.take(live)
        less.count[:, edge] -= 1
        gone = less.count[:, edge] == 0
        less.argument[gone, edge] = NO_EDGE
        less.src[gone, edge] = less.dst[gone, edge] = 0
        whole = _connected(less)
        if whole.any():
            yield live[whole], less.take(whole)


def next_smaller(batch: Batch):
    """Every connected pattern that lacks one edge, together with the node that this leaves alone."""
    yield from without_edge(batch)
    yield from without_leaf(batch)


def _connected(batch):
    total, size = batch.nodes.shape
    row = np.arange(total)
    reach = np.zeros((total, size), bool)
    reach[:, 0] = True
    for _ in range(size):
        for k in range(batch.src.shape[1]):
            src, dst = batch.src[:, k], batch.dst[:, k]
            either = (reach[row, src] | reach[row, dst]) & (batch.argument[:, k] != NO_EDGE)
            reach[row, src] |= either
            reach[row, dst] |= either
    return reach.all(axis=1)


def _without_node(batch, node):
    keep = [k for k in range(batch.nodes.shape[1]) if k != node]
    real = batch.argument != NO_EDGE
    src, dst = (np.where(real, ends - (ends > node), 0) for ends in (batch.src, batch.dst))
    return Batch(batch.nodes[:, keep], src, dst, batch.argument, batch.count)
