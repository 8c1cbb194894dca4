"""Frequent subgraphs by trying every set of edges: slow, short, and independent of the miner that it checks."""

from functools import lru_cache
from itertools import combinations, permutations


@lru_cache(maxsize=200_000)
def _smallest(labels, edges):
    best = None
    for order in permutations(range(len(labels))):
        if any(labels[order[k]] > labels[order[k + 1]] for k in range(len(labels) - 1)):
            continue
        place = {old: new for new, old in enumerate(order)}
        form = tuple(sorted((place[src], place[dst], argument) for src, dst, argument in edges))
        best = form if best is None else min(best, form)
    return tuple(sorted(labels)), best


def form_of(labels, edges):
    """A value that is equal exactly for isomorphic labelled directed multigraphs: the smallest of all renamings."""
    return _smallest(tuple(labels), tuple(sorted(tuple(edge) for edge in edges)))


def _connected(edges, nodes):
    reached = {edges[0][0]}
    for _ in nodes:
        for src, dst, _argument in edges:
            if src in reached or dst in reached:
                reached |= {src, dst}
    return reached == nodes


def occurrences(graph, max_nodes):
    """Every connected set of edges with at most ``max_nodes`` nodes: (form, positions of the edges)."""
    for size in range(1, len(graph.edges) + 1):
        for chosen in combinations(range(len(graph.edges)), size):
            edges = [graph.edges[k] for k in chosen]
            nodes = {node for edge in edges for node in edge[:2]}
            if len(nodes) <= max_nodes and _connected(edges, nodes):
                place = {node: k for k, node in enumerate(sorted(nodes))}
                labels = [graph.nodes[node].api for node in sorted(nodes)]
                yield form_of(labels, [(place[src], place[dst], argument) for src, dst, argument in edges]), chosen


def frequent(graphs, min_support, max_nodes):
    """``{form: {graph number: set of edge sets}}`` of every form that occurs in at least ``min_support`` graphs."""
    seen = {}
    for number, graph in enumerate(graphs):
        for form, chosen in occurrences(graph, max_nodes):
            seen.setdefault(form, {}).setdefault(number, set()).add(frozenset(chosen))
    return {form: where for form, where in seen.items() if len(where) >= min_support}
