"""The stages of a study in order; each is skipped where its result still fits, and resumed where it was interrupted."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import time
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path

from tqdm.auto import tqdm

from sortlib import user_code
from sortlib.apis import PAPER_APIS
from sortlib.arguments import path as as_path
from sortlib.baselines import stage as baselines
from sortlib.baselines.single_api import is_single, single_api_patterns
from sortlib.errors import RAISED, SortError
from sortlib.generation import generate
from sortlib.mining import mine
from sortlib.outcomes import run_missing
from sortlib.platform import Platform, default_candidate, describe, require
from sortlib.study import Study, StudyConfig, fingerprint, load_config
from sortlib.tracing import Tracer
from sortlib.zoo import load_zoo, prepare

SORT = "sort"  # among the times of the manifest
STAGES = ("trace", "mine", "generate", "run", "tables")


def complete(study: Study, upto: str = "tables", progress: bool = True, executor=None) -> Study:
    """Compute every stage up to ``upto`` (one of ``STAGES``) that is missing or out of date.

    ``executor``, any ``concurrent.futures.Executor``, runs the cases; None runs them here.

    Raises
    ------
    SortError
        An unknown stage, or a mistake in the study's files.
    """
    if upto not in STAGES:
        raise SortError(f"unknown stage {upto!r}; valid, in order: {', '.join(STAGES)}")
    run = partial(_run, executor=executor)
    works = {"trace": _trace, "mine": _mine, "generate": _generate, "run": run, "tables": _tables}
    for stage in STAGES[: STAGES.index(upto) + 1]:
        works[stage](study, progress)
    return study


def open_study(directory, upto: str = "tables", config=None, progress: bool = True) -> Study:
    """A study ready for use: opened, made where it is missing, and completed up to a stage.

    Parameters
    ----------
    directory : of the study; where there is none, one is made from ``config``.
    upto : last stage that must be there, one of ``STAGES``.
    config : study file or bundled name; by default the directory's own name, so ``runs/quick`` is the study quick.
    """
    directory = as_path(directory, "open_study: directory")
    if not (directory / "manifest.json").is_file():
        Study.create(load_config(config or directory.name), directory)
    return complete(Study(directory), upto, progress)


def study_with_cases(source, progress: bool = True) -> Study:
    """A study whose cases are there.

    Parameters
    ----------
    source : directory of a study; or a study file or bundled name, whose study is then made in ``runs/<name>``.
    """
    directory = Path(source)
    if (directory / "manifest.json").is_file():
        return complete(Study(directory), "generate", progress)
    config = load_config(source)
    return complete(Study.create(config, Path("runs") / config.name), "generate", progress)


def check_ahead(config: StudyConfig):
    """Everything that can be wrong with a study's zoo and platforms, before anything is computed or written."""
    load_zoo(config.zoo)
    pair_of(config)
    baselines.check_options(config)


def pair_of(config: StudyConfig) -> tuple[Platform, Platform]:
    """Reference and candidate, which this machine has.

    Raises
    ------
    SortError
        One is unknown, or missing here.
    """
    own = config.platforms.own
    return require(config.platforms.reference, own), require(candidate_of(config), own)


def candidate_of(config: StudyConfig) -> str:
    """The platform under test; ``auto`` is the machine's accelerator, or cpu:baseline where there is none."""
    wanted = config.platforms.candidate
    return default_candidate() if wanted == "auto" else wanted


def _trace(study, progress):
    zoo = load_zoo(study.config.zoo)
    wanted = {entry.name: fingerprint(entry.model_dump(mode="json"), zoo.seed, study.manifest["made_with"]["torch"],
                                      *state_of_files(entry))
              for entry in zoo.models}  # fmt: skip
    done = study.stage("trace").get("done", {})
    todo = [entry for entry in zoo.models if done.get(entry.name, {}).get("fingerprint") != wanted[entry.name]
            or not user_code.unchanged(done[entry.name].get("code", {}))
            or not study.holds(f"graphs/{entry.name}.json", f"records/{entry.name}.parquet")]  # fmt: skip
    mark = fingerprint(wanted)
    if not todo and study.stage("trace").get("fingerprint") == mark:
        return
    with tqdm(todo, desc="trace", unit="model", disable=not progress) as bar:
        for entry in bar:
            bar.set_description(f"trace {entry.name}")
            done[entry.name] = {"fingerprint": wanted[entry.name], **_trace_model(study, entry, zoo)}
            study.note("trace", done=done, models=[name for name in wanted if name in done])
    study.note("trace", done=done, models=list(wanted), fingerprint=mark)
    study.forget("graphs", "records")


def state_of_files(entry) -> list:
    """What an entry stands on beside its own text: the user's code, weights and images, so that a change is seen."""
    code = code_of(entry)
    state = [hashlib.sha256(code.read_bytes()).hexdigest()] if code and code.is_file() else []
    roots = [Path(path) for path in (entry.checkpoint, entry.inputs.path) if path]
    for root in roots:
        files = sorted(root.rglob("*")) if root.is_dir() else [root]
        state += [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return state


def code_of(entry) -> Path | None:
    """The file of a function of the user's own that makes a model."""
    place = str(entry.model).rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place)
    if entry.source != "custom" or not place:
        return None
    try:
        found = importlib.util.find_spec(place.partition(".")[0]) and importlib.util.find_spec(place)
    except RAISED:  # the user's package, which was imported for this; it is told when the model is built
        found = None
    return Path(found.origin) if found and found.origin else None


def _trace_model(study, entry, zoo) -> dict:
    """Trace all samples of one model and store them; the facts go into the manifest."""
    model, samples = prepare(entry, zoo)
    first, records, different = None, [], []
    for number, (args, kwargs) in enumerate(samples):
        graph, found = Tracer(entry.name, number).run(model, *args, **kwargs)
        first = first or graph
        if graph.nodes == first.nodes and graph.edges == first.edges:
            records += found
        else:  # the model decides by its input; patterns are mined from the first sample's graph
            different.append(number)
    if not first.nodes:
        raise SortError(f"model {entry.name}: no API call was seen")
    study.save_trace(first, records)
    # What the user's code imports is not known before the model was built.
    code = user_code.behind(model, *filter(None, [code_of(entry)])) if entry.source == "custom" else {}
    del model
    gc.collect()
    facts = {"nodes": len(first.nodes), "edges": len(first.edges), "samples": len(samples), "other_graph": different}
    return {**facts, "code": code} if code else facts


def _mine(study, progress):
    settings = study.config.mining
    mark = fingerprint(study.stage("trace")["fingerprint"], settings.model_dump())
    if study.stage("mine").get("fingerprint") == mark and study.holds("patterns.json"):
        return
    patterns = mine(study.graphs, **settings.model_dump(), progress=progress or None)
    if patterns.complete_up_to < settings.max_nodes:  # Ctrl-C gives a part of the answer, which is not the study's
        raise KeyboardInterrupt
    if not patterns:
        raise SortError(f"study {study.config.name}: {patterns.note}; mining.min_support is {settings.min_support}, "
                        f"mining.max_nodes {settings.max_nodes}, and there are {len(study.graphs)} models")  # fmt: skip
    study.save_patterns(patterns)
    sizes = Counter(len(pattern.nodes) for pattern in patterns)
    joins = sum(pattern.has_join for pattern in patterns)
    study.note(
        "mine", fingerprint=mark, patterns=len(patterns), remark=patterns.note, sizes=dict(sorted(sizes.items())),
        with_join=joins,
    )  # fmt: skip
    study.forget("patterns")


def _generate(study, progress):
    _generate_cases(study, progress)
    baselines.generate_baselines(study, progress)
    study.forget("records")  # the largest part of a study in memory, and a campaign may take days


def _generate_cases(study, progress):
    settings, seed = study.config.generation, study.config.seed
    ablation = baselines.SINGLE in study.config.methods
    mark = fingerprint(study.stage("mine")["fingerprint"], settings.model_dump(), seed, *([] if ablation else [False]))
    if study.stage("generate").get("fingerprint") == mark and study.holds("cases.parquet"):
        return
    chosen = spread(study.patterns, settings.max_patterns)
    options = {"seed": seed, "sampler": settings.sampler, "max_elements": settings.max_elements,
               "backward": settings.backward}  # fmt: skip
    tested = sorted({api for pattern in chosen for api in pattern.nodes}) if ablation else []
    singles = single_api_patterns(study.graphs, tested)
    start = time.monotonic()
    with tqdm(total=len(chosen) + len(singles), desc="generate", unit="pattern", disable=not progress) as bar:
        sort = generate(chosen, study.records, study.graphs, settings.per_pattern, progress=bar.update, **options)
        further = _further_cases(study, sort, chosen, options)
        between = time.monotonic()
        single = generate(singles, study.records, study.graphs, settings.budget, progress=bar.update, **options)
    study.save_cases([*sort, *further, *single])
    study.spent(SORT, generate=between - start)
    if ablation:
        study.spent(baselines.SINGLE, generate=time.monotonic() - between)
    study.note(
        "generate", fingerprint=mark, patterns_mined=len(study.patterns), patterns_tested=len(chosen),
        cases=len(sort) + len(further), further_cases=len(further), single_api_cases=len(single),
        without_case={**sort.skipped, **single.skipped},
        records_left_out=dict(sort.left_out),
    )  # fmt: skip
    study.forget("cases")


def _further_cases(study, cases, patterns, options) -> list:
    """Cases beyond ``per_pattern``, of patterns that hold an API of the paper which would get less than the budget."""
    settings = study.config.generation
    calls = Counter(node.api for case in cases for node in case.nodes)
    usable = {case.pattern for case in cases}
    usable = [pattern for pattern in patterns if pattern.id in usable]
    counts = Counter()
    for api in sorted(PAPER_APIS, key=lambda api: (calls[api], api)):
        holding = cycle([pattern for pattern in usable if api in pattern.nodes])
        while calls[api] < settings.budget and (pattern := next(holding, None)):
            counts[pattern.id] += 1
            calls.update(pattern.nodes)
    made = {case.id for case in cases}
    further = []
    for count in sorted(set(counts.values())):
        wanted = [pattern for pattern in usable if counts[pattern.id] == count]
        found = generate(wanted, study.records, study.graphs, settings.per_pattern + count, **options)
        further += [case for case in found if case.id not in made]
    return further


def spread(patterns, count):
    """``count`` patterns that cover sizes and APIs evenly; all of them for None.

    Patterns are taken in turn from groups of equal size, equal rarest API, and with or without a join, so that the many
    large patterns of one block do not crowd out the rest; within a group by id, which is as good as random and the
    same everywhere.
    """
    if count is None or len(patterns) <= count:
        return list(patterns)
    frequency = Counter(api for pattern in patterns for api in set(pattern.nodes))
    groups = {}
    for pattern in sorted(patterns, key=lambda p: p.id):
        rarest = min(pattern.nodes, key=lambda api: (frequency[api], api))
        groups.setdefault((len(pattern.nodes), rarest, pattern.has_join), []).append(pattern)
    queues = [groups[key] for key in sorted(groups)]
    chosen = []
    for turn in range(max(map(len, queues))):
        chosen += [queue[turn] for queue in queues if turn < len(queue)]
    kept = {pattern.id for pattern in chosen[:count]}
    return [pattern for pattern in patterns if pattern.id in kept]


def _run(study, progress, executor=None):
    reference, candidate = pair_of(study.config)
    mark = fingerprint(study.config.timeout, study.manifest["made_with"]["torch"], *_specifics(reference, candidate))
    study.note("run", fingerprint=mark, reference=reference.name, candidate=candidate.name)
    _run_cases(study, reference, candidate, progress, executor)
    baselines.run_baselines(study, reference, candidate, progress, executor)


def _specifics(*pair) -> list:
    """What platforms stand for: their settings, since a name may be defined anew, and another Python's versions."""
    found = []
    for platform in pair:
        found.append(platform.to_json())
        if platform.python:
            said = describe(platform)
            found.append([said["torch"], said["numpy"]])
    return found


def _run_cases(study, reference, candidate, progress, executor):
    label, seconds = f"run {reference.name} against {candidate.name}", Counter()

    def spent(case, time_taken):
        seconds[baselines.SINGLE if is_single(case.pattern) else SORT] += time_taken

    try:
        versions = run_missing(study.outcome_folder, study.cases, reference, candidate, study.config.timeout, label,
                               progress=progress, executor=executor, spent=spent)  # fmt: skip
    finally:  # interrupted: what it took until then counts too
        for method, taken in seconds.items():
            study.spent(method, run=taken)
    if versions is None:
        return
    if versions:
        study.worked(versions)
    study.forget("all_outcomes", "outcomes", "single", "judged", "judged_single", "findings")


def _tables(study, progress):
    from sortlib import tables

    compared = [study.stage("baselines"), study.config.methods] if baselines.chosen(study.config) else []
    compared += [study.stage("rq4")] if study.stage("rq4") else []
    mark = fingerprint(study.stage("generate"), study.stage("run"), study.judged_by, *compared)
    if study.stage("tables").get("fingerprint") != mark or not study.holds("tables/findings.csv"):
        tables.write_all(study)
        study.note("tables", fingerprint=mark)
