"""Memory that stands for weights which are not here: it reads as NaN, and takes none. All placeholders of a module
share it: they can be written to, and then have that for all others."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from forebay._descriptors import above_standard_streams
from forebay.errors import OutOfMemoryError

_PIECE = 2 << 20  # mapped again and again
# Signalling NaNs: what is computed from one is another NaN, so that `p.data.mul_(0.9)` changes the memory.
_NANS = {torch.float32: b"\xa0\x7f", torch.bfloat16: b"\xa0\x7f", torch.float16: b"\x01\x7d"}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000


class Placeholder:
    """A range of addresses as long as the largest parameter. All placeholders are views of its beginning.

    Never unmapped while a view is left.
    """

    def __init__(self, num_bytes: int, dtype: torch.dtype) -> None:
        self.num_bytes = max(1, -(-num_bytes // _PIECE)) * _PIECE
        self._nan = _NANS.get(dtype, _NANS[torch.float32])
        file = above_standard_streams(os.memfd_create("forebay"))
        try:
            os.truncate(file, _PIECE)
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            address = _libc.mmap(None, self.num_bytes, 0,
                                 mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)  # no access yet
            for offset in range(0, self.num_bytes if address != _FAILED else 0, _PIECE):
                if _libc.mmap(address + offset, _PIECE, protection, mmap.MAP_SHARED | _MAP_FIXED, file, 0) == _FAILED:
                    _libc.munmap(address, self.num_bytes)
                    address = _FAILED
                    break
            if address == _FAILED:
                raise OutOfMemoryError(f"forebay: {self.num_bytes} bytes of addresses are not to be had "
                                       f"({os.strerror(ctypes.get_errno())}). Raise the limits: ulimit -v, and "
                                       "vm.max_map_count.")
        finally:
            os.close(file)
        self.address: int = address
        self._memory = (ctypes.c_char * self.num_bytes).from_address(address)
        self.renew()

    def renew(self) -> None:
        """Makes it NaN again."""
        ctypes.memmove(self.address, self._nan * (_PIECE // len(self._nan)), _PIECE)

    def is_intact(self) -> bool:
        """Whether nothing was written to it."""
        # Every element is as the one before it, and the first is right.
        num_bytes = len(self._nan)
        return (ctypes.string_at(self.address, num_bytes) == self._nan
                and _libc.memcmp(self.address, self.address + num_bytes, _PIECE - num_bytes) == 0)

    def view(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if shape.numel() == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=shape.numel()).view(shape)

    def has(self, tensor: torch.Tensor) -> bool:
        return self.address <= tensor.data_ptr() < self.address + self.num_bytes


class NanElement:
    """One element on a device: placeholders are views of it with strides of 0, of any shape.

    torch refuses nearly all writes to such a view, as elements share their memory. `fill_` and `zero_` it lets through.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._nan = torch.frombuffer(bytearray(_NANS[dtype] * (dtype.itemsize // 2)), dtype=dtype)
        self._element = self._nan.to(device, copy=True)

    def renew(self) -> None:
        """Makes it NaN again."""
        with torch.no_grad():
            self._element.copy_(self._nan)

    def is_intact(self) -> bool:
        """Whether nothing was written to it. Waits for the device."""
        bits = torch.int32 if self._nan.element_size() == 4 else torch.int16
        return torch.equal(self._element.cpu().view(bits), self._nan.view(bits))

    def view(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if shape.numel() == 0:
            return torch.empty(shape, dtype=dtype, device=self._element.device)
        return self._element.detach().expand(shape) if shape else self._element.detach()[0]

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() == self._element.data_ptr()
