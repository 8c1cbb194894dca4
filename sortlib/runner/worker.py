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
import threading
import time
import warnings
from pathlib import Path


def main():
    """Serve one platform until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")

    def send(**message):
        answers.write(json.dumps(message) + "\n")

    platform = json.loads(sys.stdin.readline())
    _die_with_parent(platform["parent"])
    try:
        service = _Service(platform, send)
    except Exception as error:
        send(failed=f"{type(error).__name__}: {error}")
        return
    send(ready=True, versions=service.versions())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            getattr(service, request.pop("op"))(**request)
        except Exception as error:  # of the evidence, not of the call: memory or disk is full
            send(trouble=f"{type(error).__name__}: {error}"[:300])
        send(done=True)


def _die_with_parent(parent: int):
    """Even an endless loop in a kernel ends when the parent is killed (Linux; elsewhere between Python's steps)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.name == "posix" and os.getppid() != parent:
        os._exit(1)


def _watch(parent):
    while os.name != "posix" or os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _limit_memory():
    """A call that asks for more memory than is sensible gets an error, instead of the system ending any process.

    A quarter of the machine's memory: two workers run at once, and what they exchange lies in memory too.
    """
    try:
        import resource

        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    except (ImportError, ValueError, OSError, AttributeError):  # no such limits on this system
        return


class _Service:
    def __init__(self, platform, send):
        import torch

        for module in platform["imports"]:
            importlib.import_module(module)
        from sortlib.runner import execution

        if platform["threads"]:
            torch.set_num_threads(platform["threads"])
        if torch.device(platform["device"]).type == "cpu":
            _limit_memory()
        execution.apply_flags(platform["backends"])
        self.executor = execution.Executor(platform)
        self.send = send

    def versions(self):
        import numpy
        import torch

        name = torch.cuda.get_device_name() if self.executor.device.type == "cuda" else ""
        return {"torch": torch.__version__, "numpy": numpy.__version__, "device": name,
                "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability()}  # fmt: skip

    def reference(self, case, folder, lowered=False):
        """Run a case's chain and save each call's outputs, float64 truth and error bound below ``folder``."""
        from sortlib.drawing import digest
        from sortlib.runner import bounds
        from sortlib.runner.execution import draw_externals, seed_of

        drawn = draw_externals(case)
        self.send(digest=digest(drawn.values()))
        external = {stream: self.executor.place(tensor) for stream, tensor in drawn.items()}
        produced, broken, with_nan = {}, set(), {}
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
                self.send(node=position, error=f"{type(call.error).__name__}: {bounds.first_line(call.error)}")
                continue
            known = self._evidence(Path(folder) / str(position), node, arguments, call, seed, lowered)
            nan_inputs = any(_has_nan(tensor, with_nan) for tensor in _tensors(arguments))
            self.send(node=position, seconds=call.seconds, nan_inputs=nan_inputs,
                      platform_dtype=self.executor.platform["dtype"], **known)  # fmt: skip
            produced |= {(position, k): tensor for k, tensor in enumerate(call.outputs)}

    def _evidence(self, prefix, node, arguments, call, seed, lowered):
        from sortlib.features import encode, measure
        from sortlib.runner import bounds
        from sortlib.runner.transport import save_tensor

        outputs = [save_tensor(t, f"{prefix}.{k}.bin") for k, t in enumerate(call.outputs)]
        rights = limits = [None] * len(outputs)
        right, reason = bounds.truth(self.executor, node, arguments, seed)
        if right is not None and [t.shape for t in right] != [t.shape for t in call.outputs]:
            right, reason = None, "the float64 call returns other shapes"
        if right is not None:
            try:
                limits = bounds.bound(self.executor, node, arguments, right, seed, lowered)
            except Exception as error:
                reason = f"no bound: {type(error).__name__}: {bounds.first_line(error)}"
            limits = [bounds.pack(limit, lambda t, k=k: save_tensor(t, f"{prefix}.{k}.bound.bin"))
                      for k, limit in enumerate(limits)]  # fmt: skip
            rights = [_save_truth(t, ours, f"{prefix}.{k}.truth.bin")
                      for k, (t, ours) in enumerate(zip(right, call.outputs, strict=True))]  # fmt: skip
        return {"outputs": outputs, "truth": rights, "bound": limits, "truth_missing": reason,
                "features": [encode(measure(t)) for t in call.outputs[:1]]}  # fmt: skip

    def candidate(self, case, reference):
        """Run a case's chain twice, on its own values and on the reference's, and send a row for each node."""
        from sortlib.drawing import digest
        from sortlib.runner.comparison import Comparison
        from sortlib.runner.execution import draw_externals

        drawn = draw_externals(case)
        self.send(digest=digest(drawn.values()))
        comparison = Comparison(self.executor, case, reference, drawn)
        for position in range(len(case["nodes"])):
            if str(position) in reference:
                self.send(at=position)
                self.send(row=comparison.row(position))


def _sources(case, position) -> set:
    return {src for src, dst, _ in case["edges"] if dst == position}


def _tensors(arguments):
    from sortlib.runner.execution import tensors_in

    return tensors_in([a.value for a in arguments])


def _has_nan(tensor, known) -> bool:
    """Whether a tensor holds NaN; ``known`` keeps the answer for tensors that several calls read."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if id(tensor) not in known:
        known[id(tensor)] = (bool(tensor.isnan().any()), tensor)
    return known[id(tensor)][0]


def _save_truth(right, output, path):
    """The truth as what it adds to a float32 output, where all is finite: half the bytes and no digit lost."""
    import torch

    from sortlib.runner.transport import save_tensor

    if output.dtype == torch.float32 and right.dtype == torch.float64 and output.numel():
        residual = (right - output).float()
        if bool(residual.isfinite().all()):
            return {"residual": save_tensor(residual, path)}
    return save_tensor(right, path) if right.is_floating_point() or right.is_complex() else None


if __name__ == "__main__":
    main()
