"""Scripts that show a finding without sortlib: each is run as its reader would, and is wrong where nothing differs."""

import ast
import hashlib
import json
import math
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import faulty_backend as fault
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sortlib as sl
from sortlib.checking import _case, check_file
from sortlib.errors import SortError
from sortlib.features import TensorFeatures
from sortlib.grouping import Cause
from sortlib.minimizing import Target, target_of
from sortlib.pipeline import complete
from sortlib.platform import Platform, require
from sortlib.reproducing import issue, making, script
from sortlib.reproducing.checked import file_name
from sortlib.reproducing.draft import Draft
from sortlib.reproducing.making import reproduce_case, variants
from sortlib.reproducing.source import source_of
from sortlib.reproducing.values import HELPERS, Value
from sortlib.runner import backward
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


def unused(text):
    """Functions, constants and imports of a script that nothing in it mentions."""
    tree = ast.parse(text)
    made = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    made += [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    made += [name.asname or name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names]
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    # "import torch.nn.functional as F" is read as F, "import os" as os.
    return [name for name in made if name not in read]


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
    assert {"reference (cpu), output:", "candidate (cpu:channels_last), output:", "float64, output:"} <= set(lines)
    assert "Needs torch only." in text.splitlines() and unused(text) == []
    # The variant that makes the two sides one shows no difference, and says so.
    assert made.gone == ("with contiguous inputs instead of channels_last",)
    same = tmp_path / "same.py"
    same.write_text(text.replace('"memory_format": "channels_last",', ""))
    status, output = executed(same)
    assert status == 1 and output.splitlines()[-1] == "NOT reproduced"
    said = made.issue.read_text()
    parts = ["### 🐛 Describe the bug", "### Versions", "PyTorch version: ", text.strip()]
    parts += ["largest error of the candidate against float64"]
    parts += ["The difference is gone with contiguous inputs instead of channels_last."]
    assert [part for part in parts if part not in said] == []


CRASH = row(status="crash", side="candidate", message="killed by SIGSEGV")
RAISED = row(status="exception", side="candidate", message="RuntimeError: this backend does not like 14 rows")
HANG = row(status="timeout", side="candidate", message="no answer within 3 s", seconds_reference=1e-5)
WRONG = row(reference_error=0.0, candidate_error=0.25, reference_ratio=0.0, candidate_ratio=1e6,
            reference_own_ratio=0.0, candidate_own_ratio=1e6)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "accused", "does", "shown"),
    [
        (fault.SEGFAULT, CRASH, "crashes (killed by SIGSEGV)", "the process ended with status -11"),
        (fault.RAISES, RAISED, "raises RuntimeError", "RuntimeError: this backend does not like"),
        (fault.ENDLESS, HANG, "hangs", "no answer within 13 s"),
    ],
)
def test_faults_of_a_backend_that_a_module_registers(rows, accused, does, shown, tmp_path, no_variants, monkeypatch):
    monkeypatch.setattr(making, "STARTING", 10.0)
    made = script_of(tmp_path, "torch.relu(torch.tanh(x))", {"x": normal(rows, 3)}, FAULTY, accused, timeout=3)
    assert made.reproduces, made.output
    assert made.issue.read_text().splitlines()[0] == f"# torch.relu {does} on CPU with SORT_TEST_FAULTS=1"
    assert f"candidate: {shown}" in made.output and "reference: returned" in made.output
    text = made.script.read_text()
    assert "def before(x):" in text, "relu gets what the reference's tanh returns"
    assert "Needs torch and the module faulty_backend." in text.splitlines() and unused(text) == []


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
    assert "def compared(outputs, operands):" in text and "sortlib" not in text and unused(text) == []
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


NORM = {"x": normal(3, 8), "w": np.ones(8, "float32"), "b": np.zeros(8, "float32")}


def test_gradients_are_named_and_only_those_that_are_wrong_stay(tmp_path, no_variants):
    candidate = Platform("faulty", "cpu", imports=("faulty_arithmetic",),
                         env={"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": "layer norm gradient"})  # fmt: skip
    case = _case("F.layer_norm(x, (8,), w, b)", NORM, tmp_path / "given", backward=True)
    target = target_of(run([case], CPU, candidate, progress=False).to_dict("records"))
    whole = reproduce_case(case, target, CPU, candidate, tmp_path / "whole.py", progress=False)
    wanted = ["output", "gradient of input", "gradient of weight", "gradient of bias"]
    assert whole.reproduces, whole.output
    assert [line for line in whole.output.splitlines() if line.startswith("candidate (")] == [
        f"candidate (faulty), {label}:" for label in wanted
    ]
    title = whole.issue.read_text().splitlines()[0]
    assert title.startswith("# F.layer_norm gives a wrong gradient of ") and title.endswith(
        " on CPU with SORT_TEST_ARITHMETIC=layer norm gradient"
    )
    text = whole.script.read_text()
    assert "is_complex" not in text and "ones_like" not in text and unused(text) == []
    assert "Needs torch, numpy and the module faulty_arithmetic." in text.splitlines()
    # The fault forgets three gradients, so that any one of them will do.
    shrink = {"seconds": 60, "folder": tmp_path / "smallest"}
    small = reproduce_case(case, target, CPU, candidate, tmp_path / "small.py", shrink=shrink, progress=False)
    assert small.reproduces, small.output
    assert [line for line in small.output.splitlines() if line.startswith("candidate (")] == [
        "candidate (faulty), output:", "candidate (faulty), gradient of bias:",
    ]  # fmt: skip


def test_a_wrong_result_needs_no_gradients(tmp_path, no_variants):
    case = _case("torch.relu(x)", {"x": normal(fault.WRONG, 3)}, tmp_path / "given", backward=True)
    target = target_of(run([case], CPU, FAULTY, progress=False).to_dict("records"))
    shrink = {"seconds": 60, "folder": tmp_path / "smallest"}
    made = reproduce_case(case, target, CPU, FAULTY, tmp_path / "script.py", shrink=shrink, progress=False)
    text = made.script.read_text()
    assert made.reproduces and unused(text) == []
    assert [word for word in ("autograd", "DIFFERENTIATED", "SEED", "complex", "numpy as np") if word in text] == []
    assert "Needs torch and the module faulty_backend." in text.splitlines(), "what draws nothing needs no numpy"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_the_gradient_of_an_output_in_a_script_is_the_one_that_was_judged(dtype):
    output = torch.zeros(3, 5, dtype=dtype)
    settled = {"kind": "drawn", **({} if dtype.is_complex else {"output.is_complex()": False})}
    text = source_of("upstream_of", module=backward, settled=settled)
    scope = {"np": np, "torch": torch, "hashlib": hashlib}
    exec(text, scope)
    assert torch.equal(scope["upstream_of"](output, "7/0"), backward.upstream_of(output, "7/0", "drawn"))
    assert "kind" not in text and ("complex" in text) == dtype.is_complex


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_a_script_draws_what_the_workers_drew(dtype):
    features = TensorFeatures(
        dtype, (40, 3), (3, 1), minimum=0.0, maximum=1.0, mean=0.5, quantiles=(0.0,) * 8 + (1.0,) * 9
    )
    value = Value.drawn(features, "some case/x", "quantile")
    scope = {"np": np, "torch": torch, "hashlib": hashlib, "math": math, "lru_cache": lru_cache}
    exec("\n\n".join(HELPERS[name]() for name in value.helpers()), scope)
    assert torch.equal(eval(value.code(), scope), value.tensor())


@pytest.mark.parametrize(
    ("expression", "complex_"),
    [
        ("torch.fft.rfft(x)", True),
        ("torch.linalg.eigvals(x)", True),
        ("torch.complex(x, x)", True),
        ("x.to(torch.complex64)", True),
        ("x * 1j", True),
        ("F.linear(x, weight=x)", False),
        ("torch.linalg.eigh(x)", False),
    ],
)
def test_complex_numbers_are_told_from_real_ones_where_there_may_be_some(expression, complex_, tmp_path):
    draft = Draft.of(_case(expression, {"x": normal(4, 4)}, tmp_path / "given"), 0)
    claim = script.Claim(Cause("accuracy", "candidate"))
    text = script.write(draft, [0], claim, CPU, FAULTY, "about")
    assert ("view_as_real" in text) == complex_


def test_all_that_a_script_needs_is_named(tmp_path):
    draft = Draft.of(_case("torch.relu(x)", {"x": normal(200, 3)}, tmp_path / "given"), 0)
    other = Platform("other", "npu", imports=("torch_npu", "more"), python="/opt/torch/bin/python")
    text = script.write(draft, [0], script.Claim(Cause("accuracy", "candidate")), CPU, other, "about")
    assert "Needs torch and the modules torch_npu and more." in text.splitlines()
    assert "The side other is run by /opt/torch/bin/python, which needs them too." in text.splitlines()
    compile(text, "script", "exec")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (Cause("accuracy", "candidate"), "torch.relu gives a wrong result on CUDA with torch.compile"),
        (Cause("accuracy", "reference"), "torch.relu gives a wrong result on CPU"),
        (Cause("accuracy", "both"), "torch.relu gives a wrong result on CPU and CUDA with torch.compile"),
        (Cause("nan", "candidate"), "torch.relu gives NaN on CUDA with torch.compile"),
        (Cause("exception", "candidate", "IndexError"), "torch.relu raises IndexError on CUDA with torch.compile"),
        (Cause("difference"), "torch.relu gives different results on CPU and CUDA with torch.compile"),
    ],
)
def test_the_title_says_what_an_api_does_wrong_and_where(cause, words, tmp_path):
    draft = Draft.of(_case("torch.relu(x)", {"x": normal(4, 3)}, tmp_path / "given"), 0)
    target = Target(0, "evidence", 1e-3, "suspect", cause, {})
    platforms = CPU, Platform("cuda:compile", "cuda", compile=True)
    assert issue.title(draft, {"reason": ""}, target, *platforms) == words


def test_devices_and_settings_have_plain_words():
    assert issue.place_of(require("cpu:no-onednn+bf16")) == (
        "CPU with torch.backends.mkldnn.enabled = False, inputs in bfloat16"
    )
    assert issue.place_of(Platform("x", "npu", env={"NPU_MODE": "fast"})) == (
        "the out-of-tree device npu with NPU_MODE=fast"
    )


def test_every_figure_of_a_reason_is_said_once():
    head = "error against float64 7.8e-06 on the candidate, 0 on the reference; "
    same = (
        f"{head}780 times the rounding of the result, 780 times the rounding bound, 780 times the worst case of the sum"
    )
    assert issue.plain(same) == f"{head}780 times what rounding explains"
    apart = f"{head}780 times the rounding of the result, 12 times the rounding bound"
    assert issue.plain(apart) == apart
    opinion = issue.plain(f"{same}; the decomposition in float64 agrees with float64")
    assert opinion.endswith("; a second float64 result, from the same call taken apart into elementary operations, "
                            "agrees with the first")  # fmt: skip


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
    assert "with torch.backends.mkldnn.enabled = False" in dict(variants(CPU))


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
    assert first["script"] == str(tmp_path / "scripts" / f"{file_name('group norm, channels last')}.py")
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
