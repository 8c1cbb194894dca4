"""Running the cases that have no outcome yet into append-only Parquet parts, for SORT and the baselines alike."""

from __future__ import annotations

import contextlib
import time

import pandas as pd
from tqdm.auto import tqdm

from sortlib.errors import SortError
from sortlib.runner.campaign import campaign

FLUSH_SECONDS = 15  # at most this much finished work waits in memory for its Parquet part


def run_missing(folder, cases, reference, candidate, timeout, label, unit="case", progress=True):
    """Run those of the cases that ``folder`` holds no rows of, and write their rows there.

    Parameters
    ----------
    folder : of the parts; made where it is missing.
    label, unit : text of the progress bar.

    Returns
    -------
    dict or None
        What each worker said about itself; None where nothing was missing.

    Raises
    ------
    SortError
        Another process runs cases of this folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = sorted(folder.glob("part-*.parquet"))
    done = {case for part in parts for case in pd.read_parquet(part, columns=["case"])["case"]}
    pending = [case for case in cases if case.id not in done]
    if not pending:
        return None
    versions = {}
    with (
        _only_one(folder),
        tqdm(total=len(cases), initial=len(cases) - len(pending), desc=label, unit=unit, disable=not progress) as bar,
    ):
        writer = _Parts(folder, len(parts))
        try:
            for _, rows in campaign(pending, reference, candidate, timeout, versions=versions):
                writer.add(rows)
                bar.update()
        finally:
            writer.flush()
    return versions


@contextlib.contextmanager
def _only_one(folder):
    """Keep a second process from running the same cases at the same time."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SortError(f"{folder}: another process runs these cases; wait for it, or stop it first") from None
        yield


class _Parts:
    """Append-only Parquet parts; a part is written whole or not at all."""

    def __init__(self, folder, count):
        self.folder, self.count, self.rows, self.since = folder, count, [], time.monotonic()

    def add(self, rows):
        self.rows += rows
        if time.monotonic() - self.since > FLUSH_SECONDS:
            self.flush()

    def flush(self):
        if not self.rows:
            return
        self.count += 1
        path = self.folder / f"part-{self.count:05d}.parquet"
        pd.DataFrame(self.rows).to_parquet(path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        self.rows, self.since = [], time.monotonic()
