"""The tensors of a run, in layers."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from typing import NamedTuple

from forebay import _given
from forebay._library import array_of, call, lib


class Tensor(NamedTuple):
    """An entry of an inventory. A raw tensor has bytes: its shape is their number."""

    name: str
    shape: tuple[int, ...]
    group: int
    layer: int
    is_raw: bool

    @property
    def num_elems(self) -> int:
        """1 of a scalar; of a raw tensor its bytes."""
        return math.prod(self.shape)


class Inventory:
    """Layers and their tensors. A layer is what streams: it is read, lent and updated as a whole.

    Names are unique; raw layers come last. Errors are UsageError.
    """

    def __init__(self) -> None:
        self._handle = c_void_p(lib.forebay_inventory_create())
        self._destroy = weakref.finalize(self, lib.forebay_inventory_destroy, self._handle)
        self.layers: list[str] = []
        self.tensors: list[Tensor] = []

    def begin_layer(self, name: str) -> int:
        """Starts a layer; the tensors added next are its own. Returns its number."""
        return self._begin(lib.forebay_inventory_begin_layer, name)

    def begin_raw_layer(self, name: str) -> int:
        """The same, of raw tensors: bytes that are stored and committed with the others."""
        return self._begin(lib.forebay_inventory_begin_raw_layer, name)

    def add(self, name: str, shape: Sequence[int], group: int = 0) -> int:
        """Adds a tensor of group `group` (an index into the groups of a step). Returns its number."""
        text, index = _given.utf8(name, "a name"), c_int32()
        sizes = array_of(c_int64, list(shape), f"the shape of {name}")
        call(lib.forebay_inventory_add, self._handle, text, len(text), sizes, len(shape), group, ctypes.byref(index))
        self.tensors.append(Tensor(name, tuple(shape), group, len(self.layers) - 1, False))
        return index.value

    def add_raw(self, name: str, num_bytes: int) -> int:
        """Adds a raw tensor. Returns its number."""
        text, index = _given.utf8(name, "a name"), c_int32()
        call(lib.forebay_inventory_add_raw, self._handle, text, len(text), num_bytes, ctypes.byref(index))
        self.tensors.append(Tensor(name, (num_bytes,), 0, len(self.layers) - 1, True))
        return index.value

    def _begin(self, function: object, name: str) -> int:
        text = _given.utf8(name, "a name")
        call(function, self._handle, text, len(text))
        self.layers.append(name)
        return len(self.layers) - 1
