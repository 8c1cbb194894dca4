"""One case's reference outputs as one file in the safetensors format, written and read with torch and numpy alone.

The format holds bytes and their description, never code: eight bytes of header length, a JSON header, raw values.
"""

from __future__ import annotations

import json
import struct

import torch

from sortlib.runner.transport import load_tensor

# The format's names; what it has no name for is kept as plain bytes and gets its dtype back from our own notes.
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "complex64": "C64", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # bytes, the format's own limit
_KEY = "sortlib"


class Damaged(ValueError):
    """The bytes are no such file."""


def pack(answer) -> bytes:
    """The bytes of a file that holds a dictionary of answers of a worker, with the tensors that they point to."""
    tensors = []
    notes = json.dumps(_map(answer, lambda form: _take(form, tensors)))
    header, end = {"__metadata__": {_KEY: notes}}, 0
    for number, tensor in enumerate(tensors):
        dtype, size = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
        named = dtype in _NAMES
        header[f"t{number}"] = {"dtype": _NAMES[dtype] if named else "U8",
                                "shape": list(tensor.shape) if named else [size],
                                "data_offsets": [end, end + size]}  # fmt: skip
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(_bits(tensor).numpy().tobytes() for tensor in tensors)])


def unpack(data: bytes, part: str, keep):
    """One of the answers again; ``keep`` takes each of its tensors and returns the form of ``transport`` for it.

    Raises
    ------
    Damaged
        The bytes are no file of ``pack``.
    """
    try:
        (length,) = struct.unpack("<Q", data[:8])
        if not 0 < length <= min(len(data) - 8, _LARGEST_HEADER):
            raise ValueError("its header has no valid length")
        header = json.loads(data[8 : 8 + length])
        notes = json.loads(header["__metadata__"][_KEY])[part]
        values = memoryview(data)[8 + length :]
        return _map(notes, lambda note: _give(note, header, values, keep), "$packed")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
        raise Damaged(str(error) or type(error).__name__) from None


def _map(value, change, tag="path"):
    """A copy of JSON-like values in which every dictionary with a key ``tag`` is replaced."""
    if isinstance(value, dict):
        return change(value) if tag in value else {key: _map(item, change, tag) for key, item in value.items()}
    return [_map(item, change, tag) for item in value] if isinstance(value, list) else value


def _take(form, tensors):
    tensors.append(load_tensor(form).contiguous())
    return {"$packed": len(tensors) - 1, "dtype": form["dtype"], "shape": form["shape"], "strides": form["strides"]}


def _bits(tensor):
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)


def _give(note, header, values, keep):
    number = int(note["$packed"])
    start, end = header[f"t{number}"]["data_offsets"]
    dtype = getattr(torch, note["dtype"])
    if not isinstance(dtype, torch.dtype) or not 0 <= start <= end <= len(values):
        raise ValueError(f"tensor {number} has no valid description")
    shape = [int(size) for size in note["shape"]]
    flat = torch.frombuffer(bytearray(values[start:end]), dtype=dtype) if end > start else torch.zeros(0, dtype=dtype)
    return {**keep(flat.reshape(shape)), "strides": [int(step) for step in note["strides"]]}
