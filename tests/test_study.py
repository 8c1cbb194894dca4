"""A study's directory: several processes on it, what makes its results out of date, and what is said of damage."""

import importlib
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from sortlib import cli, seeded_faults, tables, user_code
from sortlib.errors import SortError
from sortlib.pipeline import complete
from sortlib.study import Study, load_config, made_with

MODEL = """
import torch
from layers import activation
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3)
    def forward(self, x):
        return self.last(activation(self.first(x)))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A study file of one's own with one model, whose layers lie in a second file."""
    (tmp_path / "net.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{MODEL}")
    (tmp_path / "layers.py").write_text("import torch\ndef activation(x): return torch.relu(x)\n")
    (tmp_path / "zoo.yaml").write_text(
        "inputs: {kind: photographs, batch: 1, count: 1, size: 16}\n"
        f"models: [{{name: net, source: custom, model: '{tmp_path / 'net.py'}:Net'}}]\n"
    )
    file = tmp_path / "own.yaml"
    file.write_text(
        "zoo: zoo.yaml\nmining: {min_support: 1, max_nodes: 2}\n"
        "generation: {per_pattern: 1, inputs_per_api: 1}\nmethods: [single-api]\n"
        "platforms: {reference: cpu, candidate: other}\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield file
    for name in ("layers", "net", "unrelated"):
        sys.modules.pop(name, None)


def command(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "sortlib", *map(str, arguments), "--quiet"], capture_output=True,
                          text=True, env={**os.environ, **environment})  # fmt: skip


@pytest.fixture
def copy(tiny_study, tmp_path):
    return Study(shutil.copytree(tiny_study.directory, tmp_path / "copy"))


# ---- several processes ----


def test_what_another_process_notes_is_kept(copy):
    other = Study(copy.directory)
    copy.note("rq4", budget=1)
    other.note("notebooks", done={})
    other.spent("sort", run=1.0)
    manifest = Study(copy.directory).manifest
    assert manifest["stages"]["rq4"] == {"budget": 1} and manifest["stages"]["notebooks"] == {"done": {}}
    assert "fingerprint" in manifest["stages"]["mine"]
    assert other.stage("rq4") == {"budget": 1}, "it is known to whoever noted something afterwards"


def test_a_study_that_got_other_settings_meanwhile_is_not_mixed_with_them(copy):
    """Its stages' marks and its cases stay those of the settings that stand in its manifest."""
    slow = Study(copy.directory)
    quick = Study.create(copy.config.model_copy(update={"seed": 7}), copy.directory)
    complete(quick, "generate", progress=False)
    ids, stages = [case.id for case in quick.cases], Study(copy.directory).manifest["stages"]
    for change in (lambda: slow.note("generate", fingerprint="old"), lambda: slow.save_cases(slow.cases[:1]),
                   lambda: slow.save_patterns([]), lambda: slow.spent("sort", run=1.0)):  # fmt: skip
        with pytest.raises(SortError, match="another process has given this study other settings meanwhile"):
            change()
    opened = Study(copy.directory)
    assert opened.config.seed == 7 and opened.manifest["stages"] == stages
    assert [case.id for case in opened.cases] == ids and opened.patterns


# ---- what makes results out of date ----


def test_a_platform_defined_anew_is_run_again(own, tmp_path):
    """``other`` first computes in bfloat16, then as the reference does, so that nothing may differ."""
    out, definitions = tmp_path / "run", tmp_path / "platforms.yaml"
    largest = []
    for base in ("cpu:bf16", "cpu"):
        definitions.write_text(f"platforms: {{other: {{base: '{base}', threads: 1}}}}\n")
        done = command("study", own, "--out", out, "--upto", "run", SORTLIB_PLATFORMS=str(definitions))
        assert done.returncode == 0, done.stderr
        largest.append(Study(out).all_outcomes["propagated_max_abs"].max())
    assert largest[0] > 0 and largest[1] == 0


def test_thresholds_in_a_file_that_changed_change_the_tables(own, tmp_path):
    limits, out = tmp_path / "limits.yaml", tmp_path / "run"
    own.write_text(
        own.read_text().replace("candidate: other", "candidate: 'cpu:baseline'") + "thresholds: limits.yaml\n"
    )
    counts = []
    for bounds in (1.0, 1e-6):
        limits.write_text(f"- {{api: conv2d, bounds: {bounds}, ulp: 0, clearly_worse: 1, source: a test}}\n")
        study = complete(Study.create(load_config(own), out), progress=False)
        table = pd.read_csv(out / "tables" / "findings.csv")
        assert table["verdict"].value_counts().to_dict() == study.findings["verdict"].value_counts().to_dict()
        counts.append((table["verdict"] == "rounding").sum())
    assert counts[0] > counts[1], "what the first table calls rounding is no rounding under the second"


def test_a_change_in_a_file_that_a_model_imports_is_seen(own, tmp_path):
    out, layers = tmp_path / "run", tmp_path / "layers.py"
    for name in ("relu", "tanh"):
        layers.write_text(layers.read_text().replace("relu", name))
        assert command("study", own, "--out", out, "--upto", "trace", "--candidate", "cpu").returncode == 0
        assert [node.api for node in Study(out).graphs[0].nodes] == ["conv2d", name, "conv2d"]
    before = (out / "graphs" / "net.json").stat().st_mtime_ns
    assert command("study", own, "--out", out, "--upto", "trace", "--candidate", "cpu").returncode == 0
    assert (out / "graphs" / "net.json").stat().st_mtime_ns == before, "nothing changed, so nothing is traced"


def test_the_users_code_is_neither_pythons_nor_installed_nor_ours(own, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unrelated.py").write_text("")
    net, __ = importlib.import_module("net"), importlib.import_module("unrelated")
    found = user_code.behind(net.Net())
    assert set(found) == {str(tmp_path / name) for name in ("net.py", "layers.py")} and user_code.unchanged(found)
    assert user_code.behind(torch.nn.Linear(1, 1)) == {}
    assert set(user_code.behind(torch.nn.Linear(1, 1), tmp_path / "layers.py")) == {str(tmp_path / "layers.py")}
    (tmp_path / "layers.py").write_text("changed")
    assert not user_code.unchanged(found)


def test_other_limits_of_the_other_methods_are_another_folder(copy):
    limits = copy.config.baselines.model_copy(update={"timeout": 1.0})
    changed = Study.create(copy.config.model_copy(update={"baselines": limits}), copy.directory)
    complete(changed, "run", progress=False)
    assert changed.baseline_folder != copy.baseline_folder
    assert changed.baseline_folder.parent == copy.baseline_folder.parent, "SORT's own outcomes fit both"


def test_methods_of_which_nothing_was_run_yet_have_empty_tables(copy):
    """An interrupted study can be looked at."""
    Study.create(copy.config.model_copy(update={"methods": ("docter", "acetest", "freefuzz")}), copy.directory)
    study = complete(Study(copy.directory), "generate", progress=False)
    study.note("run", **copy.stage("run"))
    assert study.baseline_outcomes.empty
    attempts = tables.validity(study).filter(regex="^(docter|acetest|freefuzz).*_attempts$")
    assert attempts.shape[1] == 5 and (attempts == "/").all(axis=None)


# ---- what is said of damage ----


def test_a_damaged_file_says_which_command_makes_it_anew(own, tmp_path):
    out = tmp_path / "run"
    assert command("study", own, "--out", out, "--upto", "mine", "--candidate", "cpu").returncode == 0
    (out / "patterns.json").write_text("{")
    study = Study(out)
    with pytest.raises(SortError) as error:
        _ = study.patterns
    said = str(error.value)
    assert said.startswith(f"{out / 'patterns.json'}: is damaged") and f"'sortlib study {own} --out {out} " in said
    with pytest.raises(SortError, match=f"continue with 'sortlib study {own} --out {out} "):
        _ = study.cases


@pytest.mark.parametrize(
    ("content", "said"), [("import sys; sys.exit(0)", "SystemExit"), ("{}['lost']", "KeyError: 'lost'")]
)
def test_a_package_that_fails_when_it_is_imported_is_told(own, tmp_path, content, said):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text(content)
    (tmp_path / "zoo.yaml").write_text("models: [{name: net, source: custom, model: 'pack.mod:Net'}]\n")
    done = command("study", own, "--out", tmp_path / "run", "--candidate", "cpu", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "model 'net'" in done.stderr and said in done.stderr


def test_the_command_is_known_however_it_was_started(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python/sortlib/__main__.py", "study", "my study.yaml"])
    assert made_with()["command"] == "sortlib study 'my study.yaml'"
    monkeypatch.setattr(sys, "argv", ["/opt/bin/sortlib", "study", "quick"])
    assert made_with()["command"] == "sortlib study quick"
    monkeypatch.setattr(sys, "argv", ["/home/me/__main__.py"])
    assert made_with()["command"] == "python"


@pytest.mark.parametrize("name", ["clean-relu.parquet", "attempts-relu.json"])
def test_a_damaged_file_of_the_seeded_faults_is_one_line(copy, name, monkeypatch):
    folder = seeded_faults.folder_of(copy, 4, [])
    folder.mkdir(parents=True)
    for part in ("clean-relu.parquet", "relu-last-element.parquet"):
        pd.DataFrame({"case": []}).to_parquet(folder / part)
    (folder / "attempts-relu.json").write_text('{"cases": {}, "absent": {}, "rare": false}')
    (folder / name).write_bytes(b"PAR1")
    copy.note("rq4", budget=4, methods=[])
    with pytest.raises(SortError, match=f"{name}: is damaged .*; delete it, and 'sortlib faults' makes it anew"):
        seeded_faults.stored(copy)


def test_a_folder_for_seeded_faults_that_is_none_is_one_line(copy):
    (copy.directory / "rq4").write_text("a file")
    result = CliRunner().invoke(cli.app, ["faults", str(copy.directory), "--fault", "relu-last-element", "--quiet"])
    assert isinstance(result.exception, SortError) and "rq4" in str(result.exception)
