"""Running generated programs in a process of their own and seeing which API calls they make.

``python -m sortlib.baselines.programs`` serves programs: each runs in a forked copy of the server, so nothing that it
does, a crash included, reaches the next one. A program is code and can do what its user can; run only what you trust.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field

LONGEST = 64  # calls of a program that are kept


@dataclass
class Ran:
    """What became of a program.

    Attributes
    ----------
    nodes : its API calls, in the JSON form of ``CaseNode``; tensors that no call made are features to be drawn.
    ended : ok, exception, crash or timeout.
    message : why it did not run to its end.
    in_call : whether the last call in ``nodes`` is what failed.
    """

    nodes: list = field(default_factory=list)
    ended: str = "ok"
    message: str = ""
    in_call: bool = False


class ProgramRunner:
    """Runs programs one after the other, as a context manager.

    Parameters
    ----------
    timeout : seconds for one program.
    """

    def __init__(self, timeout: float = 10):
        self.timeout = timeout
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()

    def stop(self):
        """End the server."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdin.close(), self._process.stdout.close()
            self._process = None
            self._folder.cleanup()

    def run(self, code: str) -> Ran:
        """Run one program in an empty folder."""
        if self._process is None:
            self._folder = tempfile.TemporaryDirectory(prefix="sortlib-programs-")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sortlib.baselines.programs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, cwd=self._folder.name, start_new_session=True, text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self._process.stdin.write(json.dumps({"code": code, "timeout": self.timeout}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            return Ran(ended="crash", message="the server of programs ended")
        return Ran(**json.loads(line))


# ---- the server ----


def main():
    """Answer each line of the input with one line."""
    import torch  # noqa: F401 - before the first fork, so that programs start at once

    from sortlib.baselines import capture  # noqa: F401
    from sortlib.runner.worker import _limit_memory

    _limit_memory()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(asdict(_isolated(request["code"], request["timeout"]))) + "\n")


def _isolated(code, timeout) -> Ran:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        with os.fdopen(writer, "w", buffering=1) as messages:
            _execute(code, messages)
            messages.flush()
            os._exit(0)
    os.close(writer)
    lines, late = _read(reader, time.monotonic() + timeout)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL) if late else None
        os.kill(child, signal.SIGKILL) if late else None
    _, status = os.waitpid(child, 0)
    ran = Ran()
    ended = None
    for message in map(json.loads, lines):
        if "node" in message:
            ran.nodes.append(message["node"])
            ran.in_call = True
        elif "returned" in message:
            ran.in_call = False
        else:
            ended = message
    if late:
        ran.ended, ran.message = "timeout", f"no end within {timeout:g} s"
    elif ended is None:
        ran.ended, ran.message = "crash", _death(status)
    elif ended["error"]:
        ran.ended, ran.message = "exception", ended["error"]
    return ran


def _read(reader, deadline):
    data, late = b"", False
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            late = True
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.close(reader)
    lines = data.decode(errors="replace").split("\n")
    return [line for line in lines[:-1] if line], late


def _death(status) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _execute(code, messages):
    from sortlib.baselines.capture import Capture

    def send(**message):
        messages.write(json.dumps(message) + "\n")

    error = ""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            compiled = compile(code, "<program>", "exec")
            with Capture(send, LONGEST):
                exec(compiled, {"__name__": "__main__"})  # noqa: S102 - that is what this process is for
        except BaseException as raised:
            text = traceback.format_exception_only(raised)[-1].strip()
            error = text.splitlines()[0][:300] if text else type(raised).__name__
    send(error=error)


if __name__ == "__main__":
    main()
