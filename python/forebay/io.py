"""The disk engine, and memory for it: ranges of files to and from memory, beside what Python computes.

    engine = DiskEngine()
    memory = LockedMemory()
    data = memory.view(memory.allocate(1 << 20), 1 << 20)
    engine.read("weights.bin", data)
    engine.wait_all()
"""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import c_int64, c_uint64, c_void_p
from typing import Any, ClassVar, Union

from forebay._given import whole
from forebay._library import (
    Buffer,
    IoOptions,
    IoRequest,
    Owned,
    Pinned,
    call,
    index_of,
    lib,
    take_text,
)
from forebay._worker import Worker
from forebay.errors import ForebayError, UsageError

_ENGINES = {"auto": 0, "uring": 1, "libaio": 2, "threads": 3}

# A path, or the descriptor of an open file.
File = Union[str, bytes, "os.PathLike[str]", int]


class DiskEngine(Owned):
    """Reads and writes ranges of files. Addresses, offsets and lengths may be any: what the file system can transfer
    directly (O_DIRECT) is, and the rest goes through the page cache.

    engine: "auto" (the first that the kernel gives), "uring", "libaio" or "threads". num_threads: of "threads".
    block_bytes: that the kernel is asked for in one call, a multiple of 4096. max_in_flight_bytes: started and not
    complete, of each device. 0: the default.

    Requests are started in any order; those whose ranges of a file overlap are the caller's to keep apart. Nothing is
    flushed: call os.fsync where a file has to outlive a power cut. Thread-safe. Ctrl-C ends a wait of the main thread;
    the requests go on, and the next wait waits for them. `close` waits for all of them.
    """

    _closed: ClassVar[str] = "forebay: this DiskEngine is closed. Make another."

    def __init__(self, engine: str = "auto", *, num_threads: int = 0, block_bytes: int = 0,
                 max_in_flight_bytes: int = 0) -> None:
        options = IoOptions(struct_size=ctypes.sizeof(IoOptions), engine=index_of(_ENGINES, engine, "engine"),
                            num_threads=num_threads, block_bytes=block_bytes, max_in_flight_bytes=max_in_flight_bytes)
        handle = c_void_p()
        call(lib.forebay_io_create, ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle
        self._worker = Worker("DiskEngine")
        self._kept: dict[int, Pinned] = {}  # the memory of requests, by ticket
        self._end_with(_end, self._worker, handle, self._kept)

    def read(self, file: File, data: Buffer, offset_bytes: int = 0) -> int:
        """Starts to read as many bytes as `data` has, from `offset_bytes` on; a ticket for `wait`. `data` is kept until
        then. BadInputError: there is no such file, or it ends before. StorageError: it cannot be opened."""
        return self._submit(file, Pinned(data, writable=True), offset_bytes, False)

    def write(self, file: File, data: Buffer, offset_bytes: int = 0) -> int:
        """Starts to write all of `data`, from `offset_bytes` on; a ticket for `wait`. `data` is kept until then. A file
        that is not there is made, with mode 0600; none is cut. StorageError: it cannot be opened."""
        return self._submit(file, Pinned(data), offset_bytes, True)

    def _submit(self, file: File, data: Pinned, offset_bytes: int, is_write: bool) -> int:
        path = os.fsencode(file) if isinstance(file, (str, bytes, os.PathLike)) else None
        number = -1 if path is not None else whole(file, "file", 0, 2**31 - 1)
        request = IoRequest(struct_size=ctypes.sizeof(IoRequest), is_write=is_write, fd=number, path=path,
                            path_length=len(path or b""), offset_bytes=offset_bytes, data=data.address,
                            num_bytes=data.num_bytes)
        ticket = c_uint64()
        call(lib.forebay_io_submit, self._use(), ctypes.byref(request), ctypes.byref(ticket))
        self._kept[ticket.value] = data
        return ticket.value

    def wait(self, *tickets: int) -> None:
        """Waits for each of the requests, once. When all have ended, the error of the first that failed: StorageError,
        CorruptError; UsageError: it was waited for before."""
        self._worker.run(self._wait, tickets)

    def _wait(self, tickets: tuple[int, ...]) -> None:
        first_error: ForebayError | None = None
        for ticket in tickets:
            try:
                call(lib.forebay_io_wait, self._use(), ticket)
            except ForebayError as error:
                first_error = first_error or error
            finally:
                self._kept.pop(ticket, None)
        if first_error is not None:
            raise first_error

    def wait_all(self) -> int:
        """Waits for all requests that were submitted before, and returns their number. Where some failed, the error is
        of the first that did, and none is left."""
        num_ended: int = self._worker.run(self._wait_all)
        return num_ended

    def _wait_all(self) -> int:
        tickets = list(self._kept)
        num_ended = c_int64()
        try:
            call(lib.forebay_io_wait_all, self._use(), ctypes.byref(num_ended))
        finally:
            for ticket in tickets:
                self._kept.pop(ticket, None)
        return num_ended.value

    def stats(self) -> dict[str, Any]:
        """The engine, and the bytes moved."""
        stats: dict[str, Any] = json.loads(take_text(lib.forebay_io_stats_json, self._use()))
        return stats


def _end(worker: Worker, handle: c_void_p, kept: dict[int, Pinned]) -> None:
    worker.close(lib.forebay_io_destroy, handle)
    kept.clear()


class LockedMemory(Owned):
    """Blocks of memory that begin on a page and are locked in RAM as far as the system allows: what a DiskEngine moves
    without a copy. Thread-safe. A forked process has none of the blocks. `close` frees them all."""

    _closed: ClassVar[str] = "forebay: this LockedMemory is closed. Make another."

    def __init__(self) -> None:
        self._handle = c_void_p(lib.forebay_memory_create())
        self._end_with(lib.forebay_memory_destroy, self._handle)

    def allocate(self, num_bytes: int) -> int:
        """The address of a block of zeros, which stays until `free`. UsageError: below 0 bytes.
        OutOfMemoryError."""
        data = c_void_p()
        call(lib.forebay_memory_allocate, self._use(), whole(num_bytes, "num_bytes", 0, 2**63 - 1), ctypes.byref(data))
        return data.value or 0

    def view(self, address: int, num_bytes: int) -> memoryview:
        """The bytes of a block, which must not be used once it is freed. UsageError: they are in none."""
        if not self.contains(address, num_bytes):
            raise UsageError(f"forebay: {num_bytes} bytes at {address:#x} are in no block. Take what allocate gave.")
        return memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")

    def free(self, address: int) -> bool:
        """Frees the block that begins at `address`; False: there is none."""
        return self._is_mine() and bool(lib.forebay_memory_free(self._use(), address))

    def contains(self, address: int, num_bytes: int) -> bool:
        """Whether all of the range lies in one block."""
        size = whole(num_bytes, "num_bytes", 0, 2**63 - 1)
        return self._is_mine() and bool(lib.forebay_memory_contains(self._use(), address, size))

    def note(self) -> str:
        """Why a block is not locked, and what to do; "" where all are."""
        return take_text(lib.forebay_memory_note, self._use())

    def _is_mine(self) -> bool:
        return self._process == os.getpid()


__all__ = ["DiskEngine", "LockedMemory"]
