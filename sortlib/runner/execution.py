"""Executing the calls of a case on one platform, inside a worker process."""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass

import torch

from sortlib import apis
from sortlib.api_tables import UNINITIALISED
from sortlib.drawing import draw
from sortlib.features import contiguous_strides, decode, map_tensors
from sortlib.runner.transport import load_tensor

# Flags that let a kernel trade precision for speed; a difference that vanishes without them is configuration.
PRECISION_FLAGS = {
    "cudnn.allow_tf32": False,
    "cuda.matmul.allow_tf32": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": False,
}


@dataclass
class Call:
    """One executed call: its output tensors on the platform's device, or the exception that it raised."""

    outputs: list
    seconds: float = 0.0
    error: Exception | None = None


def apply_flags(flags: dict):
    """Set flags below ``torch.backends`` by dotted name; return the values they had."""
    before = {}
    for name, value in flags.items():
        home, _, attribute = name.rpartition(".")
        holder = torch.backends
        for part in filter(None, home.split(".")):
            holder = getattr(holder, part)
        before[name] = getattr(holder, attribute)
        setattr(holder, attribute, value)
    return before


@contextlib.contextmanager
def full_precision(device: str):
    """Within it, reduced-precision shortcuts of the device are off."""
    before = apply_flags(PRECISION_FLAGS) if device == "cuda" else {}
    try:
        yield
    finally:
        apply_flags(before)


def has_precision_flags(device: str) -> bool:
    """Whether any shortcut of ``PRECISION_FLAGS`` is on for this device."""
    if device != "cuda":
        return False
    before = apply_flags(PRECISION_FLAGS)
    apply_flags(before)
    return any(before.values())


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
        """Run one API; an exception is a result."""
        if _mutates(node, arguments):
            # Values are shared between chains and with the other platform, so in-place APIs get copies.
            arguments = [a._replace(value=map_tensors(a.value, lambda _, t: duplicate(t))) for a in arguments]
        try:
            function = self._function(node["target"])
            args, kwargs = apis.unbind(arguments)
            self._seed(seed)
            self.synchronize()
            start = time.perf_counter()
            with torch.no_grad():
                result = function(*args, **kwargs)
            self.synchronize()
            seconds = time.perf_counter() - start
        except Exception as error:
            return Call([], error=error)
        if node["api"] == "setitem":
            result = args[0]
        outputs = tensors_in(result)
        if node["api"] in UNINITIALISED:
            # What such memory holds is chance; zeros are as good, and the same in every run.
            for output in outputs:
                output.zero_()
        return Call(outputs, seconds)

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
    flags = {"training", "train", "use_input_stats"}
    return any(
        a.name in ("out", "max_norm") and a.value is not None or (a.name in flags and a.value is True)
        for a in arguments
    )


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
