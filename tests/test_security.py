"""Files from elsewhere never run code when they are opened: each of these would leave a mark if it did.

That a recorded call can name operators of PyTorch alone is shown in ``test_apis.py``, that recorded values are plain in
``test_features.py``, and what a bundle may hold in ``test_bundle.py``.
"""

import json
import os
import pickle
import shutil

import pytest
import torch
from test_platforms import one_line

import sortlib as sl
from sortlib.errors import SortError
from sortlib.platform import parse
from sortlib.study import load_config
from sortlib.zoo import load_zoo
from sortlib.zoo.weights import load_checkpoint


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def mark(tmp_path):
    """A file that must not be there at the end."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists(), "code of the file was executed"


@pytest.fixture
def bomb(mark):
    """A pickle that works as such."""
    data = pickle.dumps(Bomb(mark))
    pickle.loads(data)
    assert mark.exists()
    mark.unlink()
    return data


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [touch {}]", "!!python/name:os.system", "!!python/module:antigravity"]
)
def test_yaml_makes_no_objects(tag, mark, tmp_path, monkeypatch):
    value = tag.format(mark)
    file = tmp_path / "file.yaml"
    file.write_text(f"zoo: tiny\nname: {value}\n")
    one_line(lambda: load_config(file), str(file))
    file.write_text(f"models: {value}\n")
    one_line(lambda: load_zoo(file), str(file))
    file.write_text(f"platforms: {value}\n")
    monkeypatch.setenv("SORTLIB_PLATFORMS", str(file))
    one_line(lambda: parse("cpu"), str(file))


def test_weights_are_tensors_alone(bomb, mark, tmp_path):
    file = tmp_path / "weights.pth"
    for write in (lambda: file.write_bytes(bomb), lambda: torch.save({"weight": Bomb(mark)}, file)):
        write()
        one_line(lambda: load_checkpoint(torch.nn.Linear(2, 2), file, "theirs"), str(file))


@pytest.fixture
def opened(tiny_study, tmp_path):
    """A study of somebody else's."""
    shutil.copytree(tiny_study.directory, tmp_path / "theirs")
    return tmp_path / "theirs"


def test_every_file_of_a_study_is_data(opened, bomb, mark):
    study = sl.Study(opened)
    model = study.models[0]
    part = next(study.outcome_folder.glob("part-*.parquet"))
    files = {
        opened / "graphs" / f"{model}.json": "graphs", opened / "records" / f"{model}.parquet": "records",
        opened / "patterns.json": "patterns", opened / "cases.parquet": "cases", part: "outcomes",
    }  # fmt: skip
    for path, noun in files.items():
        whole = path.read_bytes()
        path.write_bytes(bomb)
        one_line(lambda noun=noun: getattr(sl.Study(opened), noun), str(path))
        path.write_bytes(whole)
        assert len(getattr(sl.Study(opened), noun))
    (opened / "manifest.json").write_bytes(bomb)
    with pytest.raises(SortError, match="manifest"):
        sl.Study(opened)


def test_opening_a_study_starts_no_program_that_it_names(opened, mark, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    (tmp_path / "their_backend.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    manifest = json.loads((opened / "manifest.json").read_text())
    manifest["config"]["platforms"]["define"] = {
        "theirs": {"base": "cpu", "python": str(program)}, "npu": {"device": "npu", "imports": ["their_backend"]},
    }  # fmt: skip
    (opened / "manifest.json").write_text(json.dumps(manifest))
    study = sl.Study(opened)
    assert len(study.judged) and study.findings is not None
    widget = sl.explore(study)
    assert {"theirs", "npu"} <= set(widget._choices["platforms"])
