"""Methods of testing whose outcomes a study holds, what counts as an attempt, and why an API has none."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from sortlib.apis import PAPER_APIS, paper_name
from sortlib.baselines.registry import baseline
from sortlib.baselines.single_api import PREFIX
from sortlib.baselines.stage import SINGLE, chosen
from sortlib.errors import SortError
from sortlib.judging import Verdict


@dataclass(frozen=True)
class Method:
    """A way of testing whose outcomes a study holds: its name, and the outcomes with both rules' verdicts.

    ``baseline`` and ``variant`` name one of the published methods; its rows are one per attempt.
    """

    key: str
    name: str
    single: bool = False
    baseline: str = ""
    variant: str = ""

    @property
    def timed(self) -> bool:
        """Whether its own oracle compares times."""
        return bool(self.baseline) and baseline(self.baseline).timed and self.variant in ("", "P")

    def outcomes(self, study) -> pd.DataFrame:
        """Rows of ``sl.run``."""
        if self.baseline:
            return self.judged(study)
        return study.single if self.single else study.outcomes

    def judged(self, study) -> pd.DataFrame:
        """The same rows with ``paper``, ``symptom``, ``evidence`` and ``reason``; a baseline's ``paper`` is the verdict
        of its own oracle, as in the paper's Table II."""
        if not self.baseline:
            return study.judged_single if self.single else study.judged
        kept = study.__dict__.setdefault("_judged_baselines", {})
        outcomes = study.baseline_outcomes
        if self.key not in kept or kept[self.key][0] is not outcomes:
            kept[self.key] = outcomes, baseline(self.baseline).verdicts(outcomes, self.variant)
        return kept[self.key][1]

    def failing(self, study) -> pd.DataFrame:
        """Attempts that the paper's rule, or a baseline's own oracle, calls a bug."""
        rows = attempts(self.judged(study))
        failed = rows["paper"] == "fail"
        if not self.baseline:  # refused on both sides is an invalid input and no bug; an own oracle has decided that
            failed &= ~((rows["status"] == "exception") & (rows["side"] == "both"))
        return rows[failed]


METHODS = (Method("sort", "SORT"), Method("single", "Single-API", single=True))


def methods(study) -> list[Method]:
    """SORT, its ablation, and every variant of the other methods that the study's file names."""
    found = list(METHODS)
    for key in chosen(study.config):
        method = baseline(key)
        for variant in method.variants or ("",):
            name = "-".join(filter(None, (method.name, variant)))
            found.append(Method("-".join(filter(None, (key, variant))), name, baseline=key, variant=variant))
    return found


def times(study) -> pd.DataFrame:
    """Seconds that each method took to make its attempts (``generate``) and to run them; they differ from run to run.

    Variants of a method are in one row. Work that a stage found done before is not counted again.
    """
    rows = [{"method": key, **spent} for key, spent in study.manifest.get("times", {}).items()]
    table = pd.DataFrame(rows, columns=["method", "generate", "run"])
    first = [method for method in ("sort", SINGLE) if method in set(table["method"])]
    order = {key: place for place, key in enumerate([*first, *chosen(study.config)])}
    return table.sort_values("method", key=lambda keys: keys.map(order), ignore_index=True)


def shortfalls(study, cells) -> list[str]:
    """Where a method has fewer inputs of an API than the study's budget, a footnote for each reason.

    Parameters
    ----------
    cells : method -> API -> its row of the table of validity.
    """
    settings, lines = study.config.generation, []
    for method, rows in cells.items():
        found = {}
        for api, row in rows.items():
            number = row["valid" if settings.valid_per_api else "attempts"]
            if api != "Total" and api in PAPER_APIS and number < settings.budget:
                found.setdefault(_why_short(study, method, api, row), []).append(f"{both_names(api)} ({number:,})")
        unit = "valid inputs" if settings.valid_per_api else "inputs"
        lines += [f"{method.name}: fewer than {settings.budget:,} {unit} of {', '.join(apis)}: {why}"
                  for why, apis in found.items()]  # fmt: skip
    return lines


def _why_short(study, method, api, row):
    if method.baseline:
        tool = baseline(method.baseline)
        known = study.stage("baselines").get("methods", {}).get(method.baseline, {}).get("short", {})
        patterns = [tool.pattern_of(api, method.variant), tool.pattern_of(api)]
        return next((known[pattern] for pattern in patterns if pattern in known), tool.ends)
    if row["valid"] < row["attempts"]:
        return "some of its inputs are invalid"
    return "no further case can be made, or an earlier call gave no result"


def attempts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are attempts: an input set was handed to the API on the reference platform."""
    if "status" not in rows:  # a method without any case has no file of outcomes to take the columns from
        return rows.reindex(columns=[*rows.columns, *(name for name in _COLUMNS if name not in rows)])
    return rows[rows["status"] != Verdict.UNREACHED]


# What the tables read of an attempt.
_COLUMNS = (
    "case", "pattern", "node", "api", "reference", "candidate", "status", "side", "message", "paper", "symptom",
    "evidence", "reason",
)  # fmt: skip


def is_valid(rows: pd.DataFrame) -> pd.Series:
    """Whether the API returned on the reference platform; what failed on the candidate alone is a valid attempt."""
    return (rows["status"] == "ok") | (rows["side"] == "candidate")


def tested(study) -> set[str]:
    """The APIs that some method of the study called in a case."""
    return {api for method in methods(study) for api in method.outcomes(study)["api"]}


def both_names(api) -> str:
    """An API's name in the paper, followed by the canonical one where that is another: ``__add__ (add)``."""
    name = paper_name(api)
    return name if name == api else f"{name} ({api})"


def wanted_apis(study, apis) -> list[str]:
    """The rows of a table by API: the paper's 15 for None, every tested one for ``"tested"``, or a list of names.

    Of the paper's 15 those that this study tested come first, each group in the paper's order.

    Raises
    ------
    SortError
        A name that no model of the study calls.
    """
    if apis is None:
        found = tested(study)
        return sorted(PAPER_APIS, key=lambda api: api not in found)
    if isinstance(apis, str) and apis == "tested":
        return sorted(tested(study))
    known = {node.api for graph in study.graphs for node in graph.nodes} | set(PAPER_APIS)
    for api in apis:
        if api not in known:
            raise SortError(f"API {api!r} is in no model of this study; tables.records(study) lists those that are")
    return list(apis)


def absences(study, missing) -> list[str]:
    """Why methods made no attempt on some APIs, a footnote for each reason.

    Parameters
    ----------
    missing : method -> APIs on which it made no attempt.
    """
    reasons = {}
    for method, apis in missing.items():
        for api in apis:
            reasons.setdefault(api, {}).setdefault(_why_absent(study, method, api), []).append(method.name)
    lines = {}
    for api, found in reasons.items():
        for reason, names in found.items():
            lines.setdefault((" and ".join(names), reason), []).append(api)
    return [
        f"{names}: no attempt on {', '.join(map(both_names, apis))}: {reason}"
        for (names, reason), apis in lines.items()
    ]


def _why_absent(study, method, api):
    """Why a method has no attempt on an API: the first stage at which it was lost."""
    if method.baseline:
        return _why_no_test(study, method, api)
    if not any(node.api == api for graph in study.graphs for node in graph.nodes):
        return "not called by the traced models"
    ids = {p.id for p in study.patterns if api in p.nodes}
    if not ids:
        support = study.config.mining.min_support
        return f"in no pattern that {'1 model has' if support == 1 else f'{support} models share'}, so not tested"
    tested = {case.pattern for case in study.cases}
    skipped = study.stage("generate").get("without_case", {})
    wanted = {PREFIX + api} if method.single else ids
    reasons = sorted({skipped[pattern] for pattern in wanted if pattern in skipped})
    if wanted & tested:
        return "in tested patterns, but never reached, since an earlier call gave no result"
    if reasons:
        return f"no case could be made: {reasons[0]}"
    return f"outside the {study.config.generation.max_patterns} patterns that were chosen to be tested"


def _why_no_test(study, method, api):
    known = study.stage("baselines").get("methods", {}).get(method.baseline)
    if known is None:
        return "its attempts were not generated yet"
    if api in known["absent"]:
        return known["absent"][api]
    if known.get("missing"):
        return f"needs {known['missing']}"
    if api not in PAPER_APIS:
        return "attempts of the other methods are made for the paper's 15 APIs only"
    if method.variant == "G" and str(study.stage("run").get("candidate", "")).startswith("cpu"):
        return "the candidate is no accelerator"
    return f"no test of variant {method.variant}" if method.variant else "no attempt was run"
