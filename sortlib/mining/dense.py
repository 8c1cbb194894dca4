"""Does a pattern occur in a graph? A search that stops at the first occurrences.

Where a call takes dozens of tensors (``cat`` in DenseNet) a pattern can have millions of embeddings in one graph. They
are not listed then; whether such a graph holds a larger pattern is asked here, one pattern and graph at a time.
"""

from __future__ import annotations

import numpy as np

from sortlib.mining.canonical import NO_EDGE
from sortlib.mining.corpus import Corpus, spread

CHUNK = 256  # partial embeddings that are extended at once


def search(corpus: Corpus, graph: int, nodes, links, want: int = 64) -> np.ndarray:
    """Up to ``want`` (at least one if any exists) occurrences of a pattern in one graph.

    Parameters
    ----------
    nodes : API numbers.
    links : (src, dst, argument, count) of each different edge.

    Returns
    -------
    rows : (n, found) node numbers.
    """
    links = [link for link in links if link[2] != NO_EDGE]
    low, high = int(corpus.first[graph]), int(corpus.first[graph + 1])
    allowed = _domains(corpus, low, high, nodes, links)
    if allowed is None:
        return np.zeros((len(nodes), 0), np.int32)
    plan = _plan(nodes, links, allowed.sum(axis=1))
    start = plan[0][0]
    rows = np.full((len(nodes), int(allowed[start].sum())), -1, np.int64)
    rows[start] = np.flatnonzero(allowed[start]) + low
    stack, found, total = [(1, rows)], [], 0
    while stack and total < want:
        step, rows = stack.pop()
        if step == len(plan):
            found.append(rows)
            total += rows.shape[1]
            continue
        if rows.shape[1] > CHUNK:
            stack.append((step, rows[:, CHUNK:]))
            rows = rows[:, :CHUNK]
        rows = _place(corpus, rows, allowed, low, *plan[step])
        if rows.shape[1]:
            stack.append((step + 1, rows))
    return np.concatenate(found, axis=1)[:, :want].astype(np.int32) if found else np.zeros((len(nodes), 0), np.int32)


def _domains(corpus, low, high, nodes, links):
    """(n, nodes of the graph): where each pattern node may stand, by label, degrees and neighbours; None if nowhere."""
    api = corpus.node_api[low:high]
    allowed = api[None, :] == np.asarray(nodes)[:, None]
    begin, end = corpus.link_ptr[low], corpus.link_ptr[high]
    src, dst = corpus.link_src[begin:end] - low, corpus.link_dst[begin:end] - low
    argument, count = corpus.link_argument[begin:end], corpus.link_count[begin:end]
    fits = [(argument == link[2]) & (count >= link[3]) for link in links]
    for node in range(len(nodes)):
        alike = {}
        for k, link in enumerate(links):
            if node in link[:2]:
                out = link[0] == node
                alike.setdefault((out, *link[2:], nodes[link[1] if out else link[0]]), []).append(k)
        for (out, _argument, _count, other), group in alike.items():
            if len(group) > 1:  # as many different neighbours of this sort
                near, far = (src, dst) if out else (dst, src)
                ends = near[fits[group[0]] & (api[far] == other)]
                allowed[node] &= np.bincount(ends, minlength=high - low) >= len(group)
    for _ in range(2 * len(nodes)):
        before = allowed.sum()
        for fit, link in zip(fits, links, strict=True):
            live = fit & allowed[link[0]][src] & allowed[link[1]][dst]
            for node, ends in ((link[0], src), (link[1], dst)):
                reached = np.zeros(high - low, bool)
                reached[ends[live]] = True
                allowed[node] &= reached
        if not allowed.any(axis=1).all():
            return None
        if allowed.sum() == before:
            break
    return allowed


def _plan(nodes, links, room):
    """Order in which nodes are placed: (node, edges to placed nodes, twin that must have a smaller number)."""
    around = [
        frozenset((link[1], True, *link[2:]) if link[0] == node else (link[0], False, *link[2:])
                  for link in links if node in link[:2])
        for node in range(len(nodes))
    ]  # fmt: skip
    placed = [int(np.argmin(room))]
    plan = [(placed[0], [], None)]
    while len(placed) < len(nodes):
        across = [link for link in links if (link[0] in placed) != (link[1] in placed)]
        near = {link[1] if link[0] in placed else link[0] for link in across}
        node = min(near, key=lambda k: (room[k], k))
        edges = [link for link in links if node in link[:2] and (link[0] in placed or link[1] in placed)]
        twins = [other for other in placed if around[other] == around[node] and nodes[other] == nodes[node]]
        plan.append((node, edges, twins[-1] if twins else None))
        placed.append(node)
    return plan


def _place(corpus, rows, allowed, low, node, edges, twin):
    """All ways to place one node more."""
    src, dst, argument, count = edges[0]
    if src == node:  # follow the edge backwards: half-links that end in the placed node
        owner, half = _halves(corpus, rows[dst])
    else:
        owner, half = _halves(corpus, rows[src])
    other = corpus.half_node[half].astype(np.int64)
    keep = allowed[node][other - low]
    owner, other = owner[keep], other[keep]
    # a node may be reached over several links; one of them is enough
    pair = np.unique(owner * np.int64(corpus.nodes) + other)
    owner, other = pair // corpus.nodes, pair % corpus.nodes
    good = ~(rows[:, owner] == other).any(axis=0)
    if twin is not None:
        good &= other > rows[twin][owner]
    for src, dst, argument, count in edges:
        start = other if src == node else rows[src][owner]
        stop = other if dst == node else rows[dst][owner]
        link = np.minimum(corpus.link(start, argument, stop), len(corpus.link_key) - 1)
        key = (start * corpus.nodes + stop) * len(corpus.alphabet.arguments) + argument
        good &= (corpus.link_key[link] == key) & (corpus.link_count[link] >= count)
    rows = rows[:, owner[good]]
    rows[node] = other[good]
    return rows


def _halves(corpus, node):
    return spread(corpus.half_ptr[node + 1] - corpus.half_ptr[node], corpus.half_ptr[node])
