"""Memory that stands for weights which are not here: NaN in float32, bfloat16 and float16. It takes none."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

from forebay.errors import OutOfMemoryError

_PIECE = 2 << 20  # mapped again and again
_NANS = b"\xc0\x7f"  # 0x7fc0, and 0x7fc07fc0, are NaN in all three
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000


class Placeholder:
    """A range of addresses as long as the largest parameter. All placeholders are views of its beginning.

    They can be written to, and then have that for all others: `is_intact` tells. Never unmapped while a view is left.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = max(1, -(-num_bytes // _PIECE)) * _PIECE
        file = os.memfd_create("forebay")
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
        ctypes.memmove(self.address, _NANS * (_PIECE // len(_NANS)), _PIECE)

    def is_intact(self) -> bool:
        return ctypes.string_at(self.address, _PIECE) == _NANS * (_PIECE // len(_NANS))

    def view(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if shape.numel() == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=shape.numel()).view(shape)

    def has(self, tensor: torch.Tensor) -> bool:
        return self.address <= tensor.data_ptr() < self.address + self.num_bytes
