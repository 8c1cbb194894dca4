"""The child process of one platform: reads requests as JSON lines, answers each with messages and a last ``done``.

Started as ``python -m sortlib.runner.worker`` with the platform in the first line. Everything a test case prints
goes to the error stream, so that nothing but messages reaches the parent. Needs only torch and numpy.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import math
import os
import signal
import sys
import threading
import time
import warnings


def main():
    """Serve one platform until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")

    def send(now=True, **message):
        answers.write(json.dumps(message) + "\n")
        if now:
            answers.flush()

    platform = json.loads(sys.stdin.readline())
    _die_with_parent(platform["parent"])
    _keep_freed_memory()
    try:
        service = _Service(platform, send)
    except Exception as error:
        send(failed=f"{type(error).__name__}: {error}")
        return
    gc.freeze()  # what the imports made stays; looking through it again and again takes time
    send(ready=True, versions=service.versions())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            service.report = _Report(send, request.pop("place", None))
            getattr(service, request.pop("op"))(**request)
        except Exception as error:  # of the evidence, not of the call: memory or disk is full
            send(trouble=f"{type(error).__name__}: {error}"[:300], full=isinstance(error, OSError))
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


def _keep_freed_memory():
    """Have glibc use the memory of freed tensors again; giving it back and clearing it anew costs as much as a call."""
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, the largest that it takes
        library.mallopt(-1, 1 << 29)  # M_TRIM_THRESHOLD, in bytes
    except (OSError, AttributeError):  # another C library
        return


def _limit_memory():
    """A call that asks for more memory than is sensible gets an error, instead of the system ending any process.

    A quarter of the machine's memory: two workers run at once, and what they exchange lies in memory too. The
    environment variable SORTLIB_WORKER_MEMORY sets a lower limit, in GiB.
    """
    try:
        import resource

        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        limit = int(min(limit, float(os.environ.get("SORTLIB_WORKER_MEMORY", "inf")) * 2**30))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    except (ImportError, ValueError, OSError, AttributeError):  # no such limits on this system
        return


class _Report:
    """How a case's messages reach the parent.

    Without ``place`` each is sent at once, so that nothing is lost if the next call kills this process. With ``place``,
    a file, they wait for the end of the case, which spares a waking of the parent for each; only the number of the call
    is kept in that file, for the parent to read if this process dies.
    """

    def __init__(self, send, place):
        self._send = send
        self._file = open(place, "wb", buffering=0) if place else None  # noqa: SIM115 - open while the case runs

    def send(self, **message):
        self._send(now=self._file is None, **message)

    def at(self, position: int):
        """The next call is about to start."""
        if self._file is None:
            self._send(at=position)
        else:
            os.pwrite(self._file.fileno(), b"%8d" % position, 0)


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
        self.report = _Report(send, None)

    def versions(self):
        import numpy
        import torch

        name = torch.cuda.get_device_name() if self.executor.device.type == "cuda" else ""
        return {"torch": torch.__version__, "numpy": numpy.__version__, "device": name,
                "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability()}  # fmt: skip

    def reference(self, case, folder, lowered=False, skip=(), quick=False):
        """Run a case's chain and save each call's outputs, float64 truth and error bound in ``folder``.

        Calls in ``skip`` are left out, and those that need their outputs. ``quick`` leaves to the candidate's process
        what few bounds need.
        """
        from sortlib.drawing import digest
        from sortlib.runner import bounds
        from sortlib.runner.execution import draw_externals, seed_of
        from sortlib.runner.transport import Shelf
        from sortlib.thresholds import MASK_ARGUMENTS

        drawn = draw_externals(case)
        self.report.send(digest=digest(drawn.values()))
        external = {stream: self.executor.place(tensor) for stream, tensor in drawn.items()}
        shelf, produced, broken, with_nan = Shelf(folder), {}, set(skip), {}
        for position, node in enumerate(case["nodes"]):
            if position in broken or _sources(case, position) & broken:
                broken.add(position)
                continue
            self.report.at(position)
            seed = seed_of(case, position)
            arguments = self.executor.arguments(node, external, produced)
            call = self.executor.call(node, arguments, seed)
            if call.error is not None:
                broken.add(position)
                self.report.send(node=position, error=f"{type(call.error).__name__}: {bounds.first_line(call.error)}")
                continue
            if any(tensor.is_quantized for tensor in call.outputs):
                broken.add(position)
                self.report.send(node=position, status="unreached", error="a quantised output, which is not compared")
                continue
            with self.executor.exactly():
                known = self._evidence(shelf, node, arguments, call, seed, lowered, quick)
            nan_inputs = any(_special(tensor, with_nan)[0] for tensor in _tensors(arguments))
            values = [a for a in arguments if a.name not in MASK_ARGUMENTS]
            inf_inputs = any(_special(tensor, with_nan)[1] for tensor in _tensors(values))
            self.report.send(node=position, seconds=call.seconds, nan_inputs=nan_inputs, inf_inputs=inf_inputs,
                             platform_dtype=self.executor.precision, **known)  # fmt: skip
            produced |= {(position, k): tensor for k, tensor in enumerate(call.outputs)}

    def _evidence(self, shelf, node, arguments, call, seed, lowered, quick):
        from sortlib.runner import bounds
        from sortlib.runner.execution import figures

        outputs = [shelf.save(tensor) for tensor in call.outputs]
        proof = bounds.prove(self.executor, node, arguments, call.outputs, seed, lowered, quick)
        values = call.outputs if proof.compared is None else proof.compared
        rights = [None if right is None else _save_truth(right, ours, shelf)
                  for right, ours in zip(proof.truth, values, strict=True)]  # fmt: skip
        return {"outputs": outputs, "truth": rights, "bound": [bounds.pack(limit, shelf.save) for limit in proof.bound],
                "truth_missing": proof.missing, "opinion": proof.opinion,
                "compared": proof.compared and [shelf.save(tensor) for tensor in proof.compared],
                "features": [figures(t) for t in call.outputs[:1]]}  # fmt: skip

    def candidate(self, case, reference, skip=()):
        """Run a case's chain twice, on its own values and on the reference's, and send a row for each node.

        Calls in ``skip`` are left out; those that need their outputs run on the reference's values only.
        """
        from sortlib.drawing import digest
        from sortlib.runner.comparison import Comparison
        from sortlib.runner.execution import draw_externals

        drawn = draw_externals(case)
        self.report.send(digest=digest(drawn.values()))
        comparison = Comparison(self.executor, case, reference, drawn)
        for position in range(len(case["nodes"])):
            if str(position) in reference and position not in skip:
                self.report.at(position)
                self.report.send(row=comparison.row(position))


def _sources(case, position) -> set:
    return {src for src, dst, _ in case["edges"] if dst == position}


def _tensors(arguments):
    from sortlib.runner.execution import tensors_in

    return tensors_in([a.value for a in arguments])


def _special(tensor, known) -> tuple[bool, bool]:
    """Whether a tensor holds NaN, or an infinity; ``known`` keeps the answer for tensors that several calls read.

    A tensor with NaN says nothing of its infinities.
    """
    import torch

    from sortlib.runner.execution import extremes

    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return False, False
    if id(tensor) not in known:
        plain = tensor if tensor.layout == torch.strided else tensor.to_dense()
        real = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
        low, high = extremes(real)
        known[id(tensor)] = (math.isnan(low), math.isinf(low) or math.isinf(high)), tensor
    return known[id(tensor)][0]


def _save_truth(right, output, shelf):
    """The truth as what it adds to a float32 output, where all is finite: half the bytes and no digit lost."""
    import torch

    from sortlib.runner.execution import extremes

    dense = output.layout == right.layout == torch.strided
    if dense and output.dtype == torch.float32 and right.dtype == torch.float64 and output.numel():
        form, residual = shelf.empty(output.shape)
        _subtract(right.cpu(), output.cpu(), residual)
        low, high = extremes(residual)
        if math.isfinite(low) and math.isfinite(high) and (low or high):
            return {"residual": form}
        shelf.drop(form)
        if low == high == 0:
            return {"exact": True}
    return shelf.save(right) if right.is_floating_point() or right.is_complex() else None


def _subtract(right, output, residual):
    """Write float64 ``right`` minus float32 ``output`` to float32 ``residual``."""
    import torch

    from sortlib.runner.evidence import BLOCK

    right, output, residual = right.reshape(-1), output.reshape(-1), residual.view(-1)
    wide = torch.empty(min(BLOCK, output.numel()), dtype=torch.float64)
    for start in range(0, output.numel(), BLOCK):
        part = slice(start, start + BLOCK)
        some = wide[: output[part].numel()]
        some.copy_(output[part])  # first, since an operation of mixed types costs ten times as much
        residual[part].copy_(torch.sub(right[part], some, out=some))


if __name__ == "__main__":
    main()
