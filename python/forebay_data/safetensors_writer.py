"""Writes a safetensors file tensor by tensor, so that memory holds one tensor at a time."""

import json
import struct

import numpy as np

from .files import atomic_writer

# Data starts on a 4 KiB boundary (the header is padded with spaces), which lets readers bypass the page cache.
DATA_ALIGNMENT_BYTES = 4096


def to_bf16_bits(values):
    """float32 to the bits of bfloat16: nearest, ties to even; NaN stays NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet_nan, rounded).astype("<u2")


def write_safetensors(path, shapes, dtype, tensors):
    """`shapes`: {name: shape} of all tensors; `tensors`: yields (name, float32 array) in the same order."""
    width = {"BF16": 2, "F32": 4}[dtype]
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = width * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": list(map(int, shape)), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-(len(encoded) + 8) % DATA_ALIGNMENT_BYTES)
    with atomic_writer(path) as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for (name, shape), (given, values) in zip(shapes.items(), tensors, strict=True):
            assert name == given and tuple(values.shape) == tuple(shape), (name, given, values.shape)
            bits = to_bf16_bits(values) if dtype == "BF16" else np.ascontiguousarray(values, dtype="<f4")
            file.write(bits.data)
