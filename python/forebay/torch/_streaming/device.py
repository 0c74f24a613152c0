"""Where the weights of a streamed module are lent, in RAM or on a CUDA device, and all that differs between the two."""

from __future__ import annotations

import contextlib
import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Protocol

import torch

from forebay._given import bytes_of
from forebay.errors import DoesNotFitError, EnvironmentProblem, NotSupportedError, UsageError
from forebay.layers import Layers
from forebay.lease import Lease
from forebay.torch._streaming.placeholder import NanElement, Placeholder
from forebay.torch._tensors import DTYPES, memory_of, on_host

_SAMPLE_BYTES = 64
_FEWEST_PLACES = 3  # of c.h


class Samples(Protocol):
    """Some of each weight, to know writes by that torch does not count (`p.data.mul_`)."""

    def take(self, unit: int, lease: Lease, tensors: Sequence[torch.Tensor]) -> None:
        """Weights of a unit have come."""

    def have_changed(self, unit: int, tensors: Sequence[torch.Tensor]) -> bool:
        """They go: whether it is known that they were written to since."""

    def changed_unit(self) -> int | None:
        """One that was found to be changed after it went."""


class Device(ABC):
    """torch_device: where the module computes. name: the same in the arguments of Layers."""

    torch_device: torch.device
    name: str
    # Whether backward functions are called on a thread of autograd's own, and not on that of backward().
    has_backward_thread: ClassVar[bool]

    @abstractmethod
    def places_within_limit(self, num_places: int, device_bytes: int) -> int:
        """The units that the window may hold, where num_places take device_bytes on a GPU. DoesNotFitError: too few."""

    @abstractmethod
    def placeholder(self, num_bytes: int, dtype: torch.dtype) -> Placeholder | NanElement:
        """num_bytes: of the largest parameter."""

    @abstractmethod
    def samples(self, num_units: int) -> Samples: ...

    def weights_of(self, lease: Lease, numbers: Sequence[int]) -> list[torch.Tensor]:
        """The tensors of these numbers: the lease lasts as long as one of them. Work that torch's current stream, which
        from_dlpack names, gets from now on sees the weights, and ends before they go."""
        return [torch.from_dlpack(lease.tensor(number)) for number in numbers]  # type: ignore[attr-defined]

    @abstractmethod
    def use(self, lease: Lease) -> None:
        """The same for the stream that is the current one now."""

    @abstractmethod
    def add_gradient(self, layers: Layers, number: int, gradient: torch.Tensor) -> None:
        """The gradient of tensor `number`, which the current stream has computed."""


class Host(Device):
    """Weights are where the store lends them, in RAM."""

    torch_device = torch.device("cpu")
    name = "cpu"
    has_backward_thread = False

    def places_within_limit(self, num_places: int, device_bytes: int) -> int:
        return num_places

    def placeholder(self, num_bytes: int, dtype: torch.dtype) -> Placeholder | NanElement:
        return Placeholder(num_bytes, dtype)

    def samples(self, num_units: int) -> Samples:
        return HostSamples()

    def weights_of(self, lease: Lease, numbers: Sequence[int]) -> list[torch.Tensor]:
        made: list[torch.Tensor] = lease.whole(super().weights_of, lease, numbers)
        return made

    def use(self, lease: Lease) -> None:
        pass

    def add_gradient(self, layers: Layers, number: int, gradient: torch.Tensor) -> None:
        gradient = on_host(gradient)
        layers.add_gradient(number, DTYPES[gradient.dtype], memory_of(gradient))


class HostSamples:
    def __init__(self) -> None:
        self._taken: dict[int, list[bytes]] = {}

    def take(self, unit: int, _lease: Lease, tensors: Sequence[torch.Tensor]) -> None:
        self._taken[unit] = [_sample_of(tensor) for tensor in tensors]

    def have_changed(self, unit: int, tensors: Sequence[torch.Tensor]) -> bool:
        return any(_sample_of(tensor) != sample for tensor, sample in zip(tensors, self._taken.pop(unit, ())))

    def changed_unit(self) -> int | None:
        return None


def _sample_of(tensor: torch.Tensor) -> bytes:
    """Bytes of its beginning, middle and end."""
    num_bytes = tensor.numel() * tensor.element_size()
    address, length = tensor.data_ptr(), min(_SAMPLE_BYTES, num_bytes)
    return b"".join(ctypes.string_at(address + offset, length)
                    for offset in (0, (num_bytes - length) // 2, num_bytes - length))


class Cuda(Device):
    """Weights are copied into a window on a GPU, beside what it computes.

    gpu_bytes: the most that the window may take; None: 4 times the largest unit. The current stream of torch is asked
    for in every call: it is another one in `with torch.cuda.stream(...)`, and in backward that of the forward pass.
    """

    has_backward_thread = True

    def __init__(self, torch_device: torch.device, gpu_bytes: int | None) -> None:
        self.torch_device = torch_device
        self.name = f"cuda:{torch_device.index}"
        self._gpu_bytes = gpu_bytes
        self._side: torch.cuda.Stream | None = None

    def places_within_limit(self, num_places: int, device_bytes: int) -> int:
        if self._gpu_bytes is None:
            return num_places
        place_bytes = device_bytes // num_places
        if self._gpu_bytes < _FEWEST_PLACES * place_bytes:
            raise DoesNotFitError(
                f"forebay: gpu_mem is {self._gpu_bytes} bytes, and the window on the GPU needs {_FEWEST_PLACES} times "
                f"the largest unit, {_FEWEST_PLACES * place_bytes} bytes. Give it that, or make blocks smaller.")
        return min(num_places, self._gpu_bytes // place_bytes)

    def placeholder(self, num_bytes: int, dtype: torch.dtype) -> Placeholder | NanElement:
        return NanElement(self.torch_device, dtype)

    def samples(self, num_units: int) -> Samples:
        return DeviceSamples(self, num_units)

    def use(self, lease: Lease) -> None:
        lease.ready(self._stream())

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self.torch_device).cuda_stream)

    def add_gradient(self, layers: Layers, number: int, gradient: torch.Tensor) -> None:
        gradient = gradient.contiguous()
        layers.add_device_gradient(number, DTYPES[gradient.dtype], memory_of(gradient), self._stream())

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is enqueued inside comes behind what the current stream has, and before what it gets; on a stream that
        is always the same, as the tensors that are made there belong to it."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        side, current = self._side, torch.cuda.current_stream(self.torch_device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            yield
        current.wait_stream(side)


class DeviceSamples:
    """Taken and compared on the device, whose answer is waited for once in a step."""

    def __init__(self, device: Cuda, num_units: int) -> None:
        self._device = device
        self._taken: dict[int, torch.Tensor] = {}
        with device.aside():
            self._changed = torch.zeros(num_units, dtype=torch.bool, device=device.torch_device)

    def take(self, unit: int, lease: Lease, tensors: Sequence[torch.Tensor]) -> None:
        with self._device.aside():
            self._device.use(lease)
            self._taken[unit] = _samples_of(tensors)

    def have_changed(self, unit: int, tensors: Sequence[torch.Tensor]) -> bool:
        before = self._taken.pop(unit, None)
        if before is not None:
            with torch.inference_mode(False), torch.no_grad(), self._device.aside():
                self._changed[unit] |= (_samples_of(tensors) != before).any()
        return False

    def changed_unit(self) -> int | None:
        with torch.inference_mode(False), torch.no_grad(), self._device.aside():
            units = self._changed.nonzero().flatten().tolist()
            if units:
                self._changed.zero_()
        return units[0] if units else None


def _samples_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """As integers: a NaN equals itself."""
    parts = []
    for tensor in tensors:
        flat = tensor.detach().view(-1)
        length = min(_SAMPLE_BYTES // flat.element_size(), flat.numel())
        parts += [flat[first:first + length] for first in (0, (flat.numel() - length) // 2, flat.numel() - length)]
    return torch.cat(parts).view(torch.int32 if tensors[0].element_size() == 4 else torch.int16)


def device_of(tensors: Iterable[torch.Tensor], named: None | str | torch.device, gpu_mem: None | int | str) -> Device:
    """The device that a module streams to: `named`, or None: where its parameters are.

    UsageError: they are elsewhere. NotSupportedError: it is neither the CPU nor CUDA's. EnvironmentProblem: PyTorch
    finds no GPU.
    """
    found = {tensor.device for tensor in tensors if not tensor.is_meta}
    if named is None and len(found) > 1:
        raise UsageError(f"forebay: there are parameters on {', '.join(sorted(map(str, found)))}. Put all of them on "
                         "one device, or say where they are to be used: device=\"cuda:0\".")
    device = torch.device(named) if named is not None else next(iter(found), Host.torch_device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise EnvironmentProblem(f"forebay: device={str(device)!r}, and PyTorch finds no GPU "
                                     "(torch.cuda.is_available()). Install a PyTorch that is built for CUDA, and the "
                                     "driver; or stream to \"cpu\".")
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
    elsewhere = sorted(str(each) for each in found if each not in (device, Host.torch_device))
    if elsewhere:
        raise UsageError(f"forebay: device={str(device)!r}, and there are parameters on {', '.join(elsewhere)}. Move "
                         f"the module before: model.to({str(device)!r}), or model.cpu().")
    if device.type == "cpu":
        if gpu_mem is not None:
            raise UsageError(f"forebay: gpu_mem={gpu_mem!r} is about a GPU, and the module streams to the CPU. Say "
                             "device=\"cuda:0\", or leave gpu_mem out.")
        return Host()
    if device.type != "cuda":
        raise NotSupportedError(f"forebay: weights are not lent on {device}. Stream to \"cpu\" or \"cuda:0\".")
    return Cuda(device, None if gpu_mem is None else bytes_of(gpu_mem, "gpu_mem"))


def move_what_stays(module: torch.nn.Module, device: torch.device) -> None:
    """Buffers, and parameters without elements, to the device."""
    moved: dict[torch.Tensor, torch.Tensor] = {}  # one that several modules have stays one
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = moved.setdefault(buffer, buffer.to(device))
    for parameter in module.parameters():
        if parameter.numel() == 0:
            parameter.data = parameter.data.to(device)
