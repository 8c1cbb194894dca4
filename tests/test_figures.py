"""Figures: what is drawn where, in which colour and with which words; compared by structure, not by pixels."""

import random
import re

import matplotlib
import networkx as nx
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import sortlib as sl
from sortlib import figures, tables
from sortlib.errors import SortError
from sortlib.figures.heatmap import RED, WHITE, YELLOW
from sortlib.figures.layered import spaced
from sortlib.figures.style import SORT_COLOUR, THRESHOLD
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
