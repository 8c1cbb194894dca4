"""Sweeps: the grid of a file, what it may say, and two points of the tiny study run and compared."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sortlib import cli, sweep, tables
from sortlib.errors import SortError
from sortlib.notebooks import SWEEP
from sortlib.study import Study, load_config
from sortlib.sweep import Sweep, load_sweep, open_sweep, points, run_sweep


@pytest.fixture
def written(tmp_path):
    """``written(text)``: a sweep file."""

    def write(text):
        path = tmp_path / "grid.yaml"
        path.write_text(text)
        return path

    return write


def test_a_grid_is_every_combination_with_the_last_key_varying_fastest(written):
    loaded = load_sweep(written(
        "study: tiny\ngrid:\n  mining.min_support: [2, 3]\n  platforms.candidate: [cpu:baseline, cpu:compile]\n"
    ))  # fmt: skip
    found = points(loaded, load_config("tiny"))
    assert [point.name for point in found] == [
        "min-support-2_candidate-cpu-baseline", "min-support-2_candidate-cpu-compile",
        "min-support-3_candidate-cpu-baseline", "min-support-3_candidate-cpu-compile",
    ]  # fmt: skip
    last = found[-1].config
    assert (last.mining.min_support, last.platforms.candidate, last.mining.max_nodes) == (3, "cpu:compile", 4)
    assert last.name == found[-1].name and loaded.name == "grid" and loaded.notebooks is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("study: tiny\n", "grid.yaml: grid: this key is required"),
        ("study: tiny\ngrid: {}\n", "grid: names no setting; valid: zoo, seed, mining.min_support"),
        ("study: tiny\ngrid: {sampler: [uniform]}\n", "sampler: unknown setting; did you mean 'generation.sampler'?"),
        ("study: tiny\ngrid: {seed: 1}\n", "grid.seed: must be a list, not 1"),
        ("study: tiny\ngrid: {seed: []}\n", "grid: seed: the list of values is empty"),
        ("study: tiny\ngrid: {seed: [1, 1]}\n", "grid: seed: 1 is listed twice"),
        ("study: tiny\ngrid: {seed: [1]}\nnotebook: [x]\n", "notebook: unknown key; did you mean 'notebooks'"),
        ("study: tiny\ngrid: {seed: [1]}\nnotebooks: [07-figure]\n", "'07-figure'; did you mean '07-figure-14'?"),
        ("study: tiny\ngrid: [seed]\n", "grid: must be keys and values"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line(written, text, said):
    with pytest.raises(SortError) as caught:
        load_sweep(written(text))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_value_that_a_study_cannot_have_stops_before_anything_is_run(written, tmp_path):
    loaded = load_sweep(written("study: tiny\ngrid: {generation.sampler: [quantile, unifrom]}\n"))
    with pytest.raises(SortError, match=r"sweep grid, grid: generation.sampler: 'unifrom' is not one of .*'uniform'"):
        run_sweep(loaded, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_points_that_would_share_a_folder_are_told(written):
    loaded = load_sweep(written("study: tiny\ngrid: {platforms.candidate: ['cpu:baseline', 'cpu-baseline']}\n"))
    with pytest.raises(SortError, match="two points would lie in the folder candidate-cpu-baseline"):
        points(loaded, load_config("tiny"))


def test_files_beside_the_sweep_are_found(written, tmp_path):
    (tmp_path / "mine.yaml").write_text("zoo: tiny\nseed: 7\n")
    (tmp_path / "models.yaml").write_text("models: []\n")
    loaded = load_sweep(written("study: mine.yaml\ngrid: {zoo: [models.yaml, tiny]}\n"))
    assert load_config(loaded.study).seed == 7
    assert loaded.grid["zoo"] == [str(tmp_path / "models.yaml"), "tiny"]
    assert [point.name for point in points(loaded, load_config(loaded.study))] == ["zoo-models", "zoo-tiny"]


def test_bundled_sweeps_are_valid():
    for name in ("tiny", "quick"):
        loaded = load_sweep(name)
        assert len(points(loaded, load_config(loaded.study))) == {"tiny": 2, "quick": 8}[name]
    with pytest.raises(
        SortError, match="unknown sweep 'tiney': choose a YAML file or one of: quick, tiny; did you mean 'tiny'"
    ):
        load_sweep("tiney")


# ---- a sweep of two points ----

TEXT = """
study: tiny
grid:
  generation.sampler: [quantile, uniform]
notebooks: []
"""


@pytest.fixture(scope="module")
def swept(tiny_study, tmp_path_factory):
    """Two points, the first of which was run before; their notebooks have tests of their own."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "samplers.yaml").write_text(TEXT)
    shutil.copytree(tiny_study.directory, folder / "out" / "sampler-quantile")
    return run_sweep(load_sweep(folder / "samplers.yaml"), folder / "out", progress=False)


def test_each_point_is_a_study_like_any_other(swept):
    assert list(swept.studies) == ["sampler-quantile", "sampler-uniform"]
    for sampler, study in zip(("quantile", "uniform"), swept.studies.values(), strict=True):
        assert {case.sampler for case in study.cases} == {study.config.generation.sampler} == {sampler}
        assert study.holds("report.html", "tables/findings.csv")


def test_points_share_what_the_same_settings_gave(swept):
    first, second = swept.studies.values()
    assert first.stage("mine") == second.stage("mine") and first.stage("generate") != second.stage("generate")
    for name in ("graphs", "records"):
        for file in (first.directory / name).iterdir():
            # Copied and not traced again: Parquet files made at another time hold other bytes only by accident.
            assert file.read_bytes() == (second.directory / name / file.name).read_bytes()
    assert not (second.directory / "patterns.json").samefile(first.directory / "patterns.json")


def test_the_table_compares_the_points(swept):
    table = swept.table
    assert list(table["sampler"]) == ["quantile", "uniform"] and list(table["state"]) == ["done", "done"]
    for row, study in zip(table.to_dict("records"), swept.studies.values(), strict=True):
        rows = study.judged
        assert (row["models"], row["cases"], row["calls"]) == (2, rows["case"].nunique(), len(rows))
        assert row["rounding"] == (rows["evidence"] == "rounding").sum()
        assert row["largest_propagated"] == rows["propagated_max_abs"].max()
        assert row["valid"] == tables.validity(study, "tested")["sort_ratio"].iloc[-1]
    # Uniform values between minimum and maximum are larger, and so are the differences (issue D).
    assert table["largest_propagated"][1] > table["largest_propagated"][0]
    written = pd.read_csv(swept.directory / "summary.csv")
    assert list(written["point"]) == list(table["point"]) and list(written["calls"]) == list(table["calls"])


def test_the_summary_notebook_is_executed(swept):
    cells = json.loads((swept.directory / SWEEP.name).read_text())["cells"]
    kinds = {kind for cell in cells for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
    assert any("sampler-uniform" in json.dumps(cell.get("outputs", ())) for cell in cells)


def test_the_same_command_goes_on_and_repeats_nothing(swept, monkeypatch):
    def never(*_, **__):
        raise AssertionError("ran a case again")

    monkeypatch.setattr("sortlib.outcomes.campaign", never)
    monkeypatch.setattr(sweep, "write_report", lambda study: None)
    before = (swept.directory / "summary.csv").read_bytes()
    again = run_sweep(load_sweep(swept.directory.parent / "samplers.yaml"), swept.directory, progress=False,
                      with_notebooks=False)  # fmt: skip
    assert (again.directory / "summary.csv").read_bytes() == before
    assert open_sweep(swept.directory).points == swept.points


def test_what_fails_does_not_stop_the_others(swept, tmp_path, monkeypatch):
    """A platform that is missing here, and an error of a kind that nobody foresaw."""
    (tmp_path / "failing.yaml").write_text(
        "study: tiny\nnotebooks: []\ngrid:\n  platforms.candidate: [nowhere, cpu:baseline]\n  seed: [0, 1]\n"
    )

    def fails(study, **_):
        if study.config.seed == 1:
            raise ZeroDivisionError("by a model\nsecond line")
        return study

    monkeypatch.setattr(sweep, "complete", fails)
    monkeypatch.setattr(sweep, "write_report", lambda study: None)
    monkeypatch.setattr(Sweep, "_row", lambda self, name: {"models": 2})
    found = run_sweep(load_sweep(tmp_path / "failing.yaml"), tmp_path / "out", progress=False, with_notebooks=False)
    states = {name: (point["state"], point["error"]) for name, point in found.points.items()}
    assert states["candidate-cpu-baseline_seed-0"] == ("done", "")
    assert states["candidate-cpu-baseline_seed-1"] == ("failed", "ZeroDivisionError: by a model")
    for seed in (0, 1):
        state, error = states[f"candidate-nowhere_seed-{seed}"]
        assert state == "failed" and error.startswith("unknown platform 'nowhere'")
    with pytest.raises(SortError, match="3 of 4 points failed; the same command tries them again"):
        sweep.finish(found)


def test_a_folder_without_a_sweep_and_a_damaged_one(tmp_path):
    with pytest.raises(SortError, match="no sweep there"):
        Sweep(tmp_path)
    without_error = '{"sweep": {"name": "a"}, "points": {"b": {"settings": {}, "state": "done"}}}'
    for text in ("{", '{"sweep": {"name": "a"}, "points": []}', without_error):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(SortError, match="is damaged; delete it and run the sweep again"):
            Sweep(tmp_path)


# ---- command line ----


def test_the_command_takes_a_sweep_or_a_study(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(sweep, "run_sweep", lambda *given: seen.update(given=given))
    monkeypatch.setattr(sweep, "finish", lambda found: None)
    result = CliRunner().invoke(cli.app, ["study", "--sweep", "tiny", "--seed", "5", "--out", str(tmp_path), "--quiet"])
    assert result.exit_code == 0
    plan, directory, base, progress, executor, notebooks = seen["given"]
    assert (plan.name, directory, base.seed, progress, executor, notebooks) == ("tiny", tmp_path, 5, False, None, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "name a study, or a sweep with --sweep"),
        (["--sweep", "tiny", "--upto", "mine"], "--upto is for a single study"),
        (["--sweep", "none.yaml"], "none.yaml: no such sweep file"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_line(given, said):
    result = CliRunner().invoke(cli.app, ["study", *given])
    assert isinstance(result.exception, SortError) and said in str(result.exception)


def test_a_point_opens_by_its_folder(swept):
    assert Study(swept.directory / "sampler-uniform").config.name == "sampler-uniform"


# ---- interrupted sweeps ----


class Killed(BaseException):
    """Ends a sweep at a point, as a signal does."""


@pytest.fixture
def two(written, tmp_path, monkeypatch):
    """``two(at, base)``: a sweep of two points without the work of a study. ``at(study)`` runs in each point; what is
    returned is the sweep, or None where ``at`` has killed it."""
    loaded = load_sweep(written("study: tiny\nnotebooks: []\ngrid: {mining.min_support: [2, 3]}\n"))
    monkeypatch.setattr(sweep, "write_report", lambda study: None)
    monkeypatch.setattr(Sweep, "_row", lambda self, name: {"seed": self.studies[name].config.seed})

    def run(at=lambda study: None, seed=0):
        def complete(study, **_):
            at(study)
            study.note("tables", fingerprint=f"of seed {study.config.seed}")

        monkeypatch.setattr(sweep, "complete", complete)
        base = load_config("tiny").model_copy(update={"seed": seed})
        try:
            return run_sweep(loaded, tmp_path / "out", base, progress=False, with_notebooks=False)
        except Killed:
            return None

    return run


def states(directory) -> list:
    return [point["state"] for point in Sweep(directory).points.values()]


def kills(name):
    def at(study):
        if study.config.name == name:
            raise Killed

    return at


FIRST, SECOND = "min-support-2", "min-support-3"


def test_the_state_is_true_while_points_are_made_again(two, tmp_path):
    """With another seed in the same folder nothing is done any more, and no table of the old seed is left."""
    directory, seen = tmp_path / "out", []
    assert states(two().directory) == ["done", "done"]
    assert list(pd.read_csv(directory / "summary.csv")["seed"]) == [0, 0]

    def look(study):
        seen.append((study.config.name, states(directory), (directory / "summary.csv").exists()))

    two(look, seed=1)
    assert seen == [(FIRST, ["pending", "pending"], False), (SECOND, ["done", "pending"], False)]
    assert list(pd.read_csv(directory / "summary.csv")["seed"]) == [1, 1]
    assert two(kills(FIRST), seed=2) is None
    assert states(directory) == ["pending", "pending"] and not (directory / "summary.csv").exists()


def test_points_of_the_same_settings_stay_done_when_a_sweep_goes_on(two, tmp_path):
    directory = tmp_path / "out"
    assert two(kills(SECOND)) is None and states(directory) == ["done", "pending"]
    two()
    assert two(kills(FIRST)) is None and states(directory) == ["pending", "done"]
    (directory / SECOND / "manifest.json").write_text("{")
    assert two(kills(FIRST)) is None and states(directory) == ["pending", "pending"]


def test_a_summary_of_an_earlier_run_does_not_outlive_it(two, tmp_path):
    directory = two().directory
    (directory / SWEEP.name).write_text("{}")
    two(kills(SECOND))
    assert sorted(path.name for path in directory.iterdir()) == [FIRST, SECOND, "sweep.json"]


def test_a_bundled_sweep_that_was_killed_in_its_first_point_is_run_when_it_is_opened(two, tmp_path, monkeypatch):
    two(kills(FIRST))
    (tmp_path / "out").rename(tmp_path / "sweep-tiny")
    ran = []
    monkeypatch.setattr(sweep, "run_sweep", lambda plan, directory, **_: ran.append((plan.name, directory)))
    open_sweep(tmp_path / "sweep-tiny")
    assert ran == [("tiny", tmp_path / "sweep-tiny")]


def test_files_of_a_sweep_that_cannot_be_written_are_one_line(two, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SortError, match="out: is a file; a folder is needed there"):
        two()
    (tmp_path / "out").unlink()
    table = tmp_path / "out" / "summary.csv"
    with pytest.raises(SortError, match=r"summary\.csv: cannot be written: ") as caught:
        two(lambda study: table.mkdir(exist_ok=True))
    assert "\n" not in str(caught.value) and states(tmp_path / "out") == ["done", "done"]
    with pytest.raises(SortError, match=r"summary\.csv: cannot be removed: "):
        two()


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_copy_that_was_killed_is_made_again(tiny_study, tmp_path, monkeypatch, after):
    """The second of two files of ``graphs`` and of ``records`` is torn; the next run gets past it."""
    copy, copied = shutil.copy, []

    def kill(source, target):
        if len(copied) == after:
            Path(target).write_bytes(source.read_bytes()[:10])
            raise Killed
        copied.append(source)
        copy(source, target)

    study = Study.create(tiny_study.config, tmp_path / "point")
    monkeypatch.setattr(sweep.shutil, "copy", kill)
    with pytest.raises(Killed):
        sweep._take_over(study, [tiny_study.directory])
    monkeypatch.setattr(sweep.shutil, "copy", copy)
    (tmp_path / "point" / "graphs").mkdir(exist_ok=True)
    (tmp_path / "point" / "graphs" / "tiny-residual.json").write_text("torn")  # as a version without replacing left it
    again = Study(tmp_path / "point")
    sweep._take_over(again, [tiny_study.directory])
    for name in ("graphs", "records"):
        files = {path.name: path.read_bytes() for path in (tiny_study.directory / name).iterdir()}
        assert len(files) == 2
        assert {path.name: path.read_bytes() for path in (study.directory / name).iterdir()} == files
    assert again.stage("generate") == tiny_study.stage("generate") and again.patterns == tiny_study.patterns


def test_a_copy_onto_a_full_disk_is_one_line(tiny_study, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep.shutil, "copy", full)
    study = Study.create(tiny_study.config, tmp_path / "point")
    with pytest.raises(SortError, match=r"tiny-residual\.json: cannot be written: No space left on device$"):
        sweep._take_over(study, [tiny_study.directory])
