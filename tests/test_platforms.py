"""Platforms as data: names, files, mistakes in one line, other interpreters, and what each setting does to results."""

import json
import re
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from second import second  # noqa: F401 - a fixture
from test_runner import case_of

import sortlib as sl
from sortlib import platform_files, worth
from sortlib.apis import PAPER_APIS, paper_name
from sortlib.config import data_dir, read_yaml
from sortlib.errors import SortError
from sortlib.pipeline import open_study
from sortlib.platform import TWIN, Platform, missing, names, parse, require
from sortlib.runner import bundle, launch
from sortlib.runner.campaign import run
from sortlib.study import StudyConfig, load_config


def one_line(call, *words):
    with pytest.raises(SortError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


# ---- names ----


def test_variants_add_up():
    found = parse("cpu:no-onednn+1thread+bf16")
    assert (found.device, found.threads, found.dtype) == ("cpu", 1, "bfloat16")
    assert found.backends == {"mkldnn.enabled": False} and found.env == {}
    assert found.what == "oneDNN off; one intra-operator thread; floating-point inputs rounded to bfloat16"


def test_precision_is_that_to_which_a_platform_rounds():
    plain, half, cast = parse("cpu"), parse("cpu:bf16"), parse("cpu:autocast-bf16")
    assert [p.precision for p in (plain, half, cast)] == [None, "bfloat16", "bfloat16"]
    assert cast.rounds_more_than(plain) and half.rounds_more_than(plain)
    assert not plain.rounds_more_than(half) and not half.rounds_more_than(cast)


def test_a_platform_survives_the_form_of_workers():
    for name in names():
        made = parse(name)
        assert Platform.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    "name, words",
    [
        ("cpx", ["no device 'cpx'", "cpu, cuda"]),
        ("cpu:fast", ["no variant 'fast' of cpu", "baseline"]),
        ("mps:baseline", ["no variant 'baseline' of mps"]),
        ("cpu@/no/such/python", ["no Python interpreter '/no/such/python'"]),
        ("cpu@", ["no Python interpreter ''"]),
    ],
)
def test_a_wrong_name_is_one_line(name, words):
    one_line(lambda: parse(name), repr(name), *words)


def test_a_machine_without_yaml_knows_the_same_platforms():
    table = platform_files.plain(platform_files.Table.model_validate(read_yaml(data_dir() / "platforms.yaml")))
    assert json.loads(TWIN.read_text()) == table, "run: python -m sortlib.platform_files"


# ---- files ----


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    def write(text):
        path = tmp_path / "own.yaml"
        path.write_text(text)
        monkeypatch.setenv("SORTLIB_PLATFORMS", str(path))
        return path

    return write


def test_a_persons_own_file_adds_platforms(own_file):
    own_file(
        "variants: {flush: {what: denormals to zero, env: {FLUSH: 1}}}\n"
        "platforms:\n"
        "  quiet: {base: 'cpu:baseline', threads: 1, env: {MINE: a}}\n"
        "  npu: {device: npu, imports: [torch_npu]}\n"
    )
    quiet = parse("quiet")
    assert (quiet.device, quiet.threads) == ("cpu", 1)
    assert quiet.env == {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "MINE": "a"}
    assert parse("quiet:flush").env["FLUSH"] == "1" and parse("quiet:flush").backends == {"mkldnn.enabled": False}
    assert (parse("npu").device, parse("npu").imports) == ("npu", ("torch_npu",))
    rows = sl.platforms().set_index("platform")
    assert rows.available["quiet"] and not rows.available["npu"]
    assert "torch_npu" in rows.missing["npu"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("platforms: {x: {base: cpu, pyton: /x}}", ["platforms.x.pyton: unknown key", "did you mean 'python'"]),
        ("platforms: {x: {python: /x}}", ["platforms.x: give one of base", "device"]),
        ("platforms: {x: {base: cpu, device: cpu}}", ["platforms.x: give one of base"]),
        ("platforms: {x: {base: cpu, env: {A: true}}}", ["platforms.x.env.A: must be text, not True"]),
        ("platforms: {x: {base: cpu, threads: 0}}", ["platforms.x.threads: must be 1 or more"]),
        ("platforms: {x: {base: cpu, dtype: half}}", ["platforms.x.dtype: 'half' is not one of", "float16"]),
        ("platforms: {'x y': {base: cpu}}", ["'x y' is no name of a platform"]),
        ("variants: {v: {devices: [cpx]}}", ["variants.v.devices: no device 'cpx'", "cpu"]),
        ("devices: {npu: {}}", ["devices.npu.what: this key is required"]),
        ("device: {}", ["device: unknown key", "did you mean 'devices'"]),
        ("platforms: [", ["broken YAML"]),
    ],
)
def test_a_mistake_in_a_file_of_platforms_is_one_line(own_file, text, words):
    path = own_file(text)
    one_line(lambda: parse("cpu"), str(path), *words)


def test_a_file_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setenv("SORTLIB_PLATFORMS", "/no/such.yaml")
    one_line(lambda: parse("cpu"), "/no/such.yaml", "SORTLIB_PLATFORMS")


STUDY = """
zoo: tiny
mining: {min_support: 2, max_nodes: 3}
generation: {per_pattern: 1, inputs_per_api: 1, max_patterns: 4}
platforms:
  candidate: mine
  define:
    mine: {base: "cpu:no-onednn", %s}
"""


def test_a_study_defines_its_own_platforms(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY % "threads: 1")
    study = open_study(tmp_path / "run", config=file, progress=False)
    assert set(study.outcomes.candidate) == {"mine"} and (study.outcomes.status == "ok").all()
    assert study.manifest["workers"]["mine"]["threads"] == 1
    again = StudyConfig.model_validate(study.config.model_dump(mode="json"))
    assert again.platforms.own == {"mine": {"base": "cpu:no-onednn", "threads": 1}}
    before = study.outcome_folder
    file.write_text(STUDY % "threads: 2")  # another platform by the same name: nothing old is read under it
    changed = open_study(tmp_path / "run", upto="mine", config=file, progress=False)
    assert changed.config.platforms.define["mine"].threads == 1, "an existing study keeps its configuration"
    other = sl.Study.create(load_config(file), tmp_path / "run")
    sl.open_study(other.directory, upto="run", progress=False)
    assert sl.Study(other.directory).outcome_folder != before and before.is_dir()


def test_a_study_names_what_is_wrong_in_its_own_platforms(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY % "thread: 1")
    one_line(lambda: load_config(file), str(file), "platforms.define.mine.thread: unknown key", "threads")
    file.write_text(STUDY % "python: bin/python")
    assert load_config(file).platforms.own["mine"]["python"] == str(tmp_path / "bin" / "python")


# ---- other interpreters ----


def test_an_interpreter_without_torch_says_so(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    reason = missing(parse(f"cpu@{bare}"))
    assert reason.startswith("torch cannot be imported there")
    one_line(lambda: require(f"cpu@{bare}"), "is not available: torch cannot be imported there", "cpu:baseline")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho this is no Python >&2\nexit 3\n")
    silent.chmod(0o755)
    assert missing(parse(f"cpu@{silent}")) == f"{silent}: this is no Python"


def test_a_worker_needs_torch_and_numpy_alone():
    """Everything else but torch's own dependencies is refused at import, also for ``sortlib run --against``."""
    code = """
        import importlib.metadata as m, re, sys
        kept, queue = set(), ["torch", "numpy"]
        while queue:
            name = re.split(r"[ ;<>=!\\[]", queue.pop())[0].lower().replace("_", "-")
            if name in kept: continue
            kept.add(name)
            try: queue += [r for r in m.requires(name) or [] if "extra ==" not in r]
            except m.PackageNotFoundError: pass
        homes = m.packages_distributions()
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                top = name.partition(".")[0]
                owners = {o.lower().replace("_", "-") for o in homes.get(top, ())}
                if owners and not owners & kept and top != "sortlib":
                    raise ModuleNotFoundError(f"refused: {name}", name=top)
        sys.meta_path.insert(0, Refuse())
        import sortlib.runner.worker, sortlib.runner.comparison, sortlib.runner.bounds, sortlib.runner.bundle
        import sortlib.runner.command, sortlib.__main__
        from sortlib.platform import parse, require
        require("cpu:baseline+1thread")
        for name in ("pandas", "yaml", "pydantic", "tqdm"):
            try: __import__(name)
            except ModuleNotFoundError as error: print(error)
    """
    shown = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    refused = [f"refused: {name}" for name in ("pandas", "yaml", "pydantic", "tqdm")]
    assert shown.stdout.splitlines() == refused, shown.stderr


def test_an_installed_sortlib_does_not_lend_its_neighbours(tmp_path):
    """Another interpreter gets this package alone, and not the torch that lies beside it."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    answer = subprocess.run(
        launch.command("sortlib.runner.about", str(bare), "cpu"), env=launch.environment(str(bare)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "torch cannot be imported" in json.loads(answer.stdout)["missing"]


def test_two_versions_of_torch_are_compared(second, tmp_path):  # noqa: F811
    python, version = second
    name = f"cpu@{python}"
    row = sl.platforms(name).set_index("platform").loc[name]
    assert row.available and row.torch == version and not row.missing
    file = tmp_path / "pair.yaml"
    file.write_text(STUDY % f"python: {python}")
    study = open_study(tmp_path / "run", config=file, progress=False)
    assert (study.outcomes.status == "ok").all() and len(study.outcomes) > 4
    versions = {side: found["torch"] for side, found in study.manifest["workers"].items()}
    assert versions == {"cpu": torch.__version__, "mine": version}


# ---- what settings do ----


def test_autocast_computes_products_in_its_dtype_and_is_judged_by_it():
    weight = torch.randn(64, 64)
    case = case_of(lambda x: torch.softmax(F.linear(x, weight), -1), torch.randn(32, 64))
    rows = run([case], "cpu", "cpu:autocast-bf16", progress=False).set_index("api")
    # PyTorch's autocast table: linear runs in the lower precision, softmax in float32.
    assert rows.candidate_dtype.to_dict() == {"linear": "bfloat16", "softmax": "float32"}
    assert (rows.status == "ok").all() and rows.lowered.all()
    # 64 products rounded to 8 bits each: near 2**-9 of their size, far above float32's rounding.
    assert rows.candidate_error["linear"] > 100 * rows.reference_error["linear"] > 0
    assert rows.reference_error["linear"] < 1e-4, "the float64 truth is computed without autocast"
    assert set(sl.judge(rows.reset_index()).verdict.astype(str)) <= {"rounding", "identical", "amplified"}
    rows = run([case], "cpu:autocast-bf16", "cpu:autocast-bf16+1thread", progress=False).set_index("api")
    assert rows.reference_dtype["linear"] == "bfloat16" and (rows.status == "ok").all()
    assert rows.reference_error["linear"] > 1e-4 and rows.reference_ratio["linear"] < 1


def test_the_worth_of_settings_is_measured_once(monkeypatch):
    own = {"broken": {"base": "cpu", "imports": ["no_such_backend"]}}
    assert sorted(node.api for case in worth.calls() for node in case.nodes) == sorted(PAPER_APIS)
    found = worth.measure(["cpu", "cpu:bf16", "cpu:no-onednn", "broken"], own, progress=False)
    every = {paper_name(api) for api in PAPER_APIS}
    assert (found["cpu"]["differs"], set(found["cpu"]["equal"])) == ((), every), "the same kernels twice"
    assert set(found["cpu:bf16"]["differs"]) == every, "every output is bfloat16"
    off = found["cpu:no-onednn"]
    assert set(off["differs"]) | set(off["equal"]) == every and not {"flatten", "__add__", "relu"} & set(off["differs"])
    assert "no_such_backend" in found["broken"]["failed"]["all"]
    monkeypatch.setattr(bundle, "save", lambda *_, **__: pytest.fail("measured again"))
    assert worth.measure(["cpu:bf16"], own, progress=False) == {"cpu:bf16": found["cpu:bf16"]}
    lines = worth.describe({**found["cpu:bf16"]})
    assert lines[0].startswith("differs from cpu in 15 of 15 APIs: ")
    assert worth.describe(found["cpu"]) == ["differs from cpu in 0 of 15 APIs"]
    assert worth.describe(found["broken"]) == [f"all: {found['broken']['failed']['all']}"]


def test_the_command_line_lists_an_interpreter_and_a_studys_platforms(second, tmp_path):  # noqa: F811
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY % "threads: 1")
    command = [sys.executable, "-m", "sortlib", "platforms", f"cpu@{second[0]}", "--study", file]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^cpu@{second[0]}\s.* \[available, torch {re.escape(second[1])}\]$", shown, re.M)
    assert re.search(r"^mine\s+oneDNN off \[available\]$", shown, re.M)
