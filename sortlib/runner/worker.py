"""The child process of one platform: reads requests as JSON lines, answers each with messages and a last ``done``.

Started as ``python -m sortlib.runner.worker`` with the platform in the first line. Everything a test case prints
goes to the error stream, so that nothing but messages reaches the parent. Needs only torch and numpy.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path


def main():
    """Serve one platform until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    _die_with_parent()
    warnings.filterwarnings("ignore")

    def send(**message):
        answers.write(json.dumps(message) + "\n")

    platform = json.loads(sys.stdin.readline())
    try:
        service = _Service(platform, send)
    except Exception as error:
        send(failed=f"{type(error).__name__}: {error}")
        return
    send(ready=True, versions=service.versions())
    for line in sys.stdin:
        request = json.loads(line)
        getattr(service, request.pop("op"))(**request)
        send(done=True)


def _die_with_parent():
    """Even an endless loop in a kernel ends when the parent is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class _Service:
    def __init__(self, platform, send):
        import torch

        for module in platform["imports"]:
            importlib.import_module(module)
        from sortlib.runner import execution

        if platform["threads"]:
            torch.set_num_threads(platform["threads"])
        execution.apply_flags(platform["backends"])
        self.executor = execution.Executor(platform)
        self.send = send

    def versions(self):
        import numpy
        import torch

        name = torch.cuda.get_device_name() if self.executor.device.type == "cuda" else ""
        return {"torch": torch.__version__, "numpy": numpy.__version__, "device": name,
                "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability()}  # fmt: skip

    def reference(self, case, folder):
        """Run a case's chain and save each call's outputs, float64 truth and error bound below ``folder``."""
        from sortlib.drawing import digest
        from sortlib.features import encode, measure
        from sortlib.runner import evidence
        from sortlib.runner.execution import draw_externals, seed_of
        from sortlib.runner.transport import save_tensor

        drawn = draw_externals(case)
        self.send(digest=digest(drawn.values()))
        external = {stream: self.executor.place(tensor) for stream, tensor in drawn.items()}
        produced, broken = {}, set()
        for position, node in enumerate(case["nodes"]):
            if _sources(case, position) & broken:
                broken.add(position)
                continue
            self.send(at=position)
            seed = seed_of(case, position)
            arguments = self.executor.arguments(node, external, produced)
            call = self.executor.call(node, arguments, seed)
            if call.error is not None:
                broken.add(position)
                self.send(node=position, error=f"{type(call.error).__name__}: {evidence.first_line(call.error)}")
                continue
            files = Path(folder)
            outputs = [save_tensor(t, files / f"{position}.{k}.npy") for k, t in enumerate(call.outputs)]
            right, reason = evidence.truth(self.executor, node, arguments, seed)
            allowed = [None] * len(outputs)
            if right is not None and len(right) == len(outputs):
                allowed = evidence.bound(self.executor, node, arguments, right, seed)
                right = [save_tensor(t, files / f"{position}.{k}.truth.npy") for k, t in enumerate(right)]
                allowed = [b if b is None else save_tensor(b, files / f"{position}.{k}.bound.npy")
                           for k, b in enumerate(allowed)]  # fmt: skip
            else:
                right = [None] * len(outputs)
            self.send(node=position, outputs=outputs, truth=right, bound=allowed, truth_missing=reason,
                      seconds=call.seconds, features=[encode(measure(t)) for t in call.outputs],
                      nan_inputs=_has_nan(arguments))  # fmt: skip
            produced |= {(position, k): tensor for k, tensor in enumerate(call.outputs)}

    def candidate(self, case, reference):
        """Run a case's chain twice, on its own values and on the reference's, and send a row for each node."""
        from sortlib.drawing import digest
        from sortlib.runner.comparison import Comparison
        from sortlib.runner.execution import draw_externals

        drawn = draw_externals(case)
        self.send(digest=digest(drawn.values()))
        comparison = Comparison(self.executor, case, reference, drawn)
        for position in range(len(case["nodes"])):
            if str(position) not in reference:
                continue
            self.send(at=position)
            row = comparison.row(position)
            if row is not None:
                self.send(row=row)


def _sources(case, position) -> set:
    return {src for src, dst, _ in case["edges"] if dst == position}


def _has_nan(arguments) -> bool:
    from sortlib.runner.execution import tensors_in

    floating = [t for t in tensors_in([a.value for a in arguments]) if t.is_floating_point() or t.is_complex()]
    return any(bool(t.isnan().any()) for t in floating)


if __name__ == "__main__":
    main()
