"""DeepSpeed's `async_io` operation on the disk engine.

Every completion is checked: what DeepSpeed's own reports as done although the disk refused it is an exception here,
and so is what ends its process.
"""

from __future__ import annotations

import os
import threading
import types
from typing import Any, NamedTuple, Union

import torch

from forebay._given import whole
from forebay.deepspeed_ops import _pin_memory
from forebay.errors import StorageError, UsageError
from forebay.io import DiskEngine

_PAGE = 4096
_SECTOR = 512
_CHUNK = 16 << 20

Name = Union[str, bytes, "os.PathLike[str]"]


class _Transfer(NamedTuple):
    ticket: int
    is_write: bool
    buffer: torch.Tensor  # the caller's
    memory: torch.Tensor  # what is read or written: the buffer itself, or a contiguous one on the CPU in its place
    file: Name | int
    offset: int
    validate: bool


class AioHandle:
    """`aio_handle` of DeepSpeed's async_io.

    Transfers are cut into pieces of block_size (a whole number of pages), of which queue_depth are under way. The other
    three are kept for those who ask: the engine has pieces of all tensors under way at one time, whatever they say.
    Buffers are tensors of any dtype and device, and of any size, address and offset. Thread-safe.
    """

    def __init__(self, block_size: int = 1048576, queue_depth: int = 128, single_submit: bool = False,
                 overlap_events: bool = False, intra_op_parallelism: int = 1) -> None:
        for name, value in (("block_size", block_size), ("queue_depth", queue_depth),
                            ("intra_op_parallelism", intra_op_parallelism)):
            whole(value, f"{name} of an aio_handle", 1, 1 << 40)
        self._block_size, self._queue_depth = block_size, queue_depth
        self._single_submit, self._overlap_events = bool(single_submit), bool(overlap_events)
        self._parallelism = intra_op_parallelism
        block_bytes = -(-block_size // _PAGE) * _PAGE
        self._engine = DiskEngine(num_threads=min(max(intra_op_parallelism, 2), 64), block_bytes=block_bytes,
                                  max_in_flight_bytes=min(queue_depth * block_bytes, 1 << 40))
        self._lock = threading.Lock()
        self._pending: list[_Transfer] = []

    def get_block_size(self) -> int:
        return self._block_size

    def get_queue_depth(self) -> int:
        return self._queue_depth

    def get_single_submit(self) -> bool:
        return self._single_submit

    def get_overlap_events(self) -> bool:
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        return self._parallelism

    def get_alignment(self) -> int:
        """Bytes, of which callers that write through a descriptor choose a multiple."""
        return _SECTOR * self._parallelism

    # ---- One at a time

    def read(self, buffer: torch.Tensor, filename: Name, validate: bool, file_offset: int = 0) -> int:
        """Reads all of `buffer`; 0. The errors are those of `wait`."""
        self._finish([self._start(False, buffer, filename, file_offset, validate)])
        return 0

    def write(self, buffer: torch.Tensor, filename: Name, validate: bool, file_offset: int = 0) -> int:
        """Writes all of `buffer`; 0. The errors are those of `wait`."""
        self._finish([self._start(True, buffer, filename, file_offset, validate)])
        return 0

    # ---- Several

    def pread(self, buffer: torch.Tensor, filename: Name, validate: bool, *more: Any, **named: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0). async: returns 0 at once, and `wait` waits for it;
        else waits for all that is under way, and returns its number. BadInputError: there is no file, or it ends before
        the range."""
        return self._schedule(False, buffer, filename, validate, *_async_of(*more, **named))

    def pwrite(self, buffer: torch.Tensor, filename: Name, validate: bool, *more: Any, **named: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0), likewise."""
        return self._schedule(True, buffer, filename, validate, *_async_of(*more, **named))

    def sync_pread(self, buffer: torch.Tensor, filename: Name, file_offset: int = 0) -> int:
        return self._schedule(False, buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: torch.Tensor, filename: Name, file_offset: int = 0) -> int:
        return self._schedule(True, buffer, filename, False, False, file_offset)

    def async_pread(self, buffer: torch.Tensor, filename: Name, file_offset: int = 0) -> int:
        return self._schedule(False, buffer, filename, False, True, file_offset)

    def async_pwrite(self, buffer: torch.Tensor, filename: Name | int | None = None, file_offset: int = 0, *,
                     fd: int | None = None) -> int:
        """`filename`, or in its place the descriptor of an open file, which is not closed."""
        if (filename is None) == (fd is None):
            raise TypeError("async_pwrite takes a filename or an fd: one of them")
        file = fd if filename is None else filename
        assert file is not None
        return self._schedule(True, buffer, file, False, True, file_offset)

    def wait(self) -> int:
        """Waits for all that is under way, and returns its number; 0 where nothing is. When all has ended, the error of
        the first that failed: StorageError, CorruptError (the file was cut meanwhile)."""
        self._engine.check_process()  # before the lock, which nobody may have in a fork
        with self._lock:
            pending, self._pending = self._pending, []
        self._finish(pending)
        return len(pending)

    # ---- Memory

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: torch.Tensor) -> torch.Tensor:
        """[num_elem] of the example's dtype, on a page of its own, until it is freed. OutOfMemoryError."""
        return _pin_memory.new_tensor(num_elem, example_tenosr.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Frees the memory of such a tensor, of any handle; False: it is none."""
        return _pin_memory.free(tensor.data_ptr())

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        return _pin_memory.is_pinned(buffer)

    # ---- How

    def _schedule(self, is_write: bool, buffer: torch.Tensor, file: Name | int, validate: bool, is_async: bool,
                  offset: int) -> int:
        transfer = self._start(is_write, buffer, file, offset, validate)
        with self._lock:
            self._pending.append(transfer)
        return 0 if is_async else self.wait()

    def _start(self, is_write: bool, buffer: torch.Tensor, file: Name | int, offset: int, validate: bool) -> _Transfer:
        memory = buffer.detach()
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            memory = _pin_memory.new_tensor(buffer.numel(), buffer.dtype).view(buffer.shape)
            if is_write:
                memory.copy_(buffer)
        submit = self._engine.write if is_write else self._engine.read
        try:
            ticket = submit(file, (memory.data_ptr(), memory.nbytes, memory), offset)
        except BaseException:
            _free_if_staged(buffer, memory)
            raise
        return _Transfer(ticket, is_write, buffer, memory, file, offset, validate)

    def _finish(self, transfers: list[_Transfer]) -> None:
        try:
            self._engine.wait(*[transfer.ticket for transfer in transfers])
        except KeyboardInterrupt:
            raise  # the disk is still at work on the memory
        except BaseException:
            for transfer in transfers:
                _free_if_staged(transfer.buffer, transfer.memory)
            raise
        for transfer in transfers:
            if transfer.validate:
                _compare(transfer)
            if transfer.memory.data_ptr() != transfer.buffer.data_ptr() and not transfer.is_write:
                with torch.no_grad():
                    transfer.buffer.copy_(transfer.memory)
            _free_if_staged(transfer.buffer, transfer.memory)


def _async_of(*positional: Any, **named: Any) -> tuple[bool, int]:
    """The arguments `async`, which is no name in Python, and file_offset."""
    values = dict(zip(("async", "file_offset"), positional))
    if len(positional) > 2 or values.keys() & named.keys() or not {*values, *named} <= {"async", "file_offset"}:
        raise TypeError("these take (buffer, filename, validate, async, file_offset=0)")
    values.update(named)
    if "async" not in values:
        raise TypeError("the argument async is missing")
    return bool(values["async"]), int(values.get("file_offset", 0))


def _free_if_staged(buffer: torch.Tensor, memory: torch.Tensor) -> None:
    if memory.data_ptr() != buffer.data_ptr():
        _pin_memory.free(memory.data_ptr())


def _compare(transfer: _Transfer) -> None:
    """StorageError where the file has other bytes than the memory."""
    num_bytes = transfer.memory.nbytes
    held = transfer.memory.view(-1).view(torch.uint8).numpy() if num_bytes else b""
    done = "written" if transfer.is_write else "read"
    with open(transfer.file, "rb") as opened:
        for first in range(0, num_bytes, _CHUNK):
            end = min(first + _CHUNK, num_bytes)
            opened.seek(transfer.offset + first)
            if opened.read(end - first) != bytes(held[first:end]):
                raise StorageError(
                    f"forebay: {transfer.file!r} has other bytes than were {done}, between {transfer.offset + first} "
                    f"and {transfer.offset + end}. Was the file changed meanwhile? Else look at 'dmesg' and the health "
                    "of the drive (smartctl -a).")


def aio_read(buffer: torch.Tensor, filename: Name, block_size: int, queue_depth: int, single_submit: bool,
             overlap_events: bool, validate: bool) -> int:
    """`read` of a handle made for this call."""
    return AioHandle(block_size, queue_depth, single_submit, overlap_events).read(buffer, filename, validate)


def aio_write(buffer: torch.Tensor, filename: Name, block_size: int, queue_depth: int, single_submit: bool,
              overlap_events: bool, validate: bool) -> int:
    """`write` of a handle made for this call."""
    return AioHandle(block_size, queue_depth, single_submit, overlap_events).write(buffer, filename, validate)


def deepspeed_memcpy(dest: torch.Tensor, src: torch.Tensor) -> int:
    """Copies `src` to `dest`, of as many elements; 0."""
    if dest.numel() != src.numel():
        raise UsageError(f"forebay: deepspeed_memcpy from {src.numel()} elements to {dest.numel()}. Give as many.")
    with torch.no_grad():
        dest.copy_(src.view(dest.shape))
    return 0


def module() -> types.ModuleType:
    """The module that `AsyncIOBuilder().load()` is to give."""
    made = types.ModuleType("forebay_async_io", __doc__)
    for name, what in (("aio_handle", AioHandle), ("aio_read", aio_read), ("aio_write", aio_write),
                       ("deepspeed_memcpy", deepspeed_memcpy)):
        setattr(made, name, what)
    return made
