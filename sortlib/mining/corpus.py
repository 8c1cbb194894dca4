"""The graphs to be mined as flat arrays: what the miner joins its embeddings with."""

from __future__ import annotations

import numpy as np

from sortlib.mining.canonical import Alphabet


def spread(counts: np.ndarray, starts: np.ndarray):
    """For each i the numbers ``starts[i] .. starts[i] + counts[i] - 1``: (i repeated, the numbers)."""
    total = int(counts.sum())
    owner = np.repeat(np.arange(len(counts)), counts)
    offset = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return owner, offset + np.arange(total)


class Corpus:
    """All graphs side by side, reduced to the edges that can occur in a frequent pattern.

    Parallel edges with one label are one *link* with a count. A node's links, in both directions, are sorted into
    *slots*: all links with the same direction, label and API at the other end. ``kind`` numbers the slots that nodes
    of one API can have, so ``(pattern, node, kind)`` names an extension of a pattern by a new node.

    Attributes
    ----------
    node_graph, node_place, node_api : (nodes,) graph number, position within the graph, API number.
    slot_ptr : (nodes + 1,) first slot of each node; slot_kind, slot_start, slot_size : (slots,) its kind and links.
    slot_of : (nodes, kinds) the slot of that kind, -1 if none.
    half_ptr : (nodes + 1,) first half-link of each node; half_node, half_count : (half-links,) the other end,
        parallels.
    link_ptr : (nodes + 1,) first outgoing link; link_dst, link_argument, link_count, link_first : (links,).
    pair_key, pair_count : (source * nodes + destination) of each joined pair, sorted, and the number of its edges.
    link_edges : positions in its graph of each link's edges, from ``link_first`` on.
    kind_out, kind_argument, kind_api : (apis, kinds) what a kind means: outgoing?, edge label, API of the new node.
    triples : (triples, 3) frequent (source API, argument, destination API).
    """

    def __init__(self, graphs, min_support, exclude=()):
        apis = sorted({node.api for graph in graphs for node in graph.nodes})
        arguments = sorted({edge.argument for graph in graphs for edge in graph.edges})
        self.alphabet = Alphabet(tuple(apis), tuple(arguments))
        self.graphs = len(graphs)
        api_number = {name: k for k, name in enumerate(apis)}
        argument_number = {name: k for k, name in enumerate(arguments)}
        sizes = np.array([len(graph.nodes) for graph in graphs], np.int64)
        self.first = np.concatenate([[0], np.cumsum(sizes)])
        self.nodes = int(self.first[-1])
        self.node_graph = np.repeat(np.arange(len(graphs), dtype=np.int32), sizes)
        self.node_place = (np.arange(self.nodes) - self.first[self.node_graph]).astype(np.int32)
        self.node_api = np.array([api_number[node.api] for graph in graphs for node in graph.nodes], np.int32)
        counts = np.array([len(graph.edges) for graph in graphs], np.int64)
        edges = [edge for graph in graphs for edge in graph.edges]
        first = np.repeat(self.first[:-1], counts)
        src = first + np.array([edge[0] for edge in edges], np.int64)
        dst = first + np.array([edge[1] for edge in edges], np.int64)
        argument = np.array([argument_number[edge[2]] for edge in edges], np.int64)
        place = np.arange(len(edges)) - np.repeat(np.cumsum(counts) - counts, counts)
        banned = np.isin(self.node_api, [api_number[name] for name in exclude if name in api_number])
        keep = ~(banned[src] | banned[dst])
        src, argument, dst, place = src[keep], argument[keep], dst[keep], place[keep]
        src, argument, dst, place = self._frequent_only(src, argument, dst, place, min_support)
        self._links(src, argument, dst, place)
        self._slots()

    def _frequent_only(self, src, argument, dst, place, min_support):
        """Drop the edges whose (API, argument, API) occurs in fewer than ``min_support`` graphs."""
        apis, labels = len(self.alphabet.apis), max(len(self.alphabet.arguments), 1)
        triple = (self.node_api[src].astype(np.int64) * labels + argument) * apis + self.node_api[dst]
        pairs = np.unique(triple * self.graphs + self.node_graph[src]) // max(self.graphs, 1)
        values, counts = np.unique(pairs, return_counts=True)
        self.distinct_triples = len(values)
        values = values[counts >= min_support]
        self.triples = np.stack([values // apis // labels, values // apis % labels, values % apis], axis=1)
        keep = np.isin(triple, values)
        return src[keep], argument[keep], dst[keep], place[keep]

    def _links(self, src, argument, dst, place):
        labels = max(len(self.alphabet.arguments), 1)
        key = (src * self.nodes + dst) * labels + argument
        order = np.lexsort((place, key))
        key, self.link_edges = key[order], place[order]
        self.link_key, self.link_first, self.link_count = np.unique(key, return_index=True, return_counts=True)
        self.link_argument = self.link_key % labels
        self.link_dst = self.link_key // labels % max(self.nodes, 1)
        self.link_src = self.link_key // labels // max(self.nodes, 1)
        self.pair_key, which = np.unique(self.link_key // labels, return_inverse=True)
        self.pair_count = np.bincount(which, weights=self.link_count).astype(np.int64)
        self.link_ptr = np.searchsorted(self.link_src, np.arange(self.nodes + 1))

    def _slots(self):
        links = len(self.link_key)
        outgoing = np.arange(2 * links) < links
        own = np.concatenate([self.link_src, self.link_dst])
        other = np.concatenate([self.link_dst, self.link_src])
        argument, count = np.tile(self.link_argument, 2), np.tile(self.link_count, 2)
        apis, labels = max(len(self.alphabet.apis), 1), max(len(self.alphabet.arguments), 1)
        meaning = (outgoing * labels + argument) * apis + self.node_api[other]
        api = self.node_api[own].astype(np.int64)
        both = api * (2 * labels * apis) + meaning
        values, which = np.unique(both, return_inverse=True)
        value_api = values // (2 * labels * apis)
        begin = np.searchsorted(value_api, np.arange(apis))
        value_kind = np.arange(len(values)) - begin[value_api]
        self.kinds = int(value_kind.max(initial=-1)) + 1
        table = np.full((3, apis, self.kinds), -1, np.int32)
        meant = values % (2 * labels * apis)
        table[:, value_api, value_kind] = meant // apis // labels, meant // apis % labels, meant % apis
        self.kind_out, self.kind_argument, self.kind_api = table
        kind = value_kind[which]
        order = np.lexsort((other, kind, own))
        own, kind = own[order], kind[order]
        self.half_node = other[order].astype(np.int32)
        self.half_count = count[order].astype(np.int32)
        self.half_ptr = np.searchsorted(own, np.arange(self.nodes + 1))
        slot, self.slot_start, size = np.unique(own * max(self.kinds, 1) + kind, return_index=True, return_counts=True)
        self.slot_size = size
        self.slot_kind = slot % max(self.kinds, 1)
        self.slot_ptr = np.searchsorted(slot // max(self.kinds, 1), np.arange(self.nodes + 1))
        self._look_up()

    def _look_up(self):
        """``slot_of`` from the lists of slots; by far the largest table, so it is made where it is needed."""
        self.slot_of = np.full((self.nodes, max(self.kinds, 1)), -1, np.int32)
        owner = np.repeat(np.arange(self.nodes), np.diff(self.slot_ptr))
        self.slot_of[owner, self.slot_kind] = np.arange(len(owner))

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "slot_of"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._look_up()

    def link(self, src, argument, dst):
        """Numbers of the links between given nodes (which must exist)."""
        labels = max(len(self.alphabet.arguments), 1)
        return np.searchsorted(self.link_key, (src.astype(np.int64) * self.nodes + dst) * labels + argument)
