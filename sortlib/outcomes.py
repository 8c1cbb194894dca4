"""Running the cases that have no outcome yet into append-only Parquet parts, for SORT and the baselines alike.

What a case gave is in a journal as soon as it is complete, so that a killed process or a full disk costs the cases in
flight alone; journals become Parquet parts while the run goes on.
"""

from __future__ import annotations

import time

import pandas as pd
import pyarrow as pa

from sortlib.errors import SortError
from sortlib.runner.campaign import campaign
from sortlib.runner.files import Journal, only_one, replacing
from sortlib.runner.progress import Progress

# A journal becomes a part after this time, or with so many cases: the table of a long one would be the largest thing in
# memory.
FLUSH_SECONDS, FLUSH_CASES = 15, 2000


def run_missing(folder, cases, reference, candidate, timeout, label, unit="case", progress=True, executor=None,
                spent=None):  # fmt: skip
    """Run those of the cases that ``folder`` holds no rows of, and write their rows there.

    Parameters
    ----------
    folder : of the parts; made where it is missing.
    label, unit : text of the progress bar.
    executor : any ``concurrent.futures.Executor``, as in ``sl.run``; None works here.
    spent : called with each case and the seconds since the one before was complete.

    Returns
    -------
    dict or None
        What each worker said about itself; None where nothing was missing.

    Raises
    ------
    SortError
        Another process runs cases of this folder, or the disk is full. What was complete is kept.
    """
    parts = _Parts(folder)
    if not parts.journal.path.is_file() and not parts.missing(cases):
        return None  # nothing is written, so a finished study may lie where nobody can write
    versions = {}
    with only_one(folder):
        parts.flush()  # what a killed process left in its journal
        pending = parts.missing(cases)
        if not pending:
            return None
        with Progress(len(cases), len(cases) - len(pending), label, unit, progress) as bar:
            since = time.monotonic()
            try:
                for case, rows in campaign(pending, reference, candidate, timeout, executor, versions):
                    parts.add(case.id, rows)
                    bar.add(rows)
                    if spent:
                        now = time.monotonic()
                        spent(case, now - since)
                        since = now
            except SortError:
                parts.close()  # the journal holds what is complete
                raise
            except BaseException:
                parts.flush()
                raise
            parts.flush()
    return versions


class _Parts:
    """Append-only Parquet parts and the journal of the next one; a part is written whole or not at all."""

    def __init__(self, folder):
        self.folder, self.since = folder, time.monotonic()
        self.journal = Journal(folder / "part.journal")

    def _files(self):
        return sorted(self.folder.glob("part-*.parquet"))

    def missing(self, cases) -> list:
        """Those of the cases that no part holds.

        Raises
        ------
        SortError
            A part is damaged.
        """
        done = set()
        for part in self._files():
            try:
                done.update(pd.read_parquet(part, columns=["case"])["case"])
            except Exception as error:  # of whatever the bytes are
                raise SortError(f"{part}: is damaged ({type(error).__name__}); delete it, and the same command makes "
                                "its cases anew") from None  # fmt: skip
        return [case for case in cases if case.id not in done]

    def add(self, case, rows):
        """Keep the rows of a case."""
        self.journal.append({"case": case, "rows": rows})
        if time.monotonic() - self.since > FLUSH_SECONDS or self.journal.lines >= FLUSH_CASES:
            self.flush()

    def flush(self):
        """Turn the journal into a part."""
        rows = [row for line in self.journal.read() for row in line["rows"]]
        self.close()
        if rows:
            last = self._files()[-1:]
            number = 1 + (int(last[0].stem.partition("-")[2]) if last else 0)
            kept = f"what was run is kept beside it ({self.journal.path.name}), and the same command goes on from there"
            with replacing(self.folder / f"part-{number:05d}.parquet", kept) as new:
                pd.DataFrame(rows).to_parquet(new)
            pa.default_memory_pool().release_unused()  # Arrow keeps what it once had
            self.journal.path.unlink()
        self.journal.lines, self.since = 0, time.monotonic()

    def close(self):
        """Close the journal."""
        self.journal.close()
