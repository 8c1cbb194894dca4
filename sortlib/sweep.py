"""A sweep: one study in many settings, a folder for each point of a grid, and a table that compares the points."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, field_validator
from tqdm.auto import tqdm

from sortlib import tables
from sortlib.config import data_file, read_yaml, suggestion, validated
from sortlib.errors import SortError
from sortlib.judging import RANK
from sortlib.notebooks import SWEEP, execute, notebooks, run_notebooks
from sortlib.pipeline import check_ahead, complete
from sortlib.report import write_report
from sortlib.runner.files import replacing, writable, write_whole
from sortlib.study import Study, StudyConfig, load_config

_WHOLE = ("name", "methods", "baselines")  # parts of a study file that a grid cannot vary
_STAGES = {"trace": ("graphs", "records"), "mine": ("patterns.json",), "generate": ("cases.parquet",)}


def settings() -> list[str]:
    """What a grid may vary: keys of a study file, those of its parts with a dot (``mining.min_support``)."""
    found = []
    for name, field in StudyConfig.model_fields.items():
        part = getattr(field.annotation, "model_fields", None)
        if name not in _WHOLE:
            found += [f"{name}.{key}" for key in part if key != "define"] if part else [name]
    return found


def _meant(key) -> str:
    """A hint at the setting that a key without its part, or a misspelt one, stands for."""
    whole = [name for name in settings() if name.rpartition(".")[2] == key]
    return f"; did you mean {' or '.join(map(repr, whole))}?" if whole else suggestion(key, settings()) or ";"


class SweepConfig(BaseModel):
    """What a sweep file may say.

    ``study`` is a study file or a bundled name, whose settings hold where ``grid`` says nothing; ``grid`` has a list of
    values for each setting that varies; ``notebooks`` names those to execute for each point, all if not given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    study: str
    grid: dict[str, list[Any]]
    notebooks: tuple[str, ...] | None = None

    @field_validator("grid")
    @classmethod
    def _known(cls, grid):
        if not grid:
            raise ValueError(f"names no setting; valid: {', '.join(settings())}")
        for key, values in grid.items():
            if key not in settings():
                raise ValueError(f"{key}: unknown setting{_meant(key)} valid: {', '.join(settings())}")
            if not values:
                raise ValueError(f"{key}: the list of values is empty")
            twice = [value for place, value in enumerate(values) if value in values[:place]]
            if twice:
                raise ValueError(f"{key}: {twice[0]!r} is listed twice")
        return grid

    @field_validator("notebooks")
    @classmethod
    def _there(cls, names):
        known = [path.stem for path in notebooks()]
        for name in names or ():
            if name not in known:
                raise ValueError(f"no notebook {name!r}{suggestion(name, known) or ';'} valid: {', '.join(known)}")
        return names


@dataclass(frozen=True)
class Point:
    """One point of a grid: the folder's name, its settings by key, and the study that they give."""

    name: str
    settings: dict
    config: StudyConfig


def load_sweep(name_or_path) -> SweepConfig:
    """Read a sweep file, by path or by the name of a bundled one (``data/sweeps``).

    Raises
    ------
    SortError
        Names the file, the key and the valid choices.
    """
    path = data_file(name_or_path, "sweeps")
    raw = {"name": path.stem, **read_yaml(path)}
    if isinstance(raw.get("study"), str) and (path.parent / raw["study"]).is_file():
        raw["study"] = str((path.parent / raw["study"]).resolve())
    grid = raw.get("grid")
    if isinstance(grid, dict) and isinstance(grid.get("zoo"), list):
        beside = [path.parent / str(zoo) for zoo in grid["zoo"]]
        raw["grid"] = {**grid, "zoo": [str(file.resolve()) if file.is_file() else str(zoo)
                                       for zoo, file in zip(grid["zoo"], beside, strict=True)]}  # fmt: skip
    return validated(SweepConfig, raw, path)


def points(sweep: SweepConfig, base: StudyConfig) -> list[Point]:
    """Every combination of a sweep's values, those of the last key varying fastest.

    Raises
    ------
    SortError
        A value that a study cannot have, or two points with the same folder.
    """
    found = {}
    for values in itertools.product(*sweep.grid.values()):
        chosen = dict(zip(sweep.grid, values, strict=True))
        name = "_".join(f"{_short(key)}-{_word(key, value)}" for key, value in chosen.items())
        raw = base.model_dump(mode="json") | {"name": name}
        for key, value in chosen.items():
            part, _, rest = key.partition(".")
            raw[part] = {**raw[part], rest: value} if rest else value
        if name in found:
            both = f"{found[name].settings} and {chosen}"
            raise SortError(f"sweep {sweep.name}: two points would lie in the folder {name}: {both}")
        found[name] = Point(name, chosen, validated(StudyConfig, raw, f"sweep {sweep.name}, grid"))
    return list(found.values())


def _short(key) -> str:
    return key.rpartition(".")[2].replace("_", "-")


def _word(key, value) -> str:
    """A value as part of a folder's name."""
    text = Path(value).stem if key == "zoo" else str(value)
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "none"


def run_sweep(sweep: SweepConfig, directory, base: StudyConfig | None = None, progress=True, executor=None,
              with_notebooks=True) -> Sweep:  # fmt: skip
    """Run every point of a sweep, or go on with one that was interrupted; what fails does not stop the others.

    ``sweep.json`` says at any time which points are done with these very settings. The table and the summary compare
    points of one run: those of an earlier run are removed first, and the new ones are written at the end.

    Parameters
    ----------
    sweep : of ``load_sweep``.
    directory : of the sweep; each point has a folder in it, which is a study like any other.
    base : study whose settings hold where the grid says nothing; that of the sweep's file if not given.
    executor : as in ``sl.run``.
    with_notebooks : execute the notebooks of each point and the summary with papermill.

    Returns
    -------
    Sweep
        Its ``table`` lists what failed and why; it stands in ``summary.csv`` of the directory too.

    Raises
    ------
    SortError
        The grid holds a value that a study cannot have, or the directory cannot be written to; nothing was run then.
        Or a file of the sweep cannot be written.
    """
    grid = points(sweep, base or load_config(sweep.study))
    directory = writable(directory)
    _remove(directory / "summary.csv", directory / SWEEP.name)
    before = _done_before(directory)
    states = {point.name: _state(point, "done" if before.get(point.name) == point.config else "pending")
              for point in grid}  # fmt: skip
    done = []
    with tqdm(grid, desc=f"sweep {sweep.name}", unit="point", disable=not progress) as bar:
        for point in bar:
            bar.set_description(f"sweep {sweep.name}: {point.name}")
            states[point.name] = _state(point, "pending")  # the models' files may have changed, and with them all
            _write(directory, sweep, states)
            states[point.name] |= _run_point(point, directory, done, sweep, progress, executor, with_notebooks)
            _write(directory, sweep, states)
    found = Sweep(directory)
    write_whole(directory / "summary.csv", found.table.to_csv(index=False, lineterminator="\n").encode())
    if with_notebooks and found.studies:
        execute(SWEEP, directory / SWEEP.name, {"sweep": str(directory.resolve())})
    return found


def _state(point, state) -> dict:
    return {"settings": point.settings, "state": state, "error": ""}


def _done_before(directory) -> dict[str, StudyConfig]:
    """Name -> settings of the points that an earlier run has done; those of a damaged study are not."""
    found = {}
    with contextlib.suppress(SortError):  # no sweep yet, or one that cannot be read
        for name, point in Sweep(directory).points.items():
            with contextlib.suppress(SortError):
                study = Study(directory / name)
                if point["state"] == "done" and "fingerprint" in study.stage("tables"):
                    found[name] = study.config
    return found


def _remove(*files):
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise SortError(f"{file}: cannot be removed: {error.strerror or error}") from None


def _run_point(point, directory, done, sweep, progress, executor, with_notebooks) -> dict:
    """Run one point; its state, and in one line what went wrong."""
    try:
        check_ahead(point.config)
        study = Study.create(point.config, directory / point.name)
        _take_over(study, done)
        complete(study, progress=progress, executor=executor)
        done.append(study.directory)
        if with_notebooks:
            run_notebooks(study, progress, names=sweep.notebooks)
        write_report(study)
    except SortError as error:
        return {"state": "failed", "error": str(error)}
    except Exception as error:  # of the user's own models too: one point must not end the others
        first = (str(error).strip().splitlines() or [""])[0]
        return {"state": "failed", "error": f"{type(error).__name__}: {first}"}
    return {"state": "done", "error": ""}


def _take_over(study, done):
    """Copy what an earlier point computed from the same settings, instead of tracing the same models again.

    The stages themselves check by their fingerprints whether it fits, so a wrong guess costs time and nothing else.
    """
    if study.stage("trace"):
        return
    for directory in reversed(done):
        other = Study(directory)
        old, new = other.config, study.config
        same = [old.zoo == new.zoo, old.mining == new.mining, (old.seed, old.generation) == (new.seed, new.generation)]
        fits = [same[place] and other.holds(*files) for place, files in enumerate(_STAGES.values())]
        stages = list(_STAGES)[: fits.index(False) if False in fits else len(fits)]
        for stage in stages:
            for name in _STAGES[stage]:
                _copy(directory / name, study.directory / name)
            study.note(stage, **other.stage(stage))
        if stages:
            return


def _copy(source, target):
    """Copy a file, or the files of a folder, each at once: what a killed copy left there is replaced."""
    for file in sorted(source.iterdir()) if source.is_dir() else [source]:
        with replacing(target / file.name if source.is_dir() else target) as new:
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, new)


def _write(directory, sweep, states):
    text = json.dumps({"sweep": sweep.model_dump(mode="json"), "points": states}, indent=1)
    write_whole(directory / "sweep.json", text.encode())


class Sweep:
    """The results of a sweep.

    Parameters
    ----------
    directory : of a sweep that was run, at least in part.

    Attributes
    ----------
    points : name of each point -> its ``settings``, ``state`` (pending, done or failed) and ``error``. One that runs
        is pending.
    studies : name -> ``Study`` of the points that are done.
    table : DataFrame, a row per point.
    """

    def __init__(self, directory):
        self.directory = Path(directory)
        file = self.directory / "sweep.json"
        if not file.is_file():
            raise SortError(f"{self.directory}: no sweep there (sweep.json is missing); make one with "
                            "'sortlib study --sweep FILE'")  # fmt: skip
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            self.name, self.points = raw["sweep"]["name"], raw["points"]
            for point in self.points.values():
                point["settings"], point["state"], point["error"]  # noqa: B018 - raises where one is missing
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SortError(f"{file}: is damaged; delete it and run the sweep again, which keeps its points") from None

    def __repr__(self):
        done = len(self.studies)
        return f"Sweep({str(self.directory)!r}: {self.name}, {done} of {len(self.points)} points done)"

    @property
    def untouched(self) -> bool:
        """Whether no point was run to its end yet."""
        return all(point["state"] == "pending" for point in self.points.values())

    @cached_property
    def studies(self) -> dict[str, Study]:
        return {name: Study(self.directory / name) for name, point in self.points.items() if point["state"] == "done"}

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per point: settings, state, sizes, valid inputs in percent, both rules' counts, largest differences.

        ``paper_fails`` counts calls that fail the paper's rule, ``accusing`` calls whose evidence accuses a platform,
        and a column for each verdict that occurs counts its calls; all of SORT's cases. There is no time in it, so
        that a second run gives the same table.
        """
        rows = [{"point": name, **_named(point["settings"]), "state": point["state"], **self._row(name),
                 "error": point["error"]} for name, point in self.points.items()]  # fmt: skip
        table = pd.DataFrame(rows)
        counted = [str(verdict) for verdict in RANK if str(verdict) in table]
        kept = [name for name in table if name not in counted and name != "error"]
        table = table[[*kept, *counted, "error"]]
        whole = [*counted, "models", "patterns", "cases", "calls", "paper_fails", "accusing"]
        return table.astype({name: "Int64" for name in whole if name in table})

    def _row(self, name) -> dict:
        if name not in self.studies:
            return {}
        study = self.studies[name]
        rows = study.judged
        return {
            "models": len(study.models), "patterns": len(study.patterns), "cases": rows["case"].nunique(),
            "calls": len(rows), "valid": tables.validity(study, "tested")["sort_ratio"].iloc[-1],
            "paper_fails": int((rows["paper"] == "fail").sum()), "accusing": int(tables.accuses(rows).sum()),
            "largest_local": rows["local_max_abs"].max(), "largest_propagated": rows["propagated_max_abs"].max(),
            **{verdict: int((rows["evidence"] == verdict).sum()) for verdict in map(str, RANK)
               if (rows["evidence"] == verdict).any()},
        }  # fmt: skip


def _named(chosen) -> dict:
    """Settings by the last part of their key, as long as that is clear."""
    short = [key.rpartition(".")[2] for key in chosen]
    return {name if short.count(name) == 1 else key: value
            for key, name, value in zip(chosen, short, chosen.values(), strict=True)}  # fmt: skip


def open_sweep(directory) -> Sweep:
    """A sweep ready for use: where there is none, or one without a point yet, the bundled one is run first whose name
    ``sweep-<name>`` says.

    Raises
    ------
    SortError
        No sweep is there, and none is bundled by that name; the message lists the bundled ones.
    """
    directory = Path(directory)
    if not (directory / "sweep.json").is_file() or Sweep(directory).untouched:
        run_sweep(load_sweep(directory.name.removeprefix("sweep-")), directory, with_notebooks=False)
    return Sweep(directory)


def finish(found: Sweep):
    """Print a sweep's closing lines.

    Raises
    ------
    SortError
        A point failed; says which and why.
    """
    print(f"\n{found.table.drop(columns='error').to_string(index=False, na_rep='/')}\n")
    print(f"Table: {found.directory / 'summary.csv'}")
    if (found.directory / SWEEP.name).is_file():
        print(f"Summary: {found.directory / SWEEP.name}")
    failed = {name: point["error"] for name, point in found.points.items() if point["state"] == "failed"}
    if failed:
        lines = "".join(f"\n  {name}: {error}" for name, error in failed.items())
        raise SortError(
            f"{len(failed)} of {len(found.points)} points failed; the same command tries them again:{lines}"
        )
