"""A progress bar with rate, remaining time and verdict counts; without tqdm a plain one that needs nothing."""

from __future__ import annotations

import sys
import time
from collections import Counter

from sortlib.judging import RANK, judge_rows


class Progress:
    """A bar over cases.

    Parameters
    ----------
    total, done : cases in all, and those complete before.
    label, unit : text of the bar.
    shown : False shows nothing.

    Attributes
    ----------
    verdicts : Counter of the evidence rule's verdicts on the calls of the cases that were added.
    """

    def __init__(self, total: int, done: int = 0, label: str = "", unit: str = "case", shown: bool = True):
        self.verdicts = Counter()
        try:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, initial=done, desc=label, unit=unit, disable=not shown)
        except ModuleNotFoundError:
            self._bar = _Plain(total, done, label, unit, shown)

    def add(self, rows=None):
        """One more case is done; ``rows`` are its outcomes, if it has any."""
        if rows:
            self.verdicts.update(str(verdict) for verdict, _ in judge_rows(rows, "evidence"))
            self._bar.set_postfix_str(counts(self.verdicts), refresh=False)
        self._bar.update()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._bar.close()


def counts(verdicts) -> str:
    """``2 suspect, 310 rounding, 95 identical``: the most interesting verdict first."""
    return ", ".join(f"{verdicts[str(verdict)]} {verdict}" for verdict in RANK if verdicts.get(str(verdict)))


class _Plain:
    """As much of tqdm's bar as is used here."""

    def __init__(self, total, done, label, unit, shown):
        self.total, self.before, self.done, self.label, self.unit = total, done, done, label, unit
        self.shown, self.text, self.start, self.drawn = shown, "", time.monotonic(), 0.0

    def set_postfix_str(self, text, refresh=True):
        self.text = text

    def update(self):
        self.done += 1
        if time.monotonic() - self.drawn > 0.5 or self.done == self.total:
            self._draw()

    def _draw(self):
        self.drawn = time.monotonic()
        rate = (self.done - self.before) / max(self.drawn - self.start, 1e-9)
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate else "?"
        if self.shown:
            text = f"{self.label}: {self.done}/{self.total} [{rate:.1f} {self.unit}/s, {left}] {self.text}"
            print(f"\r{text[:140]:<140}", end="", file=sys.stderr, flush=True)

    def close(self):
        if self.shown:
            print(file=sys.stderr)
