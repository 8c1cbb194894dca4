"""A study: a directory that holds every noun of the pipeline as an open file, with a manifest.

The study alone knows file names. Every stage has a fingerprint of what it was computed from; what still fits is
read, what does not is computed anew, and nothing computed is deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform as machine
import shlex
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sortlib.arguments import LARGEST_SEED, instance
from sortlib.arguments import path as as_path
from sortlib.config import data_file, read_yaml, validated
from sortlib.errors import SortError
from sortlib.generation import TestCase
from sortlib.graph import ApiGraph, Edge, Embedding, Pattern
from sortlib.platform_files import OwnPlatform, PlatformName, plain, python_beside
from sortlib.records import load_records, save_records
from sortlib.runner.files import alone, replacing, write_whole
from sortlib.thresholds import Table

VERSION = 1
_Count = Annotated[int, Field(ge=1, strict=True)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_BUDGET = ("inputs_per_api", "valid_per_api", "max_attempts_per_api")
# A method of which fewer than one attempt in twenty is valid stops there; the lowest ratios of the paper's Table I
# (0.00 % to 7.15 %) would otherwise take 14,000 attempts on an API, or no end.
ATTEMPTS_PER_VALID = 20
_Method = Literal["single-api", "freefuzz", "deeprel", "docter", "acetest", "titanfuzz"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Mining(_Part):
    """Which subgraphs count as frequent (paper section III-A)."""

    min_support: _Count = 5
    min_nodes: Annotated[int, Field(ge=2, strict=True)] = 2
    max_nodes: Annotated[int, Field(ge=2, le=15, strict=True)] = 7
    keep: Literal["all", "closed", "maximal"] = "all"

    @model_validator(mode="after")
    def _ordered(self):
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes: {self.min_nodes} is above max_nodes {self.max_nodes}")
        return self


class Generation(_Part):
    """How cases are made (paper section III-C).

    ``max_patterns`` tests a sample of the patterns, spread over sizes and APIs; ``max_elements`` leaves out calls
    with larger tensors. Both are off unless given, and what they leave out is reported. ``backward`` runs every call
    forward and backward: the gradients of its own inputs, under a drawn gradient of its outputs, are judged too.

    The budget of every method and API has one of two forms. ``inputs_per_api`` is a number of attempts, 1,000 where
    neither is given. ``valid_per_api`` lets a method go on until so many attempts are valid, as the paper does, or
    until it has made ``max_attempts_per_api`` (20 times as many). SORT makes ``per_pattern`` cases of each pattern, and
    further ones of patterns that hold an API of the paper which would get less than the budget.
    """

    per_pattern: _Count = 5
    inputs_per_api: _Count | None = None
    valid_per_api: _Count | None = None
    max_attempts_per_api: _Count | None = None
    sampler: Literal["quantile", "uniform"] = "quantile"
    backward: Annotated[bool, Field(strict=True)] = False
    max_patterns: _Count | None = None
    max_elements: _Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_budget(cls, given):
        if not isinstance(given, dict):
            return given
        attempts, valid, most = (given.get(name) for name in _BUDGET)
        if attempts is not None and valid is not None:
            raise ValueError("inputs_per_api counts attempts, valid_per_api valid ones; give one of them")
        if most is not None and valid is None:
            raise ValueError("max_attempts_per_api goes with valid_per_api")
        return given if attempts is not None or valid is not None else {**given, "inputs_per_api": 1000}

    @model_validator(mode="after")
    def _room(self):
        if self.valid_per_api and self.most_attempts < self.valid_per_api:
            raise ValueError(f"max_attempts_per_api: {self.most_attempts} is below valid_per_api {self.valid_per_api}")
        return self

    @property
    def budget(self) -> int:
        """Inputs of each method and API: attempts, or valid ones."""
        return self.inputs_per_api or self.valid_per_api

    @property
    def most_attempts(self) -> int:
        """The most attempts of a method on an API."""
        return self.inputs_per_api or self.max_attempts_per_api or ATTEMPTS_PER_VALID * self.valid_per_api


class Platforms(_Part):
    """The two sides; ``auto`` is the machine's accelerator, or cpu:baseline where there is none.

    ``define`` holds platforms of this study's own by name, in the form of ``data/platforms.yaml``.
    """

    reference: str = "cpu"
    candidate: str = "auto"
    define: dict[PlatformName, OwnPlatform] = {}

    @property
    def own(self) -> dict:
        """The study's own platforms as ``sortlib.platform.parse`` takes them."""
        return {name: plain(definition) for name, definition in self.define.items()}


class Baselines(_Part):
    """Settings of the methods that SORT is compared with.

    ``constraints`` is a folder of DocTer's constraint files, ``model`` a language model known to ``llm``, ``programs``
    a folder of programs that TitanFuzz runs instead. ``max_elements`` leaves out larger recorded calls.
    ``timeout`` is in seconds, for one attempt on one platform, ``memory`` in GiB, for the process of a CPU platform; an
    attempt that asks for more raises an exception. A quarter of the machine's memory is allowed where it is not given.
    """

    constraints: str | None = None
    model: str | None = None
    programs: str | None = None
    max_elements: _Count | None = None
    timeout: _Positive = 10
    memory: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None


class StudyConfig(_Part):
    """What a study file may say."""

    name: str
    zoo: str
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED, strict=True)] = 0
    mining: Mining = Mining()
    generation: Generation = Generation()
    platforms: Platforms = Platforms()
    methods: tuple[_Method, ...] = ("single-api",)
    baselines: Baselines = Baselines()
    timeout: _Positive = 60
    threshold: _Positive = 1e-3
    thresholds: str | None = None

    @property
    def table(self) -> Table | None:
        """The study's own thresholds for the rule of evidence."""
        return Table.read(self.thresholds) if self.thresholds else None

    @field_validator("zoo", mode="before")
    @classmethod
    def _text(cls, value):
        return str(value)


def load_config(name_or_path) -> StudyConfig:
    """Read a study file, by path or by the name of a bundled one (``data/studies``).

    Raises
    ------
    SortError
        Names the file, the key and the valid choices.
    """
    path = data_file(name_or_path, "studies")
    raw = {"name": path.stem, **read_yaml(path)}
    beside = path.parent / str(raw.get("zoo", ""))
    if beside.is_file():
        raw["zoo"] = str(beside.resolve())
    if isinstance(raw.get("thresholds"), str):
        raw["thresholds"] = str((path.parent / raw["thresholds"]).resolve())
        Table.read(raw["thresholds"])  # a mistake in it should not wait for the end of the run
    given = raw.get("platforms")
    if isinstance(given, dict) and isinstance(given.get("define"), dict):
        for settings in given["define"].values():
            if isinstance(settings, dict) and isinstance(settings.get("python"), str):
                settings["python"] = python_beside(settings["python"], path.parent)
    given = raw.get("baselines")
    if isinstance(given, dict):
        folders = {name: path.parent / str(given[name]) for name in ("constraints", "programs") if given.get(name)}
        raw["baselines"] = {**given, **{name: str(folder.resolve()) for name, folder in folders.items()}}
    return validated(StudyConfig, raw, path)


def with_methods(config: StudyConfig, methods=None, options=None) -> StudyConfig:
    """The same study compared with other methods, or with other settings of them.

    Parameters
    ----------
    methods : names instead of the file's, if any.
    options : settings of ``Baselines`` to replace; None and empty ones are left as they are.

    Raises
    ------
    SortError
        An unknown method.
    """
    raw = config.model_dump(mode="json")
    raw["methods"] = list(methods or config.methods)
    raw["baselines"] |= {name: value for name, value in (options or {}).items() if value}
    return validated(StudyConfig, raw, "methods")


def opened(study, what) -> Study:
    """The study given to a function.

    Raises
    ------
    SortError
        It is none; where it is the path of one, says how to open it.
    """
    hint = f"open it first: sl.Study({str(study)!r})" if isinstance(study, str | Path) else ""
    return instance(study, Study, f"{what}: study", "an open Study", hint)


def fingerprint(*parts) -> str:
    """A short hash of JSON-like values."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Study:
    """The files of one study.

    Parameters
    ----------
    directory : of an existing study; ``Study.create`` makes one.

    Attributes
    ----------
    graphs : list of ApiGraph, in the order of the zoo.
    records : list of CallRecord of all models and samples.
    patterns : list of Pattern.
    cases : list of TestCase, SORT's and single-API's.
    outcomes : DataFrame, a row per node of SORT's cases; ``single`` holds single-API's.
    judged : outcomes with both rules' verdicts; ``judged_single`` likewise.
    findings : DataFrame of grouped findings under the evidence rule, most interesting first.
    """

    def __init__(self, directory):
        self.directory = as_path(directory, "Study: directory")
        manifest = self.directory / "manifest.json"
        if not manifest.is_file():
            raise SortError(f"{self.directory}: no study there (manifest.json is missing); make one with "
                            f"'sortlib study quick --out {self.directory}'")  # fmt: skip
        try:
            self.manifest = json.loads(manifest.read_text(encoding="utf-8"))
            version = self.manifest["version"]
            self.config = validated(StudyConfig, self.manifest["config"], manifest)
        except (ValueError, KeyError, TypeError):  # no text, no JSON, or other keys
            raise self._no_manifest("no valid manifest of a study") from None
        except SortError as error:
            raise self._no_manifest(str(error).removeprefix(f"{manifest}: ")) from None
        except OSError as error:
            raise self._no_manifest(f"cannot be read: {error.strerror or error}") from None
        if version != VERSION:
            raise SortError(f"{manifest}: written in version {version}; this sortlib reads {VERSION}")

    def _no_manifest(self, problem) -> SortError:
        """What is wrong with the manifest, and the way out: outcomes are found again by what they were made from."""
        file = self.directory / "manifest.json"
        return SortError(f"{file}: {problem}; delete this file and make the study again with 'sortlib study FILE --out "
                         f"{self.directory}', which keeps what was run")  # fmt: skip

    @classmethod
    def create(cls, config: StudyConfig, directory) -> Study:
        """Make the directory, or open it and take the new configuration; what still fits is kept.

        Stages that the new configuration does not fit lose their mark, so that nothing old is read under it; their
        files stay, and going back to the old configuration finds its outcomes again.
        """
        directory = Path(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SortError(f"{directory}: cannot be made: {error.strerror}") from None
        file, made = directory / "manifest.json", made_with()
        with alone(directory):
            before = cls(directory).manifest if file.is_file() else {"stages": {}}
            manifest = {
                "version": VERSION,
                "config": config.model_dump(mode="json"),
                "stages": _fitting(before, config),
                "made_with": made,
                "workers": before.get("workers", {}),
                "times": before.get("times", {}),
            }
            write_whole(file, json.dumps(manifest, indent=1).encode())
            return cls(directory)

    def __repr__(self):
        done = [name for name in _ORDER if "fingerprint" in self.stage(name)]
        return f"Study({str(self.directory)!r}: {self.config.name}, done: {', '.join(done) or 'nothing yet'})"

    # ---- stages ----

    def stage(self, name) -> dict:
        """What the manifest says about a stage: ``fingerprint`` and notes; empty if it never ran."""
        return self.manifest["stages"].get(name, {})

    def note(self, name, **facts):
        """Write a stage's facts into the manifest, unless they stand there already."""
        facts = json.loads(json.dumps(facts))  # as they will be read again
        if self.manifest["stages"].get(name) != facts:
            self._change(lambda manifest: manifest["stages"].update({name: facts}))

    def spent(self, method, **seconds):
        """Add the seconds that a method took, by kind of work, to the manifest."""

        def add(manifest):
            times = manifest.setdefault("times", {}).setdefault(method, {})
            for kind, value in seconds.items():
                times[kind] = round(times.get(kind, 0.0) + value, 3)

        self._change(add)

    def worked(self, versions):
        """Write what the worker processes said of themselves into the manifest."""
        self._change(lambda manifest: manifest.update(workers=versions))

    def _change(self, change):
        """Change the manifest as it stands on disk, since another process may have noted something of its own."""
        with self.held():
            change(self.manifest)
            write_whole(self.directory / "manifest.json", json.dumps(self.manifest, indent=1).encode())

    @contextlib.contextmanager
    def held(self):
        """Keep other processes from changing the study meanwhile; its manifest is then as it stands on disk.

        Raises
        ------
        SortError
            Another process has given the study other settings since it was opened here, so that what this one has made
            belongs to another study.
        """
        with alone(self.directory):
            manifest = Study(self.directory).manifest
            if manifest["config"] != self.manifest["config"]:
                raise SortError(f"{self.directory}: another process has given this study other settings meanwhile; "
                                "what was run is kept; give this one a directory of its own (--out)")  # fmt: skip
            self.manifest = manifest
            yield

    def path(self, *parts) -> Path:
        """A path inside the study, its folder made."""
        path = self.directory.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def holds(self, *names) -> bool:
        """Whether files of the study are there."""
        return all((self.directory / name).exists() for name in names)

    def forget(self, *names):
        """Drop nouns read before, after a stage has written them anew."""
        for name in names:
            self.__dict__.pop(name, None)

    # ---- nouns ----

    @property
    def models(self) -> list[str]:
        """Names of the traced models."""
        return self.stage("trace").get("models", [])

    @cached_property
    def graphs(self) -> list[ApiGraph]:
        return [self._read(ApiGraph.load, self._have("graphs", f"{model}.json")) for model in self.models]

    @cached_property
    def records(self):
        return [r for model in self.models for r in load_records(self._have("records", f"{model}.parquet"))]

    def save_trace(self, graph, records):
        """Store one model's graph and the records of all its samples."""
        with self.held():
            graph.save(self.path("graphs", f"{graph.name}.json"))
            save_records(records, self.path("records", f"{graph.name}.parquet"))

    @cached_property
    def patterns(self) -> list[Pattern]:
        self._done("mine")
        rows = self._read(lambda path: json.loads(path.read_text(encoding="utf-8")), self._have("patterns.json"))
        return [_read_pattern(row) for row in rows]

    def save_patterns(self, patterns):
        """Store mined patterns."""
        rows = [{**vars(p), "embeddings": [list(map(_plain, e)) for e in p.embeddings]} for p in patterns]
        with self.held():
            write_whole(self.path("patterns.json"), json.dumps(rows).encode())

    @cached_property
    def cases(self) -> list[TestCase]:
        return self._read(_read_cases, self._have("cases.parquet"))

    @cached_property
    def baseline_cases(self) -> dict[str, list[TestCase]]:
        """Attempts of the other methods, by method."""
        known = self.stage("baselines").get("methods", {})
        return {key: self._read(_read_cases, self._have("baselines", f"{key}.parquet"))
                for key in known if key in self.config.methods}  # fmt: skip

    def save_baseline_cases(self, method, cases):
        """Store the attempts of a method."""
        self._save_cases(cases, self.path("baselines", f"{method}.parquet"))

    def save_cases(self, cases):
        """Store generated cases."""
        self._save_cases(cases, self.path("cases.parquet"))

    def _save_cases(self, cases, path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            "id": [case.id for case in cases],
            "pattern": [case.pattern for case in cases],
            "case": [json.dumps(case.to_json()) for case in cases],
        }
        with self.held(), replacing(path) as new:
            pq.write_table(pa.table(columns), new, compression="zstd")

    def case(self, case_id) -> TestCase:
        """A case by id.

        Raises
        ------
        SortError
            No such case.
        """
        for cases in (self.cases, *self.baseline_cases.values()):
            for case in cases:
                if case.id == case_id:
                    return case
        raise SortError(f"{self.directory}: no case {case_id!r}; study.outcomes['case'] lists them")

    def pattern(self, pattern_id) -> Pattern:
        """A pattern by id.

        Raises
        ------
        SortError
            No such pattern.
        """
        for pattern in self.patterns:
            if pattern.id == pattern_id:
                return pattern
        raise SortError(f"{self.directory}: no pattern {pattern_id!r}; study.patterns lists them")

    @cached_property
    def all_outcomes(self):
        """Rows of every case of this study on its platform pair, in the order of the cases."""
        import pandas as pd

        folder = self.outcome_folder
        parts = [self._read(pd.read_parquet, file) for file in sorted(folder.glob("part-*.parquet"))]
        if not parts:
            raise SortError(f"{self.directory}: nothing was run yet; continue with {self._command}")
        return _ordered(parts, self.cases)

    @cached_property
    def baseline_outcomes(self):
        """Rows of every attempt of the other methods, in the order of the attempts; empty if there are none."""
        import pandas as pd

        files = sorted(self.baseline_folder.glob("part-*.parquet"))
        parts = [self._read(pd.read_parquet, file) for file in files]
        cases = [case for cases in self.baseline_cases.values() for case in cases]
        return _ordered(parts, cases) if parts else pd.DataFrame(columns=["case", "pattern", "api", "candidate"])

    @property
    def outcome_folder(self) -> Path:
        """Where the parts of the current platform pair lie."""
        return self.directory / "outcomes" / self.stage("run").get("fingerprint", "none")

    @property
    def baseline_folder(self) -> Path:
        """Where the parts of the other methods lie that were run within the present limits."""
        limits = self.config.baselines
        return self.outcome_folder / f"baselines-{fingerprint(limits.timeout, limits.memory)}"

    @property
    def judged_by(self) -> list:
        """What verdicts depend on beside the outcomes: the paper's threshold and the study's own table."""
        return [self.config.threshold, list(self.config.table.rows) if self.config.table else None]

    @cached_property
    def outcomes(self):
        return self._method(single=False)

    @cached_property
    def single(self):
        return self._method(single=True)

    def _method(self, single):
        from sortlib.baselines.single_api import is_single

        rows = self.all_outcomes
        return rows[rows["pattern"].map(is_single) == single].reset_index(drop=True)

    @cached_property
    def judged(self):
        return self._judge(self.outcomes)

    @cached_property
    def judged_single(self):
        return self._judge(self.single)

    def _judge(self, outcomes):
        from sortlib.judging import judge

        paper = judge(outcomes, "paper", self.config.threshold)
        evidence = judge(outcomes, "evidence", self.config.threshold, self.config.table)
        return outcomes.assign(
            paper=paper["verdict"], symptom=paper["symptom"], evidence=evidence["verdict"].astype(str),
            reason=evidence["reason"],
        )  # fmt: skip

    @cached_property
    def findings(self):
        import pandas as pd

        from sortlib.grouping import findings_of

        rows = pd.concat([self.judged, self.judged_single], ignore_index=True)
        return findings_of(rows.rename(columns={"evidence": "verdict"}))

    @property
    def _command(self) -> str:
        """What makes the rest of the study: the command that made it, or one that does the same."""
        said = self.manifest["made_with"]["command"]
        return f"'{said if said.startswith('sortlib study ') else f'sortlib study FILE --out {self.directory}'}'"

    def _read(self, reader, path):
        """What ``reader`` makes of a file, or one line that says how to get a damaged one back."""
        try:
            return reader(path)
        except SortError:
            raise
        except Exception as error:
            raise SortError(f"{path}: is damaged ({type(error).__name__}); delete it, and {self._command} makes it "
                            "anew") from error  # fmt: skip

    def _done(self, stage):
        if "fingerprint" not in self.stage(stage):
            raise SortError(f"{self.directory}: stage {stage} was not done for this configuration; continue with "
                            f"{self._command}")  # fmt: skip

    def _have(self, *parts) -> Path:
        path = self.directory.joinpath(*parts)
        if not path.is_file():
            raise SortError(f"{path}: not there yet; continue with {self._command}")
        return path


def _read_cases(path) -> list[TestCase]:
    import pyarrow.parquet as pq

    return [TestCase.from_json(json.loads(text)) for text in pq.read_table(path)["case"].to_pylist()]


def _ordered(parts, cases):
    """The rows of these cases, in the order of the cases and their calls."""
    import pandas as pd

    order = {case.id: position for position, case in enumerate(cases)}
    rows = pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)
    # A case that two processes ran at once counts once; whatever the order, its first rows stand.
    rows = rows[rows["case"].isin(order)].drop_duplicates(["case", "node"])
    place = rows["case"].map(order)
    return rows.assign(_place=place).sort_values(["_place", "node"]).drop(columns="_place").reset_index(drop=True)


# The first stage that each part of a configuration decides.
_DECIDES = {"zoo": "trace", "mining": "mine", "generation": "generate", "seed": "generate", "methods": "generate",
            "baselines": "generate", "platforms": "run", "timeout": "run", "threshold": "tables",
            "thresholds": "tables"}  # fmt: skip
_ORDER = ("trace", "mine", "generate", "run", "tables", "notebooks")


def _fitting(before, config) -> dict:
    """The stages of a manifest, without the marks of those that another configuration decided."""
    stages = {name: dict(facts) for name, facts in before["stages"].items()}
    if not stages:
        return stages
    old, new = before["config"], config.model_dump(mode="json")
    changed = [_ORDER.index(stage) for part, stage in _DECIDES.items() if old.get(part) != new[part]]
    for name in _ORDER[min(changed, default=len(_ORDER)) :]:
        stages.get(name, {}).pop("fingerprint", None)
    return stages


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _read_pattern(row) -> Pattern:
    edges = tuple(Edge(*edge) for edge in row["edges"])
    embeddings = tuple(Embedding(graph, tuple(nodes), tuple(ids)) for graph, nodes, ids in row["embeddings"])
    return Pattern(row["id"], tuple(row["nodes"]), edges, row["support"], tuple(row["graph_ids"]), embeddings)


def made_with() -> dict:
    """Versions, machine and commit that figures can be traced to (DESIGN decision 12)."""
    import numpy
    import torch

    import sortlib

    # ``sortlib`` itself, or ``python -m sortlib``.
    as_command = sys.argv[0].endswith("sortlib") or Path(sys.argv[0]).parts[-2:] == ("sortlib", "__main__.py")
    facts = {
        "sortlib": sortlib.__version__,
        "python": machine.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{machine.system()} {machine.machine()}",
        "processors": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "command": " ".join(["sortlib", *map(shlex.quote, sys.argv[1:])]) if as_command else "python",
    }
    home = Path(__file__).resolve().parent.parent
    found = subprocess.run(["git", "-C", str(home), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {**facts, "commit": found.stdout.strip() or "unknown"}
