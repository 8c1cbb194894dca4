"""Tables about a set of mined patterns: sizes, supports, coverage, the paper's set beside ours, other thresholds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from sortlib import published
from sortlib.errors import SortError
from sortlib.mining.search import KEEP, PatternList, mine


def is_out_tree(pattern) -> bool:
    """Whether the pattern is like all of the paper's: one root, and one edge into every other node."""
    return Counter(edge.dst for edge in pattern.edges) == Counter(range(1, len(pattern.nodes)))


def by_size(patterns) -> pd.DataFrame:
    """One row per number of nodes.

    Columns: patterns; out_trees; with_join (a call takes tensors from two calls of the pattern); cyclic (more edges
    than a tree has); min_support; max_support.
    """
    rows = [(len(p.nodes), is_out_tree(p), p.has_join, len(p.edges) >= len(p.nodes), p.support) for p in patterns]
    frame = pd.DataFrame(rows, columns=["nodes", "out_tree", "join", "cyclic", "support"])
    groups = frame.groupby("nodes")
    return pd.DataFrame(
        {
            "patterns": groups.size(),
            "out_trees": groups["out_tree"].sum(),
            "with_join": groups["join"].sum(),
            "cyclic": groups["cyclic"].sum(),
            "min_support": groups["support"].min(),
            "max_support": groups["support"].max(),
        }
    )


def by_size_and_support(patterns) -> pd.DataFrame:
    """Number of patterns: a row per number of nodes, a column per support."""
    nodes = pd.Series([len(p.nodes) for p in patterns], name="nodes", dtype=int)
    return pd.crosstab(nodes, pd.Series([p.support for p in patterns], name="support", dtype=int))


def by_kind(graphs, min_support=5, max_nodes=7, **options) -> pd.DataFrame:
    """Number of all, closed and maximal patterns by number of nodes, with a last row ``total``.

    ``options`` are further ones of ``mine``.
    """
    counts = {
        keep: Counter(len(p.nodes) for p in mine(graphs, min_support, max_nodes, keep, **options)) for keep in KEEP
    }
    frame = pd.DataFrame(counts).reindex(columns=list(KEEP)).fillna(0).astype(int).sort_index()
    frame.loc["total"] = frame.sum()
    return frame.rename_axis(index="nodes")


def most_frequent(patterns, count=20) -> pd.DataFrame:
    """The patterns in most graphs, largest first among equals: id, nodes, support, text."""
    ranked = sorted(patterns, key=lambda p: (-p.support, -len(p.nodes), -len(p.edges), p.id))[:count]
    rows = [(p.id, len(p.nodes), p.support, as_text(p)) for p in ranked]
    return pd.DataFrame(rows, columns=["id", "nodes", "support", "text"])


def as_text(pattern) -> str:
    """``conv2d > batch_norm > relu`` for a chain; else every edge, with numbers where an API occurs twice."""
    steps = [(edge.src, edge.dst) for edge in pattern.edges]
    if steps == [(k, k + 1) for k in range(len(pattern.nodes) - 1)]:
        return " > ".join(pattern.nodes)
    often, seen, names = Counter(pattern.nodes), Counter(), []
    for api in pattern.nodes:
        seen[api] += 1
        names.append(f"{api}#{seen[api]}" if often[api] > 1 else api)
    return ", ".join(f"{names[edge.src]} > {names[edge.dst]}" for edge in pattern.edges)


def call_coverage(patterns: PatternList) -> pd.DataFrame:
    """Share of all API calls that lie in at least one frequent pattern, by the pattern's number of nodes.

    Columns calls, covered, share, exact; every occurrence counts. ``exact`` is false where a pattern had too many
    occurrences in one graph to look at all of them, so that the share is a lower bound.
    """
    covered = getattr(patterns, "covered_calls", None)
    if covered is None:
        raise SortError("call_coverage: coverage is known for the list that mine() returned, not for a part of it")
    rows = [(size, len(calls), int(calls.sum()), float(calls.mean()), size not in patterns.dense_sizes)
            for size, calls in covered.items()]  # fmt: skip
    return pd.DataFrame(rows, columns=["nodes", "calls", "covered", "share", "exact"]).set_index("nodes")


def api_coverage(patterns: PatternList, graphs) -> pd.DataFrame:
    """One row per API of the graphs, most called first.

    Columns: calls; graphs (that call it); patterns (that hold it); covered (calls that lie in at least one pattern);
    share (covered / calls).
    """
    names = np.array([node.api for graph in graphs for node in graph.nodes], dtype=object)
    inside = np.zeros(len(names), bool)
    for calls in getattr(patterns, "covered_calls", {}).values():
        if len(calls) != len(names):
            raise SortError(f"api_coverage: the patterns come from graphs with {len(calls)} calls, not {len(names)}")
        inside |= calls
    frame = pd.DataFrame({"api": names, "covered": inside}).groupby("api")["covered"].agg(["size", "sum"])
    frame.columns = ["calls", "covered"]
    used = Counter(api for graph in graphs for api in {node.api for node in graph.nodes})
    held = Counter(api for pattern in patterns for api in set(pattern.nodes))
    frame.insert(1, "graphs", [used[api] for api in frame.index])
    frame.insert(2, "patterns", [held[api] for api in frame.index])
    frame["share"] = frame["covered"] / frame["calls"]
    return frame.sort_values(["calls", "graphs"], ascending=False, kind="stable")


def against_paper(patterns) -> pd.DataFrame:
    """The paper's number of patterns beside ours, by number of nodes, with a last row ``total``.

    Columns: paper (all of them out-trees); ours; ours_out_trees, what a miner could find that follows outgoing edges
    only; ours_other, the patterns with a join, with several roots or with a cycle, of which the paper has none.
    """
    ours = by_size(patterns)
    frame = pd.DataFrame({"paper": published.patterns(), "ours": ours["patterns"], "ours_out_trees": ours["out_trees"]})
    frame = frame.fillna(0).astype(int)
    frame["ours_other"] = frame["ours"] - frame["ours_out_trees"]
    frame.loc["total"] = frame.sum()
    return frame.rename_axis(index="nodes")


def threshold_sweep(graphs, supports, max_nodes=7, **options) -> pd.DataFrame:
    """What other support thresholds give: one row per threshold.

    Columns: patterns; apis (in at least one pattern); api_share (of the APIs of the graphs); call_share (of all calls,
    in at least one pattern); seconds.
    """
    graphs = list(graphs)
    known = {node.api for graph in graphs for node in graph.nodes}
    rows = []
    for min_support in supports:
        patterns = mine(graphs, min_support, max_nodes, **options)
        apis = {api for pattern in patterns for api in pattern.nodes}
        calls = np.logical_or.reduce(list(patterns.covered_calls.values())) if patterns.covered_calls else np.zeros(1)
        rows.append((min_support, len(patterns), len(apis), len(apis) / max(len(known), 1), float(calls.mean()),
                     patterns.seconds))  # fmt: skip
    columns = ["min_support", "patterns", "apis", "api_share", "call_share", "seconds"]
    return pd.DataFrame(rows, columns=columns).set_index("min_support")
