"""The baselines' part of a study: attempts by method as one file each, and their outcomes.

Every method has a fingerprint of its own, so that adding one leaves the others as they are, and an interrupted run goes
on. The seconds that a method took are in the manifest under ``times`` and in no table.
"""

from __future__ import annotations

import time
from dataclasses import replace

from tqdm.auto import tqdm

from sortlib.apis import PAPER_APIS
from sortlib.baselines.base import Context
from sortlib.baselines.registry import BASELINES, baseline
from sortlib.baselines.until_valid import UntilValid
from sortlib.errors import SortError
from sortlib.outcomes import run_missing
from sortlib.platform import require

SINGLE = "single-api"


def chosen(config) -> list[str]:
    """The baselines of a study, without the ablation."""
    return [key for key in config.methods if key != SINGLE]


def context_of(study) -> Context:
    """What a study gives its baselines to draw on."""
    options = study.config.baselines
    settings = {name: getattr(options, name) for name in ("constraints", "model", "programs")}
    return Context(study.records, study.config.seed, options.max_elements or study.config.generation.max_elements,
                   {name: value for name, value in settings.items() if value})  # fmt: skip


def generate_baselines(study, progress: bool = True):
    """Make the attempts of every chosen method that has none, or other ones."""
    from sortlib.study import fingerprint

    config, known = study.config, dict(study.stage("baselines").get("methods", {}))
    keys = chosen(config)
    if not keys:
        return
    settings = config.baselines.model_dump(mode="json", exclude={"timeout", "memory"})
    budget = config.generation.model_dump(include={"inputs_per_api", "valid_per_api", "max_attempts_per_api"})
    mark = fingerprint(study.stage("trace")["fingerprint"], budget, config.seed, config.generation.max_elements,
                       settings)  # fmt: skip
    todo = [
        key for key in keys
        if known.get(key, {}).get("fingerprint") != mark or not study.holds(f"baselines/{key}.parquet")
    ]  # fmt: skip
    if not todo:
        return  # the records, which are large, stay on the disk
    context = context_of(study)
    for key in todo:
        method, start = baseline(key), time.monotonic()
        missing = method.available(context)
        cases, absent = [], {}
        try:
            with tqdm(list(PAPER_APIS), desc=f"attempts of {method.name}", unit="API", disable=not progress) as bar:
                for api in bar:
                    made = [] if missing else list(method.attempts(api, config.generation.budget, context))
                    cases += made
                    if not made:
                        absent[api] = f"needs {missing}" if missing else method.reason(api, context)
        finally:
            method.close()
        study.save_baseline_cases(key, cases)
        study.spent(key, generate=time.monotonic() - start)
        known[key] = {"fingerprint": mark, "attempts": len(cases), "absent": absent, "missing": missing}
        study.note("baselines", methods={name: known[name] for name in BASELINES if name in known})
    study.forget("baseline_cases", "baseline_outcomes")


def run_baselines(study, reference, candidate, progress: bool = True, executor=None):
    """Run the attempts that have no outcome yet, method by method; with ``valid_per_api`` in the study's generation,
    make and run further ones until so many are valid."""
    keys = chosen(study.config)
    if not keys:
        return
    timeout = min(study.config.timeout, study.config.baselines.timeout)
    reference, candidate = (_limited(each, study.config.baselines.memory) for each in (reference, candidate))

    def run(key, label):
        start, versions = time.monotonic(), None
        try:
            versions = run_missing(study.baseline_folder, study.baseline_cases[key], reference, candidate,
                                   timeout, label, "attempt", progress, executor)  # fmt: skip
        except BaseException:
            versions = {}  # interrupted: what it took until then counts too
            raise
        finally:
            if versions is not None:
                study.spent(key, run=time.monotonic() - start)
        study.forget("baseline_outcomes")

    for key in keys:
        name = BASELINES[key].name
        run(key, f"run {name}")
        if study.config.generation.valid_per_api and study.baseline_cases[key]:
            _until_valid(study, key, candidate.name, lambda left, key=key, name=name: run(
                key, f"run {name}, until enough are valid: {left} to go"))  # fmt: skip


def _limited(platform, memory):
    """The platform with a limit on what its worker process may allocate, in GiB."""
    platform = require(platform)
    return replace(platform, env={**platform.env, "SORTLIB_WORKER_MEMORY": str(memory)}) if memory else platform


def _until_valid(study, key, candidate, run):
    """Let a method go on until it has the valid attempts that the study wants; ``run`` takes what is left to do."""
    rounds = UntilValid(study, key, context_of(study), candidate)
    try:
        while left := rounds.extend():
            run(f"{left} of the APIs' sequences")
    finally:
        rounds.close()
        if rounds.seconds > 1:
            study.spent(key, generate=rounds.seconds)
    known = dict(study.stage("baselines")["methods"])
    known[key] = {**known[key], "attempts": len(study.baseline_cases[key]), "short": rounds.short}
    study.note("baselines", methods=known)


def check_options(config):
    """Refuse settings of baselines that cannot work, before anything is computed.

    Raises
    ------
    SortError
        A folder is missing, or holds no constraint file.
    """
    from sortlib.baselines.constraints import read_folder

    options = config.baselines
    if "docter" in config.methods and options.constraints:
        read_folder(options.constraints)
    if "titanfuzz" in config.methods and options.programs:
        missing = baseline("titanfuzz").available(Context([], options={"programs": options.programs}))
        if missing:
            raise SortError(f"baselines.programs: not there: {missing}")
