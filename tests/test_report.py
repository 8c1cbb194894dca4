"""The report: one file that opens without a network, says what was run and found, and escapes what it is given."""

import importlib.util
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from browser import browser, chromium

from sortlib import details, page, report, tables
from sortlib.errors import SortError
from sortlib.grouping import findings
from sortlib.judging import RANK
from sortlib.pipeline import complete
from sortlib.report import MEANING, interesting_cases, write_report
from sortlib.study import Study, StudyConfig, load_config

VOID = {"meta", "img", "br", "link", "input"}


class Outline(HTMLParser):
    """What a test asks of a page: its tags (all closed in order), ids, links, tables and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words, self.headings = [], [], [], [], []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)

    def values(self, name):
        return [value for _, found, value in self.attributes if found == name]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A real study of two tiny models, run to the outcomes."""
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    return complete(Study.create(load_config("tiny"), directory), upto="run", progress=False)


@pytest.fixture(scope="module")
def outline(study):
    path = write_report(study)
    assert path == study.directory / "report.html"
    return Outline(path.read_text(encoding="utf-8"))


def test_the_report_loads_nothing_from_elsewhere(outline):
    assert "default-src 'none'" in " ".join(outline.values("content"))
    assert all(source.startswith("data:image/svg+xml;base64,") for source in outline.values("src"))
    assert all(link.startswith("#") for link in outline.values("href"))
    assert "link" not in outline.tags and "iframe" not in outline.tags


SECTIONS = ["findings", "others", "run", "validity", "bugs", "interactions", "cases", "repeat", "left-out"]


def test_links_lead_somewhere(outline, study):
    anchors, links = outline.values("id"), [link[1:] for link in outline.values("href")]
    assert len(anchors) == len(set(anchors)) and set(links) <= set(anchors)
    assert links[: len(SECTIONS)] == SECTIONS == [anchor for anchor in anchors if anchor in SECTIONS]
    # A finding whose worst case is drawn leads there.
    drawn = {f"case-{case_id}" for case_id in interesting_cases(study)}
    worst = {f"case-{case_id}" for case_id in study.findings["worst_case"]}
    assert drawn <= set(anchors) and set(links) - set(SECTIONS) == drawn & worst


def accusing(study, directory, **worst):
    """A copy of a study in which all calls of some APIs are suspects by hand, with the worst output of each API."""
    copy = Study(shutil.copytree(study.directory, directory))
    rows = copy.judged
    suspect = rows["api"].isin(worst)
    errors = {"reference_error": 0.0, "candidate_error": 1.0, "candidate_ratio": 1e3}
    wrong = {name: rows[name].mask(suspect, error) for name, error in errors.items()}
    copy.__dict__["judged"] = rows.assign(
        evidence=rows["evidence"].mask(suspect, "suspect"), worst_output=rows["api"].map(worst).fillna(""), **wrong
    )
    return copy


@pytest.fixture(scope="module")
def accused(study, tmp_path_factory):
    """A study with one finding, and its written report."""
    copy = accusing(study, tmp_path_factory.mktemp("accused") / "copy", conv2d="")
    return copy, write_report(copy).resolve()


def test_a_finding_carries_its_script_and_the_command_that_makes_one(study, tmp_path):
    """A suspect by hand, with a script as ``sl.reproduce`` leaves it, and one without."""
    copy = accusing(study, tmp_path / "copy", batch_norm="", conv2d="")
    made, *missing = copy.findings[copy.findings["verdict"] == "suspect"]["finding"]
    script = copy.path("findings", f"{made}.py")
    script.write_text("import torch\nprint('<b>')\n")
    facts = {"state": "reproduces", "script": str(script), "case": "c", "node": 0}
    script.with_suffix(".json").write_text(json.dumps(facts))
    page = Outline(write_report(copy).read_text(encoding="utf-8"))
    assert f"Script for finding {made}: findings/{made}.py (reproduces here)" in page.text
    assert "import torch print('<b>')" in page.text
    for anchor in (f"finding-{made}", f"script-{made}"):
        assert f"#{anchor}" in page.values("href") and anchor in page.values("id")
    assert missing and all(f"sortlib reproduce {copy.directory} {name} --minimize" in page.text for name in missing)
    assert f"reproduce {copy.directory} {made} " not in page.text


def test_the_head_names_what_was_found_and_leads_there(study, accused, tmp_path):
    copy = accusing(study, tmp_path / "copy", add="", conv2d="")
    page = Outline(write_report(copy).read_text(encoding="utf-8"))
    head = page.text[: page.text.index("frequent patterns")]
    found = findings(copy)
    assert set(found["api"]) == {"add", "conv2d"} and "2 findings accuse a platform:" in head
    first = [value for _, name, value in page.attributes if name == "href"][: len(found)]
    assert first == [f"#finding-{name}" for name in found["finding"]]
    assert {link[1:] for link in first} <= set(page.values("id"))
    for row in found.to_dict("records"):
        assert f"{tables.both_names(row['api'])} : suspect ({row['cause']}), cpu against cpu:baseline, " in head
    assert "1 finding accuses a platform:" in Outline(accused[1].read_text(encoding="utf-8")).text


def test_only_what_accuses_is_called_a_finding(study, outline, accused):
    """Of the other groups neither id nor count stands under that name."""
    assert "No finding: no platform is accused." in outline.text
    copy, path = accused
    told = Outline(path.read_text(encoding="utf-8")).text
    (name,) = findings(copy)["finding"]
    others = set(copy.findings["finding"]) - {name}
    for text, ids in ((outline.text, set(study.findings["finding"])), (told, others)):
        part = text[text.index("Calls that accuse no platform") :].partition("Models and their graphs")[0]
        assert ids and not any(known in text for known in ids) and "finding" not in part.lower()
    assert f"conv2d (finding {name})" in told and "suspect (1 finding, " in told


def test_a_report_says_whether_gradients_were_compared_and_which_was_worst(study, outline, tmp_path):
    assert "radient" not in outline.text.replace("backward: false", "")
    copy = accusing(study, tmp_path / "copy", conv2d="gradient of weight", batch_norm="")
    copy.__dict__["config"] = study.config.model_copy(
        update={"generation": study.config.generation.model_copy(update={"backward": True})}
    )
    cases = [replace(case, nodes=tuple(replace(node, backward=True) for node in case.nodes)) for case in copy.cases]
    copy.__dict__["cases"] = cases
    executed = len(copy.all_outcomes)
    assert details.calls_with_gradients(copy) == executed > 0 == details.calls_with_gradients(study)
    told = Outline(write_report(copy).read_text(encoding="utf-8")).text
    assert f"Gradients were compared too (generation.backward), in {executed:,} of {executed:,} calls" in told
    assert f"calls with gradients compared {executed:,}" in told
    assert "worst output or gradient gradient of weight" in told and "worst output or gradient output" in told


def test_a_call_whose_operands_want_none_has_no_gradients(study):
    frozen = [replace(case, nodes=tuple(replace(node, backward=True, frozen=names(study, node)) for node in case.nodes))
              for case in study.cases]  # fmt: skip
    copy = Study(study.directory)
    copy.__dict__["cases"] = frozen
    assert details.calls_with_gradients(copy) == 0


def names(study, node):
    record = next(record for record in study.records if record.key == tuple(node.record))
    return [".".join(map(str, path)) for path, _ in record.tensors()]


def test_calls_of_a_finding_with_different_worst_outputs_are_counted():
    row = {"worst_case": "c", "worst_node": 1}
    calls = [("b", 0, "output"), ("c", 1, "gradient of input"), ("d", 2, "output")]
    assert report._most(calls, row) == "gradient of input; of all calls: output 2, gradient of input 1"
    assert report._most(calls[1:2], row) == "gradient of input" and report._most([], row) == ""


def test_each_research_question_is_asked_in_words(outline):
    for asked in ("RQ1: how many inputs are valid?", "RQ2: which bugs are found?",
                  "RQ3: what do interactions between APIs add?", "the paper's research questions",
                  "RQ1 asks what share of the inputs", "RQ2 asks how many bugs",
                  "RQ3 asks what is gained"):  # fmt: skip
        assert asked in outline.text


def test_counts_have_the_right_number():
    assert [page.counted(n, "model") for n in (0, 1, 1200)] == ["0 models", "1 model", "1,200 models"]


def test_a_support_of_one_model_is_no_plural(study, tmp_path):
    copy = Study(shutil.copytree(study.directory, tmp_path / "copy"))
    copy.__dict__["config"] = study.config.model_copy(
        update={"mining": study.config.mining.model_copy(update={"min_support": 1})}
    )
    told = Outline(write_report(copy).read_text(encoding="utf-8")).text
    assert "calls occur in at least 1 model;" in told and not re.search(r"(?<![\d,.])1 (models|calls|cases)\b", told)


def test_figures_show_samplers_bounds_and_a_whole_model(outline):
    described = " ".join(outline.values("alt"))
    for said in ("the values that each sampler draws", "against the largest magnitude", "in units of the bound",
                 "share of calls that differ", "Graph of a whole model"):  # fmt: skip
        assert said in described


def test_every_figure_has_a_description(outline):
    assert outline.tags.count("img") == len([value for value in outline.values("alt") if value]) > 4


def test_the_report_says_what_was_run(outline, study):
    made = study.manifest["made_with"]
    for fact in (*study.models, "cpu (reference) against cpu:baseline (candidate)", made["torch"], made["commit"],
                 f"{len(study.patterns)} patterns of 2 to 4 calls", "The seed 0 decides"):  # fmt: skip
        assert fact in outline.text


def test_the_report_holds_the_numbers_of_the_tables(outline, study):
    total = tables.validity(study).iloc[-1]
    assert total["api"] == "Total"
    row = f"Total {total['sort_attempts']:,} {total['sort_valid']:,} {total['sort_ratio']:.4g}"
    assert row in outline.text
    for name in ("average_difference", "involvement"):
        for value in getattr(tables, name)(study)["sort"].dropna():
            assert f"{value:.4g}" in outline.text


def test_findings_stand_in_order_of_rank_with_their_meaning(outline, study):
    found = [verdict for verdict in RANK if (study.findings["verdict"] == verdict).any()]
    places = [outline.text.index(MEANING[verdict]) for verdict in found]
    assert found and places == sorted(places)
    for case_id in study.findings["worst_case"]:
        assert case_id in outline.text


def test_every_verdict_has_a_meaning():
    assert set(MEANING) == set(RANK)


def test_interesting_cases_are_drawn_one_for_each_pattern(outline, study):
    chosen = interesting_cases(study)
    patterns = [study.case(case_id).pattern for case_id in chosen]
    assert 1 <= len(chosen) <= 6 and len(set(patterns)) == len(patterns)
    drawn = [text.partition(":")[0] for text in outline.values("alt") if text.startswith("Case ")]
    assert drawn == [f"Case {case_id}" for case_id in chosen]
    assert not any(case_id in heading for heading in outline.headings for case_id in chosen)  # the drawing names it


def test_where_all_is_rounding_two_cases_are_enough(study):
    assert set(study.findings["verdict"]) <= {"rounding", "identical"}
    assert len(interesting_cases(study)) == 2
    assert len(interesting_cases(study, count=1)) == 1


def test_apis_beyond_the_papers_are_shown(study, tmp_path):
    assert "tested APIs" not in Outline(write_report(study).read_text(encoding="utf-8")).text
    copy = Study(shutil.copytree(study.directory, tmp_path / "copy"))
    renamed = copy.all_outcomes.replace({"api": {"relu": "hardswish"}})
    copy.__dict__["all_outcomes"] = renamed
    told = Outline(write_report(copy).read_text(encoding="utf-8")).text
    count = renamed["api"].nunique()
    total = tables.validity(copy, "tested").set_index("api").loc["hardswish"]
    assert f"Attempts and valid inputs, all {count} tested APIs" in told
    assert f"By the evidence rule, all {count} tested APIs" in told
    assert f"The numbers of both figures, all {count} tested APIs" in told
    assert f"hardswish {total['sort_attempts']} {total['sort_valid']} 100" in told


def test_names_of_the_paper_are_explained(outline):
    assert "APIs have the paper's names; in code and in the CSV tables, __add__ is add." in outline.text
    assert "__add__ (add)" in outline.text


def test_the_settings_shown_make_the_same_study(outline, study, tmp_path):
    text = (study.directory / "report.html").read_text(encoding="utf-8")
    shown = text[text.index("name: tiny") : text.index("threshold: 0.001")] + "threshold: 0.001\n"
    (tmp_path / "again.yaml").write_text(shown)
    again = load_config(tmp_path / "again.yaml")
    chosen = study.config.platforms.model_copy(update={"candidate": "cpu:baseline"})
    assert again == study.config.model_copy(update={"platforms": chosen})


def test_a_second_report_has_the_same_bytes(study):
    first = write_report(study).read_bytes()
    assert write_report(Study(study.directory)).read_bytes() == first


def test_what_was_left_out_is_told(study, tmp_path):
    directory = shutil.copytree(study.directory, tmp_path / "copy")
    copy = Study(directory)
    facts = {**copy.stage("generate"), "without_case": {"p1": "no <b>record</b>", "p2": "no <b>record</b>"}}
    copy.note("generate", **facts)
    told = Outline(write_report(copy).read_text(encoding="utf-8")).text
    mined, tested = facts["patterns_mined"], facts["patterns_tested"]
    assert mined > tested  # the tiny study tests a sample
    assert f"{mined - tested} of {mined} mined patterns were not tested (generation.max_patterns is 20)" in told
    assert "2 patterns to be tested gave no case." in told and "no <b>record</b>" in told


def test_what_was_not_left_out_is_not_listed(study, tmp_path):
    told = Outline(write_report(study).read_text(encoding="utf-8")).text
    assert "gave a case" not in told and "gave no case" not in told and "were to be tested" not in told
    copy = Study(shutil.copytree(study.directory, tmp_path / "copy"))
    records = [len([f for f in (*(f for _, f in r.tensors()), *r.outputs) if f.numel > 300]) > 0 for r in copy.records]
    assert 0 < sum(records) < len(records)
    for limit, number in ((300, sum(records)), (10**9, 0)):
        copy.__dict__["config"] = study.config.model_copy(
            update={"generation": study.config.generation.model_copy(update={"max_elements": limit})}
        )
        told = Outline(write_report(copy).read_text(encoding="utf-8")).text
        line = f"{page.counted(number, 'record')} with a tensor of more than {limit:,} elements"
        assert (line in told) == bool(number) and ("(generation.max_elements)" in told) == bool(number)


def test_names_and_messages_are_escaped(study, tmp_path):
    attack = "<script>alert('1')</script>\"&"
    directory = shutil.copytree(study.directory, tmp_path / "copy")
    copy = Study.create(study.config.model_copy(update={"name": attack}), directory)
    text = write_report(copy).read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert Outline(text).tags.count("script") == 1
    assert attack in Outline(text).text


def test_a_study_that_was_not_run_is_told_so(tmp_path):
    fresh = Study.create(StudyConfig(name="fresh", zoo="tiny"), tmp_path / "fresh")
    with pytest.raises(SortError, match="nothing was run yet; continue with 'sortlib study "):
        write_report(fresh)


def test_a_table_by_method_is_split_where_it_would_not_fit_on_a_page():
    methods = {f"m{number}": f"Method {number}" for number in range(10)}
    frame = pd.DataFrame({"api": ["add", "Total"], "paper_name": ["__add__", "Total"]})
    counts = frame.assign(**{f"{key}_{kind}": [1, 1] for key in methods for kind in ("attempts", "valid", "ratio")})
    parts = [Outline(part) for part in report._by_method(counts, methods, "Counts", ["a note"])]
    heads = ["Method 0 Method 1 Method 2", "Method 3 Method 4 Method 5", "Method 6 Method 7 Method 8", "Method 9"]
    wanted = [f"Counts, part {number} of 4 {head}" for number, head in enumerate(heads, 1)]
    assert [part.text.partition(" API ")[0] for part in parts] == wanted
    assert ["a note" in part.text for part in parts] == [False, False, False, True]
    idle = counts.assign(m9_attempts=tables.NOTHING, m9_valid=tables.NOTHING, m9_ratio=tables.NOTHING)
    assert len(list(report._by_method(idle, methods, "Counts", []))) == 3  # nothing to count, nothing to show
    ratios = frame.assign(**{f"{key}_ratio": [100.0, 100.0] for key in methods})
    (whole,) = [Outline(part) for part in report._by_method(ratios, methods, "Ratios", [], ("ratio",))]
    assert whole.text.startswith("Ratios API Method 0 Method 1 ") and "ratio" not in whole.text


def test_footnotes_are_on_the_methods_that_are_shown(study):
    notes = ["SORT and Single-API: no attempt on div: why", "Single-API: one", "perf: not measured"]
    assert report._about(notes, study, {"sort": "SORT"}) == [notes[0], notes[2]]
    assert report._about(notes, study, {"sort": "SORT", "single": "Single-API"}) == notes


# ---- in a browser ----

needs_browser = pytest.mark.skipif(
    not chromium() or not importlib.util.find_spec("playwright"),
    reason="no Chromium on this machine" if not chromium() else "Playwright is not installed",
)
TOO_WIDE = """() => [...document.querySelectorAll(".scroll, figure, p, ul, dl, pre")]
    .filter((part) => part.scrollWidth > document.documentElement.clientWidth + 1
        || part.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map((part) => part.textContent.slice(0, 80))"""


@needs_browser
def test_the_report_opens_without_a_request_and_prints_on_clean_pages(study, tmp_path):
    """On paper nothing is cut at the right, all folds are open, and no figure is higher than a page (A4, 15 mm)."""
    path = write_report(study).resolve()
    with browser() as open_page:
        watched = open_page()
        watched.page.goto(path.as_uri())
        assert watched.errors == [] and watched.outside == [path.as_uri()]  # the file itself and nothing else
        assert watched.page.evaluate("document.documentElement.scrollHeight") < 30_000
        printed = watched.page.pdf(format="A4", prefer_css_page_size=True)
        assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") < 40
        watched.page.emulate_media(media="print")
        watched.page.set_viewport_size({"width": 680, "height": 1000})  # 180 mm
        watched.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert watched.page.locator("details:not([open])").count() == 0
        assert watched.page.evaluate(TOO_WIDE) == []
        heights = watched.page.evaluate("[...document.images].map((image) => image.clientHeight)")
        assert heights and max(heights) <= 267 / 25.4 * 96


CUT_OFF = """() => [...document.querySelectorAll("caption span, p, li, dd, h1, h2, h3, h4, summary, pre")]
    .filter((part) => part.getClientRects().length
        && (part.getBoundingClientRect().right > document.documentElement.clientWidth + 1
            || part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== "inline"))
    .map((part) => part.textContent.slice(0, 80))"""


@needs_browser
@pytest.mark.parametrize("width", [375, 768])
def test_on_a_narrow_screen_text_wraps_and_a_cut_table_shows_it(accused, width):
    """The shadow at an edge comes from the background of what scrolls; on paper there is none."""
    path = accused[1]
    with browser(width=width) as open_page:
        watched = open_page()
        watched.page.goto(path.as_uri())
        evaluate = watched.page.evaluate
        evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert evaluate("document.documentElement.scrollWidth") <= width
        assert evaluate(CUT_OFF) == []
        scrolls = """[...document.querySelectorAll(".scroll")].filter((part) => part.scrollWidth > part.clientWidth + 1)
            .map((part) => getComputedStyle(part).backgroundImage.split("gradient(").length - 1)"""
        found = evaluate(scrolls)
        assert found and set(found) == {4}
        # The picture of a table at its left end is dark at its right edge, and not at its left one.
        dark = """() => {
            const tables = [...document.querySelectorAll(".scroll")];
            const part = tables.find((part) => part.scrollWidth > part.clientWidth + 9);
            part.scrollIntoView();
            const box = part.getBoundingClientRect();
            return [box.left, box.right, box.top];
        }"""
        left, right, top = evaluate(dark)
        shade = [edge_shade(watched.page, x, top + 2) for x in (left, right - 2)]
        assert shade[0] == 255 > shade[1] + 20
        watched.page.emulate_media(media="print")
        assert evaluate("getComputedStyle(document.querySelector('.scroll')).backgroundImage") == "none"


def edge_shade(page, x, y):
    """Brightness, 0 to 255, of one pixel of what the browser shows."""
    shot = page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
    return int(plt.imread(io.BytesIO(shot))[0, 0, 0] * 255)


@needs_browser
def test_the_first_screen_names_the_finding(accused):
    path = accused[1]
    with browser(width=1440, height=900) as open_page:
        watched = open_page()
        watched.page.goto(path.as_uri())
        for part in (".summary a", "section#findings h2", ".finding h4"):
            assert watched.page.locator(part).first.bounding_box()["y"] < 900
        watched.page.locator(".summary a").click()
        assert watched.page.locator(".finding:target").count() == 1


@needs_browser
def test_a_long_text_beside_many_numbers_keeps_a_width_to_read(tmp_path):
    """One letter on a line, as a browser would have it, makes a page of thousands of lines."""
    frame = pd.DataFrame({"api": ["add"], **{f"attempts of {n}": [123456] for n in range(30)}, "why": ["reason " * 60]})
    (tmp_path / "page.html").write_text(page.document("Wide", "", [("t", "T", page.table(frame))]))
    with browser() as open_page:
        watched = open_page()
        watched.page.goto((tmp_path / "page.html").as_uri())
        width = watched.page.locator("td.long").evaluate("(cell) => cell.clientWidth")
        assert width > 150
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 1400  # the table scrolls, not the page


# ---- tables ----


def test_table_puts_totals_last_and_keeps_exact_values_for_sorting():
    frame = pd.DataFrame({"api": ["b", "a", "Total"], "n": [1234, "/", 1234], "x": [1.23456789e-7, float("nan"), 0.0]})
    text = page.table(frame, "Caption", {"api": "API"}, {"n": "group", "x": "group"}, ["a <note>"])
    assert '<td class="number" data-sort="1234.0">1,234</td>' in text
    assert '<td class="number" data-sort="1.23456789e-07">1.235e-07</td>' in text
    assert '<td class="number">/</td><td class="number"></td>' in text  # no key: sorts last
    assert text.index("<tfoot>") < text.index("Total") and '<th colspan="2" scope="colgroup">group</th>' in text
    assert "a &lt;note&gt;" in text and ">API</span>" in text
    Outline(text)


def test_a_column_with_nothing_to_count_is_aligned_like_numbers():
    text = page.table(pd.DataFrame({"api": ["relu"], "perf": ["/"], "note": [""]}))
    assert '<td class="number">/</td><td class="short"></td>' in text


def test_table_of_nothing_says_so():
    assert page.table(pd.DataFrame({"a": []}), "Rows") == "<p>Rows: nothing.</p>"


def test_a_browser_sorts_by_number_and_by_keyboard(tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium on this machine")
    frame = pd.DataFrame({"api": ["a", "b", "c", "Total"], "n": [1e-3, 2e-7, "/", 3.0]})
    text = page.document("Sorting", "", [("t", "T", page.table(frame))])
    probe = """<script>
      const order = () => Array.from(document.querySelectorAll("tbody tr"), (row) => row.cells[0].textContent).join("");
      const heading = document.querySelectorAll("th[scope=col] span")[1];
      heading.click();
      const up = order();
      heading.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
      document.title = `${up} ${order()} ${heading.parentNode.getAttribute("aria-sort")}`;
    </script>"""
    (tmp_path / "page.html").write_text(text.replace("</body>", probe + "</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--dump-dom", (tmp_path / "page.html").as_uri()]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    # 2e-7 < 1e-3, and what has no number stays last in both directions.
    assert "<title>bac abc descending</title>" in shown
