"""A worker process of a mining run: ``python -m sortlib.mining.serving`` holds one shard and answers calls.

Calls come pickled through standard input, answers go out the same way. Only ``sortlib.mining.team`` starts it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

from sortlib.mining.shard import Shard


def main():
    """Read the arguments of a shard, then (method, arguments) again and again, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle; it then ends this process
    given, out = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing printed may get between the answers
    try:
        mine = Shard(*pickle.load(given))
        while True:
            method, args = pickle.load(given)
            try:
                answer = True, getattr(mine, method)(*args)
            except Exception as error:
                answer = False, error
            pickle.dump(answer, out, protocol=pickle.HIGHEST_PROTOCOL)
            out.flush()
    except EOFError:
        return


if __name__ == "__main__":
    main()
