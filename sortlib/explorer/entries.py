"""Cases of a pattern with their outcomes: those of the study, and those that were run in the explorer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace

import pandas as pd

from sortlib.errors import SortError
from sortlib.generation import TestCase, generate
from sortlib.judging import RANK, judge
from sortlib.study import Study

_ORDER = {str(verdict): place for place, verdict in enumerate(RANK)}


@dataclass(frozen=True, eq=False)
class Entry:
    """One case that was run.

    Attributes
    ----------
    key : the case's id, or ``run-1``, ``run-2``, ... for those run in the explorer.
    number : which of its pattern's cases it is, in the order of generation.
    outcomes : DataFrame of ``sl.run``, a row per call.
    table : the study's own thresholds for the rule of evidence, or None.
    """

    key: str
    case: TestCase
    number: int
    outcomes: pd.DataFrame
    reference: str
    candidate: str
    table: object = None

    def judged(self, threshold) -> pd.DataFrame:
        """The outcomes with both rules' verdicts and reasons."""
        paper = judge(self.outcomes, "paper", threshold)
        evidence = judge(self.outcomes, "evidence", threshold, self.table)
        return self.outcomes.assign(
            paper=paper["verdict"], paper_reason=paper["reason"], evidence=evidence["verdict"].astype(str),
            reason=evidence["reason"],
        )  # fmt: skip

    def rows(self, threshold) -> list[dict]:
        """``judged`` as a dictionary per call; kept, since several parts of the explorer read them for each click."""
        return _rows(self, threshold)

    @cached_property
    def largest(self) -> float:
        """Largest propagated difference; NaN without a value."""
        return float(self.outcomes["propagated_max_abs"].astype(float).max())

    def as_study(self, threshold):
        """What the static figures read of a study, with this case only."""
        return SimpleNamespace(
            case=lambda case_id: self.case, all_outcomes=self.outcomes, config=SimpleNamespace(threshold=threshold)
        )


@lru_cache(64)
def _rows(entry, threshold):
    frame = entry.judged(threshold)
    # As one array of objects: ``to_dict`` goes through the columns one by one, which is slow for few rows.
    return [dict(zip(frame.columns, values, strict=True)) for values in frame.to_numpy(object).tolist()]


def most_serious(rows) -> str:
    """The most serious verdict under the evidence rule."""
    return min((row["evidence"] for row in rows), key=_ORDER.get)


class Entries:
    """All entries of a study by pattern.

    Parameters
    ----------
    study : study; ``judged`` of it may be None where nothing was run.
    order : ids of its cases as they should stand, the most telling first.
    """

    def __init__(self, study: Study, judged, order):
        self.study, self.judged, self.live, self._made = study, judged, {}, {}
        self._table = study.config.table
        self._rows = {} if judged is None else judged.groupby("case", sort=False).indices
        self._numbers, self._cases, counts = {}, {}, {}
        for case in study.cases if study.stage("generate") else ():
            self._cases[case.id] = case
            self._numbers[case.id] = counts[case.pattern] = counts.get(case.pattern, -1) + 1
        self._keys = {}
        for case_id in order:
            self._keys.setdefault(self._cases[case_id].pattern, []).append(case_id)

    def keys(self, pattern_id) -> list[str]:
        """Cases of a pattern that were run: the study's, then those run here."""
        own = [key for key, entry in self.live.items() if entry.case.pattern == pattern_id]
        return [*self._keys.get(pattern_id, ()), *own]

    def __getitem__(self, key) -> Entry:
        if key in self.live:
            return self.live[key]
        if key not in self._rows:
            raise SortError(f"{self.study.directory}: case {key!r} was not run yet")
        if key not in self._made:
            rows = self.judged.iloc[self._rows[key]]
            pair = rows["reference"].iloc[0], rows["candidate"].iloc[0]
            self._made[key] = Entry(key, self._cases[key], self._numbers[key], rows, *pair, self._table)
        return self._made[key]

    def pattern_of(self, key) -> str:
        """The pattern of a case or a run of this explorer.

        Raises
        ------
        SortError
            No such case.
        """
        return self.live[key].case.pattern if key in self.live else self.study.case(key).pattern

    def add(self, case, number, outcomes, reference, candidate) -> Entry:
        """Keep a case that was run here, under a new key."""
        key = f"run-{len(self.live) + 1}"
        self.live[key] = Entry(key, case, number, outcomes, reference, candidate, self._table)
        return self.live[key]

    def make(self, pattern_id, number, seed, sampler) -> TestCase:
        """Case ``number`` of a pattern with a seed and a sampler; the study's own where it is the same.

        Raises
        ------
        SortError
            The pattern gives no case, or an unknown sampler.
        """
        for case_id, case in self._cases.items():
            same = case.pattern == pattern_id and self._numbers[case_id] == number
            if same and (case.seed, case.sampler) == (seed, sampler):
                return case
        pattern = self.study.pattern(pattern_id)
        # Records of other APIs take no part in a join; leaving them out only saves time.
        records = [record for record in self.study.records if record.api in pattern.nodes]
        settings = self.study.config.generation
        made = generate([pattern], records, self.study.graphs, number + 1, seed, sampler, settings.max_elements,
                        backward=settings.backward)  # fmt: skip
        if not made:
            raise SortError(f"pattern {pattern_id} gives no case: {made.skipped[pattern_id]}")
        return made[number]

    def snippet(self, entry: Entry, threshold) -> str:
        """Python lines that run an entry anew and judge it."""
        case = entry.case
        if case.id in self._cases:
            made = [f'case = study.case("{case.id}")']
        else:
            settings = self.study.config.generation
            backward = ", backward=True" if settings.backward else ""
            made = [
                f'pattern = study.pattern("{case.pattern}")',
                "case = sl.generate(",
                f"    [pattern], study.records, study.graphs, per_pattern={entry.number + 1}, seed={case.seed},",
                f'    sampler="{case.sampler}", max_elements={settings.max_elements}{backward},',
                f")[{entry.number}]",
            ]
        timeout = f"{self.study.config.timeout:g}"
        run = f'[case], reference="{entry.reference}", candidate="{entry.candidate}", timeout={timeout}'
        lines = [
            "import sortlib as sl", "", f"study = sl.Study({str(self.study.directory)!r})", *made,
            f"outcomes = sl.run({run})", f'sl.judge(outcomes, rule="evidence", threshold={threshold:g})',
        ]  # fmt: skip
        if case.id in self._cases:
            lines.append(f'sl.reproduce(study, "{case.id}", minimize=True)  # a stand-alone script')
        return "\n".join(lines)
