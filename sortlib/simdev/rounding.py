"""Number formats that are narrower than float32, emulated in float32."""

from __future__ import annotations

import torch


def is_float32(*tensors) -> bool:
    """Whether all tensors hold float32; faults of float32 kernels leave other dtypes alone."""
    return all(tensor.dtype == torch.float32 for tensor in tensors if isinstance(tensor, torch.Tensor))


def to_tf32(tensor):
    """Float32 values rounded to the 10 mantissa bits of TensorFloat-32, ties to even; NaN and infinities stay."""
    bits = tensor.contiguous().view(torch.int32)
    rounded = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor)


def to_bf16(tensor):
    """Float32 values rounded to bfloat16."""
    return tensor.bfloat16().float()


def tf32_allowed() -> bool:
    """The device's flag ``torch.backends.simdev.allow_tf32``."""
    return torch.backends.simdev.allow_tf32


def flush_denormals(tensor):
    """Denormal float32 values become zero of the same sign."""
    tiny = torch.finfo(torch.float32).smallest_normal
    return torch.where(tensor.abs() < tiny, tensor * 0, tensor)


def in_memory_order(tensor):
    """What a kernel sees that reads a tensor's memory from its start and ignores the strides."""
    if tensor.is_contiguous() or 0 in tensor.stride():
        return tensor
    return torch.as_strided(tensor, (tensor.numel(),), (1,)).reshape(tensor.shape)


def last_to_zero(tensor):
    """A copy whose last element is zero."""
    changed = tensor.clone(memory_format=torch.contiguous_format)
    changed.view(-1)[-1:] = 0
    return changed
