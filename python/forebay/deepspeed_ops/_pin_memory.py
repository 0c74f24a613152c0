"""DeepSpeed's `pin_memory` operation: tensors in locked memory, and one record of them for the whole process."""

from __future__ import annotations

import logging
import os
import threading
import types

import torch

from forebay.errors import UsageError
from forebay.io import LockedMemory

_log = logging.getLogger("forebay")
_lock = threading.Lock()
_memory: LockedMemory | None = None
_process = 0
_warned = False


def memory() -> LockedMemory:
    """The locked memory of this process. A fork has its own, as it has none of its parent's."""
    global _memory, _process
    with _lock:
        if _memory is None or _process != os.getpid():
            _memory, _process = LockedMemory(), os.getpid()
        return _memory


def _renew_lock() -> None:
    """A fork needs a new lock: the thread that may hold the old one is not in it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def new_tensor(num_elem: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_elem] of `dtype`, zeros, on a page of its own, until `free`."""
    global _warned
    if num_elem < 0:
        raise UsageError(f"forebay: a locked tensor of {num_elem} elements. Ask for 0 or more.")
    if num_elem == 0:
        return torch.empty(0, dtype=dtype)
    blocks = memory()
    num_bytes = num_elem * dtype.itemsize
    address = blocks.allocate(num_bytes)
    note = "" if _warned else blocks.note()
    if note:
        _warned = True
        _log.warning("forebay: %s", note)
    # No view of another tensor: DeepSpeed frees the memory when this object goes.
    return torch.frombuffer(blocks.view(address, num_bytes), dtype=dtype)


def free(address: int) -> bool:
    return memory().free(address)


def is_pinned(buffer: torch.Tensor) -> bool:
    """Whether all of it lies in locked memory, or in memory that torch has pinned."""
    if buffer.device.type != "cpu":
        return False
    return memory().contains(buffer.data_ptr(), buffer.nbytes) or buffer.is_pinned()


class PinHandle:
    """`pin_handle` of DeepSpeed's pin_memory."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """[num_elem] of the example's dtype, on a page of its own, until it is freed. OutOfMemoryError."""
        return new_tensor(num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, locked_tensor: torch.Tensor) -> bool:
        """Frees the memory of a tensor that was made here, or by an aio_handle; False: it is none."""
        return free(locked_tensor.data_ptr())

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        return free(address)

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        return is_pinned(buffer)


def module() -> types.ModuleType:
    """The module that `PinMemoryBuilder().load()` is to give, without a __file__, which DeepSpeed would load as a
    library."""
    made = types.ModuleType("forebay_pin_memory", __doc__)
    made.pin_handle = PinHandle  # type: ignore[attr-defined]
    return made
