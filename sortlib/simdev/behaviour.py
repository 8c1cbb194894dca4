"""Faults that are not about one formula: crashes, hangs, exceptions, flaky and slow kernels, wrong shapes."""

from __future__ import annotations

import ctypes
import os
import time

from sortlib.simdev.record import Fault, collector

FAULTS: list[Fault] = []
fault = collector(FAULTS)

EVERY = 10  # a flaky kernel is wrong in every tenth call of a process
DELAY = 0.8  # seconds that a slow kernel takes longer


class _Flaky:
    """Right in nine calls of ten; the count makes it the same in every run."""

    def __init__(self, change):
        self.change, self.calls = change, 0

    def __call__(self, clean, *args, **named):
        result = clean(*args, **named)
        if not result.is_floating_point():
            return result
        self.calls += 1
        return self.change(result) if self.calls % EVERY == 0 else result


fault("matmul-flaky", "every tenth call is off by one per cent", needs="ten calls in one process")(
    _Flaky(lambda result: result * 1.01))  # fmt: skip
fault("mul-flaky", "every tenth call has the wrong sign", needs="ten calls in one process")(
    _Flaky(lambda result: -result))  # fmt: skip


@fault("conv2d-segfault", "the process dies of a segmentation fault", "crash")
def _(clean, *args, **named):
    ctypes.string_at(0)


@fault("add-abort", "the process aborts", "crash")
def _(clean, *args, **named):
    os.abort()


@fault("relu-hang", "the call never returns", "timeout")
def _(clean, *args, **named):
    while True:
        time.sleep(0.01)


@fault("max_pool2d-not-implemented", "the call raises an exception", "exception")
def _(clean, *args, **named):
    raise NotImplementedError("max_pool2d is not implemented on this device")


@fault("gelu-slow", f"the call takes {DELAY} s longer", "slow")
def _(clean, *args, **named):
    time.sleep(DELAY)
    return clean(*args, **named)


@fault("flatten-shape", "the dimensions of the result are exchanged", needs="a result of different sizes")
def _(clean, *args, **named):
    result = clean(*args, **named)
    return result.reshape(result.shape[::-1])


@fault("linear-dtype", "the result is float64 for float32 inputs")
def _(clean, *args, **named):
    return clean(*args, **named).double()
