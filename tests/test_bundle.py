"""A bundle: the same verdicts as a direct run, nothing but data in it, every changed byte noticed, resumable."""

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import faulty_backend as fault
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from second import ROOT, second  # noqa: F401 - a fixture
from test_platforms import one_line
from test_runner import case_of, chain, faulty, memory, without_times  # noqa: F401 - a fixture

import sortlib as sl
from sortlib.cli import app
from sortlib.runner import bundle, command, pack
from sortlib.runner.campaign import run
from sortlib.runner.transport import save_tensor


@pytest.fixture(scope="module")
def cases():
    torch.manual_seed(0)
    weight, kernel = torch.randn(64, 64), torch.randn(4, 3, 3, 3)

    def block(x):
        return F.softmax(F.layer_norm(F.gelu(F.linear(x, weight)), (64,)), -1).t().contiguous().max(0)[0]

    return [case_of(block, torch.randn(n, 64)) for n in (31, 32)] + [
        case_of(lambda x: torch.relu(F.conv2d(x, kernel)).bfloat16().sum(0), torch.randn(2, 3, 16, 16))
    ]


@pytest.fixture(scope="module")
def made(cases, tmp_path_factory):
    return bundle.save(cases, tmp_path_factory.mktemp("bundles") / "cpu", "cpu", lowered=True, progress=False)


@pytest.fixture
def copied(made, tmp_path):
    """The bundle's own files, to be spoiled."""
    folder = tmp_path / "copied"
    (folder / "reference").mkdir(parents=True)
    for line in (made / "SHA256SUMS").read_text().splitlines():
        (folder / line.split()[1]).write_bytes((made / line.split()[1]).read_bytes())
    (folder / "SHA256SUMS").write_bytes((made / "SHA256SUMS").read_bytes())
    return folder


def seal(folder):
    """Hashes that fit the files, as somebody with bad intentions would write them."""
    names = [line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def read(folder):
    """All that a bundle holds, as comparing reads it."""
    opened = bundle.Bundle(folder)
    return [opened.answer(case, False, lambda tensor: {"dtype": str(tensor.dtype)}) for case in opened.cases()]


def verdicts(rows):
    return sl.judge(pd.DataFrame(rows))[["case", "node", "api", "verdict", "reason"]].astype(str)


# ---- the same verdicts ----


@pytest.mark.parametrize("candidate", ["cpu:baseline", "cpu:autocast-bf16"])
def test_a_bundle_gives_the_rows_of_a_direct_run(cases, made, candidate):
    rows = bundle.against(made, candidate, progress=False)
    direct = run(cases, "cpu", candidate, progress=False)
    pd.testing.assert_frame_equal(without_times(pd.DataFrame(rows)), without_times(direct))
    pd.testing.assert_frame_equal(verdicts(rows), verdicts(direct))
    assert direct.local_differing.max() > 0, "the two platforms differ somewhere, or equality shows nothing"
    assert bundle.results(made / "candidates" / candidate.replace(":", "_")) == rows


def test_faults_of_either_side_are_the_same_outcomes(tmp_path):
    marked = [chain(n) for n in (fault.SEGFAULT, fault.RAISES)]
    bundle.save(marked, tmp_path / "b", faulty(), timeout=30, progress=False)
    rows = pd.DataFrame(bundle.against(tmp_path / "b", "cpu", progress=False))
    direct = run(marked, faulty(), "cpu", timeout=30, progress=False)
    columns = ["case", "node", "status", "side", "message"]
    assert rows[columns].equals(direct[columns])
    assert set(rows.status) >= {"crash", "exception", "ok"} and set(rows.side) == {"", "reference"}


def test_another_interpreter_judges_the_bundle_alike(cases, made, second, tmp_path):  # noqa: F811
    """In an environment with torch and numpy alone, as on another machine."""
    python, version = second
    shown = subprocess.run(
        [python, "-m", "sortlib", "run", "--against", made, "--candidate", "cpu", "--out", tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "3 cases, " in shown.stdout and "cpu against cpu: 3/3 [" in shown.stderr
    rows = pd.DataFrame(bundle.results(tmp_path / "out"))
    direct = run(cases, "cpu", f"cpu@{python}", progress=False)
    pd.testing.assert_frame_equal(*(without_times(f).drop(columns="candidate") for f in (rows, direct)))
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    found = {side: said["torch"] for side, said in about["versions"].items()}
    assert found == {"reference": torch.__version__, "candidate": version}


def test_a_bundle_of_a_study_by_the_command_line(tiny_study, tmp_path):
    def sortlib(*arguments):
        command = [sys.executable, "-m", "sortlib", "run", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    made = sortlib(tiny_study.directory, "--reference", "cpu", "--save", tmp_path / "b", "--quiet")
    assert made.returncode == 0 and f"{len(tiny_study.cases)} cases" in made.stdout, made.stderr
    shown = sortlib("--against", tmp_path / "b", "--candidate", "cpu:baseline", "--quiet")
    assert shown.returncode == 0 and f"{len(tiny_study.cases)} cases" in shown.stdout, shown.stderr
    rows = pd.DataFrame(bundle.results(tmp_path / "b" / "candidates" / "cpu_baseline"))
    judged = pd.concat([tiny_study.judged, tiny_study.judged_single]).set_index(["case", "node"]).evidence.sort_index()
    ours = sl.judge(rows).set_index(["case", "node"]).verdict.astype(str).sort_index()
    assert judged.to_dict() == ours.to_dict()


def test_mistakes_on_the_command_line_are_one_line(made, tmp_path, capsys):
    mistakes = [
        ([], "--save DIR"), (["--against", "b"], "--candidate"), (["--save", "b"], "which study"),
        (["quick", "--against", "b", "--candidate", "cpu"], "those of the bundle"),
        (["--against", str(made), "--candidate", "cpx"], "no device 'cpx'"),
        (["--against", str(tmp_path), "--candidate", "cpu"], "no bundle there"),
        (["quik", "--save", str(tmp_path / "b")], "quick"),
    ]  # fmt: skip
    for arguments, words in mistakes:
        with pytest.raises(SystemExit) as end:
            command.main(arguments)
        shown = capsys.readouterr().err
        assert end.value.code == 2 and shown.startswith("sortlib: ") and shown.count("\n") == 1 and words in shown


def test_the_help_names_the_command():
    from typer.testing import CliRunner

    assert re.search(r"^\s+run\s+Compare two machines", CliRunner().invoke(app, ["--help"]).output, re.M)
    shown = subprocess.run([sys.executable, "-m", "sortlib", "run", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "--against DIR" in shown.stdout and "--save DIR" in shown.stdout


# ---- what is in it ----


def test_inputs_are_held_by_seed_and_outputs_in_a_format_that_others_read(cases, made):
    from safetensors.numpy import load_file

    assert len((made / "cases.jsonl").read_bytes()) < 40_000, "64 x 64 weights by value would be far more"
    content = load_file(made / "reference" / f"{cases[0].id}.safetensors")
    (first,) = [row for row in run(cases[:1], progress=False).to_dict("records") if row["node"] == 0]
    output = next(array for array in content.values() if array.shape == (31, 64) and array.dtype == "float32")
    assert (output.min(), output.max()) == pytest.approx((first["reference_minimum"], first["reference_maximum"]))


def test_every_kind_of_tensor_survives_packing(tmp_path):
    tensors = [
        torch.randn(3, 4).t(), torch.randn(3).bfloat16(), torch.randn(3, dtype=torch.complex64),
        torch.randn(2, dtype=torch.complex128), torch.tensor([True, False]), torch.arange(3), torch.zeros(0, 3),
        torch.tensor(2.5), torch.tensor([0.0, -0.0, float("inf"), float("nan")]), torch.ones(2).expand(3, 2),
        torch.randn(5).to(torch.float8_e4m3fn), torch.randn(5).half(),
    ]  # fmt: skip
    forms = [save_tensor(tensor, tmp_path / f"{n}.bin") for n, tensor in enumerate(tensors)]
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return {"dtype": str(tensor.dtype)}

    back = pack.unpack(pack.pack({"plain": {"forms": forms}}), "plain", keep)["forms"]
    assert [form["strides"] for form in back] == [form["strides"] for form in forms]
    for tensor, again in zip(tensors, kept, strict=True):
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (tensor, again) if t.numel()]
        assert not bits or torch.equal(*bits)


# ---- what was changed, or is not there ----


def test_every_changed_byte_is_noticed_and_names_its_file(copied):
    names = [line.split()[1] for line in (copied / "SHA256SUMS").read_text().splitlines()]
    assert sorted(name.partition("/")[0] for name in names) == ["bundle.json", "cases.jsonl", *["reference"] * 3]
    read(copied)
    for name in names:
        whole = (copied / name).read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 1):
            (copied / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            one_line(lambda: read(copied), str(copied / name), "was changed", "hash")
        (copied / name).unlink()
        one_line(lambda: read(copied), str(copied / name), "No such file")
        (copied / name).write_bytes(whole)
    sums = (copied / "SHA256SUMS").read_bytes()
    for place in (0, 70, len(sums) // 2, len(sums) - 5, len(sums) - 1):
        (copied / "SHA256SUMS").write_bytes(sums[:place] + bytes([sums[place] ^ 1]) + sums[place + 1 :])
        one_line(lambda: read(copied), str(copied))
    (copied / "SHA256SUMS").write_bytes(sums)
    name = next(name for name in names if name.startswith("reference/"))
    (copied / name).write_bytes(b"x")
    one_line(lambda: bundle.against(copied, "cpu", progress=False), str(copied / name), "hash")


def test_what_is_no_bundle_or_another_one_is_one_line(cases, made, copied, tmp_path):
    one_line(lambda: bundle.Bundle(tmp_path / "none"), "no bundle there", "SHA256SUMS")
    (copied / "SHA256SUMS").write_text("".join((copied / "SHA256SUMS").read_text().splitlines(True)[:-1]))
    one_line(lambda: bundle.Bundle(copied), "not complete (3 cases are)")
    head = json.loads((copied / "bundle.json").read_text())
    (copied / "bundle.json").write_text(json.dumps({**head, "format": 99}))
    with (copied / "SHA256SUMS").open("a") as sums:
        sums.write("0" * 64 + "  bundle.json\n")
    seal(copied)
    one_line(lambda: bundle.Bundle(copied), "format 99", str(bundle.FORMAT))
    one_line(lambda: bundle.save(cases, made, "cpu:1thread", lowered=True), "other reference")
    one_line(lambda: bundle.save(cases[:2], made, "cpu", lowered=True), "other cases")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    one_line(lambda: bundle.save(cases, tmp_path / "full"), "not empty", "thesis.tex")
    bundle.against(made, "cpu", out=tmp_path / "out", progress=False)
    one_line(lambda: bundle.against(made, "cpu:1thread", out=tmp_path / "out"), "another bundle, platform or timeout")


@pytest.mark.parametrize("timeout", [-1, 0, float("nan"), float("inf"), True])
def test_a_timeout_is_a_time(cases, made, tmp_path, timeout):
    said = "timeout: must be a number of seconds above 0"
    one_line(lambda: bundle.save(cases, tmp_path / "b", timeout=timeout), said)
    one_line(lambda: bundle.against(made, "cpu", timeout=timeout, out=tmp_path / "out"), said)
    assert not (tmp_path / "b").exists() and not (tmp_path / "out").exists()


def test_a_candidate_that_rounds_its_inputs_needs_bounds_for_it(cases, tmp_path):
    bundle.save(cases[2:], tmp_path / "b", progress=False)
    one_line(lambda: bundle.against(tmp_path / "b", "cpu:bf16"), "no bounds", "bfloat16", "--lowered")


def test_given_inputs_cannot_go_into_a_bundle(cases, tmp_path):
    form = {"$load": ["value0", {"path": "/etc/passwd"}]}
    node = replace(cases[0].nodes[0], arguments=[["input", form, "positional"]])
    given = replace(cases[0], nodes=(node, *cases[0].nodes[1:]))
    one_line(lambda: bundle.save([given], tmp_path / "b", progress=False), cases[0].id, "given values")


# ---- interrupted ----


def test_both_sides_go_on_where_they_were_interrupted(cases, tmp_path, monkeypatch):
    asked = {"reference_side": [], "candidate_side": []}
    for name in asked:
        original = getattr(bundle, name)

        def counted(worker, case, *rest, name=name, original=original):
            if len(asked[name]) == 1 and "stop" not in asked:
                asked["stop"] = True
                raise KeyboardInterrupt
            asked[name].append(case.id)
            return original(worker, case, *rest)

        monkeypatch.setattr(bundle, name, counted)
    monkeypatch.setattr(bundle, "AHEAD", 1)
    with pytest.raises(KeyboardInterrupt):
        bundle.save(cases, tmp_path / "b", progress=False)
    with (tmp_path / "b" / "SHA256SUMS").open("a") as sums:
        sums.write("0123456789abc")  # as a process leaves it that is killed while it writes
    bundle.save(cases, tmp_path / "b", progress=False)
    assert asked["reference_side"] == [case.id for case in cases]
    assert bundle.save(cases, tmp_path / "b", progress=False) and len(asked["reference_side"]) == 3
    del asked["stop"]
    with pytest.raises(KeyboardInterrupt):
        bundle.against(tmp_path / "b", "cpu", progress=False)
    kept = tmp_path / "b" / "candidates" / "cpu" / "outcomes.jsonl"
    assert len(kept.read_text().splitlines()) == 1
    with kept.open("a") as lines:
        lines.write('{"case": "dead')
    rows = bundle.against(tmp_path / "b", "cpu", progress=False)
    assert asked["candidate_side"] == [case.id for case in cases]
    assert rows == bundle.against(tmp_path / "b", "cpu", progress=False) and len(asked["candidate_side"]) == 3
    assert [row["case"] for row in rows] == [case.id for case in cases for _ in case.nodes]


# ---- bad intentions ----


class Bomb:
    """Runs a command when unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_nothing_in_a_bundle_is_executed(copied, tmp_path):
    mark = tmp_path / "executed"
    name = next(iter(sorted(path.name for path in (copied / "reference").iterdir())))
    whole, text = (copied / "reference" / name).read_bytes(), (copied / "cases.jsonl").read_text()
    for bad in (
        pickle.dumps(Bomb(mark)),
        b"",
        b"\xff" * 64,
        whole[:200],
        whole.replace(b"data_offsets", b"data_offsetz"),
    ):
        (copied / "reference" / name).write_bytes(bad)
        seal(copied)
        one_line(lambda: read(copied), name)
    (copied / "reference" / name).write_bytes(whole)
    first = json.loads(text.splitlines()[0])
    reads = [["input", {"$load": ["a", {"path": "/etc/passwd"}]}, "keyword"]]
    others = "".join(text.splitlines(True)[1:])
    for number, change in enumerate((
        {"id": "../../../../tmp/evil"}, {"nodes": "x"}, {"nodes": [{"api": "x"}]}, {"unknown": 1},
        {"nodes": [{**first["nodes"][0], "arguments": reads}]},
    )):  # fmt: skip
        (copied / "cases.jsonl").write_text(json.dumps({**first, **change}) + "\n" + others)
        seal(copied)
        one_line(lambda: read(copied), "cases.jsonl, line 1" if number < 4 else "given values")
    # A function that is no operator of PyTorch is not called: the case ends with an exception.
    nodes = [{**first["nodes"][0], "target": "os.system"}, *first["nodes"][1:]]
    (copied / "cases.jsonl").write_text(
        json.dumps({**first, "nodes": nodes}) + "\n" + "".join(text.splitlines(True)[1:])
    )
    seal(copied)
    rows = bundle.against(copied, "cpu", out=tmp_path / "target", progress=False)
    assert rows[0]["status"] == "exception" and "'os.system' is no operator of torch" in rows[0]["message"]
    assert not mark.exists()
