"""The embeddings in some of the graphs, and the steps that a mining run asks for.

A run talks to one shard in its own process, or to several in worker processes (``sortlib.mining.team``). A graph
belongs to one shard, so results are put together by joining sets of graphs.
"""

from __future__ import annotations

import numpy as np

from sortlib.mining import growth
from sortlib.mining.canonical import Batch
from sortlib.mining.corpus import Corpus
from sortlib.mining.dense import search

DENSE = 2_000  # a pattern with more embeddings in one graph is dense there: only a sample is held
SAMPLE = 100


class Shard:
    """Embeddings of the current patterns in the graphs ``mine`` (booleans over all graphs).

    There is a tree front (the trees of the last size, which grow) and a closing front (patterns of that size with ever
    more edges). ``limit`` is the number of embeddings to be returned for each pattern and graph, None for all;
    ``dense`` and ``sample`` are what DENSE and SAMPLE say.
    """

    def __init__(self, corpus: Corpus, mine: np.ndarray, limit: int | None, dense: int, sample: int):
        self.corpus, self.mine, self.limit = corpus, mine, limit
        self.dense = dense if limit is not None else np.inf
        self.sample = max(sample, limit or 0)
        self.touched = np.zeros(corpus.nodes, bool)
        self.cache = {}
        self.trees = self.tree_partial = self.front = self.partial = None

    def _sampling(self, patterns, jobs=None, partial=None):
        if partial is not None:
            partial, old = np.zeros((patterns, self.corpus.graphs), bool), partial
            partial[jobs.target] = old[jobs.source]
        return growth.Sampling(self.corpus, patterns, self.dense, self.sample, partial)

    def seed(self):
        """Single edges become the trees. Returns what ``_state`` does."""
        sampling = self._sampling(len(self.corpus.triples))
        self.front = self.trees = growth.seeds(self.corpus, self.mine, sampling)
        self.partial = self.tree_partial = sampling.partial
        self.touched[self.trees.rows] = True
        return self._state()

    def _state(self):
        """Of the front: embeddings held of each pattern, graphs they lie in, graphs with more of them (or None)."""
        patterns, graphs = len(self.front.ptr) - 1, self.corpus.graphs
        bits = np.zeros((patterns, graphs), bool)
        pattern = np.repeat(np.arange(patterns), self.front.counts())
        bits[pattern, self.corpus.node_graph[self.front.rows[0]]] = True
        partial = None if self.partial is None else np.packbits(self.partial, axis=1)
        return self.front.counts(), np.packbits(bits, axis=1), partial

    def count_nodes(self, orbit, threshold):
        """Codes and counts of ``growth.count_new_nodes``; the graphs are kept for ``extension_graphs``."""
        code, count, graphs = growth.count_new_nodes(self.corpus, self.trees, orbit, threshold, self.mine)
        self.counted = code, graphs
        return code, count

    def extension_graphs(self, code):
        """The graphs (packed bits) that hold each of some extensions."""
        known, graphs = self.counted
        place = np.minimum(np.searchsorted(known, code), max(len(known) - 1, 0))
        bits = np.zeros((len(code), self.corpus.graphs), bool)
        if len(known):
            here = np.flatnonzero(known[place] == code)
            local = np.unpackbits(graphs[place[here]], axis=1, count=int(self.mine.sum())).astype(bool)
            bits[np.ix_(here, np.flatnonzero(self.mine))] = local
        return np.packbits(bits, axis=1)

    def grow(self, jobs, batch: Batch, tied, thin):
        """Trees with one node more become both fronts."""
        self.touched[:] = False
        sampling = self._sampling(len(batch), jobs, self.tree_partial)
        self.trees = growth.add_nodes(self.corpus, self.trees, jobs, batch, tied, sampling, thin, self.touched)
        self.front, self.partial = self.trees, sampling.partial
        self.tree_partial = self.partial
        return self._state()

    def count_edges(self, batch: Batch):
        """See ``growth.count_new_edges``."""
        return growth.count_new_edges(self.corpus, self.front.select(self.front.cyclic), batch)

    def close(self, jobs, old: Batch, batch: Batch, tied):
        """Patterns with one edge more become the closing front."""
        sampling = self._sampling(len(batch), jobs, self.partial)
        held = self.front.select(self.front.cyclic)
        self.front = growth.add_edges(self.corpus, held, old, jobs, batch, tied, sampling)
        self.partial = sampling.partial
        return self._state()

    def look(self, keys, batch: Batch, graphs):
        """Search for patterns in the graphs given for each (packed bits). Returns those where they are found."""
        ask = np.unpackbits(graphs, axis=1, count=self.corpus.graphs).astype(bool) & self.mine
        for pattern, graph in np.argwhere(ask).tolist():
            rows = self._found(keys[pattern], batch, pattern, graph)
            ask[pattern, graph] = rows.shape[1] > 0
        return np.packbits(ask, axis=1)

    def _found(self, key, batch, pattern, graph):
        if (key, graph) not in self.cache:
            links = list(zip(*(getattr(batch, name)[pattern].tolist() for name in ("src", "dst", "argument", "count")),
                             strict=True))  # fmt: skip
            self.cache[key, graph] = search(self.corpus, graph, batch.nodes[pattern], links, max(64, self.limit or 1))
        return self.cache[key, graph]

    def supply(self, keys, batch: Batch, graphs, trees: bool):
        """Put searched embeddings into the front for the patterns and graphs named, and mark those as dense."""
        ask = np.unpackbits(graphs, axis=1, count=self.corpus.graphs).astype(bool) & self.mine
        if ask.any():
            patterns = len(self.front.ptr) - 1
            if self.partial is None:
                self.partial = np.zeros((patterns, self.corpus.graphs), bool)
            self.partial |= ask
            parts = [(np.repeat(np.arange(patterns), self.front.counts()), self.front.rows, self.front.cyclic)]
            for pattern, graph in np.argwhere(ask).tolist():
                rows = self._found(keys[pattern], batch, pattern, graph)
                count = rows.shape[1]
                self.touched[rows] = True
                parts.append((np.full(count, pattern), rows, np.ones(count, bool)))
            pattern, rows, cyclic = (np.concatenate([part[k] for part in parts], axis=-1) for k in range(3))
            order = np.argsort(pattern, kind="stable")
            self.front = growth.collect([(pattern[order], rows[:, order], cyclic[order])], patterns, len(rows))
        if trees:
            self.trees, self.tree_partial = self.front, self.partial
        self.cache.clear()
        return self._state()

    def kept(self):
        """The embeddings of the front that are to be returned: (rows, ptr)."""
        front = self.front
        if self.limit is not None:
            pattern = np.repeat(np.arange(len(front.ptr) - 1), front.counts())
            front = front.select(growth.first_in_graph(self.corpus, pattern, front.rows, self.limit))
        return front.rows, front.ptr

    def reached(self):
        """Which calls lie in an embedding of a tree of the last size; booleans over all nodes."""
        return self.touched.copy()
