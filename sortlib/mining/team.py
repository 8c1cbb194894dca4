"""The shards of a mining run: one in this process, one more in each of several worker processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys

import numpy as np

from sortlib.errors import SortError
from sortlib.mining import shard


class Team:
    """Calls the same method of every shard and collects the answers.

    The workers are plain Python processes that read pickled calls from their standard input: nothing of the caller's
    main module is run again, and no thread or lock of this process is copied. They start at once, before there is
    anything to share, since Python and NumPy need a moment to load. This process works on a shard too.
    """

    def __init__(self, members=1):
        self.shard, self.workers = None, []
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command, pipe = [sys.executable, "-m", "sortlib.mining.serving"], subprocess.PIPE
        for _ in range(members - 1):
            self.workers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment))

    def share(self, corpus, limit):
        """Deal the graphs of a corpus out to the members."""
        own, *others = self._shares(corpus, 1 + len(self.workers))
        for worker, part in zip(self.workers, others, strict=True):
            self._send(worker, _pickled((corpus, part, limit, shard.DENSE, shard.SAMPLE)))
        self.shard = shard.Shard(corpus, own, limit, shard.DENSE, shard.SAMPLE)

    @staticmethod
    def _shares(corpus, count):
        """Deal the graphs out, largest first, each to the part with the fewest links so far."""
        size = np.bincount(corpus.node_graph[corpus.link_src], minlength=corpus.graphs)
        parts, load = np.zeros((count, corpus.graphs), bool), np.zeros(count)
        for graph in np.argsort(-size, kind="stable"):
            part = int(np.argmin(load))
            parts[part, graph] = True
            load[part] += size[graph]
        return list(parts)

    @staticmethod
    def _send(worker, message):
        try:
            worker.stdin.write(message)
            worker.stdin.flush()
        except BrokenPipeError:
            raise SortError(f"mine: worker process {worker.pid} ended with code {worker.wait()}") from None

    def call(self, method, *args):
        """``method(*args)`` of every shard: a list of results."""
        message = _pickled((method, args)) if self.workers else None
        for worker in self.workers:
            self._send(worker, message)
        answers = [getattr(self.shard, method)(*args)]
        for worker in self.workers:
            try:
                good, value = pickle.load(worker.stdout)
            except EOFError:
                raise SortError(f"mine: worker process {worker.pid} ended with code {worker.wait()}") from None
            if not good:
                raise value
            answers.append(value)
        return answers

    def close(self):
        """End the worker processes."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
        self.workers = []


def _pickled(message):
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
