"""Processes that train together. forebay/c.h has the whole contract."""

from __future__ import annotations

import array
import ctypes
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from typing import ClassVar, TypeVar

from forebay._given import utf8
from forebay._library import Buffer, Owned, Pinned, RanksOptions, array_of, call, lib, take_text
from forebay._worker import Worker
from forebay.errors import StorageError, UsageError

_Result = TypeVar("_Result")


class Ranks(Owned):
    """The ranks that torchrun, deepspeed, mpirun or srun has started, this process being one of them; without one of
    these there is one rank. `size`, `rank` and the address of rank 0 may be given instead.

    All ranks make the same calls in the same order: these, and those of the `Layers` that are made with them. A rank
    that dies, hangs or does something else ends the calls of all others with EnvironmentProblem, which has its number,
    its host and its reason.

    Over TCP they prove to each other that they have the same FOREBAY_JOB_SECRET (docs/cli.md, "Among strangers").

    timeout_s: that another rank may be silent; 0: 600. master_port: the first of 16, at one of which rank 0 listens.
    EnvironmentProblem: a rank did not come, and which. Layers keep what they need of it behind `close`.
    """

    _closed: ClassVar[str] = "forebay: these Ranks are closed. Make others, before the layers that need them."

    def __init__(self, *, timeout_s: float = 0.0, size: int = 0, rank: int = 0, master_address: str | None = None,
                 master_port: int = 0) -> None:
        address = None if master_address is None else utf8(master_address, "master_address")
        options = RanksOptions(struct_size=ctypes.sizeof(RanksOptions), timeout_s=timeout_s, size=size, rank=rank,
                               master_address=address, master_port=master_port)
        handle = c_void_p()
        self._worker = Worker("Ranks")
        self._worker.run(call, lib.forebay_ranks_connect, ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle
        # It has the handle alone, which is none once it has ended: layers have it too.
        self._worker.give_up = self._give_up = functools.partial(_abort, handle)
        self._end_with(self._worker.close, _end, handle)
        self.rank: int = lib.forebay_ranks_rank(handle)
        self.size: int = lib.forebay_ranks_size(handle)
        self.local_rank: int = lib.forebay_ranks_local_rank(handle)
        warning = take_text(lib.forebay_ranks_warning, handle) if self.rank == 0 else ""
        if warning:
            warnings.warn(f"forebay: {warning}", stacklevel=2)

    def folder_in(self, folder: str) -> str:
        """Where the store of this rank lies in a folder that is given for all."""
        return folder if self.size == 1 else os.path.join(folder, f"rank-{self.rank}-of-{self.size}")

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._worker.run(self._barrier)

    def _barrier(self) -> None:
        call(lib.forebay_ranks_barrier, self._use())

    def together(self, work: Callable[[], _Result], what: str) -> _Result:
        """This rank's part of what all do. All return when each has done its part, or fail where one could not: that
        rank with its own error, the others with StorageError. what: the parts, for that error."""
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - raised again when the others know of it
            failure = error
        num_failed = array.array("f", [failure is not None])
        self.sum(num_failed)
        if failure is not None:
            raise failure
        if num_failed[0] > 0:
            raise StorageError(f"forebay: {what} failed on another rank: its own error says why.")
        return result

    def abort(self) -> None:
        """This rank cannot go on: the calls of all ranks fail, those that are under way too, on the others with
        StoppedError. Waits for nothing; from any thread."""
        self._use()
        self._give_up()

    def sum(self, values: Buffer) -> None:
        """values: float32, contiguous, as many elements on each rank: they become the sum of those of all ranks, taken
        in the order of the ranks. UsageError: they are no float32."""
        pinned = Pinned(values, writable=True)
        if pinned.num_bytes % 4 != 0:
            raise UsageError(f"forebay: {pinned.num_bytes} bytes are no float32 values.")
        self._worker.run(self._sum, pinned)

    def _sum(self, pinned: Pinned) -> None:
        call(lib.forebay_ranks_sum, self._use(), pinned.address, pinned.num_bytes // 4)

    def sum_parts(self, values: Buffer, offsets: Sequence[int]) -> None:
        """As sum, but rank r gets part r alone, which is [offsets[r], offsets[r + 1]) of the values: half of what sum
        moves. The other parts stay as they were. offsets: size + 1 of them, ascending from 0 to the number of values,
        the same on all ranks."""
        pinned = Pinned(values, writable=True)
        self._worker.run(self._in_parts, lib.forebay_ranks_sum_parts, pinned, self._checked(offsets, pinned, 4))

    def gather_parts(self, data: Buffer, offsets: Sequence[int]) -> None:
        """data: contiguous, as many bytes on each rank: part r becomes that of rank r. offsets: as of sum_parts, in
        bytes."""
        pinned = Pinned(data, writable=True)
        self._worker.run(self._in_parts, lib.forebay_ranks_gather_parts, pinned, self._checked(offsets, pinned, 1))

    def _checked(self, offsets: Sequence[int], pinned: Pinned, unit: int) -> list[int]:
        if len(offsets) != self.size + 1 or offsets[-1] * unit != pinned.num_bytes:
            raise UsageError(f"forebay: {len(offsets)} offsets, up to {offsets[-1] if offsets else 'none'}, for the "
                             f"parts of {self.size} ranks in {pinned.num_bytes} bytes. Give one more than there are "
                             "ranks, from 0 to the end.")
        return list(offsets)

    def _in_parts(self, function: Callable[..., int], pinned: Pinned, offsets: list[int]) -> None:
        call(function, self._use(), pinned.address, array_of(c_int64, offsets, "offsets"))

    def broadcast(self, data: Buffer, root: int = 0) -> None:
        """data: contiguous, as many bytes on each rank: they become those of rank `root`."""
        self._worker.run(self._broadcast, Pinned(data, writable=True), root)

    def _broadcast(self, pinned: Pinned, root: int) -> None:
        call(lib.forebay_ranks_broadcast, self._use(), pinned.address, pinned.num_bytes, root)


def _abort(handle: c_void_p) -> None:
    if handle:
        lib.forebay_ranks_abort(handle)


def _end(handle: c_void_p) -> None:
    lib.forebay_ranks_destroy(handle)
    handle.value = None


__all__ = ["Ranks"]
