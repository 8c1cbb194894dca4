"""Exact mining of frequent subgraphs in directed labelled multigraphs.

A pattern is a connected set of edges with their nodes (as in gSpan: other edges between the nodes may exist in the
graph); node labels are APIs, edge labels are the argument that receives the tensor, parallel edges count. Its support
is the number of graphs that hold it. Mining goes by size. Tree patterns grow by one node at a time, for every
connected pattern has a spanning tree, which is at least as frequent; cyclic patterns then follow by closing edges
between the nodes of a tree. Each pattern is grown along one way only, the one with the fewest embeddings.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sortlib.arguments import items
from sortlib.errors import SortError, choices
from sortlib.graph import ApiGraph, Edge, Embedding, Pattern
from sortlib.mining.canonical import MAX_NODES, NO_EDGE, canonical, pattern_id
from sortlib.mining.corpus import Corpus
from sortlib.mining.run import Run, support
from sortlib.mining.subpatterns import next_smaller
from sortlib.mining.team import Team

KEEP = ("all", "closed", "maximal")


class PatternList(list):
    """The patterns, with what else is known of the run.

    Attributes
    ----------
    complete_up_to : the list is exact for patterns of at most this many nodes.
    note : one line if the list is empty or shorter than asked for, saying why; else empty.
    min_support, max_nodes, graphs : what was asked for, and the number of graphs.
    seconds : wall time.
    covered_calls : {size: booleans, one for each API call of each graph in order: does it lie in an occurrence of at
        least one frequent pattern with that many nodes}.
    dense_sizes : sizes at which some pattern had too many embeddings in one graph to list (``mining.dense``).
        Support is exact there too; ``covered_calls`` may miss some.
    """

    complete_up_to = 0
    note = ""
    min_support = max_nodes = graphs = 0
    seconds = 0.0
    covered_calls: dict[int, np.ndarray] = {}
    dense_sizes: frozenset[int] = frozenset()

    @property
    def covered(self) -> dict[int, float]:
        """Share of all API calls that lie in an occurrence of at least one frequent pattern, by number of its nodes."""
        return {size: float(calls.mean()) for size, calls in self.covered_calls.items()}


@dataclass(frozen=True)
class Progress:
    """Where a run stands: at patterns of ``nodes`` nodes, ``share`` of that size done, ``patterns`` found before it."""

    nodes: int
    share: float
    patterns: int


class Occurrences(Sequence):
    """The embeddings of one pattern, put in order and made into ``Embedding`` tuples when they are looked at.

    ``parts`` are the node numbers that each shard found, an embedding a column, by graph.
    """

    def __init__(self, corpus, parts, links):
        self._corpus, self._parts, self._links = corpus, parts, links

    def __len__(self):
        return sum(part.shape[1] for part in self._parts)

    @property
    def _rows(self):
        if len(self._parts) > 1:
            rows = np.concatenate(self._parts, axis=1)
            self._parts = [rows[:, np.argsort(self._corpus.node_graph[rows[0]], kind="stable")]]
        return self._parts[0]

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"embedding {index} of {len(self)}")
        corpus, nodes = self._corpus, self._rows[:, index]
        edges = []
        for src, argument, dst, count in self._links:
            first = corpus.link_first[corpus.link(nodes[src], argument, nodes[dst])]
            edges.extend(corpus.link_edges[first : first + count].tolist())
        return Embedding(int(corpus.node_graph[nodes[0]]), tuple(corpus.node_place[nodes].tolist()), tuple(edges))

    def in_graph(self, graph: int) -> list[Embedding]:
        """The embeddings in one graph, without making tuples of all others."""
        return [self[int(k)] for k in np.flatnonzero(self._corpus.node_graph[self._rows[0]] == graph)]

    def __eq__(self, other):
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self):
        return hash(tuple(self))

    def __repr__(self):
        return f"<{len(self)} embeddings>"

    def __reduce__(self):
        return tuple, (tuple(self),)


def mine(
    graphs,
    min_support=5,
    max_nodes=7,
    keep="all",
    *,
    min_nodes=2,
    include=(),
    exclude=(),
    embeddings="one per graph",
    workers=1,
    progress=None,
) -> PatternList:
    """Find every frequent connected pattern.

    Parameters
    ----------
    graphs : list of ``ApiGraph``.
    min_support : the pattern must occur in at least this many graphs.
    max_nodes, min_nodes : limits of a pattern's size, 2 to 15 nodes.
    keep : "all"; "closed", without patterns that have an equally frequent larger one of at most ``max_nodes``
        nodes; or "maximal", without patterns that have any frequent larger one of at most ``max_nodes`` nodes.
    include : APIs that each pattern must hold.
    exclude : APIs whose calls are taken out of the graphs before mining.
    embeddings : "one per graph", "all", or the number to keep for each graph. Parallel edges with one label are
        interchangeable: an embedding takes the first of them.
    workers : processes that share the work.
    progress : True for a bar, or a function that is called with a ``Progress``.

    Returns
    -------
    PatternList
        Patterns by size, then by falling support, then by id. If it is empty, ``note`` says why. Ctrl-C ends the
        run early: the patterns of the sizes already done are returned and ``complete_up_to`` names the largest of them.

    Raises
    ------
    SortError
        For arguments that make no sense, in one line.

    Examples
    --------
    >>> from sortlib.graph import ApiGraph
    >>> graph = ApiGraph.from_edges(["relu", "conv2d", "batch_norm"], [(0, 1, "input"), (1, 2, "input")])
    >>> [pattern.nodes for pattern in mine([graph, graph], min_support=2)]
    [('conv2d', 'batch_norm'), ('relu', 'conv2d'), ('relu', 'conv2d', 'batch_norm')]
    """
    begin = time.perf_counter()
    graphs = _checked(graphs, min_support, min_nodes, max_nodes, keep, embeddings, workers)
    include, exclude = _names(include, "include"), _names(exclude, "exclude")
    result = PatternList()
    result.min_support, result.max_nodes, result.graphs = min_support, max_nodes, len(graphs)
    result.complete_up_to = max_nodes
    result.note = _nothing_to_do(graphs, min_support)
    if not result.note:
        limit = {"one per graph": 1, "all": None}.get(embeddings, embeddings)
        with _reporter(progress, max_nodes) as report, contextlib.closing(Team(min(workers, len(graphs)))) as team:
            corpus = Corpus(graphs, min_support, exclude)
            result.note = _nothing_frequent(corpus, result, include, exclude)
            if not result.note:
                run = Run(corpus, min_support, max_nodes, limit, team, report)
                try:
                    run.mine()
                except KeyboardInterrupt:
                    result.note = (
                        f"interrupted: the patterns are exact up to {run.complete} nodes, larger ones are missing"
                    )
                    result.complete_up_to = run.complete
                    warnings.warn(result.note, stacklevel=2)
                result.covered_calls, result.dense_sizes = run.covered, run.dense_sizes
                result.extend(_patterns(run, keep, min_nodes, set(include)))
        if not result and not result.note:
            result.note = "no patterns: none of the frequent ones has the size or the APIs asked for"
    result.seconds = time.perf_counter() - begin
    return result


def _checked(graphs, min_support, min_nodes, max_nodes, keep, embeddings, workers):
    if isinstance(graphs, ApiGraph):
        raise SortError("mine: graphs must be a list of ApiGraph, not a single one: mine([graph], min_support=1)")
    graphs = items(graphs, ApiGraph, "mine: graphs", "see sl.trace and ApiGraph.from_edges")
    for name, value, low, high in [
        ("min_support", min_support, 1, None),
        ("max_nodes", max_nodes, 2, MAX_NODES),
        ("min_nodes", min_nodes, 2, MAX_NODES),
        ("workers", workers, 1, None),
    ]:
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < low or (high is not None and value > high):
            span = f"from {low} to {high}" if high else f"of at least {low}"
            raise SortError(f"mine: {name} is {value!r}; it must be a whole number {span}")
    if min_nodes > max_nodes:
        raise SortError(f"mine: min_nodes {min_nodes} is larger than max_nodes {max_nodes}")
    if keep not in KEEP:
        raise SortError(f"mine: keep is {keep!r}; choose one of {choices(KEEP)}")
    number = isinstance(embeddings, (int, np.integer)) and not isinstance(embeddings, bool) and embeddings >= 1
    if embeddings not in ("one per graph", "all") and not number:
        raise SortError(f"mine: embeddings is {embeddings!r}; choose 'all', 'one per graph' or a number from 1 on")
    return graphs


def _names(values, option):
    values = (values,) if isinstance(values, str) else tuple(values)
    for value in values:
        if not isinstance(value, str):
            raise SortError(f"mine: {option} holds {value!r}; it takes API names such as 'conv2d'")
    return values


def _nothing_to_do(graphs, min_support):
    if not graphs:
        return "no patterns: no graphs were given"
    if min_support > len(graphs):
        return f"no patterns: the support of {min_support} is above the number of graphs, {len(graphs)}"
    if not any(graph.edges for graph in graphs):
        return f"no patterns: none of the {len(graphs)} graphs has an edge"
    return ""


def _nothing_frequent(corpus, result, include, exclude):
    if not len(corpus.triples):
        without = f" without {choices(exclude)}" if exclude else ""
        return f"no patterns: no edge{without} occurs in {result.min_support} of the {result.graphs} graphs"
    unknown = [name for name in include if name not in corpus.alphabet.apis]
    if unknown:
        return f"no patterns: no graph has {choices(unknown)}; the APIs are {choices(corpus.alphabet.apis)}"
    return ""


class _reporter:  # noqa: N801 - used like a function
    """Hands ``Progress`` to a function or to a bar."""

    def __init__(self, progress, max_nodes):
        if progress not in (None, False, True) and not callable(progress):
            raise SortError(f"mine: progress is {progress!r}; choose None, True or a function of one Progress")
        self.call, self.bar, self.sizes = (progress if callable(progress) else None), None, max_nodes - 1
        if progress is True:
            from tqdm.auto import tqdm

            self.bar = tqdm(total=self.sizes, unit="size", bar_format="{desc} {bar} {percentage:3.0f}% {elapsed}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()

    def __call__(self, nodes, share, patterns):
        if self.call:
            self.call(Progress(nodes, share, patterns))
        if self.bar is not None:
            self.bar.set_description(f"{nodes} nodes, {patterns} patterns", refresh=False)
            self.bar.n = nodes - 2 + share
            self.bar.refresh()


def _patterns(run, keep, min_nodes, include):
    """The patterns that ``run`` found, as ``Pattern`` objects in order."""
    apis, arguments = run.alphabet.apis, run.alphabet.arguments
    result = []
    for part, chosen in zip(run.found, _selection(run.found, run.alphabet, keep), strict=True):
        batch = part.batch
        if batch.nodes.shape[1] < min_nodes:
            continue
        kept = [(rows, ptr.tolist()) for rows, ptr in part.kept]
        graph = np.nonzero(np.unpackbits(part.graphs, axis=1, count=run.corpus.graphs))[1].tolist()
        ptr_graph = np.concatenate([[0], np.cumsum(support(part.graphs))]).tolist()
        links = np.stack([batch.src, batch.argument, batch.dst, batch.count], axis=2).tolist()
        for k in np.flatnonzero(chosen).tolist():
            nodes = tuple(apis[api] for api in batch.nodes[k].tolist())
            if not include.issubset(nodes):
                continue
            real = [link for link in links[k] if link[1] != NO_EDGE]
            edges = tuple(Edge(src, dst, arguments[argument]) for src, argument, dst, n in real for _ in range(n))
            where = tuple(graph[ptr_graph[k] : ptr_graph[k + 1]])
            occurrences = Occurrences(run.corpus, [rows[:, ptr[k] : ptr[k + 1]] for rows, ptr in kept], real)
            result.append(Pattern(pattern_id(nodes, edges), nodes, edges, len(where), where, occurrences))
    result.sort(key=lambda pattern: (len(pattern.nodes), -pattern.support, pattern.id))
    return result


def _selection(found, alphabet, keep):
    """For each part of ``found`` which patterns to keep.

    A pattern is closed or maximal by comparison with those that have one edge more, for support never grows on the
    way to a larger pattern.
    """
    chosen = [np.ones(len(part.batch), bool) for part in found]
    if keep == "all":
        return chosen
    place = {key: (number, k) for number, part in enumerate(found) for k, key in enumerate(part.form.keys)}
    supports = [support(part.graphs) for part in found]
    for number, part in enumerate(found):
        for owner, smaller in next_smaller(part.batch):
            for big, key in zip(owner.tolist(), canonical(smaller, alphabet).keys, strict=True):
                small, k = place[key]
                if keep == "maximal" or supports[small][k] == supports[number][big]:
                    chosen[small][k] = False
    return chosen
