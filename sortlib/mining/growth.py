"""Embeddings of all patterns of one size as integer arrays, and the joins that make them larger.

An embedding is a column of node numbers: ``rows[k, r]`` is the node that stands for the pattern's node k in embedding
r. Embeddings are kept once for each occurrence, that is, once for each set of graph edges: for a symmetric pattern
any one of its equivalent columns. Every method treats all patterns of a level in blocks of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sortlib.mining.canonical import NO_EDGE, Batch, mix
from sortlib.mining.corpus import Corpus, spread

BLOCK = 1 << 17  # embeddings treated at once
FLAGS = 1 << 25  # bytes of the (extension, graph) table


@dataclass
class Jobs:
    """Extensions to be carried out, sorted by ``target``.

    Attributes
    ----------
    target : number of the new pattern; several jobs share one if the old pattern is symmetric.
    source : number of the old pattern.
    at, to : for a new node, the node it hangs on and the kind of slot (``Corpus``); for a new edge, its two ends.
    argument : label of a new edge (unused for a new node).
    order : (jobs, n) old position of each node of the new pattern; a new node has the old number of nodes.
    """

    target: np.ndarray
    source: np.ndarray
    at: np.ndarray
    to: np.ndarray
    order: np.ndarray
    argument: np.ndarray | None = None


class Sampling:
    """Cuts the embeddings of a pattern that has more than ``dense`` of them in one graph down to ``sample``.

    ``partial`` (patterns, graphs) says where that happened; it is None as long as it did not.
    """

    def __init__(self, corpus, patterns, dense, sample, partial=None):
        self.corpus, self.patterns, self.dense, self.sample, self.partial = corpus, patterns, dense, sample, partial

    def cut(self, pattern, rows, cyclic):
        if not len(pattern) or np.bincount(pattern - pattern.min()).max() <= self.dense:
            return pattern, rows, cyclic
        graphs = self.corpus.graphs
        key = pattern.astype(np.int64) * graphs + self.corpus.node_graph[rows[0]]
        names, which, count = np.unique(key, return_inverse=True, return_counts=True)
        many = count > self.dense
        if not many.any():
            return pattern, rows, cyclic
        if self.partial is None:
            self.partial = np.zeros((self.patterns, graphs), bool)
        self.partial[names[many] // graphs, names[many] % graphs] = True
        # ordered by a hash: a sample that looks random and is the same in every run
        salt = np.arange(len(rows), dtype=np.uint64)[:, None] << np.uint64(40)
        order = np.lexsort((mix(rows.astype(np.uint64) + salt).sum(axis=0), key))
        place = np.empty(len(key), np.int64)
        place[order] = np.arange(len(key)) - np.repeat(np.cumsum(count) - count, count)
        keep = ~many[which] | (place < self.sample)
        return pattern[keep], rows[:, keep], cyclic[keep]


class Embeddings:
    """The embeddings of numbered patterns of one size, sorted by pattern."""

    def __init__(self, rows, ptr, cyclic):
        self.rows, self.ptr, self.cyclic = rows, ptr, cyclic

    @property
    def size(self):
        return self.rows.shape[0]

    def counts(self):
        return np.diff(self.ptr)

    def select(self, keep):
        """The embeddings marked in ``keep``."""
        ptr = np.concatenate([[0], np.cumsum(keep)])[self.ptr]
        return Embeddings(self.rows[:, keep], ptr, self.cyclic[keep])


def seeds(corpus: Corpus, graphs: np.ndarray, sampling: Sampling) -> Embeddings:
    """Every link of the chosen ``graphs`` as an embedding of its (API, argument, API) triple; node 0 is the source."""
    apis, labels = len(corpus.alphabet.apis), len(corpus.alphabet.arguments)
    source, target = corpus.node_api[corpus.link_src].astype(np.int64), corpus.node_api[corpus.link_dst]
    key = (source * labels + corpus.link_argument) * apis + target
    wanted = (corpus.triples[:, 0] * labels + corpus.triples[:, 1]) * apis + corpus.triples[:, 2]
    order = np.argsort(key, kind="stable")
    order = order[graphs[corpus.node_graph[corpus.link_src[order]]]]
    rows = np.stack([corpus.link_src, corpus.link_dst]).astype(np.int32)[:, order]
    target = np.searchsorted(wanted, key[order])
    cyclic = _joins_more(corpus, rows[1], rows[:1])
    return collect([sampling.cut(target, rows, cyclic)], len(wanted), 2)


def _inside(rows, at, node):
    """Whether ``node[i]`` is part of embedding ``at[i]``."""
    found = rows[0][at] == node
    for row in rows[1:]:
        found |= row[at] == node
    return found


def _joins_more(corpus, node, rows):
    """Whether two or more edges run between ``node[i]`` and the nodes of embedding i, parallels counted."""
    degree = corpus.half_ptr[node + 1] - corpus.half_ptr[node]
    several = degree > 1
    several[~several] = corpus.half_count[corpus.half_ptr[node[~several]]] > 1
    result = np.zeros(len(node), bool)
    few = np.flatnonzero(several & (degree <= 2 * len(rows)))
    owner, half = spread(degree[few], corpus.half_ptr[node[few]])
    weight = corpus.half_count[half] * _inside(rows, few[owner], corpus.half_node[half])
    result[few] = np.bincount(owner, weights=weight, minlength=len(few)) > 1
    many = np.flatnonzero(several & (degree > 2 * len(rows)))  # a hub: ask for each node of the embedding instead
    total = np.zeros(len(many), np.int64)
    for row in rows:
        for src, dst in ((node[many], row[many]), (row[many], node[many])):
            key = src.astype(np.int64) * corpus.nodes + dst
            place = np.minimum(np.searchsorted(corpus.pair_key, key), len(corpus.pair_key) - 1)
            total += corpus.pair_count[place] * (corpus.pair_key[place] == key)
    result[many] = total > 1
    return result


def _pattern_of(ptr, start, stop):
    """Pattern of each embedding from ``start`` to ``stop``."""
    first = np.searchsorted(ptr, start, side="right") - 1
    last = np.searchsorted(ptr, stop, side="left")
    inner = np.clip(ptr[first : last + 1], start, stop)
    return np.repeat(np.arange(first, last), np.diff(inner))


def _blocks(weights, limit):
    """Cut ``0 .. len(weights)`` into pieces of total weight up to ``limit`` (or one item)."""
    total = np.concatenate([[0], np.cumsum(weights)])
    start = 0
    while start < len(weights):
        stop = max(start + 1, int(np.searchsorted(total, total[start] + limit, side="right")) - 1)
        yield start, stop
        start = stop


def count_new_nodes(corpus: Corpus, held: Embeddings, orbit: np.ndarray, threshold: np.ndarray, mine: np.ndarray):
    """Which extensions by a new node occur in enough graphs.

    Parameters
    ----------
    threshold : (patterns,) number of graphs from which on an extension is reported.
    mine : booleans over all graphs: those with embeddings here.
    orbit : (patterns, n) nodes with equal numbers are interchangeable; an extension is named by the first of them.

    Returns
    -------
    code : (pattern * n + at) * kinds + kind of each extension, ascending.
    count : in how many graphs it occurs.
    graphs : (extensions, graphs of ``mine``) packed bits, the graphs with each.
    """
    size, kinds, graphs = held.size, max(corpus.kinds, 1), int(mine.sum())
    number = np.cumsum(mine) - 1  # graphs counted without those of other shards
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, (graphs + 7) // 8), np.uint8))]
    step = max(1, FLAGS // max(size * kinds * graphs, 1))
    blocks = _blocks(np.maximum(held.counts(), BLOCK // step + 1), BLOCK)
    for start, stop in blocks:
        flags = np.zeros((stop - start) * size * kinds * graphs, bool)
        for low in range(held.ptr[start], held.ptr[stop], BLOCK):
            high = min(low + BLOCK, held.ptr[stop])
            rows = held.rows[:, low:high]
            pattern = _pattern_of(held.ptr, low, high)
            graph = number[corpus.node_graph[rows[0]]]
            for at in range(size):
                node = rows[at]
                count = corpus.slot_ptr[node + 1] - corpus.slot_ptr[node]
                owner, slot = spread(count, corpus.slot_ptr[node])
                free = _has_free(corpus, rows, owner, slot)
                base = ((pattern - start) * size + orbit[pattern, at]) * (kinds * graphs) + graph
                flags[base[owner[free]] + corpus.slot_kind[slot[free]] * graphs] = True
        flags = flags.reshape(-1, graphs)
        count = np.count_nonzero(flags, axis=1)
        code = np.flatnonzero(count >= np.repeat(threshold[start:stop], size * kinds))
        found.append((code + start * size * kinds, count[code], np.packbits(flags[code], axis=1)))
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _has_free(corpus, rows, owner, slot):
    """Whether a slot leads to a node outside the embedding."""
    size = corpus.slot_size[slot]
    free = ~_inside(rows, owner, corpus.half_node[corpus.slot_start[slot]])
    unsure = np.flatnonzero(~free & (size > 1))
    free[unsure[size[unsure] >= len(rows)]] = True  # more neighbours than the embedding has other nodes
    unsure = unsure[size[unsure] < len(rows)]
    which, half = spread(size[unsure], corpus.slot_start[slot[unsure]])
    outside = ~_inside(rows, owner[unsure[which]], corpus.half_node[half])
    free[unsure[which[outside]]] = True
    return free


def add_nodes(corpus: Corpus, held: Embeddings, jobs: Jobs, patterns: Batch, tied, sampling: Sampling, thin, touched):
    """Carry out extensions by a new node.

    Parameters
    ----------
    patterns, tied : the new patterns, and whether they may be symmetric.
    sampling : what to do with dense patterns.
    thin : keep only this many embeddings for each pattern and graph, besides those on which more edges can be
        closed; None keeps all.
    touched : (nodes,) booleans, set where a node is part of some embedding.
    """
    size = held.size + 1
    count = held.counts()[jobs.source]
    ends = np.flatnonzero(np.append(np.diff(jobs.target) != 0, True)) + 1  # a pattern's jobs stay together
    weights = np.add.reduceat(count, np.concatenate([[0], ends[:-1]])) if len(ends) else count
    parts = []
    for first, last in _blocks(weights, BLOCK):
        low, high = (ends[first - 1] if first else 0), ends[last - 1]
        for piece in _joined(corpus, held, jobs, low, high, count):
            touched[piece[1]] = True
            parts.append(sampling.cut(*_settle(corpus, patterns, tied, *piece, thin)))
    return collect(parts, len(patterns), size)


def _joined(corpus, held, jobs, low, high, count):
    """Join the jobs from ``low`` to ``high``, whole patterns at a time: (target, rows, cyclic) of each portion."""
    job, at = spread(count[low:high], held.ptr[jobs.source[low:high]])
    job += low
    slot = corpus.slot_of[held.rows[jobs.at[job], at], jobs.to[job]]
    hit = slot >= 0
    job, at, slot = job[hit], at[hit], slot[hit]
    if not len(job):
        return
    start = np.flatnonzero(np.append(True, np.diff(jobs.target[job]) != 0))
    ends = np.append(start[1:], len(job))
    for first, last in _blocks(np.add.reduceat(corpus.slot_size[slot], start), BLOCK):
        part = slice(start[first], ends[last - 1])
        owner, half = spread(corpus.slot_size[slot[part]], corpus.slot_start[slot[part]])
        node = corpus.half_node[half]
        which, source = job[part][owner], at[part][owner]
        outside = ~_inside(held.rows, source, node)
        which, source, node = which[outside], source[outside], node[outside]
        rows = held.rows[:, source]
        cyclic = held.cyclic[source] | _joins_more(corpus, node, rows)
        rows = np.concatenate([rows, node[None]])
        yield jobs.target[which], np.take_along_axis(rows, jobs.order[which].T, axis=0), cyclic


def _settle(corpus, patterns, tied, target, rows, cyclic, thin):
    """Drop repeated occurrences of symmetric patterns, and what ``thin`` does not ask for."""
    doubtful = tied[target]
    if doubtful.any():
        keep = np.ones(len(target), bool)
        keep[doubtful] = first_occurrence(corpus, patterns, target[doubtful], rows[:, doubtful])
        target, rows, cyclic = target[keep], rows[:, keep], cyclic[keep]
    if thin is not None:
        keep = cyclic | first_in_graph(corpus, target, rows, thin)
        target, rows, cyclic = target[keep], rows[:, keep], cyclic[keep]
    return target, rows, cyclic


def collect(parts, patterns, size):
    if not parts:
        return Embeddings(np.zeros((size, 0), np.int32), np.zeros(patterns + 1, np.int64), np.zeros(0, bool))
    target = np.concatenate([part[0] for part in parts])
    rows = np.concatenate([part[1] for part in parts], axis=1)
    cyclic = np.concatenate([part[2] for part in parts])
    return Embeddings(rows, np.searchsorted(target, np.arange(patterns + 1)), cyclic)


def first_in_graph(corpus, target, rows, limit):
    """Mark the first ``limit`` embeddings of each pattern in each graph."""
    key = target.astype(np.int64) * corpus.graphs + corpus.node_graph[rows[0]]
    order = np.argsort(key, kind="stable")
    start = np.ones(len(key), bool)
    start[1:] = key[order][1:] != key[order][:-1]
    rank = np.arange(len(key)) - np.maximum.accumulate(np.where(start, np.arange(len(key)), 0))
    result = np.empty(len(key), bool)
    result[order] = rank < limit
    return result


def first_occurrence(corpus, patterns, target, rows):
    """Mark one embedding of each pattern on each set of graph edges."""
    labels = len(corpus.alphabet.arguments)
    wide = np.arange(len(target))
    edges = np.full((patterns.src.shape[1], len(target)), -1, np.int64)
    for k in range(len(edges)):
        argument = patterns.argument[target, k]
        src, dst = rows[patterns.src[target, k], wide], rows[patterns.dst[target, k], wide]
        value = (src.astype(np.int64) * corpus.nodes + dst) * labels + argument
        value = value * 64 + np.minimum(patterns.count[target, k], 63)
        edges[k] = np.where(argument == NO_EDGE, -1, value)
    edges.sort(axis=0)
    order = np.lexsort((mix(edges.astype(np.uint64)).sum(axis=0), target))
    edges, sorted_target = edges[:, order], target[order]
    same = (edges[:, 1:] == edges[:, :-1]).all(axis=0) & (sorted_target[1:] == sorted_target[:-1])
    result = np.ones(len(target), bool)
    result[order[1:][same]] = False
    return result


def count_new_edges(corpus: Corpus, held: Embeddings, patterns: Batch):
    """All extensions by an edge between two nodes of a pattern, or by one more parallel edge.

    Returns
    -------
    pattern, src, dst, argument : the extensions.
    graphs : (extensions, graphs) packed bits.
    """
    size, labels, graphs = held.size, max(len(corpus.alphabet.arguments), 1), corpus.graphs
    found = []
    for low in range(0, held.rows.shape[1], BLOCK):
        high = min(low + BLOCK, held.rows.shape[1])
        rows = held.rows[:, low:high]
        pattern = _pattern_of(held.ptr, low, high)
        for src in range(size):
            owner, dst, link = _links_between(corpus, rows, src)
            which, argument = pattern[owner], corpus.link_argument[link]
            have = _have(patterns, which, src, dst, argument)
            more = have < corpus.link_count[link]
            code = ((which[more] * size + src) * size + dst[more]) * labels + argument[more]
            found.append(np.unique(code * graphs + corpus.node_graph[rows[0]][owner[more]]))
    both = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    code, which = np.unique(both // graphs, return_inverse=True)
    bits = np.zeros((len(code), graphs), bool)
    bits[which, both % graphs] = True
    return (code // labels // size // size, code // labels // size % size, code // labels % size, code % labels,
            np.packbits(bits, axis=1))  # fmt: skip


def _links_between(corpus, rows, src):
    """Links from node ``src`` of each embedding to other nodes of it: (embedding, place of the other node, link)."""
    node = rows[src]
    owner, link = spread(corpus.link_ptr[node + 1] - corpus.link_ptr[node], corpus.link_ptr[node])
    other = corpus.link_dst[link]
    dst = np.full(len(owner), -1)
    for place in range(len(rows)):
        dst[rows[place][owner] == other] = place
    inside = dst >= 0
    return owner[inside], dst[inside], link[inside]


def _have(patterns, which, src, dst, argument):
    """How many such edges the pattern has already."""
    result = np.zeros(len(which), np.int64)
    for k in range(patterns.src.shape[1]):
        same = (patterns.src[which, k] == src) & (patterns.dst[which, k] == dst)
        same &= patterns.argument[which, k] == argument
        result += patterns.count[which, k] * same
    return result


def add_edges(corpus: Corpus, held: Embeddings, old: Batch, jobs: Jobs, patterns: Batch, tied, sampling: Sampling):
    """Carry out extensions by an edge; only patterns with several jobs or symmetry can repeat an occurrence."""
    size = held.size
    count = held.counts()[jobs.source]
    ends = np.flatnonzero(np.append(np.diff(jobs.target) != 0, True)) + 1
    several = np.diff(np.concatenate([[0], ends])) > 1
    doubtful = tied.copy()
    doubtful[jobs.target[ends[several] - 1]] = True
    weights = np.add.reduceat(count, np.concatenate([[0], ends[:-1]])) if len(ends) else count
    parts = []
    for first, last in _blocks(weights, BLOCK):
        low, high = (ends[first - 1] if first else 0), ends[last - 1]
        job, at = spread(count[low:high], held.ptr[jobs.source[low:high]])
        job += low
        rows = held.rows[:, at]
        wide = np.arange(len(job))
        src, dst, argument = jobs.at[job], jobs.to[job], jobs.argument[job]
        key = (rows[src, wide].astype(np.int64) * corpus.nodes + rows[dst, wide]) * len(corpus.alphabet.arguments)
        link = np.searchsorted(corpus.link_key, key + argument)
        real = corpus.link_key[np.minimum(link, len(corpus.link_key) - 1)] == key + argument
        link = np.where(real, link, 0)
        have = _have(old, jobs.source[job], src, dst, argument)
        keep = real & (corpus.link_count[link] > have)
        job, rows = job[keep], rows[:, keep]
        rows = np.take_along_axis(rows, jobs.order[job].T, axis=0)
        settled = _settle(corpus, patterns, doubtful, jobs.target[job], rows, np.ones(len(job), bool), None)
        parts.append(sampling.cut(*settled))
    return collect(parts, len(patterns), size)
