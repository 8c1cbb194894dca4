"""The report: one file that opens without a network, says what was run and found, and escapes what it is given."""

import json
import shutil
import subprocess
from html.parser import HTMLParser

import pandas as pd
import pytest

from sortlib import page, tables
from sortlib.errors import SortError
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


SECTIONS = ["run", "findings", "validity", "bugs", "interactions", "cases", "repeat", "left-out"]


def test_links_lead_somewhere(outline, study):
    anchors, links = outline.values("id"), [link[1:] for link in outline.values("href")]
    assert len(anchors) == len(set(anchors)) and set(links) <= set(anchors)
    assert links[: len(SECTIONS)] == SECTIONS == [anchor for anchor in anchors if anchor in SECTIONS]
    # A finding whose worst case is drawn leads there.
    drawn = {f"case-{case_id}" for case_id in interesting_cases(study)}
    worst = {f"case-{case_id}" for case_id in study.findings["worst_case"]}
    assert drawn <= set(anchors) and set(links) - set(SECTIONS) == drawn & worst


def test_a_finding_carries_its_script_and_the_command_that_makes_one(study, tmp_path):
    """A suspect by hand, with a script as ``sl.reproduce`` leaves it, and one without."""
    copy = Study(shutil.copytree(study.directory, tmp_path / "copy"))
    apis = ["batch_norm", "conv2d"]
    judged = copy.judged.assign(evidence=copy.judged["evidence"].mask(copy.judged["api"].isin(apis), "suspect"))
    copy.__dict__["judged"] = judged
    made, *missing = copy.findings[copy.findings["verdict"] == "suspect"]["finding"]
    script = copy.path("findings", f"{made}.py")
    script.write_text("import torch\nprint('<b>')\n")
    facts = {"state": "reproduces", "script": str(script), "case": "c", "node": 0}
    script.with_suffix(".json").write_text(json.dumps(facts))
    page = Outline(write_report(copy).read_text(encoding="utf-8"))
    assert f"Script for finding {made}: findings/{made}.py (reproduces here)" in page.text
    assert "import torch print('<b>')" in page.text
    assert f"#finding-{made}" in page.values("href") and f"finding-{made}" in page.values("id")
    assert missing and all(f"sortlib reproduce {copy.directory} {name} --minimize" in page.text for name in missing)
    assert f"reproduce {copy.directory} {made} " not in page.text


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
    with pytest.raises(SortError, match="continue with 'sortlib study fresh"):
        write_report(fresh)


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
