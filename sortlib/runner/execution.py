"""Executing the calls of a case on one platform, inside a worker process."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from sortlib import apis
from sortlib.api_tables import UNINITIALISED
from sortlib.drawing import draw
from sortlib.features import (
    LEVELS,
    Sample,
    between,
    contiguous_strides,
    decode,
    dtype_name,
    map_tensors,
    take,
)
from sortlib.runner import backward
from sortlib.runner.transport import load_tensor

# Flags that let a kernel trade precision for speed, by dotted name below torch.backends, with their values at full
# precision; a difference that vanishes with them is configuration.
PRECISION_FLAGS = {
    "cudnn.allow_tf32": False,
    "cuda.matmul.allow_tf32": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": False,
}
CPU_PRECISION_FLAGS = {"mkldnn.matmul.fp32_precision": "ieee", "mkldnn.conv.fp32_precision": "ieee"}


@dataclass
class Call:
    """One executed call: its output tensors on the platform's device, or the exception that it raised."""

    outputs: list
    seconds: float = 0.0
    error: Exception | None = None


def apply_flags(flags: dict, root=torch.backends):
    """Set flags below ``root`` by dotted name; return the values they had."""
    before = {}
    for name, value in flags.items():
        home, _, attribute = name.rpartition(".")
        holder = root
        for part in filter(None, home.split(".")):
            holder = getattr(holder, part)
        before[name] = getattr(holder, attribute)
        setattr(holder, attribute, value)
    return before


def _full_precision_flags(device: str):
    """(flags at full precision, what they lie below) of a device type.

    An out-of-tree device names its own in its device module, by dotted name below that module, for example
    ``torch.npu.full_precision = {"matmul.allow_hf32": False}``.
    """
    module = getattr(torch, device, None)
    own = getattr(module, "full_precision", None)
    if isinstance(own, dict):
        return own, module
    return {"cuda": PRECISION_FLAGS, "cpu": CPU_PRECISION_FLAGS}.get(device, {}), torch.backends


@contextlib.contextmanager
def full_precision(device: str):
    """Within it, reduced-precision shortcuts of the device are off."""
    flags, root = _full_precision_flags(device)
    before = apply_flags(flags, root)
    try:
        yield
    finally:
        apply_flags(before, root)


def shortcuts(device: str) -> bool:
    """Whether any reduced-precision shortcut of this device is on."""
    flags, root = _full_precision_flags(device)
    before = apply_flags(flags, root)
    apply_flags(before, root)
    return any(before[name] not in (value, "none") for name, value in flags.items())


class Executor:
    """Runs single calls on one platform.

    Parameters
    ----------
    platform : the form of ``Platform.to_json``.
    """

    def __init__(self, platform: dict):
        self.platform = platform
        self.device = torch.device(platform["device"])
        self.dtype = getattr(torch, platform["dtype"]) if platform["dtype"] else None
        self.autocast = getattr(torch, platform["autocast"]) if platform["autocast"] else None
        self.precision = platform["dtype"] or platform["autocast"]  # as Platform.precision
        self._compiled = {}

    def place(self, tensor):
        """A drawn or foreign CPU tensor as this platform takes it: device, dtype, memory format."""
        if self.dtype and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        tensor = tensor.to(self.device)
        if self.platform["memory_format"] == "channels_last" and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def arguments(self, node: dict, external, internal) -> list:
        """The bound arguments of a case node.

        Parameters
        ----------
        node : the JSON form of a ``CaseNode``.
        external : stream -> tensor on this platform.
        internal : (node, output) -> tensor on this platform.
        """
        special = {
            "$draw": lambda content: external[content[0]],
            "$load": lambda content: external[content[0]],
            "$from": lambda content: internal[tuple(content)],
            "$device": lambda name: self.device,
        }
        return [apis.Argument(name, decode(form, special), kind) for name, form, kind in node["arguments"]]

    def call(self, node: dict, arguments: list, seed: int) -> Call:
        """Run one API, and its backward pass where the node wants it; an exception is a result."""
        named = None
        if node.get("backward"):
            arguments, named = backward.leaves(arguments, node.get("frozen", ()))
        if _mutates(node, arguments):
            # Values are shared between chains and with the other platform, so in-place APIs get copies.
            with torch.set_grad_enabled(named is not None):
                arguments = [a._replace(value=map_tensors(a.value, lambda _, t: duplicate(t))) for a in arguments]
        try:
            function = self._function(node["target"])
            args, kwargs = apis.unbind(arguments)
            self._seed(seed)
            self.synchronize()
            start = time.perf_counter()
            with torch.set_grad_enabled(named is not None), self._autocast():
                result = function(*args, **kwargs)
            self.synchronize()
            seconds = time.perf_counter() - start
            if node["api"] == "setitem":
                result = args[0]
            outputs = tensors_in(result)
            if named is not None:
                gradients = backward.gradients(outputs, named, seed, node.get("upstream", "drawn"))
                outputs = [output.detach() for output in outputs] + gradients
        except Exception as error:
            return Call([], error=error)
        if node["api"] in UNINITIALISED:
            # What such memory holds is chance; zeros are as good, and the same in every run.
            for output in outputs:
                output.zero_()
        return Call(outputs, seconds)

    def _autocast(self):
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    @contextlib.contextmanager
    def exactly(self):
        """Within it, calls run without autocast: those that say what is right."""
        autocast, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = autocast

    def _function(self, target):
        function = apis.resolve(target)
        if not self.platform["compile"]:
            return function
        if target not in self._compiled:
            torch._dynamo.reset()
            # A wrapper, since built-in functions cannot be compiled directly.
            self._compiled[target] = torch.compile(lambda *args, **kwargs: function(*args, **kwargs), dynamic=False)
        return self._compiled[target]

    def _seed(self, seed):
        # torch.manual_seed also queues a call for every accelerator that is not in use, which costs more than many
        # calls and is never freed.
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            seeded = getattr(getattr(torch, self.device.type), "manual_seed", torch.manual_seed)
            seeded(seed)

    def synchronize(self):
        """Wait for the device, so that times and errors belong to the call that caused them."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()


def _mutates(node, arguments) -> bool:
    """Whether a call writes into an argument: its first, ``out``, running statistics, or renormalised embeddings."""
    if node["inplace"]:
        return True
    flags = {"inplace", "training", "train", "use_input_stats"}
    return any(
        a.name in ("out", "max_norm") and a.value is not None or (a.name in flags and _true(a.value)) for a in arguments
    )


def _true(value) -> bool:
    """Whether Python takes a flag as set; fuzzed flags can be numbers or lists, and a tensor may be neither."""
    return not isinstance(value, torch.Tensor) and bool(value)


def duplicate(tensor):
    """A copy with the same strides, gaps included; ``clone`` closes them."""
    if tensor.layout != torch.strided or tensor.stride() == contiguous_strides(tensor.shape):
        return tensor.clone()
    if 0 in tensor.stride():
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def tensors_in(result) -> list:
    """The output tensors of a call, in order."""
    found = []

    def note(_, tensor):
        found.append(tensor)
        return tensor

    map_tensors(result, note)
    return found


def extremes(tensor) -> tuple[float, float]:
    """Smallest and largest element, both NaN where one is NaN: a tenth of the cost of asking every element."""
    low, high = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
    return float(low), float(high)


def figures(tensor) -> dict:
    """Features of an output in ``features.encode``'s form, without strides and with quantiles of 7 digits.

    That is about the precision of float32; rows of outcomes keep the quantiles as text.
    """
    taken = take(tensor)
    if isinstance(taken, Sample):
        zeros, quantiles = _quantiles(taken)
        numbers = taken.numbers.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # float64 near its limit
            mean = float(numbers.mean())
            numbers -= mean
            std = math.sqrt(float(np.dot(numbers, numbers)) / numbers.size)  # ``numpy.std`` costs three times as much
        taken = {**taken.shares, "minimum": taken.minimum, "maximum": taken.maximum,
                 "mean": mean if math.isfinite(mean) else None, "std": std if math.isfinite(std) else None,
                 "zeros": zeros, "quantiles": quantiles}  # fmt: skip
    return {"$tensor": {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), **taken}}


def _quantiles(sample: Sample) -> tuple[float, list[float]]:
    """Share of zeros and quantiles as ``features.summarise`` gives them: of one sample, in half of its time."""
    ordered = np.sort(sample.numbers)
    count, zero = ordered.size, ordered.dtype.type(0)  # a zero of another type would convert all of them
    below, above = ordered.searchsorted(zero), ordered.searchsorted(zero, "right")
    if above > below:
        ordered = np.concatenate([ordered[:below], ordered[above:]])
        if not ordered.size:
            return 1.0, []
    lower, upper, share = _places(ordered.size)
    found = between(ordered[lower].astype(np.float64), ordered[upper].astype(np.float64), share).tolist()
    found[0], found[-1] = min(sample.minimum, found[0]), max(sample.maximum, found[-1])
    return float(above - below) / count, [float(f"{value:.7g}") for value in found]


@lru_cache(64)
def _places(count: int):
    """Where the quantiles at ``LEVELS`` stand among sorted values: places below and above, and the share of the way."""
    exact = (count - 1) * np.array(LEVELS)
    lower = np.floor(exact).astype(np.intp)
    return lower, np.minimum(lower + 1, count - 1), exact - lower


def draw_externals(case: dict) -> dict:
    """Stream -> CPU tensor for everything that does not come from inside the pattern, drawn or read from a file."""
    drawn = {}

    def note(content):
        stream, features = content
        if stream not in drawn:
            drawn[stream] = draw(decode(features), f"{case['id']}/{stream}", case["sampler"])

    def load(content):
        stream, form = content
        if stream not in drawn:
            drawn[stream] = load_tensor(form)

    for node in case["nodes"]:
        for _, form, _ in node["arguments"]:
            decode(form, {"$draw": note, "$load": load, "$from": lambda content: None})
    return drawn


def seed_of(case: dict, node: int) -> int:
    """The seed of a random API, the same on every platform."""
    return int.from_bytes(hashlib.sha256(f"{case['id']}/{node}".encode()).digest()[:7], "little")
