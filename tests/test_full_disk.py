"""A full disk is real here: a small file system, where one can be mounted, and a limit on the size of files."""

import json
import subprocess
import sys
import textwrap

import pytest
from test_runner import HERE

from sortlib.errors import SortError
from sortlib.runner.files import Journal, write_whole

SCRIPT = f"""
import json, sys
sys.path.insert(0, {HERE!r})
import pandas as pd, torch, test_runner as t
from pathlib import Path
from sortlib.errors import SortError
from sortlib.outcomes import run_missing
from sortlib.runner import transport
from sortlib.runner.campaign import run
small, memory = Path(sys.argv[1]), Path(sys.argv[2])
said = {{}}
"""


@pytest.fixture
def on_a_small_disk(tmp_path):
    """Runs a script with a file system of some kilobytes at its first argument, and returns what it printed last."""
    small, memory = tmp_path / "small", tmp_path / "memory"
    small.mkdir(), memory.mkdir()
    mount = ["unshare", "-rm", "sh", "-c"]
    try:
        tried = subprocess.run([*mount, f"mount -t tmpfs -o size=1m none {small}"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare here, so no small file system can be mounted")
    if tried.returncode:
        pytest.skip(f"no small file system can be mounted here: {tried.stderr.strip()}")

    def run(script, size):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT + textwrap.dedent(script) + "\nprint(json.dumps(said))\n")
        command = f"mount -t tmpfs -o size={size} none {small} && exec {sys.executable} {path} {small} {memory}"
        shown = subprocess.run([*mount, command], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout.splitlines()[-1])

    return run


def test_outcomes_survive_a_full_disk(on_a_small_disk):
    said = on_a_small_disk(
        """
        cases = [t.chain(n) for n in range(3, 9)]
        filler = small / "filler"
        filler.write_bytes(bytes(480 * 1024))  # leaves 32 KB: less than all rows, more than those of one case
        folder = small / "outcomes"
        def attempt():
            try:
                run_missing(folder, cases, t.require("cpu"), t.require("cpu"), 60, "run", progress=False)
            except SortError as error:
                said["error"] = str(error)
        attempt()
        whole = (folder / "part.journal").read_bytes()
        kept = [json.loads(line)["case"] for line in whole.splitlines()]
        said["kept"], said["cut"] = len(kept), whole.endswith(b"\\n")
        filler.unlink()
        before = dict(said)
        ran = []
        original = t.campaign.reference_side
        t.campaign.reference_side = lambda worker, case, *rest: ran.append(case.id) or original(worker, case, *rest)
        attempt()
        assert said == before, said
        rows = pd.concat(map(pd.read_parquet, sorted(folder.glob("part-*.parquet"))))
        said["repeated"] = len(set(ran) & set(kept))
        said["cases"], said["rows"] = rows["case"].nunique(), len(rows)
        said["left"] = sorted(path.name for path in folder.iterdir() if path.suffix != ".parquet")
        """,
        "512k",
    )
    assert 1 <= said["kept"] < 6 and said["cut"], "some cases fit, and what does not fit is cut off"
    assert "part.journal: cannot be written: No space left on device" in said["error"] and "\n" not in said["error"]
    assert f"{said['kept']} cases in it are complete and kept" in said["error"]
    assert (said["repeated"], said["cases"], said["rows"], said["left"]) == (0, 6, 18, ["lock"])


def test_a_case_without_room_in_memory_is_no_platforms_fault(on_a_small_disk):
    said = on_a_small_disk(
        """
        transport.memory_dir = lambda: str(small)
        # Two shelves of 4 MB fit beside each other, and one of 128 MB of tensors does not.
        cases = [t.chain(3), t.chain(1 << 22), t.chain(4)]
        rows = run(cases, "cpu", "cpu", progress=False)
        said["status"] = t.summary(rows)
        said["messages"] = rows.message[rows["case"] == cases[1].id].tolist()
        said["verdicts"] = [sorted(set(map(str, found))) for found in
                            t.sl.judge(rows).groupby("case", sort=False)["verdict"].agg(list)]
        said["left"] = [path.name for path in small.iterdir()]
        """,
        "32m",
    )
    assert said["status"][0] == said["status"][2] == [["ok", ""]] * 3
    assert [status for status, _ in said["status"][1]] == ["unreached"] * 3
    assert "No space left on device" in said["messages"][0]
    assert said["verdicts"] == [["identical"], ["unreached"], ["identical"]] and said["left"] == []


def test_a_bundle_survives_a_full_disk(on_a_small_disk):
    said = on_a_small_disk(
        """
        from sortlib.runner import bundle
        cases = [t.chain(n) for n in range(3, 9)]
        transport.memory_dir = lambda: str(memory)
        filler = small / "filler"
        filler.write_bytes(bytes(472 * 1024))
        try:
            bundle.save(cases, small / "b", progress=False)
        except SortError as error:
            said["error"] = str(error)
        said["kept"] = len(list((small / "b" / "reference").glob("*.safetensors")))
        filler.unlink()
        bundle.save(cases, small / "b", progress=False)
        said["files"] = sorted(path.name for path in (small / "b" / "reference").glob("*"))
        said["cases"] = [f"{case.id}.safetensors" for case in cases]
        said["rows"] = len(bundle.against(small / "b", "cpu", progress=False))
        """,
        "512k",
    )
    assert "cannot be written: No space left on device" in said["error"] and "\n" not in said["error"]
    assert 0 <= said["kept"] < 6
    assert said["files"] == sorted(said["cases"]) and said["rows"] == 18


def test_a_limit_on_the_size_of_files_cuts_no_line(tmp_path):
    """The limit is the system's own; Python gets an error in the middle of a line."""
    pytest.importorskip("resource")
    code = f"""
        import resource
        from sortlib.errors import SortError
        from sortlib.runner.files import Journal, write_whole
        journal = Journal({str(tmp_path / "j")!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        try:
            for number in range(100):
                journal.append([number, "x" * 90])
        except SortError as error:
            print(error)
        try:
            write_whole({str(tmp_path / "w")!r}, bytes(2000))
        except SortError as error:
            print(error)
    """
    shown = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    first, second = shown.stdout.splitlines()
    assert f"{tmp_path / 'j'}: cannot be written: File too large; 10 cases in it are complete and kept" in first
    assert second == f"{tmp_path / 'w'}: cannot be written: File too large"
    assert [path.name for path in tmp_path.iterdir()] == ["j"]
    journal = Journal(tmp_path / "j")
    assert [number for number, _ in journal.read()] == list(range(10))
    journal.append([10, ""])
    assert len(Journal(tmp_path / "j").read()) == 11


def test_a_torn_or_damaged_line(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b'{"a": 1}\n{"a"')
    assert Journal(path).read() == [{"a": 1}] and path.read_bytes() == b'{"a": 1}\n'
    path.write_bytes(b'{"a": 1}\n\xff\n{"a": 2}\n')
    with pytest.raises(SortError, match="j, line 2: is damaged"):
        Journal(path).read()
    write_whole(path, b"new")
    assert path.read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 1
