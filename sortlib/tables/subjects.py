"""What there is to test: models, patterns, records, and what became of them in the campaign."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from sortlib import published
from sortlib.apis import paper_name
from sortlib.baselines.single_api import PREFIX
from sortlib.tables.frames import NOTHING, table_of
from sortlib.tables.methods import METHODS


def models(study) -> pd.DataFrame:
    """A row per traced model: calls, edges, distinct APIs, joins (calls fed by two or more calls), samples, records."""
    counts = Counter(record.graph for record in study.records)
    samples = {graph: len({r.sample for r in study.records if r.graph == graph}) for graph in counts}
    rows = []
    for graph in study.graphs:
        producers = {}
        for edge in graph.edges:
            producers.setdefault(edge.dst, set()).add(edge.src)
        rows.append({
            "model": graph.name, "calls": len(graph.nodes), "edges": len(graph.edges),
            "apis": len({node.api for node in graph.nodes}), "joins": sum(len(p) > 1 for p in producers.values()),
            "samples": samples.get(graph.name, 0), "records": counts[graph.name],
        })  # fmt: skip
    return table_of(rows, ["model", "calls", "edges", "apis", "joins", "samples", "records"])


def statistics(study) -> pd.DataFrame:
    """Sizes of this study beside those of the paper's experiment: fact, here, paper, source."""
    calls = [len(graph.nodes) for graph in study.graphs]
    sizes = [len(pattern.nodes) for pattern in study.patterns]
    here = {
        "models": len(calls),
        "calls of a model on average": round(sum(calls) / len(calls)),
        "calls of the smallest model": min(calls),
        "calls of the largest model": max(calls),
        "support threshold": study.config.mining.min_support,
        "patterns": len(sizes),
        "nodes of a pattern on average": round(sum(sizes) / len(sizes), 1) if sizes else NOTHING,
        "nodes of the smallest pattern": min(sizes, default=NOTHING),
        "nodes of the largest pattern": max(sizes, default=NOTHING),
        "APIs in patterns": len({api for pattern in study.patterns for api in pattern.nodes}),
    }
    paper = published.statistics()
    rows = [
        {"fact": fact, "here": here[fact], "paper": value, "source": source}
        for fact, value, source in zip(paper["fact"], paper["value"], paper["source"], strict=True)
        if fact in here
    ]
    return table_of(rows, ["fact", "here", "paper", "source"])


def patterns(study) -> pd.DataFrame:
    """A row per number of nodes: patterns, those with a join, smallest, median and largest support; a Total row."""
    mined = pd.DataFrame(
        [(len(p.nodes), p.has_join, p.support) for p in study.patterns], columns=["nodes", "join", "support"]
    )
    rows = [_pattern_row(size, group) for size, group in mined.groupby("nodes")]
    rows.append(_pattern_row("Total", mined))
    notes = ["with_join: a node takes tensors from two or more pattern nodes; the published patterns have none, since "
             "the miner used for them cannot close a join"]  # fmt: skip
    columns = ["nodes", "patterns", "with_join", "support_min", "support_median", "support_max"]
    return table_of(rows, columns, notes)


def _pattern_row(size, group):
    found = group["support"].agg(["min", "median", "max"]) if len(group) else {}
    return {"nodes": size, "patterns": len(group), "with_join": int(group["join"].sum()),
            **{f"support_{name}": found.get(name, NOTHING) for name in ("min", "median", "max")}}  # fmt: skip


def support(study) -> pd.DataFrame:
    """A row per support (number of models): patterns and those with a join."""
    counts = Counter(p.support for p in study.patterns)
    joins = Counter(p.support for p in study.patterns if p.has_join)
    rows = [{"support": s, "patterns": counts[s], "with_join": joins[s]} for s in sorted(counts)]
    return table_of(rows, ["support", "patterns", "with_join"])


def records(study) -> pd.DataFrame:
    """A row per API, most frequent first: models, calls, records, and how many kinds of input they show.

    ``forms`` counts distinct dtypes, shapes and strides of all tensor arguments together; ``largest_input`` is the
    number of elements of the largest tensor argument.
    """
    groups = {}
    for record in study.records:
        groups.setdefault(record.api, []).append(record)
    rows = []
    for api in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        tensors = [tuple(f for _, f in record.tensors()) for record in groups[api]]
        rows.append({
            "api": api, "paper_name": paper_name(api), "models": len({r.graph for r in groups[api]}),
            "calls": len({(r.graph, r.node) for r in groups[api]}), "records": len(groups[api]),
            "forms": len({tuple(f.signature for f in found) for found in tensors}),
            "dtypes": ", ".join(sorted({f.dtype for found in tensors for f in found})),
            "largest_input": max((f.numel for found in tensors for f in found), default=0),
        })  # fmt: skip
    columns = ["api", "paper_name", "models", "calls", "records", "forms", "dtypes", "largest_input"]
    return table_of(rows, columns)


def campaign(study) -> pd.DataFrame:
    """What became of the patterns: mined, tested, cases, calls by status; for SORT and single-API."""
    made = study.stage("generate")
    skipped = Counter(pattern.startswith(PREFIX) for pattern in made["without_case"])
    rows = []
    for method in METHODS:
        outcomes = method.outcomes(study)
        counts = outcomes["status"].value_counts()
        rows.append({
            "method": method.name, "patterns": outcomes["pattern"].nunique(),
            "patterns_without_case": skipped[method.single], "cases": outcomes["case"].nunique(),
            "calls": len(outcomes), **{status: int(counts.get(status, 0)) for status in _STATUSES},
        })  # fmt: skip
    notes = [f"{made['patterns_tested']} of {made['patterns_mined']} mined patterns were tested"]
    reasons = Counter(reason for reason in made["without_case"].values())
    notes += [f"{count} without a case: {reason}" for reason, count in sorted(reasons.items())]
    columns = ["method", "patterns", "patterns_without_case", "cases", "calls", *_STATUSES]
    return table_of(rows, columns, notes)


_STATUSES = ("ok", "mismatch", "exception", "crash", "timeout", "unreached")
