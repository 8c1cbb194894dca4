"""The parent's end of a worker process: start, ask, time out, bury."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time

from sortlib.errors import SortError
from sortlib.platform import Platform
from sortlib.runner import launch

START_TIMEOUT = 180  # seconds; importing torch from a cold disk can take a minute


class WorkerDied(Exception):
    """The worker ended or had to be ended while it worked.

    Attributes
    ----------
    kind : ``crash`` or ``timeout``.
    messages : what it had answered until then.
    """

    def __init__(self, kind, text, messages):
        super().__init__(text)
        self.kind, self.messages = kind, messages


class Worker:
    """One platform in a process of its own, started on first use and again after a death.

    Parameters
    ----------
    platform : what the process should be.
    threads : intra-operator threads where the platform itself names none.
    """

    def __init__(self, platform: Platform, threads: int | None = None):
        self.platform, self.threads = platform, threads
        self.versions = {}
        self._process = None
        self._closed = False

    def ask(self, op: str, timeout: float, **request) -> list[dict]:
        """All messages that answer a request, without the last ``done``.

        Raises
        ------
        WorkerDied
            The process crashed, or did not finish in ``timeout`` seconds and was killed.
        """
        self.start()
        try:
            self._process.stdin.write((json.dumps({"op": op, **request}) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died("crash", []) from None
        return self._read("done", timeout)

    def start(self):
        """Start the process unless it runs.

        Raises
        ------
        SortError
            It cannot start: a missing interpreter, or torch or the backend cannot be imported.
        """
        if self._closed:
            raise WorkerDied("crash", "the campaign has ended", [])
        if self._process is not None:
            return
        try:
            try:
                hello = self._begin()
            except (WorkerDied, BrokenPipeError):  # perhaps ended from outside while it started
                if self._closed:
                    raise
                hello = self._begin()
        except (WorkerDied, BrokenPipeError) as error:
            raise SortError(f"platform {self.platform.name}: its process did not start: {error}") from None
        if "failed" in hello:
            self.stop()
            raise SortError(f"platform {self.platform.name}: {hello['failed']}")
        self.versions = hello["versions"]

    def _begin(self) -> dict:
        self.stop()
        spec = {**self.platform.to_json(), "parent": os.getpid()}
        spec["threads"] = spec["threads"] or self.threads
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        command = launch.command("sortlib.runner.worker", self.platform.python)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                env=launch.environment(self.platform.python, self.platform.env), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SortError(f"platform {self.platform.name}: cannot start {command[0]}: {error.strerror}") from None
        self._buffer = b""
        self._process.stdin.write((json.dumps(spec) + "\n").encode())
        self._process.stdin.flush()
        return self._read("ready", START_TIMEOUT, last=True)

    def close(self):
        """End the process for good; another thread may be waiting for its answer and gets ``WorkerDied``."""
        self._closed = True
        self._kill()

    def _kill(self):
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def stop(self):
        """End the process at once."""
        if self._process is None:
            return
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process = None

    def _read(self, end, timeout, last=False):
        messages, deadline = [], time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, found, rest = self._buffer.partition(b"\n")
                if found:
                    self._buffer = rest
                    message = json.loads(line)
                    if end in message or "failed" in message:
                        return message if last else messages
                    messages.append(message)
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._died("timeout", messages, timeout)
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise self._died("crash", messages)
                self._buffer += chunk

    def _died(self, kind, messages, timeout=None):
        if kind == "timeout":
            text = f"no answer within {timeout:g} s"
        else:
            try:
                code = self._process.wait(10)
            except subprocess.TimeoutExpired:  # it closed its pipe and lives on
                code = None
            text = "closed its pipe" if code is None else _ending(code)
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            text += f": {lines[-1].strip()[:200]}" if lines else ""
        self.stop()
        return WorkerDied(kind, text, messages)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()


def _ending(code: int) -> str:
    """``killed by SIGSEGV`` or ``exit status 1``."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
