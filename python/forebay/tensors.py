"""Tensors that are leased one by one, in any order. forebay/c.h has the whole contract."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from ctypes import c_char_p, c_size_t, c_void_p
from typing import Any, ClassVar

from forebay._forks import gives_up_locks
from forebay._given import Path
from forebay._given import folders as folders_of
from forebay._library import (
    DTYPES,
    DURABILITIES,
    ENGINES,
    PLANE_BYTES,
    PLANES,
    Buffer,
    LeaseRequest,
    Owned,
    Pinned,
    TensorsOptions,
    call,
    index_of,
    lib,
    take_text,
    text_of,
)
from forebay._worker import Worker
from forebay.errors import UsageError
from forebay.inventory import Inventory, Tensor
from forebay.lease import capsule_of

_ACCESSES = {"read": 0, "write": 1, "overwrite": 2}

User = dict[str, Any]


class Tensors(Owned):
    """Tensors in a crash-safe store, for programs that update them themselves: planes ("master", "m", "v" in fp32,
    "weight" in bf16; of raw tensors "raw") are leased, changed and released, in RAM inside a budget.

    inventory: makes a store, whose values are zeros until they are written; None opens the one that is there, with its
    own tensors (`tensors`). folders: one for each disk. ram_bytes: of leases and what is on its way; 0: 256 MiB. The
    rest: `forebay_tensors_options` in forebay/c.h, with the same names and defaults.

    Thread-safe, and calls of several threads run side by side. Ctrl-C ends the wait of every call on the main thread:
    the call itself goes on, and the next one waits for it; but for `acquire`, whose leases are given back once there is
    room for them. `close` loses what is not committed.
    """

    _closed: ClassVar[str] = "forebay: these Tensors are closed. Open the store again."

    def __init__(self, folders: Path | Sequence[Path], inventory: Inventory | None = None, *, ram_bytes: int = 0,
                 lease_bytes: int = 0, wait_limit_s: float = 0.0, weight_dtype: str = "bf16", without_m: bool = False,
                 without_v: bool = False, durability: str = "auto", engine: str = "auto", tile_elems: int = 0) -> None:
        paths = folders_of(folders, "folders")
        options = TensorsOptions(
            struct_size=ctypes.sizeof(TensorsOptions),
            folders=(c_char_p * len(paths))(*map(os.fsencode, paths)), num_folders=len(paths),
            ram_bytes=ram_bytes, lease_bytes=lease_bytes, wait_limit_s=wait_limit_s,
            weight_dtype=index_of(DTYPES, weight_dtype, "weight_dtype"), without_m=without_m, without_v=without_v,
            durability=index_of(DURABILITIES, durability, "durability"), engine=index_of(ENGINES, engine, "engine"),
            tile_elems=tile_elems)
        handle = c_void_p()
        self._worker = Worker("Tensors")
        if inventory is None:
            self._worker.run(call, lib.forebay_tensors_open, ctypes.byref(options), ctypes.byref(handle))
        else:
            self._worker.run(call, lib.forebay_tensors_create, ctypes.byref(options), inventory._handle,
                             ctypes.byref(handle))
        self._handle = handle
        self._end_with(self._worker.close, lib.forebay_tensors_destroy, handle)
        gives_up_locks(self, paths)
        self.tensors = [Tensor(entry["name"], tuple(entry["shape"]), 0, entry["layer"], entry["raw"])
                        for entry in self._json(lib.forebay_tensors_inventory_json)]

    def _call(self, function: Any, *arguments: Any) -> None:
        call(function, self._use(), *arguments)

    def _call_with(self, kept: Pinned, function: Any, *arguments: Any) -> None:
        """`kept`: data that outlive an interrupted wait."""
        call(function, self._use(), *arguments)

    def _take_text(self, function: Any) -> str:
        return take_text(function, self._use())

    def _json(self, function: Any) -> Any:
        return json.loads(self._worker.quick(self._take_text, function))

    def acquire(self, *requests: tuple[int, str, str]) -> list[TensorLease]:
        """A lease for each (tensor, plane, access), or none: access is "read", "write" or "overwrite" (all of it will
        be set, and nothing is read). Acquire what belongs together in one call, as others wait for the leases that one
        holds. UsageError: leased for writing already, or no such plane. DoesNotFitError: more than lease_bytes.
        OutOfMemoryError: no room came in wait_limit_s."""
        leases: list[TensorLease] = self._worker.run(self._acquire, requests, needs_caller=True)
        return leases

    def _acquire(self, requests: Sequence[tuple[int, str, str]]) -> list[TensorLease]:
        wanted = (LeaseRequest * len(requests))(*[
            LeaseRequest(tensor, index_of(PLANES, plane, "plane"), index_of(_ACCESSES, access, "access"))
            for tensor, plane, access in requests])
        leases = (c_void_p * len(requests))()
        self._call(lib.forebay_tensors_acquire, wanted, len(requests), leases)
        return [TensorLease(c_void_p(handle), self.tensors[tensor], plane, access != "read", self._worker)
                for handle, (tensor, plane, access) in zip(leases, requests)]

    def expect(self, tensor: int, plane: str) -> None:
        """Starts to read what will be acquired, as far as there is room."""
        self._worker.run(self._call, lib.forebay_tensors_expect, tensor, index_of(PLANES, plane, "plane"))

    def commit(self, step: int, user: User | None = None) -> None:
        """Makes all that was released one step, durable. user: at most 3 KiB as JSON. UsageError: a lease for writing
        is out."""
        self._worker.wait_for_those_aside()  # an interrupted acquire may have leased for writing
        self._worker.run(self._call, lib.forebay_tensors_commit, step, *text_of(user))

    def abort(self) -> None:
        """Goes back to the committed step. UsageError: a lease for writing is out, or the store has one copy, which was
        written over."""
        self._worker.wait_for_those_aside()
        self._worker.run(self._call, lib.forebay_tensors_abort)

    def read(self, tensor: int, plane: str, values: Buffer, first: int = 0) -> None:
        """Copies elements of a plane as they were committed into `values`, as many as these hold, from `first` on."""
        pinned = Pinned(values, writable=True)
        self._worker.run(self._call_with, pinned, lib.forebay_tensors_read, tensor, index_of(PLANES, plane, "plane"),
                         first, pinned.num_bytes // PLANE_BYTES[plane], pinned.address)

    @property
    def committed_step(self) -> int | None:
        """None: there was no commit yet."""
        step = int(self._worker.quick(lib.forebay_tensors_committed_step, self._use()))
        return None if step < 0 else step

    @property
    def user(self) -> User:
        """The `user` of the committed step."""
        user: User = self._json(lib.forebay_tensors_user_json)
        return user

    def stats(self) -> dict[str, Any]:
        """Bytes moved, time waited, memory taken, the engine."""
        stats: dict[str, Any] = self._json(lib.forebay_tensors_stats_json)
        return stats


class TensorLease(Owned):
    """The values of one plane of a tensor, for `torch.from_dlpack`, `numpy.from_dlpack` and `memory`. `release` has
    them written where they were leased for that; `close`, the end of a `with` and the collector forget what was set.

    What from_dlpack makes of a lease to read keeps the values. Of a lease for writing it has to go before `release`.
    """

    _closed: ClassVar[str] = "forebay: this lease was released. Acquire the tensor again."

    def __init__(self, handle: c_void_p, tensor: Tensor, plane: str, is_written: bool, worker: Worker) -> None:
        self.tensor = tensor
        self.plane = plane
        self._is_written = is_written
        self._worker = worker
        self._handle = handle
        self._end_with(lib.forebay_tensor_lease_discard, handle)

    def memory(self) -> memoryview:
        """The values as bytes, row-major, until the release."""
        size = c_size_t()
        address = lib.forebay_tensor_lease_data(self._use(), ctypes.byref(size))
        view = memoryview((ctypes.c_char * size.value).from_address(address)).cast("B")
        return view if self._is_written else view.toreadonly()

    def release(self) -> None:
        """Ends the lease, and has what was leased for writing written. UsageError, and it has not ended: a tensor that
        from_dlpack made of a lease for writing is left. StorageError: an earlier write failed: abort."""
        self._worker.run(self._release)

    def _release(self) -> None:
        try:
            call(lib.forebay_tensor_lease_release, self._use())
        except UsageError:
            raise  # it is still out
        except BaseException:
            self._destroy.detach()
            raise
        self._destroy.detach()

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return self._worker.whole(self._new_capsule)

    def _new_capsule(self) -> Any:
        return capsule_of(lib.forebay_tensor_lease_dlpack(self._use()))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


__all__ = ["TensorLease", "Tensors"]
