"""Files in the safetensors format, written and read tensor by tensor: a file is never in memory as a whole, nor mapped.

The safetensors package needs all tensors of a file to write it, and maps it to read it, so that its pages count as the
process's own.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import torch

from forebay._descriptors import open_to_write
from forebay.errors import BadInputError, StorageError, UsageError
from forebay.torch._tensors import on_host

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# What a file begins with that Git LFS has not fetched.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Those of them that this version of torch has.
_NAMES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype) for name, dtype in {
        "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
        "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2", "C64": "complex64", "U16": "uint16", "U32": "uint32", "U64": "uint64"}.items()
    if hasattr(torch, dtype)}
_NAME_OF = {dtype: name for name, dtype in _NAMES.items()}
_MAX_HEADER = 100 << 20


class Entry(NamedTuple):
    """A tensor that is to be written."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def entry_of(tensor: torch.Tensor) -> Entry:
    return Entry(tuple(tensor.shape), tensor.dtype)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    num_bytes = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr())).cast("B")


class _Shard(NamedTuple):
    name: str
    entries: dict[str, Entry]


def _shards_of(entries: dict[str, Entry], max_bytes: int) -> list[_Shard]:
    """In the order of `entries`, each with as many as fit, and at least one."""
    groups: list[dict[str, Entry]] = []
    size = 0
    for name, entry in entries.items():
        if not groups or size + entry.num_bytes > max_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = entry
        size += entry.num_bytes
    count = len(groups)
    return [_Shard(SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors", group)
            for number, group in enumerate(groups, 1)]


def write_folder(folder: str, entries: dict[str, Entry], tensors: Iterable[tuple[str, torch.Tensor]],
                 max_shard_bytes: int) -> None:
    """Writes `tensors`, which come in the order of `entries` and are not kept. Files get their names when all of them
    are written; what an earlier call left in the folder, and belongs to other shards, goes.

    StorageError: a write failed, and the folder has what it had.
    """
    shards = _shards_of(entries, max_shard_bytes)
    files = [shard.name for shard in shards]
    stream = iter(tensors)
    try:
        for shard in shards:
            with open_to_write(_unfinished(folder, shard.name), "wb") as file:
                _write_shard(file, shard, stream)
                os.fsync(file.fileno())
        if len(shards) > 1:
            files.append(INDEX)
            with open_to_write(_unfinished(folder, INDEX), "w") as text:
                json.dump(_index_of(shards), text, indent=2)
                text.flush()
                os.fsync(text.fileno())
        if len(shards) > 1 and os.path.lexists(os.path.join(folder, INDEX)):
            os.remove(os.path.join(folder, INDEX))  # a crash from here on leaves no mixture of models that loads
        for name in files:
            os.replace(_unfinished(folder, name), os.path.join(folder, name))
    except OSError as error:
        raise StorageError(f"forebay: the weights could not be written to {folder}: {error.strerror} "
                           f"({sum(entry.num_bytes for entry in entries.values())} bytes are needed). What was there "
                           "is as it was. Make room, or name another folder.") from error
    finally:
        for name in files:
            if os.path.exists(_unfinished(folder, name)):
                os.remove(_unfinished(folder, name))
    _remove_others(folder, files)


def _unfinished(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.unfinished")


def _write_shard(file: BinaryIO, shard: _Shard, stream: Iterator[tuple[str, torch.Tensor]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in shard.entries.items():
        header[name] = {"dtype": _NAME_OF[entry.dtype], "shape": list(entry.shape),
                        "data_offsets": [end, end + entry.num_bytes]}
        end += entry.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name, entry in shard.entries.items():
        given, tensor = next(stream)
        assert given == name and entry_of(tensor) == entry, (given, name)
        if tensor.numel() > 0:
            file.write(_bytes_of(on_host(tensor)))


def _index_of(shards: list[_Shard]) -> dict[str, Any]:
    entries = [entry for shard in shards for entry in shard.entries.values()]
    return {"metadata": {"total_parameters": sum(math.prod(entry.shape) for entry in entries),
                         "total_size": sum(entry.num_bytes for entry in entries)},
            "weight_map": {name: shard.name for shard in shards for name in shard.entries}}


def _remove_others(folder: str, files: list[str]) -> None:
    for name in os.listdir(folder):
        is_shard = name.startswith("model-") and name.endswith(".safetensors") and "-of-" in name
        if name not in files and (is_shard or name in (SINGLE, INDEX)):
            os.remove(os.path.join(folder, name))


class _Place(NamedTuple):
    file: str
    begin: int  # in the file
    num_bytes: int
    shape: list[int]
    dtype: torch.dtype


class Folder:
    """Tensors of a folder with model.safetensors, or with model.safetensors.index.json and its shards; or of one file.

    BadInputError: there are none, or they are damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._places: dict[str, _Place] = {}
        for file in _files_of(path):
            self._places.update(_places_in(file))

    @property
    def names(self) -> set[str]:
        return set(self._places)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self._places[name].shape)

    def read(self, name: str) -> torch.Tensor:
        """StorageError: the file is shorter than its header says, or cannot be read."""
        place = self._places[name]
        tensor = torch.empty(place.shape, dtype=place.dtype)
        if place.num_bytes == 0:
            return tensor
        try:
            with open(place.file, "rb") as file:
                file.seek(place.begin)
                got = file.readinto(_bytes_of(tensor))
        except OSError as error:
            raise StorageError(f"forebay: {name} could not be read from {place.file}: {error.strerror}.") from error
        if got != place.num_bytes:
            raise BadInputError(f"forebay: {place.file} ends within {name}. Download or copy it again.")
        return tensor


def _files_of(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    index = os.path.join(path, INDEX)
    if os.path.isfile(index):
        with open(index, encoding="utf-8") as text:
            try:
                files = sorted(set(json.load(text)["weight_map"].values()))
            except (ValueError, KeyError, AttributeError) as error:
                raise BadInputError(f"forebay: {index} is no index of safetensors: {error}.") from error
        missing = [name for name in files if not os.path.isfile(os.path.join(path, name))]
        if missing:
            raise BadInputError(f"forebay: {index} names {missing[0]}, which is not there. Download or copy it again.")
        return [os.path.join(path, name) for name in files]
    if os.path.isfile(os.path.join(path, SINGLE)):
        return [os.path.join(path, SINGLE)]
    found = sorted(os.listdir(path)) if os.path.isdir(path) else []
    raise UsageError(f"forebay: there is no {SINGLE} and no {INDEX} in {path} "
                     f"({'it has ' + ', '.join(found[:5]) if found else 'it is empty, or not there'}). Name the folder "
                     "of a model, as save_pretrained() or `hf download` make it.")


def _places_in(path: str) -> dict[str, _Place]:
    try:
        with open(path, "rb") as file:
            beginning = file.read(len(_LFS_POINTER))
            if beginning == _LFS_POINTER:
                raise BadInputError(f"forebay: {path}: this is a Git LFS pointer, not the file; run git lfs pull.")
            length = int.from_bytes(beginning[:8], "little")
            file.seek(8)
            if length > _MAX_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: _Place(path, 8 + length + each["data_offsets"][0],
                             each["data_offsets"][1] - each["data_offsets"][0], each["shape"], _NAMES[each["dtype"]])
                for name, each in header.items()}
    except OSError as error:
        raise StorageError(f"forebay: {path} could not be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInputError(f"forebay: {path} is no safetensors file: {error}. Download or copy it again.") from error
