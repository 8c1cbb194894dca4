"""RQ4: which known faults each method finds, with equally many executed calls.

The device ``simdev`` gets one built-in fault at a time. For the fault's API every method makes its attempts once, up to
a budget of executed calls; they run on the clean device and on the faulty one. What a method accuses on the clean
device is no fault of that device, and counts as an alarm; what it accuses on the faulty one alone is what it found.

Methods that compare two platforms run on ``cpu`` against the device. Those whose oracle looks at one platform
(``ALONE``) run with the device in the place of the reference, which is the side that their oracle asks.

SORT and Single-API choose their cases with the same rule (``variety``): first what is most unlike the calls before.

The rows of every run are kept in ``rq4/`` of the study as they come, so an interrupted comparison goes on, and are
judged when they are read.
"""

from __future__ import annotations

import json
import math
import time
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from tqdm.auto import tqdm

from sortlib.apis import PAPER_APIS
from sortlib.baselines.registry import BASELINES, baseline
from sortlib.baselines.single_api import single_api_patterns
from sortlib.baselines.stage import context_of
from sortlib.errors import SortError, choices
from sortlib.generation import TestCase, generate
from sortlib.grouping import accuses
from sortlib.judging import Verdict, judge
from sortlib.mining import mine
from sortlib.pipeline import spread
from sortlib.platform import require
from sortlib.runner.campaign import campaign
from sortlib.runner.files import replacing, writable, write_whole
from sortlib.simdev.catalogue import FAULTS, find
from sortlib.study import fingerprint
from sortlib.variety import varied

ALONE = ("freefuzz-P", "deeprel-V", "deeprel-S")
BUDGET = 60  # executed calls of each method and API
CHOICE = 4  # times as many cases are made as calls may be run, to choose from
STAGE = "rq4"
ENDED = ("crash", "timeout")
COLUMNS = ["method", "rule", "fault", "api", "found", "blamed", "accused", "alarms", "attempts", "calls", "seconds"]


def seeded_faults(study, faults=None, budget: int = BUDGET, methods=None, progress: bool = True) -> pd.DataFrame:
    """Run every method on a device with known faults and say what each finds.

    Parameters
    ----------
    study : a study that was mined; methods draw on its patterns and records.
    faults : names of built-in faults (``simdev.faults()``); None takes all of them.
    budget : executed calls of each method and API. Every call of an attempt counts, so a pattern of five calls costs
        five. A method that ended the faulty device's process, or let it hang, by an attempt that the clean device
        survived has found that, and is not run further on the fault.
    methods : baselines to compare SORT and single-API with; None takes all.
    progress : show a progress bar.

    Returns
    -------
    pandas.DataFrame
        A row for each method, rule and fault that was run, now or before, with this budget and these methods:
        ``found`` (it accuses something that it does not accuse on the clean device), ``blamed`` (found, and no API but
        the faulty one is accused), ``accused`` (the APIs), ``alarms`` (accusations on the clean device by the same
        attempts), ``attempts`` and ``calls`` on the faulty device, ``seconds`` there. ``rule`` is ``evidence`` or
        ``paper`` for SORT's oracle under either rule, ``own`` for the method's own oracle.
        ``attrs["absent"]`` maps (method, api) to why there are no attempts; ``attrs["rare"]`` lists the APIs that are
        in no frequent pattern, so that SORT was run on rare ones.

    Raises
    ------
    SortError
        An unknown fault or method, a budget below 1, or a machine that cannot build the device.
    """
    found = [find(name) for name in (faults if faults is not None else FAULTS)]
    keys = list(methods if methods is not None else BASELINES)
    for key in keys:
        if key not in BASELINES:
            raise SortError(f"unknown method {key!r}; valid: {choices(BASELINES)}")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise SortError(f"budget: must be a whole number of calls above 0, not {budget!r}")
    require("simdev")
    folder = writable(folder_of(study, budget, keys))
    _note(study, budget, keys)
    source = _Source(study, budget, keys, folder)
    runs = {f"clean-{api}": (api, "simdev") for api in dict.fromkeys(fault.api for fault in found)}
    runs |= {fault.name: (fault.api, f"simdev:{fault.name}") for fault in found}
    timeout = min(study.config.timeout, study.config.baselines.timeout)
    with tqdm(runs.items(), desc="seeded faults", unit="run", disable=not progress) as bar:
        for name, (api, device) in bar:
            bar.set_description(name)
            path, clean = folder / f"{name}.parquet", folder / f"clean-{api}.parquet"
            if not path.is_file():
                survived = set() if path == clean else _survived(_rows(clean))
                _store(_run(source.attempts(api)["cases"], device, timeout, survived), path)
                _note(study, budget, keys)
    return stored(study)


def _note(study, budget, methods):
    """Write into the manifest what was run, by which the study sees that its table is out of date."""
    done = sorted(path.stem for path in folder_of(study, budget, methods).glob("*.parquet"))
    study.note(STAGE, budget=budget, methods=methods, done=done)


def folder_of(study, budget, methods) -> Path:
    """Where the runs of a study lie that were made from the same patterns and records with these settings."""
    config = study.config
    mark = fingerprint(study.stage("mine").get("fingerprint"), budget, CHOICE, list(methods), config.seed,
                       config.generation.sampler, config.generation.max_elements,
                       config.baselines.model_dump(mode="json"))  # fmt: skip
    return study.directory / STAGE / mark


def stored(study) -> pd.DataFrame:
    """What ``seeded_faults`` has found so far with the settings that it was last called with; perhaps no row."""
    last = study.stage(STAGE)
    rows, absent, rare, alarms = [], {}, [], {}
    if last:
        folder = folder_of(study, last["budget"], last["methods"])
        for fault in FAULTS.values():
            paths = [folder / f"{name}.parquet" for name in (fault.name, f"clean-{fault.api}")]
            if all(path.is_file() for path in paths):
                kept = _attempts(folder, fault.api)
                absent |= {(name, fault.api): why for name, why in kept["absent"].items()}
                rare += [fault.api] if kept["rare"] and fault.api not in rare else []
                if fault.api not in alarms:  # the clean device was run once for all faults of an API
                    alarms[fault.api] = _alarms(study, _rows(paths[1]), last["methods"])
                rows += _compare(study, fault, _rows(paths[0]), alarms[fault.api], last["methods"])
    table = pd.DataFrame(rows, columns=COLUMNS)
    table.attrs["absent"], table.attrs["rare"] = absent, rare
    return table


def accusing_rows(study, apis, method: str, rule: str, what: str) -> pd.DataFrame | None:
    """The rows of the store behind a cell of the table of RQ4, with the fault in ``fault``.

    Parameters
    ----------
    apis : of the faults.
    method, rule : as in ``seeded_faults``.
    what : ``found`` or ``blamed`` for the calls that accuse the device with a fault, ``alarms`` for those that accuse
        the clean device.

    Returns
    -------
    pandas.DataFrame or None
        None where method, rule or ``what`` are unknown.
    """
    last = study.stage(STAGE)
    if not last or what not in ("found", "blamed", "alarms"):
        return None
    folder = folder_of(study, last["budget"], last["methods"])
    judges = {(name, each): (run, judged) for name, run, rules in _judges(study, last["methods"])
              for each, judged in rules.items()}  # fmt: skip
    if (method, rule) not in judges:
        return None
    run, judged = judges[method, rule]
    results = stored(study)
    results = results[(results["method"] == method) & (results["rule"] == rule) & results["api"].isin(apis)]
    parts = []
    for api, group in results.groupby("api", sort=False):
        clean = _of_run(_rows(folder / f"clean-{api}.parquet"), run)
        alarms = _places(judged(clean))
        if what == "alarms":
            parts.append(clean[_keys(clean).isin(alarms)].assign(fault=""))
            continue
        for fault in group.loc[group[what], "fault"]:
            rows = _of_run(_rows(folder / f"{fault}.parquet"), run)
            accusing = _places(judged(rows)) - alarms
            parts.append(rows[_keys(rows).isin(accusing)].assign(fault=fault))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["case", "node", "api", "fault"])


def _rows(path):
    return _read(pd.read_parquet, path)


def _attempts_file(folder, api) -> Path:
    return folder / f"attempts-{api}.json"


def _attempts(folder, api) -> dict:
    return _read(lambda path: json.loads(path.read_text(encoding="utf-8")), _attempts_file(folder, api))


def _read(reader, path):
    try:
        return reader(path)
    except (OSError, ValueError) as error:  # Arrow's errors are of these kinds too
        raise SortError(f"{path}: is damaged ({type(error).__name__}); delete it, and 'sortlib faults' makes it "
                        "anew") from None  # fmt: skip


def _of_run(rows, run):
    return rows[rows["run"].isin(run)]


def _places(accusations) -> set:
    return {(accusation.case, accusation.node) for accusation in accusations}


def _keys(rows):
    return pd.Series(list(zip(rows["case"], rows["node"], strict=True)), index=rows.index, dtype=object)


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and rule of ``seeded_faults``: faults, found, blamed rightly, alarms, calls, seconds."""
    rows = []
    for (method, rule), group in results.groupby(["method", "rule"], sort=False):
        alarms = group.drop_duplicates("api")["alarms"].sum()  # the clean device was run once for an API
        rows.append({"method": method, "rule": rule, "faults": len(group), "found": int(group["found"].sum()),
                     "blamed": int(group["blamed"].sum()), "alarms": int(alarms), "calls": int(group["calls"].sum()),
                     "seconds": round(float(group["seconds"].sum()), 1)})  # fmt: skip
    return pd.DataFrame(rows)


# ---- attempts ----


class _Source:
    """The attempts of all methods by API, made once and kept."""

    def __init__(self, study, budget, methods, folder):
        self.study, self.budget, self.methods, self.folder = study, budget, methods, folder

    @cached_property
    def context(self):
        return context_of(self.study)

    @cached_property
    def records(self):
        return {record.key: record for record in self.study.records}

    @cached_property
    def rare(self):
        """Patterns of up to three calls that one model is enough for, for APIs in no frequent pattern."""
        return mine(self.study.graphs, min_support=1, max_nodes=3)

    def attempts(self, api) -> dict:
        """``cases``: run -> list of ``TestCase``; ``absent``: method -> why it has none; ``rare``: whether SORT's
        patterns are rare ones."""
        path = _attempts_file(self.folder, api)
        if not path.is_file():
            made, absent, rare = self._make(api)
            forms = {run: [case.to_json() for case in cases] for run, cases in made.items()}
            write_whole(path, json.dumps({"cases": forms, "absent": absent, "rare": rare}).encode())
        kept = _attempts(self.folder, api)
        kept["cases"] = {run: [TestCase.from_json(form) for form in forms] for run, forms in kept["cases"].items()}
        return kept

    def _make(self, api):
        sort, rare = self._sort(api)
        made = {"sort": sort, "single": self._single(api)}
        names = {"sort": "SORT", "single": "Single-API"}
        absent = {names[run]: "not called by the traced models" for run, cases in made.items() if not cases}
        for key in self.methods:
            method = baseline(key)
            missing = method.available(self.context)
            try:
                found = [] if missing else list(method.attempts(api, self.budget, self.context))
            finally:
                method.close()
            for case in found:
                made.setdefault(case.pattern.removesuffix(f"-{api}"), []).append(case)
            variants = method.variants if any(case.pattern != f"{key}-{api}" for case in found) else ()
            runs = {f"{key}-{variant}": f"{method.name}-{variant}" for variant in variants} or {key: method.name}
            for run, name in runs.items():
                if run not in made:
                    absent[name] = f"needs {missing}" if missing else method.reason(api, self.context)
        return {run: _within(cases, self.budget) for run, cases in made.items() if cases}, absent, rare

    def _sort(self, api):
        """Cases of patterns that hold the API, and whether they are rare ones."""
        for rare in (False, True):
            patterns = self.rare if rare else self.study.patterns
            holding = spread([p for p in patterns if api in p.nodes], CHOICE * self.budget)
            found = self._chosen(api, holding, CHOICE * self.budget)
            if found:
                return found, rare
        return [], False

    def _single(self, api):
        return self._chosen(api, single_api_patterns(self.study.graphs, [api]), CHOICE * self.budget)

    def _chosen(self, api, patterns, count):
        """Cases within the budget, out of about ``count``."""
        if not patterns:
            return []
        found = self._generated(patterns, math.ceil(count / len(patterns)))
        return varied(found, api, self.records, self.budget)

    def _generated(self, patterns, count):
        """Cases within the baselines' size of tensors, or within the study's where there are none so small."""
        config = self.study.config
        for limit in (self.context.max_elements, config.generation.max_elements):
            found = generate(patterns, self.study.records, self.study.graphs, count, config.seed,
                             config.generation.sampler, limit)  # fmt: skip
            if found:
                return list(found)
        return []


def _within(cases, budget):
    """The first cases that have no more calls than the budget, each once."""
    kept, calls = {}, 0
    for case in cases:
        if case.id not in kept and calls + len(case.nodes) <= budget:
            kept[case.id] = case
            calls += len(case.nodes)
    return list(kept.values())


# ---- running ----


class _Started(dict):
    """What a campaign's workers say of themselves, and when they said it."""

    def update(self, *given):
        self.at = time.monotonic()
        super().update(*given)


def _survived(rows) -> set:
    """The cases that ended no process of the clean device."""
    return set(rows["case"]) - set(rows.loc[rows["status"].isin(ENDED), "case"])


def _run(attempts, device, timeout, survived=frozenset()) -> pd.DataFrame:
    """The rows of all attempts on a device, with ``run`` and the ``seconds`` that the case took.

    A method goes no further once one of the cases in ``survived`` ends the device's process.
    """
    found = []
    for alone in (False, True):
        mine_ = {run: cases for run, cases in attempts.items() if cases and (run in ALONE) == alone}
        pair, side = ((device, "cpu"), "reference") if alone else (("cpu", device), "candidate")
        owner = {case.id: run for run, cases in mine_.items() for case in cases}
        if not owner:
            continue
        ended, started = set(), _Started()
        # The first attempt of each method, then the rest: a dead process, of which the campaign makes sure in a second
        # one, is known before the method's next attempt begins.
        order = [(run, cases[0]) for run, cases in mine_.items()]
        order += [(run, case) for run, cases in mine_.items() for case in cases[1:]]
        pending = (case for run, case in order if run not in ended)
        before = None
        for case, rows in campaign(pending, *pair, timeout, versions=started):
            now = time.monotonic()
            seconds, before = now - (started.at if before is None else before), now
            run = owner[case.id]
            found += [{**row, "run": run, "seconds": seconds} for row in rows]
            if case.id in survived and any(row["status"] in ENDED and row["side"] == side for row in rows):
                ended.add(run)
    return pd.DataFrame(found) if found else pd.DataFrame(columns=["case", "node", "run", "seconds"])


def _store(rows, path):
    with replacing(path) as new:
        rows.to_parquet(new)


# ---- judging ----


class Accusation(NamedTuple):
    """What a method says is wrong: a call of an attempt, and the APIs that it cannot tell apart as the cause."""

    case: str
    node: int
    apis: tuple[str, ...]


def _alarms(study, clean, methods) -> dict:
    """(method, rule) -> accusations on the clean device, of the methods that were run there."""
    return {(name, rule): judged(rows) for name, run, rules in _judges(study, methods)
            if len(rows := _of_run(clean, run)) for rule, judged in rules.items()}  # fmt: skip


def _compare(study, fault, faulty, alarms, methods):
    """A row for each method and rule in ``alarms``, the accusations on the clean device."""
    rows = []
    for name, run, rules in _judges(study, methods):
        attempts = _of_run(faulty, run)
        for rule, judged in rules.items():
            if (name, rule) not in alarms:
                continue
            known = _places(alarms[name, rule])
            new = [a for a in judged(attempts) if (a.case, a.node) not in known]
            accused = sorted({api for accusation in new for api in accusation.apis})
            rows.append({
                "method": name, "rule": rule, "fault": fault.name, "api": fault.api, "found": fault.api in accused,
                "blamed": accused == [fault.api], "accused": ", ".join(accused), "alarms": len(alarms[name, rule]),
                "attempts": attempts["case"].nunique(), "calls": len(attempts),
                "seconds": float(attempts.drop_duplicates("case")["seconds"].sum()),
            })  # fmt: skip
    return rows


def _judges(study, methods):
    """(method, runs, rule -> function from rows to accusations)."""
    both = {"evidence": partial(_by_evidence, study), "paper": partial(_by_paper, study)}
    yield "SORT", ("sort",), both
    yield "Single-API", ("single",), both
    for key in methods:
        method = baseline(key)
        for variant in method.variants or ("",):
            run = "-".join(filter(None, (key, variant)))
            name = "-".join(filter(None, (method.name, variant)))
            yield name, (key, run), {"own": partial(_by_oracle, method, variant)}


def _by_evidence(study, rows):
    judged = judge(rows, "evidence", study.config.threshold, study.config.table)
    verdicts = judged["verdict"].astype(str)
    accused = accuses(judged.assign(evidence=verdicts)) | (verdicts == str(Verdict.CONFIG))
    # What is wrong with both platforms alike is no accusation of either against the other.
    if "local_differing" in judged:  # not where no call returned on both
        alike = (judged["status"] == "ok") & (judged["local_differing"] == 0) & (verdicts != str(Verdict.SLOW))
        accused &= ~alike
    return _calls(judged[accused])


def _by_paper(study, rows):
    judged = judge(rows, "paper", study.config.threshold)
    refused = (judged["status"] == "exception") & (judged["side"] == "both")  # an invalid input
    return _calls(judged[(judged["verdict"] == "fail") & ~refused])


def _calls(rows):
    return [Accusation(case, int(node), (api,))
            for case, node, api in zip(rows["case"], rows["node"], rows["api"], strict=True)]  # fmt: skip


def _by_oracle(method, variant, rows):
    """A failing attempt accuses the API under test; two related APIs that disagree are both accused (DeepREL)."""
    judged = method.verdicts(rows, variant)
    failing = judged[judged["paper"] == "fail"]
    calls = {}
    for case, api in zip(rows["case"], rows["api"], strict=True):
        calls.setdefault(case, []).append(api)
    return [Accusation(case, 0, tuple(dict.fromkeys(calls[case][:2])) if method.key == "deeprel" else (api,))
            for case, api in zip(failing["case"], failing["api"], strict=True)]  # fmt: skip


def apis_of(results) -> list[str]:
    """The APIs of the faults that were run, in the paper's order."""
    held = set(results["api"])
    return [api for api in PAPER_APIS if api in held]
