"""RQ3 beyond the paper: averages, gains and intervals that can be worked out by hand; and tables as LaTeX and HTML."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest
from test_tables import call, cell, differing, study_of

from sortlib import tables
from sortlib.tables import export


def with_nodes(study, apis):
    """The cases of a study made by hand, with the calls that edges refer to."""
    for case in study.cases:
        case.nodes = [SimpleNamespace(api=api) for api in apis]
    return study


def chain(case, gain):
    """conv2d -> batch_norm -> relu: 1e-6 arrives at batch_norm, ``gain`` times as much at relu, which passes it on."""
    return [
        differing(case, 0, "conv2d", 1e-6, local=1e-6, entry=True),
        differing(case, 1, "batch_norm", gain * 1e-6, local=5e-7, incoming=1e-6, entry=False),
        differing(case, 2, "relu", gain * 1e-6, incoming=gain * 1e-6, entry=False),
    ]


@pytest.fixture
def study():
    rows = [row for case, gain in (("a", 2.0), ("b", 4.0), ("c", 9.0)) for row in chain(case, gain)]
    edges = {case: [(0, 1, "input"), (1, 2, "input")] for case in "abc"}
    return with_nodes(study_of(rows, edges=edges), ["conv2d", "batch_norm", "relu"])


def test_own_differences_and_those_that_arrive_are_told_apart(study):
    table = tables.local_and_propagated(study)
    assert cell(table, "batch_norm", "local") == pytest.approx(5e-7)
    assert cell(table, "batch_norm", "propagated") == pytest.approx(5e-6)  # mean of 2, 4 and 9 times 1e-6
    assert cell(table, "batch_norm", "gain") == pytest.approx(4.0)  # their median
    assert cell(table, "relu", "local") == 0.0 and cell(table, "relu", "gain") == pytest.approx(1.0)
    # conv2d comes first in its case: nothing arrives there
    assert cell(table, "conv2d", "calls") == 0 and math.isnan(cell(table, "conv2d", "local"))
    assert any("conv2d" in note for note in table.attrs["footnotes"])


def test_intervals_hold_the_estimate_and_come_from_the_cases(study):
    table = tables.local_and_propagated(study)
    for name in ("local", "propagated", "gain"):
        low, value, high = (cell(table, "batch_norm", name + end) for end in ("_low", "", "_high"))
        assert low <= value <= high
    # three cases of 2, 4 and 9: resampled means lie between the smallest and the largest, and are not all the same
    assert 2e-6 <= cell(table, "batch_norm", "propagated_low") < cell(table, "batch_norm", "propagated_high") <= 9e-6
    # equal in all three, so there is no spread
    assert cell(table, "batch_norm", "local_low") == pytest.approx(cell(table, "batch_norm", "local_high"))


def test_one_case_leaves_nothing_to_resample():
    study = with_nodes(study_of(chain("a", 2.0), edges={"a": [(0, 1, "input")]}), ["conv2d", "batch_norm", "relu"])
    table = tables.local_and_propagated(study)
    assert cell(table, "batch_norm", "gain") == pytest.approx(2.0)
    assert math.isnan(cell(table, "batch_norm", "gain_low"))


def test_gain_of_each_kind_of_edge(study):
    table = tables.gain_by_edge(study)
    assert list(table["source"]) == ["conv2d", "batch_norm"] and list(table["api"]) == ["batch_norm", "relu"]
    assert list(table["calls"]) == [3, 3] and list(table["gain"]) == pytest.approx([4.0, 1.0])
    assert list(table["amplified"]) == [1.0, 0.0]


def test_a_broken_difference_is_no_average():
    rows = [*chain("a", 2.0), differing("b", 1, "batch_norm", math.inf, incoming=1e-6, entry=False)]
    table = tables.local_and_propagated(study_of(rows))
    assert cell(table, "batch_norm", "calls") == 1


def test_without_any_difference_both_tables_say_so():
    study = with_nodes(study_of([call("a", 0, "relu", entry=True)], edges={"a": []}), ["relu"])
    assert tables.local_and_propagated(study)["calls"].sum() == 0
    assert tables.gain_by_edge(study).empty and tables.gain_by_edge(study).attrs["footnotes"]


def test_latex_and_html_hold_every_cell_and_footnote_escaped():
    table = pd.DataFrame({"api": ["layer_norm", "a & b"], "share_%": [0.5, float("nan")]})
    table.attrs["footnotes"] = ["100 % of <all>"]
    made = export.latex(table, "Table")
    assert r"layer\_norm & 0.5 \\" in made and r"a \& b & / \\" in made
    assert r"share\_\%" in made and r"100 \% of" in made
    shown = export.page(table, "Table")
    assert "layer_norm" in shown and "a &amp; b" in shown and "100 % of &lt;all&gt;" in shown
    assert shown == export.page(table, "Table")
