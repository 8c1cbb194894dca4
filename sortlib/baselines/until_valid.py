"""Attempts of a baseline until enough of them are valid, as in the paper (section V-A: 1,000 valid inputs for an API).

Attempts are made and run in rounds, and each round is sized by the share that was valid so far. Which attempts there
are in the end does not depend on the rounds: they are the method's own sequence, cut after the last valid one that was
wanted. So an interrupted run goes on, and ends with the same attempts.
"""

from __future__ import annotations

import math
import time
from itertools import islice

from sortlib.baselines.base import Method
from sortlib.baselines.registry import baseline

SPARE = 1.1  # times the attempts that the share of valid ones asks for
GROWTH = 3  # a round makes at most so many times the attempts before it


class UntilValid:
    """The rounds of one method.

    Parameters
    ----------
    study : a study whose generation has ``valid_per_api``; its first attempts are there.
    key : name of the method.
    context : what its attempts draw on.
    candidate : name of the platform under test.

    Attributes
    ----------
    short : pattern id -> why there are fewer valid attempts than wanted, in the words of a footnote.
    seconds : spent in making attempts.
    """

    def __init__(self, study, key, context, candidate):
        self.study, self.key, self.context, self.candidate = study, key, context, candidate
        self.wanted, self.most = study.config.generation.valid_per_api, study.config.generation.most_attempts
        self.method: Method = baseline(key)
        self.sources, self.ended = {}, set()
        self.short, self.seconds = {}, 0.0

    def close(self):
        """End what the method keeps running."""
        self.method.close()

    def extend(self) -> int:
        """Make the attempts of the next round, after those before have been run.

        Returns
        -------
        int
            How many sequences of attempts (of an API and a variant) go on; 0 where all have what is wanted or can have
            no more. The stored attempts are then cut to what is wanted.
        """
        start = time.monotonic()
        cases = self.study.baseline_cases[self.key]
        known, groups = {case.id for case in cases}, {}
        for case in cases:
            groups.setdefault(case.pattern, []).append(case)
        valid = self._valid(groups)
        growing = 0
        for pattern, own in groups.items():
            least = min(map(sum, valid[pattern].values()), default=self.wanted)
            if least < self.wanted and len(own) < self.most and pattern not in self.ended:
                asked = _size(len(own), least, self.wanted, self.most)
                made = list(islice(self._source(pattern, len(own), known), asked))
                own += made
                if len(made) < asked:
                    self.ended.add(pattern)
                growing += bool(made)
        if growing:
            kept = [case for own in groups.values() for case in own]
        else:
            kept = [case for pattern, own in groups.items() for case in own[: self._end(pattern, own, valid[pattern])]]
        if len(kept) != len(cases):
            self.study.save_baseline_cases(self.key, kept)
            self.study.forget("baseline_cases", "baseline_outcomes")
        self.seconds += time.monotonic() - start
        return growing

    def _source(self, pattern, made, known):
        """The method's attempts of one sequence after the first ``made``."""
        if pattern not in self.sources:
            variant = pattern.removeprefix(f"{self.key}-").partition("-")[0]
            variant = variant if variant in self.method.variants else ""
            all_of_them = self.method.attempts(self.method.api_of(pattern), self.most, self.context, variant)
            if self.method.repeats(self.context):
                self.sources[pattern] = islice(all_of_them, made, None)
            else:
                self.sources[pattern] = (case for case in all_of_them if case.id not in known)
        return self.sources[pattern]

    def _valid(self, groups) -> dict[str, dict[str, list[bool]]]:
        """For each sequence and each variant that judges it, which of its attempts are valid."""
        rows = {}
        columns = ["case", "status", "side", "message", "target", "source"]
        for row in self.study.baseline_outcomes.reindex(columns=columns).to_dict("records"):
            rows.setdefault(row["case"], []).append(row)
        found = {}
        for pattern, own in groups.items():
            variants = [v for v in self.method.variants or ("",)
                        if self.method.is_of(pattern, v) and self.method.judges(v, self.candidate)]  # fmt: skip
            found[pattern] = {v: [case.id in rows and self._is_valid(rows[case.id], v) for case in own]
                              for v in variants}  # fmt: skip
        return found

    def _is_valid(self, nodes, variant) -> bool:
        ending = self.method.ending(nodes, variant)
        return ending["status"] == "ok" or ending["side"] == "candidate"

    def _end(self, pattern, own, valid) -> int:
        """Number of attempts up to the last valid one that is wanted, under every variant."""
        places = [[place for place, good in enumerate(flags) if good] for flags in valid.values()]
        if places and all(len(each) >= self.wanted for each in places):
            return max(each[self.wanted - 1] for each in places) + 1
        if places:
            self.short[pattern] = (
                f"{len(own):,} attempts were made, the most that the study allows"
                if len(own) >= self.most else self.method.ends
            )  # fmt: skip
        return len(own)


def _size(made, valid, wanted, most) -> int:
    """Attempts of the next round."""
    asked = math.ceil((wanted - valid) * made / valid * SPARE) if valid else GROWTH * made
    return min(asked, GROWTH * made, most - made)
