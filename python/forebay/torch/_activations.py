"""Activations that wait for their backward pass on disk, or in RAM within a budget.

Blocks are whole storages, since several saved tensors may be views of one. The newest stay in RAM: backward needs them
first. The oldest are written to a file without a name, and read again in the reverse order, ahead of their use.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from forebay._descriptors import above_standard_streams
from forebay._forks import check_process
from forebay._given import Path, bytes_of, whole
from forebay._given import folder as folder_of
from forebay.errors import OutOfMemoryError, StorageError, UsageError
from forebay.io import DiskEngine, LockedMemory
from forebay.torch import _saved

_PAGE = 4096
_MOST_WAITING = 128 << 20  # bytes being written, and read ahead, where `ram` is not given
_MOST_READS_AHEAD = 16


class _Block:
    """One storage. It is in RAM (`storage`), or on disk, or both (`buffer`)."""

    def __init__(self, number: int, storage: torch.UntypedStorage, device: torch.device) -> None:
        self.number = number
        self.num_bytes = storage.nbytes()
        self.device = device
        self.storage: torch.UntypedStorage | None = storage
        self.saved: weakref.WeakSet[SavedActivation] = weakref.WeakSet()
        self.is_elsewhere = False  # stays in memory anyway, when last looked at
        self.offset: int | None = None  # in the file
        self.buffer: torch.Tensor | None = None  # bytes that were read again
        self.read: int | None = None  # the ticket of that, while it is under way

    def is_used_elsewhere(self) -> bool:
        """Whether it stays in memory anyway: a weight, or what a variable of the program has."""
        assert self.storage is not None
        ours = sum(saved.tensor is not None for saved in self.saved) + 1
        return bool(torch._C._storage_Use_Count(self.storage._cdata) > ours)


class SavedActivation(_saved.Saved):
    """A tensor that is a view of a block. The block lives as long as one of these."""

    __slots__ = ("__weakref__", "_layout", "_version", "block", "store", "tensor")

    def __init__(self, store: ActivationStore, block: _Block, tensor: torch.Tensor) -> None:
        self.store = store
        self.block = block
        self.tensor: torch.Tensor | None = tensor  # None: it is on disk
        self._version = tensor._version
        self._layout = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()

    def leave_ram(self) -> None:
        if self.tensor is not None and self.tensor._version == self._version:
            self.tensor = None  # else restore() tells

    def restore(self) -> torch.Tensor:
        tensor = self.tensor
        if tensor is not None:
            _saved.check_version(tensor, self._version)
        else:
            dtype, offset, size, stride = self._layout
            memory = self.store.bring_back(self.block)
            first = memory.storage_offset() // dtype.itemsize + offset
            tensor = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), first, size, stride)
        return tensor if self.block.device.type == "cpu" else tensor.to(self.block.device)


class ActivationStore:
    """`offload_activations` makes it: `with` it, what autograd saves is kept here. Thread-safe."""

    def __init__(self, *, nvme: None | Path, ram: None | int | str, least_bytes: int) -> None:
        self._process = os.getpid()
        self._ram = None if ram is None else bytes_of(ram, "ram", least=0)
        self._least_bytes = whole(least_bytes, "least_bytes", 0, 2**63 - 1)
        waiting = _MOST_WAITING if self._ram is None else self._ram // 2
        self._most_waiting = waiting
        self._most_in_ram = waiting if self._ram is None else self._ram - waiting
        self._disk = None if nvme is None else _Disk(nvme)
        self._lock = threading.RLock()
        self._num_blocks = 0
        self._in_ram: deque[weakref.ref[_Block]] = deque()  # the oldest first
        self._bytes_in_ram = 0
        self._elsewhere: deque[weakref.ref[_Block]] = deque()  # blocks that stay in memory anyway, when last looked at
        self._by_storage: dict[int, weakref.ref[_Block]] = {}
        self._on_disk: weakref.WeakValueDictionary[int, _Block] = weakref.WeakValueDictionary()
        self._again: deque[weakref.ref[_Block]] = deque()  # blocks with a buffer, the one used longest ago first
        self._bytes_again = 0
        self._contexts: list[Any] = []

    def _check_process(self) -> None:
        """UsageError: this is a fork of the process that made it, where nobody may ever give the lock back."""
        check_process(self._process, "offload_activations")

    def __enter__(self) -> ActivationStore:
        self._check_process()
        context = _saved.keeping_activations(self)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.pop().__exit__(*error)
        if error[0] is None:
            self._check_process()
            with self._lock:
                self._look_again(len(self._elsewhere))
                self._make_room()

    @property
    def bytes_in_ram(self) -> int:
        """The RAM that is in use: blocks, tensors that are being written, and those that were read again."""
        return self._bytes_in_ram + self._bytes_again + (self._disk.bytes_being_written if self._disk else 0)

    @property
    def bytes_on_disk(self) -> int:
        """The length of the file, where all that lies on disk is."""
        return self._disk.num_bytes if self._disk is not None else 0

    def close(self) -> None:
        """Ends threads and the file. Graphs that are left cannot be computed backward any more."""
        self._check_process()
        if self._disk is not None:
            self._disk.close()

    # ---- Forward

    def save(self, tensor: torch.Tensor) -> SavedActivation | None:
        """Takes all elements of a tensor that autograd keeps. None: it stays as it is, as it is small, a weight, or
        there is no room."""
        self._check_process()
        if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None
        num_bytes = tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        # A small part of something large is left alone, as parameters of frozen modules are.
        if (num_bytes < self._least_bytes or isinstance(tensor, torch.nn.Parameter)
                or 2 * num_bytes < storage.nbytes()):
            return None
        if self._disk is None and tensor.device.type == "cpu" and self._ram is None:
            return None
        with self._lock:
            if tensor.device.type != "cpu":
                num_elems = storage.nbytes() // tensor.element_size()
                storage = tensor.as_strided((num_elems,), (1,), 0).cpu().untyped_storage()
            block = self._block_of(storage, tensor.device)
            # A tensor of its own: torch may give the program's variable, whose end is to be seen.
            kept = tensor.detach() if tensor.device.type == "cpu" else _view_of(storage, tensor)
            saved = SavedActivation(self, block, kept)
            block.saved.add(saved)
            self._look_again(2)
            self._make_room()
        return saved

    def _block_of(self, storage: torch.UntypedStorage, device: torch.device) -> _Block:
        known = self._by_storage.get(storage._cdata)
        block = known() if known is not None else None
        if block is None:
            self._num_blocks += 1
            block = _Block(self._num_blocks, storage, device)
            self._by_storage[storage._cdata] = weakref.ref(block)
            self._in_ram.append(weakref.ref(block))
            self._bytes_in_ram += block.num_bytes
            weakref.finalize(block, self._forget, storage._cdata, block.num_bytes, block.__dict__).atexit = False
        return block

    def _forget(self, key: int, num_bytes: int, block: dict[str, Any]) -> None:
        """The graph of a block was freed. `block`: its attributes."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if block["storage"] is not None:
                self._bytes_in_ram -= 0 if block["is_elsewhere"] else num_bytes
                self._by_storage.pop(key, None)
            if block["buffer"] is not None:
                self._bytes_again -= num_bytes
            if block["offset"] is not None and self._disk is not None:
                self._disk.free(block["offset"], num_bytes, block["read"])

    def _make_room(self) -> None:
        while self._in_ram and (self._in_ram[0]() is None or self._bytes_in_ram > self._most_in_ram):
            reference = self._in_ram.popleft()
            block = reference()
            if block is None:
                continue
            if block.is_used_elsewhere():
                block.is_elsewhere = True
                self._elsewhere.append(reference)
                self._bytes_in_ram -= block.num_bytes
            else:
                self._move_to_disk(block)

    def _look_again(self, num_blocks: int) -> None:
        """Whether blocks that were in use elsewhere still are."""
        for _ in range(min(num_blocks, len(self._elsewhere))):
            reference = self._elsewhere.popleft()
            block = reference()
            if block is None:
                continue
            if block.is_used_elsewhere():
                self._elsewhere.append(reference)
            else:
                block.is_elsewhere = False
                self._in_ram.appendleft(reference)
                self._bytes_in_ram += block.num_bytes

    def _move_to_disk(self, block: _Block) -> None:
        if self._disk is None:
            self._in_ram.appendleft(weakref.ref(block))
            raise OutOfMemoryError(
                f"forebay: activations of {self._bytes_in_ram} bytes are kept for the backward pass, and ram="
                f"{self._ram} is for no more. Raise it, give offload_activations a folder (nvme=FOLDER), or "
                "checkpoint blocks.")
        assert block.storage is not None
        self._disk.make_room(self._most_waiting, block.num_bytes)
        block.offset = self._disk.write(block.storage)
        self._on_disk[block.number] = block
        self._by_storage.pop(block.storage._cdata, None)
        for saved in list(block.saved):
            saved.leave_ram()
        block.storage = None
        self._bytes_in_ram -= block.num_bytes

    # ---- Backward

    def bring_back(self, block: _Block) -> torch.Tensor:
        """The bytes of a block that is on disk."""
        self._check_process()
        with self._lock:
            self._read(block)
            self._read_ahead(block.number)
            assert self._disk is not None and block.buffer is not None
            if block.read is not None:
                try:
                    self._disk.wait(block.read)
                except BaseException:
                    block.buffer = None  # an interrupted read goes on, into memory that nobody looks at
                    self._bytes_again -= block.num_bytes
                    raise
                finally:
                    block.read = None
            return block.buffer

    def _read_ahead(self, number: int) -> None:
        for before in sorted((each for each in list(self._on_disk) if each < number), reverse=True)[:_MOST_READS_AHEAD]:
            block = self._on_disk.get(before)
            if block is None or block.buffer is not None:
                continue
            if self._bytes_again + block.num_bytes > self._most_waiting:
                return
            self._read(block)

    def _read(self, block: _Block) -> None:
        if block.buffer is not None:
            return
        assert self._disk is not None and block.offset is not None
        # In a graph that is kept, the tensor that was used longest ago goes again: it is on disk.
        while self._again and (self._again[0]() is None or self._bytes_again + block.num_bytes > self._most_waiting):
            other = self._again.popleft()()
            if other is not None and other.buffer is not None and other.read is None:
                other.buffer = None
                self._bytes_again -= other.num_bytes
        buffer = _aligned(block.num_bytes)
        block.read = self._disk.read(block.offset, buffer)
        block.buffer = buffer
        self._again.append(weakref.ref(block))
        self._bytes_again += block.num_bytes


def _aligned(num_bytes: int) -> torch.Tensor:
    memory = torch.empty(num_bytes + _PAGE, dtype=torch.uint8)
    return memory[-memory.data_ptr() % _PAGE:][:num_bytes]


def _view_of(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype).set_(storage, like.storage_offset(), like.size(), like.stride())


class _Disk:
    """A file without a name, in places of whole pages. Writes go through locked memory, and end in their order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder_of(folder, "nvme")
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._file = above_standard_streams(os.open(self._folder, os.O_TMPFILE | os.O_RDWR, 0o600))
        except OSError as error:
            raise UsageError(f"forebay: activations cannot lie in nvme={self._folder!r}: {error.strerror}. Name a "
                             "folder on the disk that they are to be written to.") from error
        self._engine = DiskEngine()
        self._memory = LockedMemory()
        self._staging: dict[int, list[int]] = {}  # free blocks, by size
        self._writes: deque[tuple[int, int, int]] = deque()  # ticket, address, bytes
        self.bytes_being_written = 0
        self.num_bytes = 0  # that are taken
        self._end = 0
        self._free: dict[int, list[int]] = {}  # places, by size
        self._failure = ""  # of a write: until all places are free, what is there may be wrong

    def make_room(self, most_bytes: int, num_bytes: int) -> None:
        """Waits until no more than `most_bytes` are being written, with these."""
        while self._writes and self.bytes_being_written + num_bytes > most_bytes:
            self._finish_write()

    def write(self, storage: torch.UntypedStorage) -> int:
        num_bytes = _whole_pages(storage.nbytes())
        offset = self._take_place(num_bytes)
        free = self._staging.get(num_bytes)
        address = free.pop() if free else self._memory.allocate(num_bytes)
        memory = torch.frombuffer(self._memory.view(address, num_bytes), dtype=torch.uint8)
        memory[: storage.nbytes()].copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
        ticket = self._engine.write(self._file, (address, num_bytes), offset)
        self._writes.append((ticket, address, num_bytes))
        self.bytes_being_written += num_bytes
        return offset

    def _finish_write(self) -> None:
        ticket, address, num_bytes = self._writes.popleft()
        self.bytes_being_written -= num_bytes
        try:
            self.wait(ticket)  # where that is interrupted the memory stays the write's
        except StorageError as error:
            self._failure = str(error)  # without its traceback, which keeps graphs
            raise
        self._staging.setdefault(num_bytes, []).append(address)

    def read(self, offset: int, buffer: torch.Tensor) -> int:
        # It may still be on its way: writes end in their order, and this is one of the oldest that are needed.
        while self._writes:
            self._finish_write()
        if self._failure:
            raise StorageError(self._failure)
        return self._engine.read(self._file, (buffer.data_ptr(), buffer.numel(), buffer), offset)

    def wait(self, ticket: int) -> None:
        try:
            self._engine.wait(ticket)
        except StorageError as error:
            raise StorageError(f"forebay: activations could not be moved to or from {self._folder}: {error} The step "
                               "is lost, and nothing else. Free space there, or name another folder.") from error

    def _take_place(self, num_bytes: int) -> int:
        free = self._free.get(num_bytes)
        self.num_bytes += num_bytes
        if free:
            return free.pop()
        self._end += num_bytes
        return self._end - num_bytes

    def free(self, offset: int, num_bytes: int, read: int | None) -> None:
        num_bytes = _whole_pages(num_bytes)
        if read is not None:
            with contextlib.suppress(StorageError):  # of what nobody needs
                self.wait(read)
        self.num_bytes -= num_bytes
        if self.num_bytes == 0:
            while self._writes:  # a graph was freed before all of it was written
                with contextlib.suppress(StorageError):
                    self._finish_write()
            self._free.clear()
            self._end = 0
            self._failure = ""
        else:
            self._free.setdefault(num_bytes, []).append(offset)

    def close(self) -> None:
        self._engine.close()
        self._memory.close()
        with contextlib.suppress(OSError):
            os.close(self._file)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def offload_activations(*, nvme: None | Path = None, ram: None | int | str = None,
                        least_bytes: int = 1 << 16) -> ActivationStore:
    """Keeps what autograd needs for the backward pass on disk, or in RAM within a budget: `with` it, in each step's
    forward pass. The tensors have the same bits when they come back, and are freed with their graph.

    nvme: a folder: the oldest go there. ram: bytes or "2GiB", for those in RAM and on their way; None: 256 MiB with
    nvme, and else no limit. least_bytes: smaller tensors stay where they are, as weights and what the program has in
    variables do. Tensors of a GPU are moved to the host.

    OutOfMemoryError, in the forward pass: `ram` is too small, and there is no folder. StorageError, in either pass: the
    disk is full, or fails. UsageError: there can be no file in the folder.
    """
    return ActivationStore(nvme=nvme, ram=ram, least_bytes=least_bytes)


def checkpoint(function: Callable[..., Any], *arguments: Any, offload: ActivationStore | None = None,
               **keywords: Any) -> Any:
    """function(*arguments, **keywords), of which autograd keeps the arguments alone: the rest is computed again in
    backward, with the same random numbers. offload: where those tensors go; None: to the `offload_activations` that is
    active, or nowhere."""
    with offload if offload is not None else contextlib.nullcontext():
        return torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False, **keywords)


__all__ = ["ActivationStore", "checkpoint", "offload_activations"]
