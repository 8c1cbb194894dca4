"""Tables about mined patterns, on graphs small enough to count by hand."""

import pandas as pd
import pytest

import sortlib as sl
from sortlib.mining import stats

RESIDUAL = sl.ApiGraph.from_edges(
    ["relu", "conv2d", "batch_norm", "add"],
    [(0, 1, "input"), (1, 2, "input"), (2, 3, "operand"), (0, 3, "operand")],
)
LONE = sl.ApiGraph.from_edges(["relu", "conv2d", "batch_norm", "tanh"], [(0, 1, "input"), (1, 2, "input")])


@pytest.fixture
def patterns():
    return sl.mine([RESIDUAL, RESIDUAL], 2)


def test_by_size_counts_trees_joins_and_cycles(patterns):
    # 4 nodes: leaving out one of the 4 edges gives a chain without join (add has one input) twice, else with join
    table = stats.by_size(patterns)
    assert table["patterns"].to_dict() == {2: 4, 3: 4, 4: 5}
    assert table["with_join"].to_dict() == {2: 0, 3: 1, 4: 3}
    assert table["out_trees"].to_dict() == {2: 4, 3: 3, 4: 2}
    assert table["cyclic"].to_dict() == {2: 0, 3: 0, 4: 1}
    assert table["min_support"].tolist() == table["max_support"].tolist() == [2, 2, 2]


def test_by_size_and_support_has_a_column_per_support():
    table = stats.by_size_and_support(sl.mine([RESIDUAL, LONE], 1))
    assert table.loc[2].to_dict() == {1: 2, 2: 2} and table.loc[4].to_dict() == {1: 5, 2: 0}


def test_by_kind_keeps_one_closed_pattern_of_equal_graphs():
    assert stats.by_kind([RESIDUAL, RESIDUAL], 2).loc["total"].to_dict() == {"all": 13, "closed": 1, "maximal": 1}


def test_most_frequent_names_the_pattern(patterns):
    whole = "relu > conv2d, relu > add, conv2d > batch_norm, batch_norm > add"
    assert stats.most_frequent(patterns, 1)["text"].item() == whole
    chain = sl.mine([LONE], 1)[-1]
    assert stats.as_text(chain) == "relu > conv2d > batch_norm"
    twice = sl.mine([sl.ApiGraph.from_edges(["abs", "abs", "add"], [(0, 2, "x"), (1, 2, "x")])], 1)[-1]
    assert stats.as_text(twice) == "abs#1 > add, abs#2 > add"


def test_coverage_of_calls_and_apis():
    mined = sl.mine([LONE, LONE], 2)
    calls = stats.call_coverage(mined)
    assert calls["share"].to_dict() == {2: 0.75, 3: 0.75} and calls["exact"].all()
    apis = stats.api_coverage(mined, [LONE, LONE])
    assert apis.loc["tanh"].to_dict() == {"calls": 2, "graphs": 2, "patterns": 0, "covered": 0, "share": 0}
    assert apis.loc["conv2d"].to_dict() == {"calls": 2, "graphs": 2, "patterns": 3, "covered": 2, "share": 1}


def test_coverage_refuses_what_it_cannot_know(patterns):
    with pytest.raises(sl.SortError, match="known for the list that mine"):
        stats.call_coverage(list(patterns))
    with pytest.raises(sl.SortError, match="come from graphs with 8 calls, not 4"):
        stats.api_coverage(patterns, [RESIDUAL])


def test_against_paper_stands_beside_the_published_728(patterns):
    table = stats.against_paper(patterns)
    assert table["paper"].to_dict() == {2: 36, 3: 30, 4: 40, 5: 82, 6: 168, 7: 372, "total": 728}
    assert table.loc["total", "ours"] == 13 and table.loc["total", "ours_other"] == 4


def test_threshold_sweep_never_grows_with_the_threshold():
    table = stats.threshold_sweep([RESIDUAL, LONE], [1, 2, 3])
    assert table["patterns"].tolist() == [13, 3, 0]
    assert table["call_share"].tolist() == [7 / 8, 6 / 8, 0]
    assert table["apis"].tolist() == [4, 3, 0]
    assert isinstance(table, pd.DataFrame) and (table["seconds"] >= 0).all()
