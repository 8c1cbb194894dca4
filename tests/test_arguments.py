"""Mistakes in what the public functions and commands are given: one line each, before anything is run."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import sortlib as sl
from sortlib import cli
from sortlib.checking import check_file
from sortlib.errors import SortError
from sortlib.graph import ApiGraph
from sortlib.reproducing.checked import file_name
from sortlib.runner import command
from sortlib.runner.campaign import COLUMNS
from sortlib.study import Study, load_config

X = {"x": np.ones(2)}
GRAPH = ApiGraph.from_edges(["relu", "conv2d"], [(0, 1, "input")])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: sl.findings("runs/x"),
            "findings: study must be an open Study, not 'runs/x'; open it first: sl.Study('",
        ),
        (lambda: sl.explore(Path("runs/x")), "explore: study must be an open Study"),
        (lambda: sl.reproduce("runs/x", "a"), "reproduce: study must be an open Study"),
        (lambda: sl.minimize(None, None), "minimize: study must be an open Study, not None"),
        (lambda: sl.minimize(None, "a", seconds="long"), "minimize: seconds must be a number of seconds above 0"),
        (lambda: sl.Study(None), "Study: directory must be a path, not None"),
        (lambda: sl.open_study(5), "open_study: directory must be a path, not 5"),
        (lambda: sl.mine(None), "mine: graphs must be a list of ApiGraph, not None"),
        (lambda: sl.run(None), "run: cases must be a list of TestCase, not None"),
        (lambda: sl.run([1]), "run: cases[0] must be a TestCase, not 1"),
        (lambda: sl.generate(None, [], []), "generate: patterns must be a list of Pattern, not None"),
        (lambda: sl.generate([], None, []), "generate: records must be a list of CallRecord"),
        (lambda: sl.generate([], [], [1]), "generate: graphs[0] must be an ApiGraph, not 1"),
        (lambda: sl.generate([], [], [], seed=10**30), "generate: seed must be a whole number from 0 to 92"),
        (lambda: sl.judge(None), "judge: outcomes must be the DataFrame of sl.run, not None"),
        (lambda: sl.judge(pd.DataFrame({"a": [1]})), "judge: outcomes lack the columns api, status, side"),
        (lambda: sl.judge(pd.DataFrame(), threshold=float("nan")), "threshold must be a number above 0, not nan"),
        (lambda: sl.check(None, X), "check: expression must be Python text"),
        (lambda: sl.check("F.gelu(x)"), "check: inputs: give the values that the expression names, such as {'x': "),
        (lambda: sl.check("F.gelu(x)", {}), "check: inputs: give the values that the expression names"),
        (lambda: sl.check("F.gelu(x)", 3), "check: inputs must be a mapping"),
        (lambda: sl.trace(None), "trace: model must be a torch.nn.Module or a function, and its inputs after it, not"),
        (lambda: sl.trace(np.ones(2), None), "trace: model must be a torch.nn.Module or a function"),
        (lambda: sl.check("F.gelu(x)", X, backward="no"), "check: backward must be True or False, not 'no'"),
        (lambda: sl.check("F.gelu(x)", X, thresholds=5), "the file must be a path, not 5"),
        (lambda: sl.platforms(worth="no"), "platforms: worth must be True or False, not 'no'"),
    ],
)
def test_a_wrong_argument_is_one_line(call, said):
    with pytest.raises(SortError) as error:
        call()
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def test_a_status_that_is_none_is_named(tiny_study):
    outcomes = tiny_study.outcomes.head(2).assign(status=["ok", "fine"])
    with pytest.raises(SortError, match=f"judge: outcomes: row {outcomes.index[1]}: unknown status 'fine'; valid: "):
        sl.judge(outcomes)


def test_entries_with_like_ids_get_scripts_of_their_own():
    assert file_name("gelu.bf16_1-a") == "gelu.bf16_1-a"
    names = {file_name(text) for text in ("gelu x", "gelu/x", "gelu-x", "gelu(x")}
    assert len(names) == 4 and all(re.fullmatch(r"gelu-x(-[0-9a-f]{8})?", name) for name in names)


def test_no_case_gives_the_usual_columns(tiny_study):
    none = sl.run([], progress=False)
    assert none.empty and list(none.columns) == COLUMNS
    assert sl.judge(none).empty
    assert set(sl.run(tiny_study.cases[:1], progress=False).columns) == set(COLUMNS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["study", "tiny", "--model", "m"], "--model is for titanfuzz, which is not among the methods of this study"),
        (["study", "tiny", "--constraints", "."], "--constraints is for docter"),
        (["study", "tiny", "--sweep", "tiny"], "tiny: name a study or a sweep, not both"),
        (["study", "tiny", "--seed", str(10**30)], "--seed must be a whole number from 0 to 92"),
    ],
)
def test_an_option_without_effect_is_refused(given, said):
    error = CliRunner().invoke(cli.app, given).exception
    assert isinstance(error, SortError) and str(error).startswith(said)


def test_an_option_of_the_other_side_of_run_is_refused():
    with pytest.raises(SortError, match="run --save: --candidate is for --against"):
        command.run(["tiny", "--save", "x", "--candidate", "cpu"])


@pytest.mark.parametrize("option", ["--include", "--exclude"])
def test_mine_names_the_apis_that_the_graphs_call(tmp_path, option):
    GRAPH.save(tmp_path / "a.json")
    error = CliRunner().invoke(cli.app, ["mine", str(tmp_path), option, "conv3d"]).exception
    assert isinstance(error, SortError)
    assert str(error) == (f"mine: {option} conv3d: none of the 1 graphs calls it; did you mean 'conv2d'? "
                          "they call conv2d, relu")  # fmt: skip


def test_the_folder_of_scripts_is_checked_before_anything_is_run(tmp_path, monkeypatch):
    (tmp_path / "cases.yaml").write_text("- {id: a, inputs: {x: np.ones(2)}, call: torch.exp(x)}")
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr("sortlib.checking.campaign", None)
    with pytest.raises(SortError, match="taken: is a file; a folder is needed there"):
        check_file(tmp_path / "cases.yaml", reproduce=tmp_path / "taken")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1, "config": {"nme": 1}}'])
def test_a_damaged_manifest_says_what_to_do(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SortError, match="delete this file and make the study again with 'sortlib study FILE --out"):
        Study(tmp_path)


def test_a_study_without_its_manifest_keeps_what_was_run(tiny_study, tmp_path):
    shutil.copytree(tiny_study.directory, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    again = Study.create(load_config("tiny"), tmp_path / "run")
    assert list((again.directory / "outcomes").rglob("part-*.parquet"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("threshold: .inf", "threshold: must be a finite number"),
        ("threshold: .nan", "threshold: must be"),
        ("timeout: .inf", "timeout: must be a finite number"),
        ("seed: 1000000000000000000000", "seed: must be"),
    ],
)
def test_numbers_of_a_study_are_finite(tmp_path, line, said):
    (tmp_path / "mine.yaml").write_text(f"zoo: tiny\n{line}\n")
    with pytest.raises(SortError, match=f"mine.yaml: {said}"):
        load_config(tmp_path / "mine.yaml")
