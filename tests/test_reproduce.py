"""Scripts that show a finding without sortlib: each is run as its reader would, and is wrong where nothing differs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import faulty_backend as fault
import numpy as np
import pytest
from typer.testing import CliRunner

import sortlib as sl
from sortlib.checking import _case, check_file
from sortlib.errors import SortError
from sortlib.minimizing import target_of
from sortlib.pipeline import complete
from sortlib.platform import Platform, require
from sortlib.reproducing import issue, making
from sortlib.reproducing.making import reproduce_case, variants
from sortlib.runner.campaign import run
from sortlib.study import Study, StudyConfig

HERE = str(Path(__file__).parent)
CPU = Platform("cpu", "cpu")
FAULTY = Platform("faulty", "cpu", imports=("faulty_backend",), env={"PYTHONPATH": HERE, "SORT_TEST_FAULTS": "1"})


def normal(*shape, shift=0.0):
    return (np.random.default_rng(0).standard_normal(shape) + shift).astype("float32")


def row(**changes):
    """A row that accuses the candidate's relu; the script is what has to show it."""
    return {"api": "relu", "node": 1, "reference": "cpu", "candidate": "faulty", "status": "ok", "side": "",
            "message": "", "random": False, "reference_dtype": "float32", **changes}  # fmt: skip


def script_of(folder, expression, inputs, candidate, accused, rule="evidence", timeout=60):
    case = _case(expression, inputs, folder / "given")
    target = target_of([{**accused, "node": len(case.nodes) - 1}], rule=rule)
    return reproduce_case(case, target, CPU, candidate, folder / "script.py", timeout=timeout, progress=False)


def executed(path):
    """Exit status and output of a script in an interpreter that does not see this project."""
    done = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


@pytest.fixture
def no_variants(monkeypatch):
    """Without the runs that look for settings under which a finding vanishes."""
    monkeypatch.setattr(making, "variants", lambda platform: [])


def test_a_real_defect_in_a_script_of_torch_and_numpy(tmp_path, monkeypatch):
    candidate = require("cpu:channels_last")
    monkeypatch.setattr(making, "variants", lambda platform: variants(platform)[:1])
    case = _case("F.group_norm(x, 8)", {"x": normal(2, 16, 8, 8, shift=1e4)}, tmp_path / "given")
    rows = run([case], CPU, candidate, progress=False)
    made = reproduce_case(case, target_of(rows.to_dict("records")), CPU, candidate, tmp_path / "script.py",
                          progress=False)  # fmt: skip
    text = made.script.read_text()
    assert made.reproduces and made.state == "reproduces"
    assert "sortlib" not in text and "http" not in text
    lines = made.output.splitlines()
    assert lines[-1] == "reproduced" and lines[-2].startswith("the candidate is wrong by ")
    assert {"reference (cpu):", "candidate (cpu:channels_last):", "float64:"} <= set(lines)
    # The variant that makes the two sides one shows no difference, and says so.
    assert made.gone == ("contiguous inputs instead of channels_last",)
    same = tmp_path / "same.py"
    same.write_text(text.replace('"memory_format": "channels_last",', ""))
    status, output = executed(same)
    assert status == 1 and output.splitlines()[-1] == "NOT reproduced"
    said = made.issue.read_text()
    parts = ["### 🐛 Describe the bug", "### Versions", "PyTorch version: ", text.strip()]
    parts += ["largest error of the candidate against float64", "contiguous inputs instead of channels_last"]
    assert [part for part in parts if part not in said] == []


CRASH = row(status="crash", side="candidate", message="killed by SIGSEGV")
RAISED = row(status="exception", side="candidate", message="RuntimeError: this backend does not like 14 rows")
HANG = row(status="timeout", side="candidate", message="no answer within 3 s", seconds_reference=1e-5)
WRONG = row(reference_error=0.0, candidate_error=0.25, reference_ratio=0.0, candidate_ratio=1e6,
            reference_own_ratio=0.0, candidate_own_ratio=1e6)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "accused", "cause", "shown"),
    [
        (fault.SEGFAULT, CRASH, "crash on the candidate: killed by SIGSEGV", "the process ended with status -11"),
        (fault.RAISES, RAISED, "exception on the candidate: RuntimeError", "RuntimeError: this backend does not like"),
        (fault.ENDLESS, HANG, "hang on the candidate", "no answer within 13 s"),
    ],
)
def test_faults_of_a_backend_that_a_module_registers(rows, accused, cause, shown, tmp_path, no_variants, monkeypatch):
    monkeypatch.setattr(making, "STARTING", 10.0)
    made = script_of(tmp_path, "torch.relu(torch.tanh(x))", {"x": normal(rows, 3)}, FAULTY, accused, timeout=3)
    assert made.reproduces, made.output
    assert cause in made.issue.read_text().splitlines()[0]
    assert f"candidate: {shown}" in made.output and "reference: returned" in made.output
    assert "def before(x):" in made.script.read_text(), "relu gets what the reference's tanh returns"


def test_a_backend_that_is_not_there_is_no_crash(tmp_path, no_variants):
    absent = Platform("absent", "cpu", imports=("no_such_backend",))
    made = script_of(tmp_path, "torch.relu(x)", {"x": normal(fault.SEGFAULT, 3)}, absent, CRASH)
    assert made.state == "does not reproduce"
    assert "candidate: the call was not reached: the process ended with status 1" in made.output


def test_an_environment_gets_a_process_of_its_own(tmp_path, no_variants):
    """Under the paper's rule, portable kernels differ for large values; variables must be set before torch starts."""
    inputs = {"x": normal(64, 512) * np.float32(100), "w": normal(64, 512)}
    accused = row(api="linear", propagated_max_abs=1.0)
    made = script_of(tmp_path, "F.linear(x, w)", inputs, require("cpu:baseline"), accused, rule="paper")
    text = made.script.read_text()
    assert made.reproduces and '"MKL_CBWR": "COMPATIBLE"' in text and "subprocess.run" in text


def test_a_script_that_does_not_reproduce_says_so(tmp_path, no_variants):
    made = script_of(tmp_path, "torch.relu(x)", {"x": normal(fault.WRONG, 3)}, Platform("sound", "cpu"), WRONG)
    assert made.state == "does not reproduce" and made.output.endswith("NOT reproduced")
    assert "do not file this" in made.issue.read_text()


SQUARE = normal(6, 6)
FREE = {  # fault -> call, whose outputs are not unique; inputs; what the script says of the candidate
    "turned vectors": ("torch.linalg.eigh(x @ x.mT)", {"x": SQUARE}, "the candidate is wrong by"),
    "positions": ("torch.argmax(x, -1)", {"x": SQUARE}, "the candidate is wrong by"),
    "unscaled dropout": ("F.dropout(x, 0.25)", {"x": normal(2000)}, "the candidate is wrong by"),
    "share of dropout": ("F.dropout(x, 0.25)", {"x": normal(4000)}, "standard deviations from 25.00%"),
}


@pytest.mark.parametrize("armed", FREE)
def test_results_that_are_not_unique_are_compared_by_what_every_right_one_shares(armed, tmp_path, no_variants):
    call, inputs, said = FREE[armed]
    candidate = Platform("faulty", "cpu", imports=("faulty_arithmetic",),
                         env={"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": armed})  # fmt: skip
    case = _case(call, inputs, tmp_path / "given")
    target = target_of(run([case], CPU, candidate, progress=False).to_dict("records"))
    assert target.cause.side == "candidate" and target.verdict == "suspect"
    made = reproduce_case(case, target, CPU, candidate, tmp_path / "script.py", progress=False)
    assert made.reproduces and said in made.output, made.output
    text = made.script.read_text()
    assert "def compared(outputs, operands):" in text and "sortlib" not in text
    # Without the fault it says so, although vectors may turn round and each side draws its own mask.
    sound = tmp_path / "sound.py"
    sound.write_text(text.replace(f'"SORT_TEST_ARITHMETIC": "{armed}"', '"SORT_TEST_ARITHMETIC": "other numbers"'))
    status, output = executed(sound)
    assert status == 1 and output.splitlines()[-1] == "NOT reproduced", output


def test_a_result_that_changes_from_call_to_call_is_called_often(tmp_path, no_variants):
    candidate = Platform("faulty", "cpu", imports=("faulty_arithmetic",),
                         env={"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": "flaky silu"})  # fmt: skip
    case = _case("F.silu(x)", {"x": normal(20)}, tmp_path / "given")
    target = target_of(run([case], CPU, candidate, progress=False).to_dict("records"))
    made = reproduce_case(case, target, CPU, candidate, tmp_path / "script.py", progress=False)
    assert made.reproduces and "CALLS = 20" in made.script.read_text(), made.output


def test_gradients_of_a_mask_are_compared_where_they_are_kept(tmp_path, no_variants):
    candidate = Platform("faulty", "cpu", imports=("faulty_arithmetic",),
                         env={"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": "unscaled dropout"})  # fmt: skip
    case = _case("F.dropout(x, 0.25)", {"x": normal(500)}, tmp_path / "given", backward=True)
    target = target_of(run([case], CPU, candidate, progress=False).to_dict("records"))
    made = reproduce_case(case, target, CPU, candidate, tmp_path / "script.py", progress=False)
    assert made.reproduces and made.output.count("largest error of the reference against float64") == 1, made.output


def test_what_a_fresh_process_did_not_repeat_has_no_script(tmp_path, no_variants):
    accused = row(unconfirmed="crash", message="crash of the candidate on the first try", local_differing=0.0,
                  local_max_abs=0.0, propagated_max_abs=0.0, incoming=0.0, nan_inputs=False)  # fmt: skip
    with pytest.raises(SortError, match="relu: crash that a fresh process did not repeat"):
        script_of(tmp_path, "torch.relu(x)", {"x": normal(4, 3)}, FAULTY, accused)


def test_inputs_too_large_for_a_script_are_one_clear_line(tmp_path, no_variants):
    with pytest.raises(SortError, match=r"script.py: the inputs make a script of [\d,]+ characters; minimize"):
        script_of(tmp_path, "torch.relu(x)", {"x": normal(fault.WRONG, 30_000)}, FAULTY, WRONG)
    assert not (tmp_path / "script.py").exists()


def test_variants_change_one_setting_each():
    labels = dict(variants(require("cpu:baseline")))
    assert labels["without MKL_CBWR=COMPATIBLE"].env == {"ATEN_CPU_CAPABILITY": "default"}
    assert labels["without torch.backends.mkldnn.enabled = False"].backends == {}
    assert variants(require("cpu:bf16"))[0][1].dtype is None
    assert "torch.backends.mkldnn.enabled = False" in dict(variants(CPU))


def test_versions_are_those_of_collect_env():
    assert issue.versions().startswith("PyTorch version: ")


CHECKS = """
- {id: "group norm, channels last", inputs: {x: "(rng.standard_normal((2, 8, 8, 8)) + 1e4).astype('float32')"},
   call: "F.group_norm(x, 4)", candidate: cpu:channels_last, evidence: suspect}
- {id: fine, inputs: {x: "np.ones(3, 'float32')"}, call: torch.relu(x), evidence: identical}
"""


def test_a_checked_file_writes_a_script_for_what_accuses(tmp_path, no_variants):
    (tmp_path / "cases.yaml").write_text(CHECKS)
    first, second = check_file(tmp_path / "cases.yaml", reproduce=tmp_path / "scripts")
    assert first["ok"] and first["reproducer"] == "reproduces"
    assert first["script"] == str(tmp_path / "scripts" / "group-norm-channels-last.py")
    assert "script" not in second and len(list((tmp_path / "scripts").iterdir())) == 2
    assert executed(first["script"])[0] == 0


@pytest.fixture(scope="module")
def accused(tiny_study, tmp_path_factory):
    """The study ``tiny`` on a platform whose conv2d is off by 0.25."""
    directory = tmp_path_factory.mktemp("studies") / "accused"
    shutil.copytree(tiny_study.directory, directory)
    faulty = {"device": "cpu", "imports": ["faulty_backend"],
              "env": {"PYTHONPATH": HERE, "SORT_TEST_CONV_OFFSET": "0.25"}}  # fmt: skip
    raw = tiny_study.config.model_dump(mode="json")
    raw["platforms"] = {"reference": "cpu", "candidate": "off", "define": {"off": faulty}}
    return complete(Study.create(StudyConfig(**raw), directory), upto="run", progress=False)


def test_one_bug_is_one_row(accused):
    table = sl.findings(accused)
    assert table[["verdict", "api", "cause"]].values.tolist() == [["suspect", "conv2d", "accuracy on the candidate"]]
    (row,) = table.to_dict("records")
    rows = accused.judged
    assert row["calls"] >= row["cases"] >= (rows["api"] == "conv2d").sum() / len(rows)
    assert row["reproducer"] == "not made" and row["only"] == ""
    assert row["worst_case"] in set(rows["case"]) | set(accused.judged_single["case"])


def test_the_command_line_makes_the_script_of_a_finding(accused, no_variants):
    (finding,) = sl.findings(accused)["finding"]
    result = CliRunner().invoke(
        __import__("sortlib.cli", fromlist=["app"]).app,
        ["reproduce", str(accused.directory), finding, "--minimize", "--seconds", "20", "--quiet"],
    )
    assert result.exit_code == 0, result.output
    script = accused.directory / "findings" / f"{finding}.py"
    assert f"Script: {script} (reproduces)" in result.output
    assert sl.findings(accused)["reproducer"].tolist() == ["reproduces"]
    assert json.loads((accused.directory / "findings" / f"{finding}.json").read_text())["minimized"] is True
    # 0.25 whatever the inputs are, so the smallest image and the smallest kernel do.
    assert "torch.zeros((1, 1, 1, 1), dtype=torch.float32)" in script.read_text()
    assert "the candidate is wrong by 0.25, the reference only by 0" in result.output


def test_a_case_without_a_finding_is_one_clear_line(accused):
    harmless = next(case for case in accused.cases if all(node.api != "conv2d" for node in case.nodes))
    with pytest.raises(SortError, match=f"case {harmless.id}: nothing to reproduce"):
        sl.reproduce(accused, harmless.id)
    with pytest.raises(SortError, match="no case 'nosuch'"):
        sl.minimize(accused, "nosuch")
