"""The repository as a newcomer gets it: the two dependency lists, the licence, and what may not be in it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lines):
    found = {}
    for line in lines:
        requirement = line.split(";")[0].strip()
        if requirement and not requirement.startswith(("#", "-")):
            name, _, version = requirement.partition("==")
            found[normal(name.partition("[")[0])] = version
    return found


@pytest.fixture(scope="module")
def lock():
    return pins((ROOT / "requirements.lock").read_text().splitlines())


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def direct(project):
    groups = project["optional-dependencies"]
    named = [*project["dependencies"], *groups["openmmlab"], *groups["test"]]
    return {normal(re.split(r"[<>=!~\[ ]", requirement)[0]) for requirement in named}


def test_lock_pins_every_direct_dependency(lock, project):
    assert direct(project) <= set(lock)
    assert all(re.fullmatch(r"[0-9][^\s]*", version) for version in lock.values())


def test_environment_yml_is_the_same_environment(lock, project):
    content = YAML(typ="safe").load(ROOT / "environment.yml")
    listed = pins(next(item["pip"] for item in content["dependencies"] if isinstance(item, dict)))
    assert set(listed) == direct(project)
    assert {name: lock[name] for name in listed} == listed
    assert "python=3.11" in content["dependencies"]


def test_licence_is_apache(project):
    assert project["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_top_level_is_as_agreed():
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in tracked.splitlines()}
    agreed = {"notebooks", "sortlib", "data", "environment.yml", "tests", "README.md", "pyproject.toml",
              "requirements.lock", "Makefile", "LICENSE", ".gitignore", ".ci"}  # fmt: skip
    assert top == agreed


def test_package_imports_without_heavy_libraries():
    """A worker's machine has only torch and numpy, so ``import sortlib`` and the runner may need nothing else."""
    code = (
        "import sys; import sortlib, sortlib.runner.worker, sortlib.runner.comparison; "
        "print(sorted({'pandas', 'pyarrow', 'matplotlib', 'networkx', 'pydantic', 'ruamel'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
