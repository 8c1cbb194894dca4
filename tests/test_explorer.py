"""The explorer: its state from Python, and how it works in JupyterLab with a mouse and a keyboard."""

import dataclasses
import importlib.util
import json
import re
import shutil

import numpy as np
import pytest
import torch
from browser import browser, chromium, copy_notebook, jupyterlab
from matplotlib.patches import FancyBboxPatch

import sortlib as sl
from sortlib import details, figures
from sortlib.drawing import SAMPLERS
from sortlib.errors import SortError
from sortlib.explorer import catalogue, values
from sortlib.explorer.inspection import source_line
from sortlib.explorer.still import still
from sortlib.features import TensorFeatures, measure
from sortlib.figures.heatmap import RED, WHITE, YELLOW
from sortlib.runner.execution import draw_externals
from sortlib.runner.execution import figures as outcome_figures
from sortlib.study import Study


@pytest.fixture
def explorer(tiny_study):
    return sl.explore(tiny_study)


def untested(study):
    return next(row["id"] for row in catalogue.rows_of(study, study.judged) if row["verdict"] == catalogue.UNTESTED)


# ---- the choice ----


class TestChoice:
    def test_starts_with_a_tested_pattern_and_its_most_telling_case(self, tiny_study, explorer):
        tested = [tiny_study.pattern(case.pattern) for case in tiny_study.cases if case.edges]
        assert tiny_study.pattern(explorer.pattern).has_join == any(pattern.has_join for pattern in tested)
        table = details.cases(tiny_study)
        assert explorer.case == table.loc[table["pattern"] == explorer.pattern, "case"].iloc[0]
        assert explorer.threshold == tiny_study.config.threshold
        assert (explorer.reference, explorer.candidate) == details.platform_pair(tiny_study)

    def test_a_case_is_enough(self, tiny_study):
        case = next(case for case in tiny_study.cases if case.edges)
        explorer = sl.explore(tiny_study, case_id=case.id)
        assert (explorer.pattern, explorer.case) == (case.pattern, case.id)

    def test_attributes_lead_as_clicks_do(self, tiny_study, explorer):
        other = next(i for i in explorer.shown if explorer.case_ids(i) and i != explorer.pattern)
        explorer.node = 1
        explorer.pattern = other
        assert explorer.node == 0
        assert tiny_study.case(explorer.case).pattern == other
        assert explorer._view["pattern"] == explorer._details["pattern"] == other
        explorer.case = explorer.case_ids(other)[-1]
        assert explorer._view["case"] == explorer._details["case"] == explorer.case_ids(other)[-1]

    def test_steps_go_round_and_keep_the_call(self, explorer):
        own = explorer.case_ids()
        explorer.node = 1
        seen = []
        for _ in own:
            seen.append((explorer.case, explorer.node))
            explorer.step()
        assert seen == [(case, 1) for case in own] and explorer.case == own[0]
        explorer.step(-1)
        assert explorer.case == own[-1]

    def test_an_untested_pattern_can_be_looked_at(self, tiny_study):
        explorer = sl.explore(tiny_study, untested(tiny_study))
        assert (explorer.case, explorer.outcomes, explorer.snippet) == ("", None, "")
        assert "not run" in explorer._view["pair"]
        assert explorer.detail["record"]["rows"] and explorer.detail["outputs"] is None

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("pattern", "nosuch", "no pattern 'nosuch'"),
            ("case", "nosuch", "case 'nosuch' was not run yet"),
            ("node", 99, r"has calls 0 to \d, no call 99"),
            ("filter", {"apis": "add"}, "unknown filter 'apis'; valid: .*min_nodes"),
            ("filter", {"min_nodes": "three"}, "filter 'min_nodes' needs a whole number, not 'three'"),
            ("filter", {"verdict": "susp"}, "no verdict 'susp'.*valid: .*not run.*suspect"),
            ("sampler", "gauss", "unknown sampler 'gauss'; valid: .*quantile"),
            ("sort", "size", "cannot sort by 'size'; valid, .*nodes"),
            ("threshold", 0.0, "threshold is 0; it must be above 0"),
            ("seed", -1, "seed is -1; it must be 0 or more"),
        ],
    )
    def test_what_cannot_be_is_one_clear_line_and_changes_nothing(self, explorer, name, value, said):
        before = getattr(explorer, name)
        with pytest.raises(SortError, match=said):
            setattr(explorer, name, value)
        assert getattr(explorer, name) == before

    def test_unknown_names_at_the_start(self, tiny_study):
        with pytest.raises(SortError, match="no pattern 'nosuch'"):
            sl.explore(tiny_study, "nosuch")
        with pytest.raises(SortError, match="no case 'nosuch'"):
            sl.explore(tiny_study, case_id="nosuch")


# ---- the list ----

ROWS = [
    {"id": "pa", "calls": "conv2d, add", "nodes": 2, "support": 5, "cases": 1, "largest": 1e-3, "verdict": "rounding"},
    {"id": "pb", "calls": "relu, conv2d, mul", "nodes": 3, "support": 4, "cases": 1, "largest": 0.0,
     "verdict": "suspect"},
    {"id": "pc", "calls": "add, add", "nodes": 2, "support": 5, "cases": 0, "largest": None, "verdict": "not run"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "order", "found"),
    [
        ({}, "-support", ["pa", "pc", "pb"]),
        ({}, "support", ["pb", "pa", "pc"]),
        ({}, "calls", ["pc", "pa", "pb"]),
        ({}, "-largest", ["pa", "pb", "pc"]),  # without a value last
        ({}, "-verdict", ["pb", "pa", "pc"]),  # most serious first
        ({}, "-nodes", ["pb", "pa", "pc"]),
        ({"api": "conv"}, "-support", ["pa", "pb"]),
        ({"api": "Add, conv2d"}, "-support", ["pa"]),
        ({"api": "pc"}, "-support", ["pc"]),
        ({"min_nodes": 3}, "-support", ["pb"]),
        ({"max_nodes": "2", "min_support": 5}, "-support", ["pa", "pc"]),
        ({"verdict": "suspect", "api": ""}, "-support", ["pb"]),
    ],
)
def test_filter_and_order(wanted, order, found):
    numbers = catalogue.chosen(ROWS, catalogue.checked_filter(wanted), catalogue.checked_sort(order))
    assert [ROWS[number]["id"] for number in numbers] == found


def test_the_list_has_every_pattern_with_its_worst_case(tiny_study, explorer):
    assert sorted(explorer.shown) == sorted(pattern.id for pattern in tiny_study.patterns)
    rows = {row["id"]: row for row in explorer._rows}
    table = details.cases(tiny_study)
    for pattern, cases in table.groupby("pattern"):
        assert rows[pattern]["largest"] == cases["largest"].max()
        assert rows[pattern]["verdict"] in set(cases["verdict"])
        assert rows[pattern]["cases"] == len(cases)
    json.dumps(explorer._rows, allow_nan=False)  # what the browser can read


def test_a_filter_by_attribute(explorer):
    explorer.filter = {"api": "conv2d", "max_nodes": 3}
    calls = {row["id"]: row for row in explorer._rows}
    assert explorer.shown
    assert all("conv2d" in calls[i]["calls"] and calls[i]["nodes"] <= 3 for i in explorer.shown)


# ---- the picture ----


def test_calls_stand_as_in_the_static_figure(tiny_study, explorer):
    figure = figures.amplification(tiny_study, explorer.case)
    boxes = {p.get_gid(): p for axes in figure.axes for p in axes.patches if isinstance(p, FancyBboxPatch)}
    still = [boxes[f"propagated-node-{number}"] for number in range(len(boxes))]
    live = explorer._view["picture"]["boxes"]
    assert len(live) == len(still)
    for one, box in zip(live, still, strict=True):
        assert one["x"] - live[0]["x"] == pytest.approx((box.get_x() - still[0].get_x()) * 96, abs=0.2)
        assert one["y"] - live[0]["y"] == pytest.approx((box.get_y() - still[0].get_y()) * 96, abs=0.2)


def test_colours_and_verdicts_follow_the_threshold(explorer):
    differences = list(explorer.outcomes["propagated_max_abs"])
    limit = max(differences) / 2
    explorer.threshold = limit
    wanted = [WHITE if d == 0 else RED if d > limit else YELLOW for d in differences]
    assert [box["face"] for box in explorer._view["picture"]["boxes"]] == wanted
    assert list(explorer.outcomes["paper"]) == ["fail" if d > limit else "pass" for d in differences]
    explorer.node = differences.index(max(differences))
    assert explorer.detail["verdicts"][0]["verdict"] == "fail"


def test_verdicts_follow_the_studys_own_thresholds(tiny_study, tmp_path):
    """A study may say what rounding explains; the explorer judges by that too."""
    (tmp_path / "own.yaml").write_text("- {api: add, bounds: 1.0e-6, clearly_worse: 1, source: a test}\n")
    config = tiny_study.config.model_copy(update={"thresholds": str(tmp_path / "own.yaml")})
    strict = Study.create(config, shutil.copytree(tiny_study.directory, tmp_path / "strict"))
    rows = strict.judged
    case = rows[(rows["api"] == "add") & ~rows["evidence"].isin(["rounding", "identical"])]["case"].iloc[0]
    shown = sl.explore(strict, case_id=case).outcomes
    assert list(shown["evidence"]) == list(rows[rows["case"] == case]["evidence"])


def test_switching_to_local_differences_moves_nothing(explorer):
    before = [(box["x"], box["y"], box["width"]) for box in explorer._view["picture"]["boxes"]]
    explorer.side = "local"
    after = explorer._view["picture"]["boxes"]
    assert [(box["x"], box["y"], box["width"]) for box in after] == before
    local = explorer.outcomes["local_max_abs"]
    assert [box["lines"][1] == "0" for box in after] == list(local == 0)


def test_names_for_those_who_do_not_see(explorer):
    row = explorer.outcomes.iloc[1]
    said = explorer._view["picture"]["boxes"][1]["said"]
    assert said.startswith("call 1: ") and f"evidence {row['evidence']}" in said and f"paper {row['paper']}" in said


# ---- one call ----


def test_detail_of_a_call(tiny_study, explorer):
    case, row = tiny_study.case(explorer.case), explorer.outcomes.iloc[0]
    record = next(r for r in tiny_study.records if r.key == tuple(case.nodes[0].record))
    shown = explorer.detail
    assert shown["title"] == f"Call 0: {record.api}"
    assert dict(shown["facts"])["module"] == record.module_path
    assert shown["source"]["place"] == record.source
    names = [line[0] for line in shown["record"]["rows"]]
    assert names[: len(record.arguments)] == [argument.name for argument in record.arguments]
    outputs = {line[0]: line[1:] for line in shown["outputs"]["rows"]}
    assert sum(shown["outputs"]["histogram"]["bars"]) == pytest.approx(1, abs=1e-3)
    assert outputs["maximum"] == [f"{row['reference_maximum']:.4g}", f"{row['candidate_maximum']:.4g}"]
    assert [v["reason"] for v in shown["verdicts"]] == [row["paper_reason"], row["reason"]]


def test_drawn_values_are_those_of_the_run(tiny_study, explorer):
    case = tiny_study.case(explorer.case)
    drawn = draw_externals(case.to_json())
    compared = 0
    for number in range(len(case.nodes)):
        explorer.node = number
        for shown in explorer.detail["inputs"]:
            stream = f"{number}.{shown['name']}"
            if not shown["values"] or not shown["values"]["summary"] or stream not in drawn:
                continue
            made = {name: text for name, _, text in shown["values"]["summary"]}
            assert made["minimum"] == f"{measure(drawn[stream]).minimum:.4g}"
            compared += 1
    assert compared


def test_a_call_fed_from_inside_says_by_which(tiny_study, explorer):
    src, dst, _ = tiny_study.case(explorer.case).edges[0]
    explorer.node = dst
    fed = [shown for shown in explorer.detail["inputs"] if shown["origin"] == f"output 0 of call {src}"]
    record = next(r for r in tiny_study.records if r.key == tuple(tiny_study.case(explorer.case).nodes[dst].record))
    recorded = {".".join(map(str, path)): features for path, features in record.tensors()}
    assert fed
    for shown in fed:  # what it will be given is not known before it runs, but what it was given once is
        features = recorded[shown["name"]]
        assert shown["values"]["summary"][1] == ["maximum", f"{features.maximum:.4g}"]
        assert sum(shown["values"]["histogram"]["line"]) == pytest.approx(1, abs=1e-3)
        assert not any(shown["values"]["histogram"]["bars"])


def test_every_call_of_the_case_is_there_before_it_is_clicked(tiny_study, explorer):
    calls = explorer._details["calls"]
    assert [call["title"] for call in calls] == [
        f"Call {number}: {node.api}" for number, node in enumerate(tiny_study.case(explorer.case).nodes)]  # fmt: skip
    explorer.node = len(calls) - 1
    assert explorer._details["calls"] is calls and explorer.detail is calls[-1]


NORMAL = TensorFeatures("float32", (64, 64), (64, 1), minimum=-4.0, maximum=4.0, mean=0.0, std=1.0, zeros=0.5,
                        quantiles=(-4.0, -3.09, -2.33, -1.64, -1.28, -0.84, -0.52, -0.25, 0.0, 0.25, 0.52, 0.84, 1.28,
                                   1.64, 2.33, 3.09, 4.0))  # fmt: skip


def test_histogram_shows_what_a_sampler_changes():
    shown = {sampler: values.drawn(NORMAL, "any", sampler)["histogram"] for sampler in SAMPLERS}
    for histogram in shown.values():
        assert sum(histogram["bars"]) == pytest.approx(1, abs=1e-3)
        assert sum(histogram["line"]) == pytest.approx(1, abs=1e-3)
    distance = {sampler: sum(abs(a - b) for a, b in zip(h["bars"], h["line"], strict=True))
                for sampler, h in shown.items()}  # fmt: skip
    # Total variation of a uniform on [-4, 4] and a standard normal is 0.50; that of 2,048 draws and 24 bars is noise.
    assert distance["quantile"] < 0.2 and distance["uniform"] > 0.8
    assert values.drawn(NORMAL, "any", "quantile")["summary"][-1][:2] == ["zeros", "50.00%"]


@pytest.mark.parametrize(
    ("changed", "note", "bars"),
    [
        ({"minimum": 1.0, "maximum": 1.0, "quantiles": (1.0,) * 17, "zeros": 0.0}, "all values are 1", None),
        ({"dtype": "int64", "minimum": 0.0, "maximum": 4.0, "integral": True,
          "quantiles": tuple(sorted(i % 4 + 1.0 for i in range(17)))}, "", 4),
        ({"shape": (0,), "strides": (1,), "minimum": None, "maximum": None, "quantiles": ()}, "", None),
        ({"shape": (1 << 20,), "strides": (1,)}, "a sample of 8,192; the tensor has 1,048,576 values", values.BARS),
    ],
)  # fmt: skip
def test_histogram_of_special_tensors(changed, note, bars):
    found = values.drawn(dataclasses.replace(NORMAL, **changed), "any", "quantile")
    assert found["note"] == note
    assert (found["histogram"] and len(found["histogram"]["bars"])) == bars


def output_row(reference, candidate=None, dtype="float32"):
    """What a row of outcomes says of the distributions of both outputs."""
    sides = {"reference": reference, "candidate": reference if candidate is None else candidate}
    forms = {side: outcome_figures(torch.as_tensor(given))["$tensor"] for side, given in sides.items()}
    return {f"{side}_quantiles": json.dumps(form.get("quantiles", [])) for side, form in forms.items()} | {
        "reference_dtype": dtype}  # fmt: skip


def test_both_outputs_share_their_bars():
    """Evenly spaced values fill all 24 bars alike, and those of the other side the upper 12 of them."""
    shown = values.outputs(output_row(np.linspace(0.01, 24, 2000), np.linspace(12, 24, 2000)))
    assert (shown["low"], shown["high"]) == ("0.01", "24")
    assert shown["bars"] == pytest.approx([1 / 24] * 24, abs=1e-3)
    assert shown["line"] == pytest.approx([0] * 12 + [1 / 12] * 12, abs=2e-3)


@pytest.mark.parametrize(
    ("reference", "candidate", "bars", "line"),
    [
        # a fifth of all values is the smallest one, and as many are the largest: each is a bar of its own
        ([1.0] * 20 + list(np.linspace(1, 25, 60)) + [25.0] * 20, None, {0: 0.225, 23: 0.225}, {0: 0.225, 23: 0.225}),
        ([7] * 100, [9] * 100, {0: 1.0}, {2: 1.0}),  # a bar for each whole number
        ([1.0, np.nan, np.inf, 3.0], [np.nan] * 4, {0: 1 / 24}, {}),  # one side alone has numbers
        ([10000.0, 10001.0], None, {}, {}),
    ],
)
def test_both_outputs_of_special_tensors(reference, candidate, bars, line):
    shown = values.outputs(output_row(reference, candidate))
    assert shown["low"] != shown["high"]
    assert sum(shown["bars"]) == pytest.approx(1, abs=1e-3)
    assert sum(shown["line"]) == pytest.approx(int(candidate is None or bool(line)), abs=1e-3)
    for name, wanted in (("bars", bars), ("line", line)):
        assert {place: shown[name][place] for place in wanted} == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize(
    "row",
    [
        {},  # outcomes of versions that kept no quantiles
        {"reference_quantiles": float("nan"), "candidate_quantiles": None},  # the same beside newer ones
        output_row([2.5] * 9),
        output_row([0.0] * 9, [np.nan] * 9),
        output_row([True, False]),
        output_row([]),
        output_row([-1.7e308, 1.7e308]),  # too far apart for a width
        {"reference_quantiles": "[1, 2", "candidate_quantiles": json.dumps([1, 2])},
        {"reference_quantiles": json.dumps([float("inf")] * 17), "candidate_quantiles": '["a"]'},
    ],
)
def test_outputs_without_a_histogram(row):
    assert values.outputs(row) is None


def test_outcomes_without_quantiles_show_the_rest(explorer):
    entry = explorer._entries[explorer.case]
    old = [name for name in entry.outcomes if name.endswith(("_quantiles", "_zeros"))]
    assert len(old) == 4 and explorer.detail["outputs"]["histogram"]
    added = explorer._entries.add(entry.case, 0, entry.outcomes.drop(columns=old), "cpu", "cpu:baseline")
    explorer.case = added.key
    assert explorer.detail["outputs"]["histogram"] is None
    assert dict(line[:2] for line in explorer.detail["outputs"]["rows"])["zeros"] == "/"
    html = still(explorer.study, explorer.pattern, added, 1e-3, "propagated", "paper")["text/html"]
    assert html.count("<img") == 1 and "Both outputs" not in html


def test_source_line_of_an_installed_file():
    assert source_line("sortlib/errors.py", 1).startswith('"""')
    assert source_line("nosuch/file.py", 1) == ""


# ---- running anew ----


def test_the_same_settings_give_the_studys_outcomes_bit_for_bit(tiny_study, explorer):
    before, pattern, case = explorer.outcomes, explorer.pattern, explorer.case
    explorer.rerun(wait=True)
    assert (explorer.case, explorer.pattern) == ("run-1", pattern)
    assert explorer.case_ids()[-1] == "run-1" and explorer._progress["state"] == "done"
    untimed = [c for c in before if not c.startswith("seconds") and c in explorer.outcomes]
    assert explorer.outcomes[untimed].astype(object).fillna("").values.tolist() == (
        before[untimed].astype(object).fillna("").values.tolist())  # fmt: skip
    assert f'study.case("{case}")' in explorer.snippet  # the study has that case itself
    assert "run-1" in [item["key"] for item in explorer._view["cases"]]


def test_another_seed_is_the_case_that_generate_makes(tiny_study, explorer):
    entry = explorer._entries[explorer.case]
    assert explorer._entries.make(explorer.pattern, entry.number, entry.case.seed, entry.case.sampler) is entry.case
    made = explorer._entries.make(explorer.pattern, entry.number, 5, "uniform")
    (wanted,) = sl.generate(
        [tiny_study.pattern(explorer.pattern)], tiny_study.records, tiny_study.graphs, per_pattern=entry.number + 1,
        seed=5, sampler="uniform", max_elements=tiny_study.config.generation.max_elements,
    )[entry.number :]  # fmt: skip
    assert made == wanted and made.id != entry.case.id


def test_the_reproducer_makes_the_same_case(tiny_study, explorer):
    case = explorer._entries.make(explorer.pattern, 1, 7, "uniform")
    entry = explorer._entries.add(case, 1, explorer._entries[explorer.case].outcomes, "cpu", "cpu:baseline")
    explorer.case = entry.key
    lines = explorer.snippet.splitlines()
    assert lines[-2] == 'outcomes = sl.run([case], reference="cpu", candidate="cpu:baseline", timeout=60)'
    scope = {}
    exec("\n".join(lines[:-2]), scope)
    assert scope["case"] == case


def test_what_goes_wrong_is_one_line_in_the_explorer(explorer):
    explorer.candidate, said, before = "nosuch", "unknown platform 'nosuch'", explorer.case
    with pytest.raises(SortError, match=said):
        explorer.rerun(wait=True)
    assert explorer._progress["state"] == "error" and said in explorer._progress["text"]
    explorer.rerun()  # in its thread it says the same and does not raise
    explorer._thread.join(60)
    assert explorer._progress["state"] == "error" and said in explorer._progress["text"]
    assert explorer.status == f"error: {explorer._progress['text']}"
    assert "\n" not in explorer._progress["text"] and explorer.case == before


def test_the_settings_of_the_browser_come_with_its_wish(explorer, monkeypatch):
    """Changes of the state may still be on their way when the message arrives."""
    asked = []
    monkeypatch.setattr(explorer, "rerun", lambda: asked.append((explorer.candidate, explorer.seed)))
    settings = {"reference": "cpu", "candidate": "cpu:1thread", "sampler": "uniform", "seed": 4}
    explorer._handle_message(explorer, {"action": "rerun", "settings": settings}, [])
    assert asked == [("cpu:1thread", 4)]


def test_one_run_at_a_time(explorer):
    explorer._progress = {**explorer._progress, "state": "running"}
    with pytest.raises(SortError, match="a case is being run"):
        explorer.rerun()


# ---- without a browser ----


@pytest.mark.parametrize("tested", [True, False])
def test_still_picture(tiny_study, explorer, monkeypatch, tested):
    if not tested:
        explorer.pattern = untested(tiny_study)
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append(data))
    explorer._ipython_display_()
    live, picture = shown
    assert "application/vnd.jupyter.widget-view+json" in live and "text/html" not in live
    assert picture["text/html"].startswith('<div class="sortlib-still">') and picture["image/png"]
    assert picture["text/html"].count("<img") == 1 + tested  # the graph, and both outputs of each call
    assert explorer.pattern in picture["text/html"] and explorer.case in picture["text/html"]
    assert not re.search(r"<script|https?://", picture["text/html"])


# ---- in JupyterLab ----

needs_browser = pytest.mark.skipif(
    not chromium() or not importlib.util.find_spec("playwright"),
    reason="no Chromium on this machine" if not chromium() else "Playwright is not installed",
)


@pytest.fixture(scope="module")
def lab(tiny_study, tmp_path_factory):
    """Opens a notebook on the tiny study in JupyterLab and runs it: a ``Watched`` page and what went wrong in cells."""
    root, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    for name in ("00-tour", "07-figure-14", "08-explore"):
        copy_notebook(name, root, study=str(tiny_study.directory.resolve()))
    with jupyterlab(root, home) as address, browser() as open_page:

        def run(name):
            watched = open_page()
            return watched, watched.run_notebook(address(name))

        yield run


@pytest.fixture(scope="module")
def opened(lab):
    watched, errors = lab("08-explore")
    assert errors == []
    watched.page.locator(".sl-explorer[data-shown]").wait_for(timeout=20000)
    return watched


def shown(page):
    """(pattern, case, node) that the page has drawn completely."""
    return page.locator(".sl-explorer").get_attribute("data-shown").split(" ")


def listed(page, place):
    """Id of the pattern at a place of the list."""
    return page.locator(f"[data-place='{place}']").get_attribute("title").split("\n")[1].split(",")[0]


def until(page, pattern=".*", case=".*", node=".*"):
    page.wait_for_function(
        "wanted => new RegExp(wanted).test(document.querySelector('.sl-explorer').dataset.shown)",
        arg=f"^{pattern} {case} {node}$", timeout=20000,
    )  # fmt: skip


@needs_browser
class TestBrowser:
    def test_the_widget_stands_instead_of_the_still_picture(self, opened, tiny_study):
        page = opened.page
        assert page.locator(".sl-explorer").is_visible() and not page.locator(".sortlib-still").is_visible()
        assert page.locator(".sl-count").inner_text() == f"{len(tiny_study.patterns)} patterns"
        pattern, case, _ = shown(page)
        assert page.locator(".sl-node").count() == len(tiny_study.case(case).nodes)
        assert page.locator(".sl-row[aria-selected=true]").count() == 1

    def test_a_click_shows_the_record_of_a_call(self, opened, tiny_study):
        page = opened.page
        _, case, _ = shown(page)
        page.locator(".sl-node").nth(1).click()
        until(page, node="1")
        node = tiny_study.case(case).nodes[1]
        record = page.locator(".sl-record")
        assert node.target in record.inner_text() and f"{node.record[0]}, input" in record.inner_text()
        assert page.locator(".sl-detail h3").inner_text() == f"Call 1: {node.api}"
        assert page.locator(".sl-node[aria-pressed=true]").get_attribute("data-node") == "1"
        both = page.locator(".sl-both .sl-histogram")
        assert both.is_visible() and both.get_attribute("aria-label").startswith("Histogram of both outputs, from ")
        heights = both.locator("rect").evaluate_all("bars => bars.map((bar) => Number(bar.getAttribute('height')))")
        assert len(heights) > 1 and max(heights) > 60  # of 72
        assert "[object" not in page.locator(".sl-explorer").inner_text()

    def test_everything_by_keyboard(self, opened):
        page = opened.page
        cell = page.locator(".jp-Notebook-cell.jp-mod-active").get_attribute("data-windowed-list-index")
        page.locator(".sl-node[tabindex='0']").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        until(page, node=page.locator(".sl-node:focus").get_attribute("data-node"))
        page.locator(".sl-list").focus()
        page.keyboard.press("Home")
        until(page, pattern=listed(page, 0))
        page.keyboard.press("ArrowDown")
        until(page, pattern=listed(page, 1))
        active = page.locator(".sl-list").get_attribute("aria-activedescendant")
        assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
        # JupyterLab took none of the keys for itself.
        now = page.locator(".jp-Notebook-cell.jp-mod-active").get_attribute("data-windowed-list-index")
        assert now == cell and page.locator(".sl-list:focus").count() == 1

    def test_filter_and_steps(self, opened, tiny_study):
        page = opened.page
        page.locator(".sl-filter [name=api]").fill("batch_norm")
        page.wait_for_function("() => / of /.test(document.querySelector('.sl-count').textContent)")
        rows = page.locator(".sl-row .sl-calls").all_inner_texts()
        assert rows and all("batch_norm" in row for row in rows)
        page.locator(".sl-filter [name=verdict]").select_option("rounding")
        page.wait_for_function("""() => [...document.querySelectorAll('.sl-row .sl-verdict')]
            .every((verdict) => verdict.textContent === 'rounding')""")
        pattern = listed(page, 0)
        page.locator(".sl-row").first.click()
        until(page, pattern=pattern, case=".+", node="0")
        _, case, _ = shown(page)
        page.get_by_label("Next case").click()
        until(page, pattern=pattern, case=f"(?!{case}).+")
        assert tiny_study.case(shown(page)[1]).pattern == pattern

    def test_a_case_is_run_again_with_another_seed(self, opened):
        page = opened.page
        pattern, case, _ = shown(page)
        page.locator(".sl-run [name=seed]").fill("3")
        page.locator(".sl-run [name=sampler]").select_option("uniform")
        page.locator(".sl-action").click()
        page.locator(".sl-run[data-state=running] progress").wait_for(timeout=5000)
        page.locator(".sl-run[data-state=done]").wait_for(timeout=60000)
        until(page, pattern=pattern, case="run-1")
        assert "seed 3, sampler uniform" in page.locator(".sl-bar").inner_text()
        assert "seed=3" in page.locator(".sl-code code").text_content()

    def test_a_threshold_needs_no_run(self, opened):
        page = opened.page
        page.locator(".sl-run [name=threshold]").fill("1e-12")
        page.keyboard.press("Enter")
        page.locator(".sl-legend", has_text="above 1e-12").wait_for(timeout=10000)
        assert page.locator(f".sl-box[fill='{RED}']").count() >= 1
        page.locator(".sl-run [name=threshold]").fill("nothing")
        page.locator(".sl-run [name=seed]").focus()
        assert page.locator(".sl-run [name=threshold]").input_value() == "1e-12"
        assert shown(page)[1] == "run-1"

    def test_a_mistake_is_one_line(self, opened):
        page = opened.page
        page.locator(".sl-run [name=candidate]").fill("tpu")
        page.locator(".sl-action").click()
        page.locator(".sl-run[data-state=error]").wait_for(timeout=20000)
        assert "unknown platform 'tpu'" in page.locator(".sl-said").inner_text()

    def test_text_is_readable_in_both_themes(self, opened):
        page = opened.page
        for theme, dark in (("JupyterLab Dark", True), ("JupyterLab Light", False)):
            page.locator(".lm-MenuBar-itemLabel", has_text="Settings").click()
            page.locator(".lm-Menu-itemLabel", has_text="Theme").first.hover()
            page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{theme}$")).click()
            page.wait_for_function("dark => (document.body.dataset.jpThemeLight === 'false') === dark", arg=dark)
            page.wait_for_function(CONTRAST + " > 4.5", timeout=10000)  # WCAG 2 AA, once the style sheet is there

    def test_what_is_drawn_meanwhile_leaves_a_filter_just_chosen(self, opened):
        """The choice waits 120 ms for more of it; a list drawn before that once put the old choice back."""
        page = opened.page
        page.locator(".sl-filter [name=api]").fill("")
        page.locator(".sl-filter [name=verdict]").select_option("rounding")
        page.wait_for_function("() => / of /.test(document.querySelector('.sl-count').textContent)")
        page.evaluate("""() => {
            const chosen = document.querySelector('.sl-filter [name=verdict]');
            chosen.value = '';
            chosen.dispatchEvent(new Event('input', {bubbles: true}));
            document.querySelector('.sl-head').click();
        }""")
        page.wait_for_function("() => !/ of /.test(document.querySelector('.sl-count').textContent)")
        assert page.locator(".sl-filter [name=verdict]").input_value() == ""

    def test_a_heading_sorts(self, opened):
        page = opened.page
        # The heading changes at once, the list when the kernel has sorted it.
        sorted_ = """(sign) => {
            const shown = [...document.querySelectorAll('.sl-row > span:nth-child(2)')]
                .map((size) => parseInt(size.textContent));
            return shown.length > 5 && shown.every((size, place) => !place || sign * (size - shown[place - 1]) >= 0);
        }"""
        for direction, sign in (("descending", -1), ("ascending", 1)):
            page.locator(".sl-head", has_text="Size").click()
            page.locator(f".sl-head[data-sort={direction}]", has_text="Size").wait_for(timeout=10000)
            page.locator(".sl-list").evaluate("(list) => { list.scrollTop = 0; }")
            page.wait_for_function("() => document.querySelector('.sl-row[data-place=\"0\"]')")
            assert page.wait_for_function(sorted_, arg=sign, timeout=10000)

    def test_the_reproducer_is_copied(self, opened):
        page = opened.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy reproducer").click()
        page.get_by_role("button", name="Copied").wait_for(timeout=5000)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator(".sl-code code").text_content() and "outcomes = sl.run(" in copied

    def test_tab_reaches_every_part(self, opened):
        page = opened.page
        page.locator(".sl-filter [name=api]").focus()
        focused = "[...document.activeElement.classList, document.activeElement.name].find((name) => name) || ''"
        reached = []
        for _ in range(40):
            reached.append(page.evaluate(focused))
            page.keyboard.press("Tab")
        wanted = ["api", "sl-number", "verdict", "sl-head", "sl-list", "sl-cases", "side", "scale", "sl-node",
                  "sl-platform", "sampler", "sl-action"]  # fmt: skip
        assert [name for name in dict.fromkeys(reached) if name in wanted] == wanted

    @pytest.mark.parametrize("name", ["00-tour", "07-figure-14"])
    def test_other_notebooks_run_too(self, lab, name):
        watched, errors = lab(name)
        assert errors == [] and watched.errors == [] and watched.outside == []
        assert watched.page.locator(".jp-OutputArea-output img").count() >= 2
        watched.page.close()

    def test_no_console_error_and_no_request_leaves_this_machine(self, opened):
        assert opened.errors == [] and opened.outside == []


# The least contrast (1 to 21, WCAG 2) of the explorer's text and its background.
CONTRAST = """(() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, number) => sum + part * [0.2126, 0.7152, 0.0722][number], 0);
  const root = document.querySelector(".sl-explorer"), back = light(getComputedStyle(root).backgroundColor);
  const found = [...root.querySelectorAll("h3, h4, p, td, th, dt, dd, .sl-row > span, label")]
    .map((element) => light(getComputedStyle(element).color));
  return Math.min(...found.map((ink) => (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05)));
})()"""
