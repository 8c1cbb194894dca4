"""A backend with faults for the tests of the runner: imported by a worker, it replaces operators of PyTorch.

Every fault is real. It strikes where the input has a marked number of rows, so that one campaign holds cases that
fail in each way and cases that do not. A test imports the numbers; only the environment of a worker arms the faults.
"""

import ctypes
import os
import time

import torch
import torch.nn.functional as F

SEGFAULT, ABORT, ENDLESS, RAISES, HUGE, MEMORY, NARROW, WRONG, SLOW = range(11, 20)

_relu = torch.relu


def relu(x):
    """relu, except for the marked numbers of rows."""
    rows = x.shape[0] if x.dim() else 0
    if rows == SEGFAULT:
        ctypes.string_at(0)
    if rows == ABORT:
        os.abort()
    if rows == ENDLESS:
        while True:
            time.sleep(0.01)
    if rows == RAISES:
        raise RuntimeError("this backend does not like 14 rows")
    if rows == HUGE:
        return torch.empty(1 << 48, dtype=torch.uint8)  # 256 TiB, more than an address space holds
    if rows == MEMORY:
        raise MemoryError
    if rows == NARROW:
        return _relu(x)[:, 1:]
    if rows == SLOW:
        time.sleep(2)
    if rows == WRONG:
        return _relu(x) + 0.25
    return _relu(x)


if "SORT_TEST_FAULTS" in os.environ:
    torch.relu = relu

if "SORT_TEST_CONV_OFFSET" in os.environ:
    offset, _conv2d = float(os.environ["SORT_TEST_CONV_OFFSET"]), F.conv2d

    def conv2d(*args, **kwargs):
        """conv2d off by a constant."""
        return _conv2d(*args, **kwargs) + offset

    F.conv2d = conv2d

if "SORT_TEST_OTHER_INPUTS" in os.environ:
    from sortlib import drawing

    _draw = drawing.draw

    def draw(features, seed, sampler):
        """Other values than the other side draws."""
        return _draw(features, seed + " and more", sampler)

    drawing.draw = draw
