"""Figures: what is drawn where, in which colour and with which words; compared by structure, not by pixels."""

import json
import math
import random
import re
from collections import Counter

import matplotlib
import networkx as nx
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

import sortlib as sl
from sortlib import figures, tables
from sortlib.errors import SortError
from sortlib.features import LEVELS
from sortlib.figures.heat_table import _percent
from sortlib.figures.heatmap import RED, WHITE, YELLOW
from sortlib.figures.layered import spaced
from sortlib.figures.style import SINGLE_COLOUR, SORT_COLOUR, THRESHOLD
from sortlib.figures.whole import _latest
from sortlib.generation import CaseNode, TestCase
from sortlib.graph import Edge, Pattern
from sortlib.study import Study, StudyConfig

# A residual block as a pattern: the two operands of node 3 come from nodes 0 and 2.
RESIDUAL = (["relu", "conv2d", "batch_norm", "add"], [(0, 1, "input"), (1, 2, "input"), (0, 3, "operand"),
                                                      (2, 3, "operand")])  # fmt: skip


@pytest.fixture
def hand_study(tmp_path):
    """``hand_study(apis, edges, rows)``: a study of one case with id "c" whose outcomes are given."""

    def make(apis, edges, rows):
        study = Study.create(StudyConfig(name="hand", zoo="tiny"), tmp_path / "study")
        nodes = tuple(CaseNode(api, f"torch.{api}", [], ("model", 0, 0)) for api in apis)
        study.save_cases([TestCase("c", "p1", nodes, tuple(edges), 0, "quantile")])
        study.note("run", fingerprint="f", reference="cpu", candidate="cpu:baseline")
        common = {"case": "c", "pattern": "p1", "reference": "cpu", "candidate": "cpu:baseline", "side": "",
                  "message": "", "status": "ok", "propagated_one_sided": 0.0, "local_one_sided": 0.0}  # fmt: skip
        full = [{**common, "node": number, "api": api, **row} for number, (api, row) in
                enumerate(zip(apis, rows, strict=True))]  # fmt: skip
        study.outcome_folder.mkdir(parents=True)
        pd.DataFrame(full).to_parquet(study.outcome_folder / "part-00001.parquet")
        return study

    return make


def ok(propagated, local=0.0, incoming=0.0, **more):
    return {"propagated_max_abs": propagated, "local_max_abs": local, "incoming": incoming, **more}


def words(figure):
    """Every text of a figure's axes."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def named(figure, kind):
    """Boxes or arrows by their id."""
    patches = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, kind)]
    return {patch.get_gid(): patch for patch in patches}


def faces(figure):
    return {name: matplotlib.colors.to_hex(box.get_facecolor()) for name, box in named(figure, FancyBboxPatch).items()}


def grey(colour):
    """Lightness as a grey printer sees it (ITU-R BT.601)."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


# ---- layout ----


def test_a_chain_stands_in_one_column():
    placed = figures.layout("abc", [(0, 1), (1, 2)])
    (x, _), *_ = placed.positions
    assert placed.positions == ((x, 0.0), (x, 1.0), (x, 2.0))
    assert placed.layers == ((0,), (1,), (2,))


def test_a_long_edge_goes_round_the_nodes_it_passes():
    placed = figures.layout(*RESIDUAL)
    (chain_x, _) = placed.positions[1]
    assert placed.positions[2][0] == chain_x
    skip = placed.routes[2]
    assert [y for _, y in skip] == [0.0, 1.0, 2.0, 3.0]
    assert skip[1][0] == skip[2][0]
    assert abs(skip[1][0] - chain_x) >= 0.5 + 0.3 / 2 + 0.4 - 1e-9  # half a box, half a bend, the gap


def test_layers_are_topological_generations_and_nothing_overlaps():
    rng = random.Random(3)
    for _ in range(30):
        count = rng.randint(2, 14)
        edges = [(a, b) for b in range(count) for a in range(b) if rng.random() < 0.25]
        widths = [rng.uniform(0.3, 2.0) for _ in range(count)]
        placed = figures.layout(range(count), edges, widths, bend_width=0.2, gap=0.4)
        graph = nx.DiGraph(edges)
        graph.add_nodes_from(range(count))
        assert [sorted(layer) for layer in placed.layers] == list(map(sorted, nx.topological_generations(graph)))
        taken = {}  # layer -> (x, width) of nodes and bends
        for node, (x, y) in enumerate(placed.positions):
            taken.setdefault(y, []).append((x, widths[node]))
        for route in placed.routes:
            for x, y in route[1:-1]:
                taken[y].append((x, 0.2))
        for items in taken.values():
            items.sort()
            for (x0, w0), (x1, w1) in zip(items, items[1:], strict=False):
                assert x1 - x0 >= (w0 + w1) / 2 + 0.4 - 1e-9


def test_layout_avoids_a_crossing_that_the_order_of_nodes_would_make():
    placed = figures.layout(range(4), [(0, 3), (1, 2)])
    order = {node: x for node, (x, _) in enumerate(placed.positions)}
    assert (order[0] < order[1]) == (order[3] < order[2])


def test_layout_keeps_parallel_edges_and_is_pure():
    edges = [(0, 1, "operand"), (0, 1, "operand")]
    assert len(figures.layout("ab", edges).routes) == 2
    assert figures.layout("ab", edges) == figures.layout("ab", edges)
    assert figures.layout([], []) == ((), (), ())


@pytest.mark.parametrize(("edges", "told"), [([(0, 1), (1, 0)], "cycle"), ([(0, 5)], "outside 0..1")])
def test_layout_tells_what_is_wrong_with_edges(edges, told):
    with pytest.raises(SortError, match=told):
        figures.layout("ab", edges)


def test_spacing_is_least_squares():
    # min x0^2 + x1^2 with x1 - x0 >= 1, by symmetry; with weights 3 and 1: 6 x0 + 2 (x0 + 1) = 0.
    assert spaced([0, 0], [1, 1], 0.0) == [-0.5, 0.5]
    assert spaced([0, 0], [1, 1], 0.0, [3, 1]) == [-0.25, 0.75]
    assert spaced([0, 9], [1, 1], 0.5) == [0, 9]


# ---- Figure 14 ----


def test_heatmap_has_the_papers_colours_and_differences(hand_study):
    # The rule is |a - b| <= 1e-3, so 1e-3 itself is still yellow.
    study = hand_study(["add", "layer_norm", "linear", "relu"], [(0, 1, "input"), (1, 2, "input"), (2, 3, "input")],
                       [ok(0.0), ok(4.8e-7), ok(2.5e-3, incoming=4.8e-7), ok(1e-3)])  # fmt: skip
    figure = sl.figures.amplification(study, "c")
    assert faces(figure) == {
        "propagated-node-0": WHITE, "propagated-node-1": YELLOW, "propagated-node-2": RED, "propagated-node-3": YELLOW,
    }  # fmt: skip
    for expected in ("__add__", "0", "layer_norm", "4.80e-07", "linear", "2.50e-03", "Case c"):
        assert expected in words(figure)
    assert "above 0.001" in words(figure)


def test_colours_differ_in_a_grey_print():
    assert grey(WHITE) - grey(YELLOW) > 0.15 and grey(YELLOW) - grey(RED) > 0.4


def test_heatmap_draws_both_arrows_of_a_join_and_the_gain_on_the_one_that_brings_more(hand_study):
    rows = [ok(1e-4), ok(2e-4), ok(4e-4), ok(1.2e-3, incoming=4e-4)]
    figure = sl.figures.amplification(hand_study(*RESIDUAL, rows), "c")
    assert set(named(figure, FancyArrowPatch)) == {f"propagated-edge-{number}" for number in range(4)}
    assert words(figure).count("operand") == 2
    assert "×3" in words(figure)  # 1.2e-3 / 4e-4
    svg = figures.to_svg(figure)
    first, second = (arrow_end(svg, f"propagated-edge-{number}") for number in (2, 3))
    assert abs(first - second) > 20  # points between the two heads
    (gain,) = (text for text in figure.axes[0].texts if text.get_text() == "×3")
    near = {text.get_position()[0] for text in figure.axes[0].texts if text.get_text() == "operand"}
    x = gain.get_position()[0]
    # Edge 3 comes from node 2, which has 4e-4; its label stands on the same side as its head.
    assert x in near and (x == min(near)) == (second < first)


def arrow_end(svg, name):
    """x at which the line of an arrow ends, in points."""
    line = re.search(rf'<g id="{name}">\s*<path d="([^"]*)"', svg)[1]
    return float(re.findall(r"-?[0-9.]+", line)[-2])


def test_heatmap_shows_no_gain_where_no_difference_arrives(hand_study):
    study = hand_study(["relu", "conv2d"], [(0, 1, "input")], [ok(0.0), ok(3e-7)])
    assert not any("×" in text for text in words(sl.figures.amplification(study, "c")))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"status": "exception", "side": "candidate"}, "exception on candidate"),
        ({"status": "crash", "side": "reference"}, "crash on reference"),
        ({"status": "timeout", "side": "candidate"}, "timeout on candidate"),
        ({"status": "unreached"}, "unreached"),
        ({"propagated_max_abs": None, "local_max_abs": 0.0}, "unreached"),  # only the local run has a value
    ],
)
def test_heatmap_marks_calls_without_a_value(hand_study, row, said):
    study = hand_study(["relu", "conv2d"], [(0, 1, "input")], [ok(0.0), row])
    figure = sl.figures.amplification(study, "c")
    box = named(figure, FancyBboxPatch)["propagated-node-1"]
    assert box.get_hatch() and said in words(figure) and "no value" in words(figure)


def test_a_value_that_is_finite_on_one_side_only_is_red(hand_study):
    study = hand_study(["mul", "div"], [(0, 1, "input")],
                       [ok(1e-5), ok(0.0, incoming=1e-5, propagated_one_sided=0.25)])  # fmt: skip
    figure = sl.figures.amplification(study, "c")
    assert faces(figure)["propagated-node-1"] == RED and "not finite: 25.00%" in words(figure)
    assert not any("×" in text for text in words(figure))  # a gain of what is not finite would mean nothing


def test_local_and_propagated_side_by_side(hand_study):
    study = hand_study(["conv2d", "batch_norm"], [(0, 1, "input")],
                       [ok(1e-4, local=1e-4), ok(5e-3, local=0.0, incoming=1e-4)])  # fmt: skip
    figure = sl.figures.amplification(study, "c", which="both")
    found = faces(figure)
    assert (found["propagated-node-1"], found["local-node-1"]) == (RED, WHITE)
    assert words(figure).count("×50") == 1  # the gain belongs to the propagated side
    boxes = named(figure, FancyBboxPatch)
    assert boxes["propagated-node-0"].get_y() == boxes["local-node-0"].get_y()


def test_log_scale_is_darker_for_larger_differences_and_white_only_at_zero(hand_study):
    values = [0.0, 1e-8, 1e-6, 1e-4, 1e-2]
    study = hand_study(["relu"] * 5, [(n, n + 1, "input") for n in range(4)], [ok(value) for value in values])
    figure = sl.figures.amplification(study, "c", scale="log")
    shades = [grey(faces(figure)[f"propagated-node-{node}"]) for node in range(5)]
    assert shades == sorted(shades, reverse=True) and len(set(shades)) == 5
    assert shades[0] == pytest.approx(1.0) and shades[1] < 0.95
    assert "threshold 0.001" in words(figure)


@pytest.mark.parametrize("which", ["propagated", "both"])
def test_text_fits_its_box_and_nothing_leaves_the_page(hand_study, which):
    apis = ["adaptive_avg_pool2d", "scaled_dot_product_attention", "batch_norm", "add"]
    rows = [ok(1.2e-4, 1e-5), ok(3.4e-5, 2e-5), {"status": "exception", "side": "candidate"}, {"status": "unreached"}]
    figure = sl.figures.amplification(hand_study(apis, RESIDUAL[1], rows), "c", which=which)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    boxes = [box.get_window_extent() for box in named(figure, FancyBboxPatch).values()]
    page = figure.bbox
    for text in axes.texts:
        extent = text.get_window_extent()
        assert page.x0 <= extent.x0 and extent.x1 <= page.x1 and page.y0 <= extent.y0 and extent.y1 <= page.y1
        if text.get_zorder() == 4:  # in a box
            assert any(b.x0 <= extent.x0 and extent.x1 <= b.x1 and b.y0 <= extent.y0 and extent.y1 <= b.y1
                       for b in boxes), text.get_text()  # fmt: skip
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_unknown_choices_are_told_in_one_line(hand_study):
    study = hand_study(["relu"], [], [ok(0.0)])
    with pytest.raises(SortError, match="unknown scale 'paler'; valid: log, paper"):
        sl.figures.amplification(study, "c", scale="paler")
    with pytest.raises(SortError, match="valid: both, local, propagated"):
        sl.figures.amplification(study, "c", which="neither")
    with pytest.raises(SortError, match="no case 'x'"):
        sl.figures.amplification(study, "x")


# ---- Figure 13 ----


@pytest.fixture
def table_study(hand_study, monkeypatch):
    """A study for which both tables of Figure 13 give these rows."""

    def make(rows):
        frame = pd.DataFrame(rows, columns=["api", "paper_name", "sort", "single"])
        for name in ("average_difference", "involvement"):
            monkeypatch.setattr(tables, name, lambda study, apis=None: frame)
        return hand_study(["relu"], [], [ok(0.0)])

    return make


NAN = float("nan")


def test_average_difference_shows_zero_apart_from_the_log_axis(table_study):
    study = table_study([("add", "__add__", 1e-2, 1e-5), ("relu", "relu", 1e-4, 0.0), ("div", "div", NAN, NAN),
                         ("mul", "__mul__", NAN, 1e-3)])  # fmt: skip
    axes = figures.average_difference(study).axes[0]
    dots = {(round(x, 6), y) for dots in axes.collections for x, y in dots.get_offsets()}
    zero = axes.get_xticks()[0]
    # Places are decimal logarithms; rows from the top.
    assert {(-2, 0), (-5, 0), (-4, 1), (-3, 3)} < dots and (round(zero, 6), 1) in dots and len(dots) == 5
    assert zero < min(x for x, _ in dots if x != round(zero, 6)) - 0.5
    assert axes.xaxis.get_major_formatter()(zero, 0) == "0"
    line = next(line for line in axes.lines if line.get_linestyle() == ":")
    assert (line.get_color(), line.get_xdata()[0]) == (THRESHOLD, -3)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["__add__", "relu", "div", "__mul__"]
    texts = [text.get_text() for text in axes.texts]
    assert {"not executed", "in no tested pattern", "threshold 0.001"} <= set(texts)


def test_average_difference_of_a_study_without_any_difference(table_study):
    axes = figures.average_difference(table_study([("relu", "relu", 0.0, 0.0)])).axes[0]
    assert {tuple(dots.get_offsets()[0]) for dots in axes.collections} == {(axes.get_xticks()[0], 0)}


def test_involvement_draws_shares_as_bars_with_their_value(table_study):
    study = table_study([("add", "__add__", 0.75, 0.0), ("relu", "relu", 1.0, NAN)])
    axes = figures.involvement(study).axes[0]
    widths = {(round(bar.get_width(), 6), matplotlib.colors.to_hex(bar.get_facecolor()) == SORT_COLOUR)
              for bar in axes.patches}  # fmt: skip
    assert widths == {(0.75, True), (0.0, False), (1.0, True)}
    assert {"75.0%", "0%", "100%", "not run alone"} <= {text.get_text() for text in axes.texts}


def test_involvement_says_when_nothing_exceeds_the_threshold(table_study):
    axes = figures.involvement(table_study([("relu", "relu", 0.0, 0.0)])).axes[0]
    assert "no difference exceeds the threshold 0.001" in [text.get_text() for text in axes.texts]


# ---- the whole model ----


def occurrences(pattern, graph):
    """Every occurrence of a pattern in a graph as (calls, edges between them that it uses), by networkx."""
    inner = nx.DiGraph()
    inner.add_nodes_from((node, {"api": api}) for node, api in enumerate(pattern.nodes))
    outer = nx.DiGraph()
    outer.add_nodes_from((number, {"api": node.api}) for number, node in enumerate(graph.nodes))
    for plain, edges in ((inner, pattern.edges), (outer, graph.edges)):
        for src, dst, argument in edges:
            labels = plain.edges[src, dst]["labels"] if plain.has_edge(src, dst) else []
            plain.add_edge(src, dst, labels=sorted([*labels, argument]))

    def holds(found, wanted):
        return not Counter(wanted["labels"]) - Counter(found["labels"])

    matcher = nx.isomorphism.DiGraphMatcher(outer, inner, lambda a, b: a["api"] == b["api"], holds)
    for mapping in matcher.subgraph_monomorphisms_iter():
        yield {node: number for number, node in mapping.items()}


def marks(figure):
    return {patch.get_gid(): patch for patch in figure.axes[0].patches if str(patch.get_gid()).startswith("call-")}


@pytest.mark.parametrize("side", ["local", "propagated"])
def test_whole_model_paints_each_call_by_the_worst_that_any_tested_pattern_shows(tiny_study, side):
    (graph,) = [graph for graph in tiny_study.graphs if graph.name == "tiny-residual"]
    rows = tiny_study.judged
    largest = rows.groupby(["pattern", "node"])[f"{side}_max_abs"].max()
    expected = {}
    for pattern in tiny_study.patterns:
        if pattern.id in set(rows["pattern"]):
            for places in occurrences(pattern, graph):
                for node, call in places.items():
                    expected.setdefault(call, []).append(float(largest[pattern.id, node]))
    figure = sl.figures.whole_model(tiny_study, "tiny-residual", side)
    found = marks(figure)
    assert list(found) == [f"call-{number}" for number in range(len(graph.nodes))]
    small = {name for name, mark in found.items() if mark.radius < found["call-1"].radius}
    assert small == {f"call-{number}" for number in range(len(graph.nodes))} - {f"call-{call}" for call in expected}
    # The same value has the same colour, and a larger one is darker; white is exactly 0.
    shade = {max(values): grey(found[f"call-{call}"].get_facecolor()[:3]) for call, values in expected.items()}
    assert [shade[value] for value in sorted(shade)] == sorted(shade.values(), reverse=True)
    assert {value for value, lightness in shade.items() if lightness > 0.999} <= {0.0}
    assert f"{len(expected)} of {len(graph.nodes)} calls" in " ".join(words(figure))
    assert "inside a tested pattern" in words(figure)


def test_whole_model_names_the_apis_that_differ_most_and_marks_whom_the_evidence_accuses(tiny_study):
    changed = Study(tiny_study.directory)
    worst = tiny_study.judged["api"] == "batch_norm"
    evidence = tiny_study.judged["evidence"].mask(worst, "suspect")
    changed.__dict__["judged"] = tiny_study.judged.assign(
        evidence=evidence, local_max_abs=tiny_study.judged["local_max_abs"].mask(worst, 0.25)
    )
    figure = sl.figures.whole_model(changed, "tiny-residual")
    (graph,) = [graph for graph in changed.graphs if graph.name == "tiny-residual"]
    square = {name for name, mark in marks(figure).items() if isinstance(mark, Rectangle)}
    assert square and {graph.nodes[int(name.partition("-")[2])].api for name in square} == {"batch_norm"}
    (line,) = [text for text in words(figure) if text.startswith("batch_norm: 0.25")]
    assert f"at {len(square)} calls, first in " in line and "accused" in words(figure)


def test_whole_model_of_what_is_not_there(tiny_study):
    with pytest.raises(SortError, match="no model 'resnet'; valid: tiny-residual, tiny-transformer"):
        sl.figures.whole_model(tiny_study, "resnet")
    with pytest.raises(SortError, match="valid: local, propagated"):
        sl.figures.whole_model(tiny_study, side="both")


def test_columns_hold_every_layer_once_and_calls_do_not_touch(tiny_study):
    figure = sl.figures.whole_model(tiny_study, "tiny-transformer")
    circles = [mark for mark in marks(figure).values() if isinstance(mark, Circle)]
    for number, one in enumerate(circles):
        for other in circles[number + 1 :]:
            (x0, y0), (x1, y1) = one.center, other.center
            assert (x1 - x0) ** 2 + (y1 - y0) ** 2 >= (one.radius + other.radius) ** 2
    page = figure.bbox
    figure.draw_without_rendering()
    for text in figure.axes[0].texts:
        extent = text.get_window_extent()
        assert page.x0 <= extent.x0 and extent.x1 <= page.x1 and page.y0 <= extent.y0 and extent.y1 <= page.y1


def test_constants_stand_above_their_first_reader():
    # 0 -> 1 -> 2 -> 3, and the constants 4 and 5 with 5 -> 4 -> 3: longest ways would put 5 beside 0.
    assert _latest(6, [(0, 1), (1, 2), (2, 3), (4, 3), (5, 4)]) == [0, 1, 2, 3, 2, 1]


# ---- APIs by platforms, and all calls at once ----


def with_judged(study, **columns):
    """The study with columns of its outcomes set by hand, judged without a run."""
    study.__dict__["outcomes"] = study.__dict__["judged"] = study.all_outcomes.assign(**columns)
    return study


def cells(figure, table):
    """(row, column) -> box of a heat table."""
    return {tuple(map(int, name.split("-")[1:])): box for name, box in named(figure, Rectangle).items()
            if str(name).startswith(table)}  # fmt: skip


def test_heat_table_has_the_largest_difference_and_the_share_of_calls_with_other_bits(hand_study):
    study = hand_study(["relu", "add", "add", "add", "div"], [], [ok(0.0), ok(0, 2e-3), ok(0, 1e-5), ok(0), ok(0)])
    with_judged(study, local_differing=[0.0, 0.5, 0.1, 0.0, 0.0], status=["ok"] * 4 + ["exception"])
    figure = figures.heat_table(study)
    # Rows by difference: add (2e-3, two of three calls), relu (0, none); div has no value and no row.
    assert {"__add__", "relu", "2.00e-03", "67%", "0", "0%", "cpu", "against cpu:baseline"} <= set(words(figure))
    assert "div" not in words(figure)
    largest = cells(figure, "largest")
    assert set(largest) == {(0, 0), (1, 0)}
    assert largest[0, 0].get_linewidth() > 1.5 > largest[1, 0].get_linewidth()  # beyond the threshold
    assert grey(largest[0, 0].get_facecolor()[:3]) < grey(largest[1, 0].get_facecolor()[:3]) == pytest.approx(1)
    share = cells(figure, "share")
    assert (
        grey(share[0, 0].get_facecolor()[:3]) < 0.6 and matplotlib.colors.to_hex(share[1, 0].get_facecolor()) == WHITE
    )


def test_heat_table_of_several_studies_leaves_a_cell_empty_where_nothing_ran(hand_study, tmp_path):
    one = with_judged(hand_study(["relu", "add"], [], [ok(0, 1e-5), ok(0, 1e-6)]), local_differing=[1.0, 1.0])
    other = Study(one.directory)
    other.__dict__["outcomes"] = one.outcomes.iloc[:1].assign(local_max_abs=1e-4)
    figure = figures.heat_table([one, other], ["seed 0", "seed 1"])
    assert {"seed 0", "seed 1", "1.00e-04", "1.00e-05", "1.00e-06"} <= set(words(figure))
    assert matplotlib.colors.to_hex(cells(figure, "largest")[1, 1].get_facecolor()) == WHITE
    assert len([text for text in words(figure) if "e-0" in text and text[0].isdigit() and "." in text]) == 3
    with pytest.raises(SortError, match="1 names for 2 studies"):
        figures.heat_table([one, other], ["seed 0"])
    with pytest.raises(SortError, match="valid: local, propagated"):
        figures.heat_table(one, side="both")


def test_shares_are_0_and_100_percent_only_exactly():
    assert [_percent(share) for share in (0.0, 1e-4, 0.5, 0.9999, 1.0, float("nan"))] == [
        "0%", "<1%", "50%", ">99%", "100%", ""]  # fmt: skip


def points(axes):
    """label -> [(x, y)] of the marks of a scatter."""
    return {dots.get_label().partition(" (")[0]: [tuple(map(float, at)) for at in dots.get_offsets()]
            for dots in axes.collections if dots.get_label()[0] != "_"}  # fmt: skip


def test_error_by_magnitude_places_every_call_by_its_verdict(hand_study):
    rows = [ok(1e-6), ok(0.0), ok(1e-2), ok(5e-4), ok(NAN)]
    study = hand_study(["add"] * 5, [], rows)
    low, high = [-10.0, 0.5, -1e3, 1.0, 1.0], [1.0, 1.0, 0.0, 100.0, 1.0]
    verdicts = ["rounding", "identical", "amplified", "suspect", "unreached"]
    with_judged(study, evidence=verdicts, reference_minimum=low, reference_maximum=high)
    axes = figures.error_by_magnitude(study).axes[0]
    found = points(axes)
    zero = axes.get_yticks()[0]
    # Places are decimal logarithms of the largest magnitude and of the difference.
    assert found["explained by rounding"] == [(1.0, pytest.approx(-6)), (0.0, pytest.approx(zero))]
    assert found["beyond the threshold, no call at fault"] == [(3.0, pytest.approx(-2))]
    assert found["a platform is accused"] == [(2.0, pytest.approx(math.log10(5e-4)))]
    (line,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    x, y = line.get_xdata(), line.get_ydata()
    assert list(y - x) == pytest.approx([math.log10(2**-23)] * 2)  # a unit in the last place of a float32
    assert {line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"} == {-3}


def test_error_by_magnitude_of_one_api_and_of_none(hand_study):
    study = with_judged(hand_study(["add", "relu"], [], [ok(1e-6), ok(1e-6)]), evidence="rounding",
                        reference_minimum=[1.0, 0.0], reference_maximum=[1.0, 0.0])  # fmt: skip
    assert len(points(figures.error_by_magnitude(study, "add").axes[0])["explained by rounding"]) == 1
    assert words(figures.error_by_magnitude(study, "relu")) == ["No call with a finite, non-zero output was run."]
    with pytest.raises(SortError, match="API 'gelu' is in no executed case; there are: add, relu"):
        figures.error_by_magnitude(study, "gelu")


def bars(axes, colour):
    """x of the centre -> height of the bars of one colour that are not empty."""
    return {
        round(bar.get_x() + bar.get_width() / 2, 1): bar.get_height()
        for bar in axes.patches
        if bar.get_height() and isinstance(bar, Rectangle) and matplotlib.colors.to_hex(bar.get_facecolor()) == colour
    }


def test_difference_histogram_counts_both_rules(hand_study):
    rows = [ok(2e-6, 0.0), ok(2e-6, 0.0), ok(2e-3, 1e-6), ok(0.0, 0.0)]
    study = with_judged(hand_study(["add"] * 4, [], rows), reference_ratio=[0.0, 0.2, 0.2, NAN],
                        candidate_ratio=[0.2, 0.2, 40.0, NAN])  # fmt: skip
    first, second = figures.difference_histogram(study).axes
    # Half decades, the second series 0.1 to the right of their middle; exactly 0 stands below all of them.
    propagated = bars(first, SINGLE_COLOUR)
    assert propagated.pop(min(propagated)) == 1 and propagated == {-5.6: 2, -2.6: 1}
    assert sorted(bars(first, SORT_COLOUR).values()) == [1, 3]
    assert sorted(bars(second, SORT_COLOUR).values()) == [1, 2] and sorted(bars(second, SINGLE_COLOUR).values()) == [
        1,
        2,
    ]
    limits = [line.get_xdata()[0] for axes in (first, second) for line in axes.lines if line.get_linestyle() == ":"]
    assert limits == [-3, 0]
    assert {text.get_text() for text in first.texts + second.texts} == {"threshold 0.001", "rounding bound"}


# ---- outputs ----

EVEN = json.dumps([float(level) for level in range(17)])  # a whole number for each of LEVELS


def test_outputs_overlay_both_platforms(hand_study):
    shifted = json.dumps([float(level) + 7 for level in range(17)])
    rows = [ok(0.0, reference_quantiles=EVEN, candidate_quantiles=shifted),
            ok(0.0, reference_quantiles="[]", candidate_quantiles="[]"), {"status": "exception"}]  # fmt: skip
    figure = figures.outputs(hand_study(["relu", "conv2d", "add"], [], rows), "c")
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "0: relu"
    reference, candidate = (patch.get_data() for patch in axes.patches)
    # One bar for each whole number from 0 to 23. Half of what lies between two of them belongs to each.
    assert list(reference.edges) == list(candidate.edges) == [bar - 0.5 for bar in range(25)]
    limits = [0.0, *((a + b) / 2 for a, b in zip(LEVELS, LEVELS[1:], strict=False)), 1.0]
    alone = [b - a for a, b in zip(limits, limits[1:], strict=False)]
    assert list(reference.values) == pytest.approx([*alone, *[0] * 7])
    assert list(candidate.values) == pytest.approx([*[0] * 7, *alone])
    assert grey(axes.patches[0].get_facecolor()[:3]) - grey(axes.patches[1].get_edgecolor()[:3]) > 0.4
    assert [patch.get_fill() for patch in axes.patches] == [True, False]
    assert [text.get_text() for text in figure.legends[0].texts] == ["reference (cpu)", "candidate (cpu:baseline)"]


def test_outputs_of_outcomes_that_hold_no_distribution(hand_study):
    study = hand_study(["relu"], [], [ok(0.0)])
    assert words(figures.outputs(study, "c")) == ["No distribution of outputs is known."]
    with pytest.raises(SortError, match="no case 'd'"):
        figures.outputs(study, "d")


# ---- generated values ----


def test_value_distributions_show_how_far_uniform_values_spread(tiny_study):
    figure = figures.value_distributions(tiny_study, ["layer_norm"])
    record = next(r for r in tiny_study.records if r.api == "layer_norm")
    features = dict(record.tensors())["input",]
    (text,) = [text.get_text() for text in figure.axes[0].texts]
    stated = {line.split()[0]: float(line.split()[1]) for line in text.splitlines()[1:]}
    assert stated["recorded"] == pytest.approx(features.std, rel=0.01)
    assert stated["quantile"] == pytest.approx(features.std, rel=0.15)
    assert stated["uniform"] == pytest.approx((features.maximum - features.minimum) / 12**0.5, rel=0.02)
    for line in figure.axes[0].lines:
        assert sum(line.get_ydata()) == pytest.approx(1, abs=0.01)  # shares of all values
    assert figure.axes[0].get_title(loc="left") == "layer_norm: input"


def test_value_distributions_take_the_most_frequent_apis_and_no_values_twice(tiny_study):
    shown = [axes.get_title(loc="left") for axes in figures.value_distributions(tiny_study, count=3).axes]
    assert len(shown) == len(set(shown)) == 3
    with pytest.raises(SortError, match="API 'fold' has no record of a floating-point tensor; with one: "):
        figures.value_distributions(tiny_study, ["fold"])


# ---- patterns ----


def a_pattern(name, apis, edges, support):
    return Pattern(name, tuple(apis), tuple(Edge(*edge) for edge in edges), support, tuple(range(support)))


CHAIN = (["conv2d", "relu"], [(0, 1, "input")])


def test_pattern_sizes_counts_patterns_with_and_without_joins():
    patterns = [a_pattern("a", *CHAIN, 3), a_pattern("b", *CHAIN, 5), a_pattern("c", *RESIDUAL, 3)]
    size, support = figures.pattern_sizes(patterns).axes

    def heights(axes, container):
        return {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.containers[container]}

    assert heights(size, 0) == {2: 2, 3: 0, 4: 0} and heights(size, 1) == {2: 0, 3: 0, 4: 1}
    assert heights(support, 0) == {3: 1, 4: 0, 5: 1} and heights(support, 1) == {3: 1, 4: 0, 5: 0}


def test_pattern_shows_names_arguments_and_the_join():
    figure = sl.figures.pattern(a_pattern("p1", *RESIDUAL, 4))
    assert {"relu", "conv2d", "batch_norm", "__add__", "p1", "4 calls, in 4 models"} <= set(words(figure))
    assert words(figure).count("operand") == 2 and words(figure).count("input") == 2
    shaded = {name for name, face in faces(figure).items() if face != WHITE}
    assert shaded == {"node-3"}


def test_grid_shows_the_most_frequent_patterns():
    patterns = [a_pattern(f"p{number}", *CHAIN, number) for number in range(1, 8)]
    shown = words(figures.patterns_grid(patterns, count=3))
    assert [text for text in shown if text.startswith("p")] == ["p7", "p6", "p5"]


def test_figures_of_no_patterns_say_so():
    assert words(figures.patterns_grid([])) == words(figures.pattern_sizes([])) == ["No pattern was found."]
    with pytest.raises(SortError, match="int is no list of patterns"):
        figures.pattern_sizes(3)


# ---- showing and saving ----


def test_saved_figures_are_the_same_bytes_every_time(hand_study, tmp_path):
    study = hand_study(["relu"], [], [ok(0.0)])
    for name in ("a.svg", "a.png", "a.pdf"):
        first = figures.save(sl.figures.amplification(study, "c"), tmp_path / "new" / name).read_bytes()
        assert figures.save(sl.figures.amplification(study, "c"), tmp_path / "again" / name).read_bytes() == first
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert 'id="propagated-node-0"' in (tmp_path / "new" / "a.svg").read_text()
    with pytest.raises(SortError, match=r"unknown figure format '.gif'; valid: .pdf, .png, .svg"):
        figures.save(sl.figures.pattern_sizes([]), tmp_path / "a.gif")


def test_a_notebook_shows_a_figure_once_and_keeps_its_own_style():
    from IPython.core.interactiveshell import InteractiveShell

    before = dict(matplotlib.rcParams)
    figure = figures.pattern(a_pattern("p1", *CHAIN, 2))
    assert dict(matplotlib.rcParams) == before
    data, _ = InteractiveShell.instance().display_formatter.format(figure)
    assert "image/png" in data and "image/svg+xml" not in data
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []  # pyplot would show it a second time
