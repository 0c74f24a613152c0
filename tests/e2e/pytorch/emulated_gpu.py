"""The emulated GPU as the device that a module streams to, for a PyTorch without CUDA.

Weights are leased on the GPU, and gradients are handed over from there. What PyTorch would compute there is computed on
copies in host memory: work of the stream that stands for PyTorch's current one makes them. Other work of that stream
reads each weight once more when its tensor goes, as the last kernel that uses it may.
"""

import contextlib
import ctypes
import os
import weakref

import torch

# Work of a stream waits until somebody waits for it: an order that is missing is then always seen.
os.environ.setdefault("FOREBAY_EMULATION_STREAMS", "lazy")

from forebay._library import lib  # the emulation reads the environment once
from forebay.torch._streaming.device import Cuda
from forebay.torch._tensors import DTYPES

IS_THERE = hasattr(lib, "cudaMemcpyAsync")
TO_DEVICE, TO_HOST = 1, 2
_TORCH = {name: dtype for dtype, name in DTYPES.items()}


def _call(name, *arguments):
    assert getattr(lib, name)(*arguments) == 0, name


def copy_async(to, source, num_bytes, kind, stream):
    _call("cudaMemcpyAsync", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(num_bytes), kind,
          ctypes.c_void_p(stream))


def wait(stream):
    _call("cudaStreamSynchronize", ctypes.c_void_p(stream))


def new_stream():
    stream = ctypes.c_void_p()
    _call("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
    return stream.value


class EmulatedGpu(Cuda):
    """stream: PyTorch's current one. gradients: that which it computes gradients on."""

    has_backward_thread = False  # PyTorch computes on the host

    def __init__(self, gpu_bytes=None):
        super().__init__(torch.device("cpu"), gpu_bytes)
        self.name = "cuda:0"
        self.stream = self.gradients = new_stream()
        self._ended = []  # weights whose tensors have gone: the stream, what their first use has read, and their last

    def _stream(self):
        return self.stream

    @contextlib.contextmanager
    def aside(self):
        yield

    def weights_of(self, lease, numbers):
        self.use(lease)
        return [self._weight_of(lease, number) for number in numbers]

    def _weight_of(self, lease, number):
        dtype = _TORCH[lease.dtype]
        num_bytes = lease._tensors[number].num_elems * dtype.itemsize
        memory = (ctypes.c_char * num_bytes)()
        address = lease.address(number)
        copy_async(ctypes.addressof(memory), address, num_bytes, TO_HOST, self.stream)
        wait(self.stream)
        # As if it lay on the GPU, the tensor keeps the lease.
        capsule = [lease.tensor(number).__dlpack__(stream=-1)]
        weakref.finalize(memory, self._end, address, memory.raw, capsule).atexit = False
        return torch.frombuffer(memory, dtype=dtype)

    def _end(self, address, first, capsule):
        last = (ctypes.c_char * len(first))()
        copy_async(ctypes.addressof(last), address, len(first), TO_HOST, self.stream)
        self._ended.append((self.stream, first, last))
        capsule.clear()

    def last_uses_saw_the_weights(self):
        """Whether nothing came into the place of a weight before its last use was done. At least one has ended."""
        ended, self._ended = self._ended, []
        for stream, _, _ in ended:
            wait(stream)
        return bool(ended) and all(first == last.raw for _, first, last in ended)

    def add_gradient(self, layers, number, gradient):
        gradient = gradient.contiguous()
        num_bytes = gradient.numel() * gradient.element_size()
        memory = ctypes.c_void_p()
        _call("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(num_bytes))
        try:
            copy_async(memory.value, gradient.data_ptr(), num_bytes, TO_DEVICE, self.gradients)
            super().add_gradient(layers, number, _OnGpu(gradient, memory.value))
        finally:
            wait(self.stream)  # behind which the engine has put its copy
            wait(self.gradients)
            _call("cudaFree", memory)


class _OnGpu:
    """A gradient of whose memory the address alone is looked at."""

    def __init__(self, like, address):
        self.dtype, self._like, self._address = like.dtype, like, address

    def contiguous(self):
        return self

    def data_ptr(self):
        return self._address

    def numel(self):
        return self._like.numel()

    def element_size(self):
        return self._like.element_size()
