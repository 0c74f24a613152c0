"""Metadata and tensors of a GGUF file. Every count and size is checked against the file before it is used.

Not the reader of the package `gguf`: that one believes the lengths that a damaged file states, and loops for as long.
Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only the decoding of quantised values is the package's.
"""

import math
import mmap
import os
import struct
from dataclasses import dataclass

import numpy as np

from .errors import BadInputError, EnvironmentProblem
from .files import refuse_lfs_pointer

_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_MAX_INTEGER = 2**31 - 1
# Value types of the metadata.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class _Tensor:
    shape: tuple        # in Hugging Face's order: the slowest dimension first
    kind: object        # gguf.GGMLQuantizationType
    offset_bytes: int   # in the file
    num_bytes: int


class _Header:
    """Reads values one after another; BadInputError where the file ends before them."""

    def __init__(self, path, data):
        self.path, self._data, self.offset = path, data, 0

    def damaged(self, problem):
        return BadInputError(f"'{self.path}' is no GGUF file that can be read, or is damaged: {problem}. Get the file "
                             "again")

    def take(self, size):
        if size > len(self._data) - self.offset:
            raise self.damaged(f"{size:,} bytes at {self.offset:,} are beyond its end at {len(self._data):,}")
        self.offset += size
        return self._data[self.offset - size:self.offset]

    def scalar(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self):
        begin = self.offset
        try:
            return self.take(self.scalar("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"the text at {begin:,} is not UTF-8") from None

    def value(self):
        kind = self.scalar("I")
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.damaged(f"the value before {self.offset:,} has the unknown type {kind}")
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            # Not a list of `count` at once: each text takes bytes, the claim takes none.
            texts = []
            while len(texts) < count:
                texts.append(self.string())
            return texts
        if kind not in _SCALARS:
            raise self.damaged(f"the list before {self.offset:,} holds values of the unknown type {kind}")
        dtype = np.dtype("<" + _SCALARS[kind]) if _SCALARS[kind] != "?" else np.dtype("?")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


class GgufFile:
    def __init__(self, path):
        try:
            import gguf
        except ImportError:
            raise EnvironmentProblem("converting GGUF files needs the Python package 'gguf': run scripts/build, which "
                                     "makes a Python environment with it in build/venv, or set FOREBAY_PYTHON to a "
                                     "Python that has it") from None
        if not os.path.isfile(path):
            raise BadInputError(f"'{path}' does not exist: --gguf names the file to convert")
        self.path = path
        self._gguf = gguf
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        refuse_lfs_pointer(path, self._data[:64])
        header = _Header(path, self._data)
        num_tensors, num_values = self._read_counts(header)
        self._values = {}
        for _ in range(num_values):
            key = header.string()
            if key in self._values:
                raise header.damaged(f"it has '{key}' twice")
            self._values[key] = header.value()
        self.architecture = self.metadata("general.architecture", None)
        self._read_tensors(header, num_tensors)

    def _read_counts(self, header):
        if header.take(4) != b"GGUF":
            raise header.damaged("it does not begin with 'GGUF'")
        version = header.scalar("I")
        if version not in _VERSIONS:
            raise header.damaged(f"it has version {version} of the format (versions 2 and 3, little-endian, are read)")
        return header.scalar("Q"), header.scalar("Q")

    def _read_tensors(self, header, count):
        self.tensors = {}
        found = []
        for _ in range(count):
            name = header.string()
            num_dimensions = header.scalar("I")
            if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
                raise header.damaged(f"the tensor '{name}' has {num_dimensions} dimensions")
            shape = tuple(reversed([header.scalar("Q") for _ in range(num_dimensions)]))
            found.append((name, shape, header.scalar("I"), header.scalar("Q")))
        alignment = self.metadata("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise header.damaged(f"its alignment is {alignment!r}, which is no power of two")
        begin = -(-header.offset // alignment) * alignment
        for name, shape, kind, offset in found:
            if name in self.tensors:
                raise header.damaged(f"it has the tensor '{name}' twice")
            self.tensors[name] = self._checked_tensor(header, name, shape, kind, begin + offset)

    def _checked_tensor(self, header, name, shape, kind_number, offset):
        try:
            kind = self._gguf.GGMLQuantizationType(kind_number)
            block_elems, block_bytes = self._gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise header.damaged(f"the tensor '{name}' has the unknown type {kind_number}") from None
        if min(shape) < 1 or shape[-1] % block_elems:
            raise header.damaged(f"the tensor '{name}' has the impossible shape {list(shape)} for {kind.name}")
        num_bytes = math.prod(shape) // block_elems * block_bytes
        if offset + num_bytes > len(self._data):
            raise header.damaged(f"the tensor '{name}' of {num_bytes:,} bytes at {offset:,} is beyond its end at "
                                 f"{len(self._data):,}")
        return _Tensor(shape, kind, offset, num_bytes)

    def metadata(self, key, default):
        value = self._values.get(key, default)
        return value.tolist() if isinstance(value, np.ndarray) else value

    def setting(self, key, default):
        """One of the architecture's own values."""
        return self.metadata(f"{self.architecture}.{key}", default)

    def integer(self, key, default=None):
        """A setting from 1 to 2^31 - 1; without `default` it must be there."""
        value = self._required(key, default)
        if type(value) is not int or not 1 <= value <= _MAX_INTEGER:
            raise self._impossible(key, value, f"a whole number from 1 to {_MAX_INTEGER}")
        return value

    def real(self, key, default=None):
        """A setting above 0, as the shortest decimal that is the same float32: 9.999999747378752e-06 is 1e-05."""
        value = self._required(key, default)
        if type(value) not in (int, float) or not (math.isfinite(value) and 0 < value < 1e30):
            raise self._impossible(key, value, "a number above 0")
        return float(str(np.float32(value)))

    def _required(self, key, default):
        value = self.setting(key, default)
        if value is None:
            raise BadInputError(f"'{self.path}' has no '{self.architecture}.{key}': it is incomplete")
        return value

    def _impossible(self, key, value, wanted):
        return BadInputError(f"'{self.path}': '{self.architecture}.{key}' is {repr(value)[:80]}; it must be {wanted}")

    def shape(self, name):
        return self.tensors[name].shape

    def values(self, name):
        """The tensor as float32 in the order of its Hugging Face shape."""
        tensor = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset_bytes)
        raw = raw.reshape(*tensor.shape[:-1], tensor.num_bytes // math.prod(tensor.shape[:-1]))
        try:
            return self._gguf.quants.dequantize(raw, tensor.kind).reshape(tensor.shape)
        except NotImplementedError:
            raise BadInputError(f"'{self.path}': '{name}' is quantised as {tensor.kind.name}, which the package 'gguf' "
                                "cannot undo: take another file of this model") from None
