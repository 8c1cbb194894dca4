"""Single-API: SORT's records and oracle, one API at a time (the paper's ablation, section IV-C)."""

from __future__ import annotations

from sortlib.graph import ApiGraph, Embedding, Pattern

PREFIX = "single-"


def single_api_patterns(graphs: list[ApiGraph], apis=None) -> list[Pattern]:
    """A pattern of one node and no edge for each API, so that generation and runner treat it like any other.

    Parameters
    ----------
    graphs : traced models.
    apis : canonical names; every API that occurs, if not given.
    """
    places = {}
    for number, graph in enumerate(graphs):
        for position, node in enumerate(graph.nodes):
            places.setdefault(node.api, []).append(Embedding(number, (position,), ()))
    wanted = sorted(places) if apis is None else [api for api in apis if api in places]
    return [_pattern(api, places[api]) for api in wanted]


def is_single(pattern_id: str) -> bool:
    """Whether a pattern id is one of ``single_api_patterns``."""
    return pattern_id.startswith(PREFIX)


def _pattern(api, embeddings):
    graph_ids = tuple(sorted({embedding.graph for embedding in embeddings}))
    return Pattern(PREFIX + api, (api,), (), len(graph_ids), graph_ids, tuple(embeddings))
