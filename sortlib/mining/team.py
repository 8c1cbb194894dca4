"""One shard in this process, or one in each of several worker processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys

import numpy as np

from sortlib.errors import SortError
from sortlib.mining import shard


class Team:
    """Calls the same method of every shard and collects the answers.

    The workers are plain Python processes that read pickled calls from their standard input: nothing of the caller's
    main module is run again, and no thread or lock of this process is copied.
    """

    def __init__(self, corpus, limit, workers=1):
        parts = self._shares(corpus, min(workers, corpus.graphs))
        self.shard, self.workers = None, []
        if len(parts) == 1:
            self.shard = shard.Shard(corpus, parts[0], limit, shard.DENSE, shard.SAMPLE)
            return
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for part in parts:
            worker = subprocess.Popen([sys.executable, "-m", "sortlib.mining.team"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, env=environment)  # fmt: skip
            self.workers.append(worker)
            self._send(worker, (corpus, part, limit, shard.DENSE, shard.SAMPLE))

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
            pickle.dump(message, worker.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            worker.stdin.flush()
        except BrokenPipeError:
            raise SortError(f"mine: worker process {worker.pid} ended with code {worker.wait()}") from None

    def call(self, method, *args):
        """``method(*args)`` of every shard: a list of results."""
        if self.shard is not None:
            return [getattr(self.shard, method)(*args)]
        for worker in self.workers:
            self._send(worker, (method, args))
        answers = []
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
        for worker in self.workers:
            worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
        self.workers = []


def _serve():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle; it then ends this process
    given, out = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing printed may get between the answers
    mine = shard.Shard(*pickle.load(given))
    while True:
        try:
            method, args = pickle.load(given)
        except EOFError:
            return
        try:
            answer = True, getattr(mine, method)(*args)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, out, protocol=pickle.HIGHEST_PROTOCOL)
        out.flush()


if __name__ == "__main__":
    _serve()
