"""Budgets of the compared methods: attempts, or attempts until enough are valid, resumed after an interrupt."""

import shutil

import pandas as pd
import pytest

from sortlib import outcomes, tables
from sortlib.baselines.base import Context
from sortlib.baselines.registry import BASELINES, baseline
from sortlib.baselines.stage import generate_baselines, run_baselines
from sortlib.baselines.until_valid import _size
from sortlib.errors import SortError
from sortlib.pipeline import _further_cases
from sortlib.study import Generation, Study, StudyConfig, load_config

WANTED, MOST = 6, 20


def fresh(directory, tiny_study, **generation):
    """A study of the published methods on the records of another, with nothing generated yet."""
    config = StudyConfig(name="budget", zoo="tiny", methods=("freefuzz", "docter", "titanfuzz"), generation=generation)
    study = Study.create(config, directory)
    study.note("trace", **tiny_study.stage("trace"))
    study.note("run", fingerprint="y", reference="cpu", candidate="cpu:baseline")
    study.note("generate", without_case={}, patterns_mined=0, patterns_tested=0)
    return again(directory, tiny_study)


def again(directory, tiny_study):
    """The same study as another process opens it."""
    study = Study(directory)
    empty = pd.DataFrame(columns=tiny_study.outcomes.columns)
    study.__dict__.update(records=tiny_study.records, graphs=tiny_study.graphs, outcomes=empty, single=empty,
                          patterns=[], cases=[])  # fmt: skip
    return study


def complete(study):
    generate_baselines(study, progress=False)
    run_baselines(study, "cpu", "cpu:baseline", progress=False)
    return study


def ratios(study):
    table = tables.validity(study).set_index("api")
    return table[[name for name in table if name.endswith(("_attempts", "_valid"))]]


@pytest.fixture(scope="module")
def few_apis():
    """The budget is the same for each API, so three of them show it."""
    patch = pytest.MonkeyPatch()
    patch.setattr("sortlib.baselines.stage.PAPER_APIS", {"relu": "relu", "add": "__add__", "conv2d": "conv2d"})
    yield
    patch.undo()


@pytest.fixture(scope="module")
def until_valid(tmp_path_factory, tiny_study, few_apis):
    return complete(fresh(tmp_path_factory.mktemp("whole"), tiny_study, valid_per_api=WANTED,
                          max_attempts_per_api=MOST))  # fmt: skip


def test_methods_go_on_until_enough_inputs_are_valid(until_valid):
    table = ratios(until_valid)
    for api in ("relu", "add"):
        assert table.loc[api, "freefuzz-C_valid"] == table.loc[api, "freefuzz-P_valid"] == WANTED, table
    assert WANTED < table.loc["add", "freefuzz-C_attempts"] <= MOST  # some were refused
    # The last attempt is the valid one that was still missing: nothing is made that nobody wants.
    last = [case.id for case in until_valid.baseline_cases["freefuzz"] if case.pattern == "freefuzz-C-add"][-1]
    rows = until_valid.baseline_outcomes
    assert set(rows.loc[rows["case"] == last, "status"]) == {"ok"}


def test_a_method_that_makes_too_few_valid_inputs_ends_at_the_cap_and_a_footnote_says_so(until_valid):
    table, notes = ratios(until_valid), tables.validity(until_valid).attrs["footnotes"]
    assert table.loc["conv2d", "docter_attempts"] == MOST and table.loc["conv2d", "docter_valid"] < WANTED
    found = table.loc["conv2d", "docter_valid"]
    assert any(
        note.startswith(f"DocTer: fewer than {WANTED} valid inputs of ")
        and f"conv2d ({found})" in note
        and note.endswith(f"{MOST} attempts were made, the most that the study allows")
        for note in notes
    ), notes
    assert any(f"until {WANTED} inputs of an API were valid, or {MOST} were made" in note for note in notes)


@pytest.mark.parametrize("cases", [9, 45])
def test_interrupted_it_goes_on_to_the_same_table(until_valid, few_apis, tiny_study, tmp_path, monkeypatch, cases):
    """Cut off in the first round of a method and in a later one."""
    study = fresh(tmp_path / "cut", tiny_study, valid_per_api=WANTED, max_attempts_per_api=MOST)
    real, left = outcomes.campaign, [cases]

    def cut_off(*given, **named):
        for result in real(*given, **named):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            yield result

    monkeypatch.setattr(outcomes, "campaign", cut_off)
    with pytest.raises(KeyboardInterrupt):
        complete(study)
    monkeypatch.setattr(outcomes, "campaign", real)
    done = set(again(study.directory, tiny_study).baseline_outcomes["case"])
    assert len(done) == cases
    resumed = complete(again(study.directory, tiny_study))
    assert ratios(resumed).equals(ratios(until_valid))
    for make in (tables.validity, tables.bugs, tables.invalid):
        assert make(resumed).attrs["footnotes"] == make(until_valid).attrs["footnotes"]
    assert resumed.baseline_cases == until_valid.baseline_cases


def test_nothing_is_done_twice(until_valid, tiny_study, tmp_path, monkeypatch):
    study = again(shutil.copytree(until_valid.directory, tmp_path / "copy"), tiny_study)
    monkeypatch.setattr(outcomes, "campaign", lambda *given, **named: pytest.fail("run a second time"))
    before = study.stage("baselines")
    assert complete(study).stage("baselines") == before


def test_rounds_follow_the_share_that_was_valid():
    assert _size(made=1000, valid=900, wanted=1000, most=20000) == 123  # 100 at 90 %, and a tenth more
    assert _size(made=1000, valid=0, wanted=1000, most=20000) == 3000
    assert _size(made=1000, valid=10, wanted=1000, most=20000) == 3000  # no more than three times what was seen
    assert _size(made=19000, valid=10, wanted=1000, most=20000) == 1000


@pytest.mark.parametrize("key", [key for key in BASELINES if key != "titanfuzz"])
def test_a_larger_budget_begins_with_the_same_attempts(key, tiny_study):
    method, context = baseline(key), Context(tiny_study.records, seed=1)
    try:
        few, many = (list(method.attempts("softmax", count, context)) for count in (3, 7))
        assert method.repeats(context) and len(few) < len(many)
        for pattern in {case.pattern for case in few}:
            first, second = ([case for case in cases if case.pattern == pattern] for cases in (few, many))
            assert second[: len(first)] == first
        for variant in method.variants:
            alone = list(method.attempts("softmax", 3, context, variant))
            assert alone == [case for case in few if method.is_of(case.pattern, variant)]
    finally:
        method.close()


def test_a_study_file_gives_one_of_the_two_budgets(tmp_path):
    file = tmp_path / "s.yaml"
    for given, message in (
        ("inputs_per_api: 5, valid_per_api: 5", "inputs_per_api counts attempts, valid_per_api valid ones; give one"),
        ("inputs_per_api: 5, max_attempts_per_api: 9", "max_attempts_per_api goes with valid_per_api"),
        ("valid_per_api: 5, max_attempts_per_api: 4", "max_attempts_per_api: 4 is below valid_per_api 5"),
    ):
        file.write_text(f"zoo: tiny\ngeneration: {{{given}}}\n")
        with pytest.raises(SortError, match=f"generation: {message}"):
            load_config(file)
    assert Generation().budget == Generation().most_attempts == 1000
    assert Generation(valid_per_api=7).most_attempts == 140
    paper = load_config("paper").generation
    assert (paper.valid_per_api, paper.most_attempts) == (1000, 20000)


def test_sort_makes_further_cases_of_patterns_with_a_rare_api(tiny_study):
    settings = tiny_study.config.generation.model_copy(update={"inputs_per_api": 25})
    study = Study(tiny_study.directory)
    study.config = study.config.model_copy(update={"generation": settings})
    cases = [case for case in tiny_study.cases if case.edges]
    tested = {case.pattern for case in cases}
    patterns = [pattern for pattern in tiny_study.patterns if pattern.id in tested]
    further = _further_cases(study, cases, patterns, {"seed": 0})
    calls = [node.api for case in (*cases, *further) for node in case.nodes]
    held = {api for pattern in patterns for api in pattern.nodes}
    for api in held & {"softmax", "conv2d", "linear"}:
        assert calls.count(api) >= 25
    ids = [case.id for case in (*cases, *further)]
    assert len(set(ids)) == len(ids) and {case.pattern for case in further} <= tested


def test_every_method_has_its_time(tiny_study):
    spent = tables.times(tiny_study).set_index("method")
    assert list(spent.index) == ["sort", "single-api"]
    assert (spent["run"] > 0).all() and (spent["generate"] >= 0).all()
