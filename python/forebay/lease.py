"""Weights of a layer that are lent."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_size_t, c_void_p
from typing import Any, ClassVar

from forebay import _given
from forebay._library import DTYPE_BYTES, Owned, call, lib
from forebay._worker import Worker
from forebay.errors import UsageError
from forebay.inventory import Tensor

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (c_void_p, ctypes.c_char_p, c_void_p)
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = (c_void_p, ctypes.c_char_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c_void_p
_capsule_pointer.argtypes = (c_void_p, ctypes.c_char_p)
_CPU, _CUDA = 1, 2  # DLDeviceType
_UNUSED = b"dltensor"  # who takes the tensor over renames the capsule
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor of DLPack 0.8."""

    _fields_ = [("data", c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", c_void_p), ("strides", c_void_p),
                ("byte_offset", ctypes.c_uint64), ("manager", c_void_p), ("deleter", c_void_p)]


def _end_capsule(capsule: int) -> None:
    if _capsule_is(capsule, _UNUSED):
        managed = _capsule_pointer(capsule, _UNUSED)
        deleter = _ManagedTensor.from_address(managed).deleter
        _DELETER(deleter)(managed)


_END_CAPSULE = ctypes.PYFUNCTYPE(None, c_void_p)(_end_capsule)


def capsule_of(managed: int) -> Any:
    """The capsule of `__dlpack__`: it owns the DLManagedTensor at this address."""
    return _new_capsule(managed, _UNUSED, ctypes.cast(_END_CAPSULE, c_void_p))


class LeasedTensor:
    """A tensor of a lease for `torch.from_dlpack` and its like: no copy, to be read. What they make keeps the weights
    there until it goes, also after the lease was released."""

    def __init__(self, lease: Lease, tensor: int) -> None:
        self._lease = lease
        self._tensor = tensor

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """stream: as the array API has it: that which will read the weights is ordered behind their arrival. None, 1:
        the default stream; -1: the caller sees to the order (`Lease.ready`)."""
        if self._lease.cuda_index is not None and stream != -1:
            if stream == 2:
                raise UsageError("forebay: weights are lent to a stream that has an end, and __dlpack__(stream=2) is "
                                 "another one in every thread. Name a stream of your own, or 1, the default stream.")
            self._lease.ready(0 if stream in (None, 1) else stream)
        return self._lease.whole(self._new_capsule)

    def _new_capsule(self) -> Any:
        managed = lib.forebay_lease_dlpack(self._lease._use(), self._tensor)
        if not managed:
            raise UsageError(f"forebay: tensor {self._tensor} is not of layer {self._lease.layer}.")
        return capsule_of(managed)

    def __dlpack_device__(self) -> tuple[int, int]:
        index = self._lease.cuda_index
        return (_CPU, 0) if index is None else (_CUDA, index)


class Lease(Owned):
    """The weights of one layer, to be read until `release`, or the end of a `with`.

    cuda_index: the GPU that they are on; None: they are in RAM.
    """

    _closed: ClassVar[str] = "forebay: this lease was released. Acquire the layer again."

    def __init__(self, handle: c_void_p, layer: int, tensors: list[Tensor], dtype: str, worker: Worker,
                 cuda_index: int | None = None) -> None:
        self.layer = layer
        self.dtype = dtype
        self.cuda_index = cuda_index
        self._handle = handle
        self._tensors = tensors
        self._worker = worker
        self._end_with(lib.forebay_lease_release, handle)

    def release(self) -> None:
        """Ends the lease; from any thread. Called again, it does nothing."""
        self._worker.post(self._destroy)

    close = release

    def whole(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call that leases or ends leases: a signal in its middle would leave one that nobody has."""
        return self._worker.whole(function, *arguments)

    def address(self, tensor: int) -> int:
        """Where all elements of a tensor lie: row-major, of `dtype`, 64-byte aligned. Until the release. An address of
        the GPU where the lease lies on one.

        UsageError: the tensor is not of this layer.
        """
        address = lib.forebay_lease_data(self._use(), _given.whole(tensor, "tensor", 0, 2**31 - 1))
        if not address:
            raise UsageError(f"forebay: tensor {tensor} is not of layer {self.layer}.")
        return int(address)

    def memory(self, tensor: int) -> memoryview:
        """The same as bytes, to be read until the release. UsageError: they are on a GPU."""
        if self.cuda_index is not None:
            raise UsageError(f"forebay: the weights of layer {self.layer} are on cuda:{self.cuda_index}, where Python "
                             "reads no bytes. Use tensor() and a library of that device.")
        num_bytes = self._tensors[tensor].num_elems * DTYPE_BYTES[self.dtype]
        return memoryview((ctypes.c_char * num_bytes).from_address(self.address(tensor))).cast("B").toreadonly()

    def tensor(self, tensor: int) -> LeasedTensor:
        """The same for `torch.from_dlpack` and its like, in the shape that the inventory has."""
        self.address(tensor)
        return LeasedTensor(self, tensor)

    def ready(self, stream: int = 0) -> None:
        """On a GPU, before work is enqueued that reads the weights: `stream` (a cudaStream_t of that device; 0: the
        default stream) waits for them, and nothing comes into their place until all is done that it was given before
        the lease ended. So for each stream that reads them, all of which outlive the lease. The caller does not wait.

        EnvironmentProblem: the device failed.
        """
        call(lib.forebay_lease_ready, self._use(), _given.whole(stream, "stream", 0, 2**64 - 1))

    @property
    def num_bytes(self) -> int:
        """The size of the whole layer."""
        size = c_size_t()
        lib.forebay_lease_bytes(self._use(), ctypes.byref(size))
        return size.value
