"""The backward pass of one call: gradients of its inputs are further outputs, compared like all others.

Every output's upstream gradient is drawn from the call's seed with few digits, so that it is the same number in
half, single and double precision and on every platform.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from sortlib.features import map_tensors

_STATE = {"running_mean", "running_var", "out"}  # written by the call, never differentiated


def wanted(tensor) -> bool:
    """Whether an input has a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def leaves(arguments, frozen=()):
    """The arguments with every floating-point tensor as a leaf that wants a gradient, and (name, leaf) of each.

    One tensor that is given twice becomes two, each with the gradient of its own place. Those in ``frozen``, by name,
    want none, as when the call was recorded: kernels are chosen by that too.
    """
    found = []

    def leaf(argument):
        if argument.name in _STATE:
            return argument

        def make(path, tensor):
            name = ".".join(map(str, (argument.name, *path)))
            if not wanted(tensor) or name in frozen:
                return tensor
            made = tensor.detach().requires_grad_()
            found.append((name, made))
            return made

        return argument._replace(value=map_tensors(argument.value, make))

    return [leaf(argument) for argument in arguments], found


def count(node, arguments) -> int:
    """How many gradients ``gradients`` adds to the outputs of a case node's call with these arguments."""
    return len(leaves(arguments, node.get("frozen", ()))[1])


def gradients(outputs, named, seed: int, upstream: str = "drawn") -> list:
    """Gradients of the leaves, zero where nothing depends on one.

    Parameters
    ----------
    outputs : the call's outputs.
    named : (name, leaf) from ``leaves``.
    upstream : ``drawn``, their ``magnitudes``, or ``ones``.
    """
    used = [(k, output) for k, output in enumerate(outputs) if output.requires_grad]
    given = [upstream_of(output, f"{seed}/{k}", upstream) for k, output in used]
    found = [None] * len(named)
    if used:
        found = torch.autograd.grad([o for _, o in used], [leaf for _, leaf in named], given, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g.detach() for g, (_, leaf) in zip(found, named, strict=True)]


def upstream_of(output, key, kind):
    """The upstream gradient of an output: dtype and shape as the output."""
    if kind == "ones":
        return torch.ones_like(output)
    size = output.numel() * (2 if output.is_complex() else 1)
    rng = np.random.Generator(np.random.Philox(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")))
    # Three significant bits between 1/16 and 4 are exact in every dtype, both of 8 bits included.
    mantissa, exponent = np.frexp(np.clip(np.round(rng.standard_normal(size) * 16), -64, 64))
    values = torch.from_numpy(np.ldexp(np.round(mantissa * 8) / 8, exponent - 4))
    if output.is_complex():
        values = torch.view_as_complex(values.reshape(-1, 2))
    values = values.reshape(output.shape).to(output.device, output.dtype)
    return values.abs().to(output.dtype) if kind == "magnitudes" else values
