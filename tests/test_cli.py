"""The command line as a person types it: good runs, mistakes in one line, interrupts and resumption."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import sortlib as sl
from sortlib.records import load_records
from sortlib.study import Study

SORTLIB = Path(sys.executable).with_name("sortlib")
TINY = """
zoo: tiny
mining: {min_support: 2, max_nodes: 3}
generation: {per_pattern: 1, inputs_per_api: 2, max_patterns: 8}
platforms: {reference: cpu, candidate: "cpu:baseline"}
"""


def sortlib(*arguments, **options):
    return subprocess.run([SORTLIB, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options)


def one_line_error(result, *words):
    assert result.returncode == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("sortlib: "), result.stderr
    for word in words:
        assert word in lines[0]


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(TINY)
    return path


def test_help_names_every_command():
    shown = sortlib("--help").stdout
    for command in ("study", "report", "platforms", "zoo", "trace"):
        assert re.search(rf"^\s+{command}\s", shown, re.M)


def test_platforms_lists_what_is_here_and_why_the_rest_is_not():
    shown = sortlib("platforms").stdout
    assert re.search(r"^cpu:baseline\s.*\[available\]$", shown, re.M)
    assert re.search(r"^mps\s.*\[missing: .+\]$", shown, re.M)


def test_zoo_lists_models():
    shown = sortlib("zoo", "quick").stdout
    assert "resnet18" in shown and shown.strip().endswith("11 models")


def test_trace_counts_calls(tmp_path):
    result = sortlib("trace", "quick", "--model", "resnet18", "--out", tmp_path, "--quiet")
    # resnet18: 69 calls and 76 edges were counted independently for the digest of public facts.
    assert re.search(r"resnet18\s+69\s+76\s", result.stdout)
    assert (tmp_path / "resnet18.json").is_file()


class TestMistakes:
    def test_unknown_study(self):
        one_line_error(sortlib("study", "quik"), "quik", "quick", "paper")

    def test_unknown_model(self, tmp_path, study_file):
        (tmp_path / "zoo.yaml").write_text("models: [{name: x, source: openmmlab, model: resnet18_8xb32_in2k}]\n")
        study_file.write_text(TINY.replace("zoo: tiny", "zoo: zoo.yaml"))
        one_line_error(sortlib("study", study_file, "--out", tmp_path / "run", "--quiet"),
                       "zoo.yaml", "resnet18_8xb32_in2k", "resnet18_8xb32_in1k")  # fmt: skip

    def test_unreadable_image_folder(self, tmp_path, study_file):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
        (tmp_path / "zoo.yaml").write_text(
            "inputs: {kind: folder, path: photos}\n"
            "models: [{name: x, source: custom, model: 'sortlib.zoo.tiny:ResidualNet'}]\n"
        )
        study_file.write_text(TINY.replace("zoo: tiny", "zoo: zoo.yaml"))
        result = sortlib("study", study_file, "--out", tmp_path / "run", "--quiet")
        one_line_error(result, "broken.jpg")

    def test_missing_platform(self, study_file):
        one_line_error(sortlib("study", study_file, "--candidate", "mps"), "mps", "cpu:baseline")

    def test_unknown_platform(self, study_file):
        one_line_error(sortlib("study", study_file, "--candidate", "cpu:fast"), "cpu:fast", "baseline")

    def test_broken_yaml_key(self, study_file):
        study_file.write_text(TINY.replace("max_nodes", "maxnodes"))
        one_line_error(sortlib("study", study_file), "mine.yaml", "maxnodes", "max_nodes")

    def test_broken_yaml(self, study_file):
        study_file.write_text("zoo: [tiny\n")
        one_line_error(sortlib("study", study_file), "mine.yaml", "line")

    def test_support_of_zero(self, study_file):
        study_file.write_text(TINY.replace("min_support: 2", "min_support: 0"))
        one_line_error(sortlib("study", study_file), "mine.yaml", "mining.min_support", "1 or more", "0")

    def test_no_study_there(self, tmp_path):
        one_line_error(sortlib("report", tmp_path), str(tmp_path), "manifest.json")

    def test_unknown_stage(self, study_file, tmp_path):
        one_line_error(sortlib("study", study_file, "--out", tmp_path / "run", "--upto", "end"), "end", "generate")

    def test_a_mistake_loses_nothing_computed(self, tmp_path, study_file):
        out = tmp_path / "run"
        assert sortlib("study", study_file, "--out", out, "--upto", "run", "--quiet").returncode == 0
        before = Study(out).all_outcomes
        study_file.write_text(TINY.replace("min_support: 2", "min_support: 0"))
        one_line_error(sortlib("study", study_file, "--out", out), "min_support")
        one_line_error(sortlib("study", "tiny", "--out", out, "--candidate", "mps"), "mps")
        pd.testing.assert_frame_equal(Study(out).all_outcomes, before)


def untimed(frame):
    return frame.drop(columns=[name for name in frame if name.startswith("seconds_")])


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the study did not get that far"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "long.yaml"
    path.write_text(TINY.replace("inputs_per_api: 2", "inputs_per_api: 30"))
    return path


@pytest.fixture(scope="module")
def whole(long_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    result = sortlib("study", long_file, "--out", out, "--no-notebooks", "--quiet")
    assert result.returncode == 0, result.stderr
    return out, result


class TestResume:
    """A study that is interrupted goes on where it stopped and ends with the same figures to the last digit."""

    def interrupted(self, long_file, out, number):
        """Start the study, end it by a signal as soon as the bar counts a finished case, and wait for its end."""
        command = [SORTLIB, "study", str(long_file), "--out", str(out), "--no-notebooks"]
        log = out.with_name("errors")
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            wait_for(lambda: re.search(r"run cpu .*\| *[1-9]\d*/\d+ ", log.read_text()))
            os.kill(process.pid, number)
            return process.wait(timeout=60), log.read_text()

    def test_second_run_gives_the_same_tables(self, whole, long_file, tmp_path):
        out = tmp_path / "again"
        assert sortlib("study", long_file, "--out", out, "--no-notebooks", "--quiet").returncode == 0
        pd.testing.assert_frame_equal(untimed(Study(out).all_outcomes), untimed(Study(whole[0]).all_outcomes))
        tables = sorted(path.name for path in (whole[0] / "tables").glob("*.csv"))
        assert tables
        for name in tables:
            assert (out / "tables" / name).read_bytes() == (whole[0] / "tables" / name).read_bytes(), name

    def test_ctrl_c(self, whole, long_file, tmp_path):
        out = tmp_path / "run"
        status, errors = self.interrupted(long_file, out, signal.SIGINT)
        assert status == 130
        assert errors.strip().splitlines()[-1] == "sortlib: interrupted; the same command goes on from here"
        first = sorted((out / "outcomes").glob("*/part-*.parquet"))
        assert first, "what was finished must have been written"
        written = {path: path.read_bytes() for path in first}
        assert sortlib("study", long_file, "--out", out, "--no-notebooks", "--quiet").returncode == 0
        assert {path: path.read_bytes() for path in first} == written
        pd.testing.assert_frame_equal(untimed(Study(out).all_outcomes), untimed(Study(whole[0]).all_outcomes))
        assert not Study(out).all_outcomes.duplicated(["case", "node"]).any()

    def test_kill(self, whole, long_file, tmp_path):
        out = tmp_path / "run"
        status, _ = self.interrupted(long_file, out, signal.SIGKILL)
        assert status == -signal.SIGKILL
        assert sortlib("study", long_file, "--out", out, "--no-notebooks", "--quiet").returncode == 0
        pd.testing.assert_frame_equal(untimed(Study(out).all_outcomes), untimed(Study(whole[0]).all_outcomes))

    def test_closing_lines(self, whole):
        out, result = whole
        lines = result.stdout.strip().splitlines()
        assert f"Report: {out / 'report.html'}" in lines
        assert sl.findings(Study(out)).empty, "the same PyTorch on other kernels"
        assert "No call accuses a platform." in lines
        start = lines.index("The largest differences, none of which is a finding:")
        assert [line.split(".")[0] for line in lines[start + 1 :]] == ["1", "2", "3", "4", "5"]

    def test_a_finished_study_is_not_run_again(self, whole, long_file, tmp_path):
        out = tmp_path / "copy"
        shutil.copytree(whole[0], out)
        parts = {path: path.stat().st_mtime_ns for path in out.glob("outcomes/*/*")}
        assert sortlib("study", long_file, "--out", out, "--no-notebooks", "--quiet").returncode == 0
        assert {path: path.stat().st_mtime_ns for path in out.glob("outcomes/*/*")} == parts


def test_trace_in_training_mode_writes_records_with_gradients(tmp_path):
    result = sortlib("trace", "tiny", "--model", "tiny-residual", "--train", "--records", "--out", tmp_path, "--quiet")
    records = load_records(tmp_path / "tiny-residual.parquet")
    reached = sum(bool(r.input_gradients) or any(r.output_gradients) for r in records)
    assert result.returncode == 0 and reached > 0
    # the table's last column says the same number
    assert re.search(rf"^\s*tiny-residual\s+{len(records)}\s.*\s{reached}$", result.stdout, re.M)


def test_trace_goes_on_after_a_model_that_raises(tmp_path):
    (tmp_path / "ours.py").write_text(
        "import torch\n\n\n"
        "class Bad(torch.nn.Module):\n    def forward(self, x):\n        return x.relu() @ x.sum(0)[:2]\n"
    )
    zoo = tmp_path / "zoo.yaml"
    zoo.write_text(
        "inputs: {kind: photographs, size: 32}\n"
        "models:\n"
        "  - {name: bad, source: custom, model: 'ours:Bad'}\n"
        "  - {name: relu, source: custom, model: 'torch.nn:ReLU'}\n"
    )
    result = sortlib("trace", zoo, "--quiet", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert result.returncode == 1 and re.search(r"^\s*relu\s+1\s", result.stdout, re.M)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("sortlib: bad raised") and "matmul" in line


def test_a_capture_without_values_has_no_gradients():
    one_line_error(sortlib("trace", "tiny", "--fake", "--train"), "--fake", "--train")
