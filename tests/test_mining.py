"""The miner against brute force, against cases counted by hand, and as users may misuse it."""

import json
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from brute_force import form_of, frequent
from hypothesis import given, settings
from hypothesis import strategies as st

import sortlib as sl
from sortlib.graph import ApiGraph
from sortlib.mining import shard
from sortlib.mining.canonical import pattern_id
from sortlib.mining.team import Team

KNOWN = json.loads((Path(__file__).parent / "data" / "mining_small.json").read_text())
CHAIN = ApiGraph.from_edges(["relu", "conv2d", "batch_norm"], [(0, 1, "input"), (1, 2, "input")], "chain")
RESIDUAL = ApiGraph.from_edges(
    ["relu", "conv2d", "batch_norm", "add"],
    [(0, 1, "input"), (1, 2, "input"), (2, 3, "operand"), (0, 3, "operand")],
    "residual",
)


@st.composite
def graph_sets(draw):
    """One to four graphs with few labels, so that symmetry, parallel edges and hubs are common."""
    labels, arguments = draw(st.sampled_from(["a", "ab", "abc"])), draw(st.sampled_from(["x", "xy"]))
    graphs = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(2, 7))
        apis = draw(st.lists(st.sampled_from(labels), min_size=size, max_size=size))
        pairs = st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True).map(sorted)
        edges = [(*pair, draw(st.sampled_from(arguments))) for pair in draw(st.lists(pairs, min_size=1, max_size=7))]
        edges += [draw(st.sampled_from(edges))] * draw(st.integers(0, 2))
        if draw(st.integers(0, 4)) == 0:
            edges = [(k, size - 1, "x") for k in range(size - 1)] + edges[:2]
        number = draw(st.permutations(range(size)))
        names = [None] * size
        for old, new in enumerate(number):
            names[new] = apis[old]
        graphs.append(ApiGraph.from_edges(names, [(number[src], number[dst], name) for src, dst, name in edges]))
    return graphs, draw(st.integers(1, len(graphs))), draw(st.integers(2, 6))


def by_form(patterns):
    result = {form_of(pattern.nodes, pattern.edges): pattern for pattern in patterns}
    assert len(result) == len(patterns), "a pattern is listed twice"
    return result


def places(graphs, embeddings):
    """Occurrences as (graph, edges); parallel edges with one label are the same."""
    return [(graph, tuple(sorted(graphs[graph].edges[edge] for edge in edges))) for graph, edges in embeddings]


def check(graphs, min_support, max_nodes, patterns, every):
    expected = frequent(graphs, min_support, max_nodes)
    found = by_form(patterns)
    assert set(found) == set(expected)
    for form, pattern in found.items():
        where = expected[form]
        assert pattern.support == len(where) and pattern.graph_ids == tuple(sorted(where))
        right = set(places(graphs, [(graph, edges) for graph, sets in where.items() for edges in sets]))
        mine = places(graphs, [(embedding.graph, embedding.edges) for embedding in pattern.embeddings])
        assert len(set(mine)) == len(mine)
        assert set(mine) == right if every else set(mine) <= right
        assert {graph for graph, _ in mine} == set(where)
        for graph, nodes, edges in pattern.embeddings:
            assert tuple(graphs[graph].nodes[node].api for node in nodes) == pattern.nodes
            assert len(set(edges)) == len(edges)
            for (src, dst, argument), edge in zip(pattern.edges, edges, strict=True):
                assert graphs[graph].edges[edge] == (nodes[src], nodes[dst], argument)


@settings(max_examples=400, deadline=None)
@given(graph_sets())
def test_brute_force_finds_the_same_patterns_and_occurrences(case):
    graphs, min_support, max_nodes = case
    check(graphs, min_support, max_nodes, sl.mine(graphs, min_support, max_nodes, embeddings="all"), every=True)


@settings(max_examples=150, deadline=None)
@given(graph_sets(), st.sampled_from([0, 1, 3]))
def test_dense_patterns_are_counted_exactly_without_listing_their_occurrences(case, dense):
    graphs, min_support, max_nodes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "DENSE", dense)
        patch.setattr(shard, "SAMPLE", 1)
        patterns = sl.mine(graphs, min_support, max_nodes)
    check(graphs, min_support, max_nodes, patterns, every=False)


def contains(large, small):
    """Whether ``small`` is a part of ``large``, by trying all connected sets of edges of ``large``."""
    graph = ApiGraph.from_edges(large.nodes, large.edges)
    return form_of(small.nodes, small.edges) in frequent([graph], 1, len(small.nodes))


@settings(max_examples=60, deadline=None)
@given(graph_sets())
def test_closed_and_maximal_agree_with_their_definition(case):
    graphs, min_support, max_nodes = case
    everything = sl.mine(graphs, min_support, max_nodes)
    larger = {
        small.id: [large for large in everything if len(large.edges) > len(small.edges) and contains(large, small)]
        for small in everything
    }
    closed = [p.id for p in everything if not any(other.support == p.support for other in larger[p.id])]
    assert [p.id for p in sl.mine(graphs, min_support, max_nodes, keep="closed")] == closed
    maximal = [p.id for p in everything if not larger[p.id]]
    assert [p.id for p in sl.mine(graphs, min_support, max_nodes, keep="maximal")] == maximal


@pytest.mark.parametrize("case", KNOWN, ids=[case["name"] for case in KNOWN])
def test_patterns_counted_by_hand(case):
    graphs = [ApiGraph.from_edges(graph["nodes"], graph["edges"]) for graph in case["graphs"]]
    assert len(sl.mine(graphs, min_support=case["min_support"])) == case["patterns"]


def test_one_tensor_used_twice_is_another_pattern_than_used_once():
    square = ApiGraph.from_edges(["relu", "mul"], [(0, 1, "operand"), (0, 1, "operand")])
    once = ApiGraph.from_edges(["relu", "mul"], [(0, 1, "operand")])
    assert [(len(p.edges), p.support) for p in sl.mine([square, square, once], 2)] == [(1, 3), (2, 2)]


def test_cat_of_thirty_tensors_has_one_pattern_for_each_number_of_inputs():
    # 30 equal inputs: C(30, 6) = 593,775 places for the largest pattern, but only 6 patterns
    cat = ApiGraph.from_edges(["relu"] * 30 + ["cat"], [(k, 30, "tensors") for k in range(30)])
    patterns = sl.mine([cat, cat], 2, max_nodes=7)
    assert [p.nodes.count("relu") for p in patterns] == [1, 2, 3, 4, 5, 6]
    assert patterns.dense_sizes == {4, 5, 6, 7}  # C(30, 3) = 4,060 is the first above 2,000


def shuffled(graph, seed):
    number = list(range(len(graph.nodes)))
    random.Random(seed).shuffle(number)
    apis = [None] * len(number)
    for old, new in enumerate(number):
        apis[new] = graph.nodes[old].api
    edges = [(number[src], number[dst], name) for src, dst, name in graph.edges]
    random.Random(seed + 1).shuffle(edges)
    return ApiGraph.from_edges(apis, edges)


@settings(max_examples=50, deadline=None)
@given(graph_sets(), st.integers(0, 100))
def test_ids_and_forms_do_not_depend_on_the_order_of_nodes_edges_or_graphs(case, seed):
    graphs, min_support, max_nodes = case
    other = [shuffled(graph, seed) for graph in reversed(graphs)]
    first, second = (sl.mine(these, min_support, max_nodes) for these in (graphs, other))
    assert [(p.id, p.nodes, p.edges, p.support) for p in first] == [(p.id, p.nodes, p.edges, p.support) for p in second]


def test_ids_do_not_depend_on_which_other_labels_occur():
    extra = ApiGraph.from_edges(["abs", "zeta"], [(0, 1, "a")])
    ids = {p.id for p in sl.mine([RESIDUAL, RESIDUAL], 2)}
    assert ids == {p.id for p in sl.mine([RESIDUAL, extra, RESIDUAL, extra], 2) if "abs" not in p.nodes}
    assert len(ids) == 13


def test_an_id_is_the_hash_of_the_canonical_form_and_stays_the_same():
    pattern = sl.mine([CHAIN], 1)[-1]
    assert pattern.id == pattern_id(["relu", "conv2d", "batch_norm"], [(0, 1, "input"), (1, 2, "input")])
    assert pattern.id == "p139b359119a0"  # sha256 of [["relu","conv2d","batch_norm"],[[0,1,"input"],[1,2,"input"]]]


def test_nodes_come_in_topological_order():
    for pattern in sl.mine([RESIDUAL], 1):
        assert all(src < dst for src, dst, _ in pattern.edges)


def test_graph_order_only_renames_graph_ids():
    patterns = sl.mine([CHAIN, RESIDUAL, CHAIN], 1)
    assert {p.graph_ids for p in patterns} == {(0, 1, 2), (1,)}


@pytest.mark.parametrize("size", [2, 3])
def test_min_nodes_and_max_nodes_bound_the_size(size):
    everything = sl.mine([RESIDUAL], 1)
    bounded = sl.mine([RESIDUAL], 1, max_nodes=3, min_nodes=size)
    assert [p.id for p in bounded] == [p.id for p in everything if size <= len(p.nodes) <= 3]


def test_include_keeps_patterns_with_all_the_apis_named():
    assert {p.id for p in sl.mine([RESIDUAL], 1, include=["relu", "add"])} == {
        p.id for p in sl.mine([RESIDUAL], 1) if {"relu", "add"} <= set(p.nodes)
    }


def test_exclude_takes_the_calls_out_of_the_graphs():
    patterns = sl.mine([RESIDUAL], 1, exclude="add")
    assert [p.id for p in patterns] == [p.id for p in sl.mine([CHAIN], 1)]


def test_number_of_embeddings_can_be_chosen():
    wide = ApiGraph.from_edges(["relu"] * 5 + ["cat"], [(k, 5, "tensors") for k in range(5)])
    assert [len(p.embeddings) for p in sl.mine([wide], 1, max_nodes=3)] == [1, 1]
    assert [len(p.embeddings) for p in sl.mine([wide], 1, max_nodes=3, embeddings=7)] == [5, 7]
    assert [len(p.embeddings) for p in sl.mine([wide], 1, max_nodes=3, embeddings="all")] == [5, 10]  # C(5, 2)


def test_embeddings_are_sequences_that_can_be_sliced_compared_and_pickled():
    pattern = sl.mine([CHAIN, CHAIN], 2)[-1]
    first = pattern.embeddings[0]
    assert first == (0, (0, 1, 2), (0, 1)) and pattern.embeddings[-1].graph == 1
    assert pattern.embeddings[:1] == (first,) and first in pattern.embeddings
    again = pickle.loads(pickle.dumps(pattern))
    assert again == pattern and again.embeddings == pattern.embeddings
    with pytest.raises(IndexError, match="embedding 2 of 2"):
        pattern.embeddings[2]


def test_two_workers_return_the_same_list():
    graphs = [RESIDUAL, CHAIN, shuffled(RESIDUAL, 3), CHAIN]
    alone, team = sl.mine(graphs, 2), sl.mine(graphs, 2, workers=2)
    assert alone == team and [p.embeddings for p in alone] == [p.embeddings for p in team]
    assert alone.covered == team.covered


def test_a_worker_that_dies_is_reported_in_one_line(monkeypatch):
    call = Team.call

    def dying(self, method, *args):
        if method == "grow":
            self.workers[0].kill()
            self.workers[0].wait()
        return call(self, method, *args)

    monkeypatch.setattr(Team, "call", dying)
    with pytest.raises(sl.SortError, match="worker process .* ended with code -9"):
        sl.mine([RESIDUAL, RESIDUAL], 2, workers=2)


def test_coverage_is_the_share_of_calls_in_a_pattern_of_each_size():
    lone = ApiGraph.from_edges(["relu", "conv2d", "batch_norm", "tanh"], [(0, 1, "input"), (1, 2, "input")])
    assert sl.mine([lone, lone], 2).covered == {2: 0.75, 3: 0.75}


@pytest.mark.parametrize(
    "graphs, options, note",
    [
        ([], {}, "no graphs were given"),
        ([CHAIN], {"min_support": 2}, "the support of 2 is above the number of graphs, 1"),
        ([ApiGraph.from_edges(["relu"], []), ApiGraph.from_edges([], [])], {"min_support": 1}, "none of the 2 graphs"),
        ([CHAIN, ApiGraph.from_edges(["a", "b"], [(0, 1, "x")])], {"min_support": 2}, "no edge occurs in 2 of the 2"),
        ([CHAIN], {"min_support": 1, "exclude": "conv2d"}, "no edge without conv2d occurs in 1 of the 1"),
        ([CHAIN], {"min_support": 1, "include": "gelu"}, "no graph has gelu; the APIs are batch_norm, conv2d, relu"),
        ([CHAIN], {"min_support": 1, "min_nodes": 5}, "none of the frequent ones has the size"),
    ],
)
def test_an_empty_result_says_why(graphs, options, note):
    result = sl.mine(graphs, **options)
    assert result == [] and note in result.note


@pytest.mark.parametrize(
    "graphs, options, message",
    [
        (CHAIN, {}, "graphs must be a list of ApiGraph, not a single one"),
        ([CHAIN, "chain"], {}, r"graphs\[1\] must be an ApiGraph, not 'chain'"),
        ([CHAIN], {"min_support": 0}, "min_support is 0; it must be a whole number of at least 1"),
        ([CHAIN], {"min_support": 2.5}, "min_support is 2.5"),
        ([CHAIN], {"max_nodes": 1}, "max_nodes is 1; it must be a whole number from 2 to 15"),
        ([CHAIN], {"max_nodes": 16}, "max_nodes is 16"),
        ([CHAIN], {"min_nodes": 5, "max_nodes": 4}, "min_nodes 5 is larger than max_nodes 4"),
        ([CHAIN], {"keep": "best"}, "keep is 'best'; choose one of all, closed, maximal"),
        ([CHAIN], {"embeddings": 0}, "embeddings is 0; choose 'all'"),
        ([CHAIN], {"include": [3]}, "include holds 3"),
        ([CHAIN], {"workers": 0}, "workers is 0"),
        ([CHAIN], {"min_support": 1, "progress": "yes"}, "progress is 'yes'"),
    ],
)
def test_mistakes_get_one_clear_line(graphs, options, message):
    with pytest.raises(sl.SortError, match=message) as caught:
        sl.mine(graphs, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "nodes, edges, message",
    [
        (["a", "b"], [(0, 1, "x"), (1, 0, "x")], "has a cycle"),
        (["a", "a"], [(0, 0, "x")], "has a cycle"),
        (["a", 7], [(0, 1, "x")], "node label 7 is not a string"),
        (["a", "b"], [(0, 1, None)], "edge label None is not a string"),
    ],
)
def test_graphs_that_cannot_be_mined_are_refused_when_they_are_made(nodes, edges, message):
    with pytest.raises(sl.SortError, match=message):
        sl.mine([ApiGraph.from_edges(nodes, edges)], 1)


def test_progress_is_reported_size_by_size():
    seen = []
    sl.mine([RESIDUAL], 1, progress=seen.append)
    done = [(step.nodes, step.patterns) for step in seen if step.share == 1]
    assert done == [(2, 4), (3, 8), (4, 13)]  # 4 edges, 4 paths of two edges, 4 of three and the whole


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_the_sizes_already_done(workers):
    def stop(step):
        if step.nodes == 4:
            raise KeyboardInterrupt

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patterns = sl.mine([RESIDUAL, RESIDUAL], 2, progress=stop, workers=workers)
    assert [p.id for p in patterns] == [p.id for p in sl.mine([RESIDUAL, RESIDUAL], 2, max_nodes=3)]
    assert patterns.complete_up_to == 3
    assert patterns.note == "interrupted: the patterns are exact up to 3 nodes, larger ones are missing"
    assert [str(warning.message) for warning in caught] == [patterns.note]


def test_an_interrupt_signal_ends_a_run_in_a_process_of_its_own():
    script = """
import os, signal, sortlib as sl
graph = sl.ApiGraph.from_edges(["a", "b", "c"], [(0, 1, "x"), (1, 2, "x")])
stop = lambda step: os.kill(os.getpid(), signal.SIGINT) if step.nodes == 3 else None
patterns = sl.mine([graph], 1, progress=stop, workers=2)
print(patterns.complete_up_to, len(patterns))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("2 2\n", "")
