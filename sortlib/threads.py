"""Threads that a user's model has left running, for which Python would wait before it ends a process."""

from __future__ import annotations

import os
import sys
import threading
import time

GRACE = 5.0  # seconds in which a thread may still end by itself, as those of an idle pool do


def leave_behind(status: int):
    """Call last: the process then ends with ``status`` after ``GRACE`` seconds at most, whatever threads still run.

    Where one is left, a line on the error stream names it.
    """
    if _running():
        threading.Thread(target=_end, args=(status,), daemon=True).start()


def _running() -> list[threading.Thread]:
    # Those that manage a pool of processes are not a model's, and end with the work of the pool.
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon
            and not type(thread).__module__.startswith("concurrent.futures.process")]  # fmt: skip


def _end(status):
    time.sleep(GRACE)
    if left := _running():
        names = ", ".join(thread.name for thread in left)
        try:
            print(f"sortlib: not waited for threads that a model has left running: {names}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
