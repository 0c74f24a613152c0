"""deepspeed.accelerator: the device that a script puts its model and its batches on."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from forebay.deepspeed._timers import memory_of_process


class Accelerator:
    """The GPUs that PyTorch sees; without any, and with DS_ACCELERATOR=cpu, the processor."""

    def __init__(self) -> None:
        self._has_gpu = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"forebay.deepspeed.accelerator has no '{name}'. What it has is in docs/pytorch.md; use "
                             "torch or torch.cuda for the rest")

    def is_available(self) -> bool:
        """True: there is always one."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """"cuda", with an index "cuda:1"; or "cpu"."""
        if not self._has_gpu:
            return "cpu"
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        """The context in which the GPU is current; None without one, as in DeepSpeed."""
        return torch.cuda.device(device_index) if self._has_gpu else None

    def device_count(self) -> int:
        """The number of GPUs; without any, of this machine's processes if LOCAL_SIZE says it, else 1."""
        return torch.cuda.device_count() if self._has_gpu else int(os.environ.get("LOCAL_SIZE") or 1)

    def set_device(self, device_index: int) -> None:
        """Makes a GPU the current one."""
        if self._has_gpu:
            torch.cuda.set_device(device_index)

    def current_device(self) -> int:
        """The index of the current GPU; without one, this process's number on its machine."""
        return torch.cuda.current_device() if self._has_gpu else int(os.environ.get("LOCAL_RANK") or 0)

    def current_device_name(self) -> str:
        """"cuda:0", or "cpu"."""
        return self.device_name(self.current_device())

    def communication_backend_name(self) -> str:
        """What init_distributed() begins torch.distributed with: "nccl", or "gloo" without a GPU."""
        return "nccl" if self._has_gpu else "gloo"

    def synchronize(self, device_index: int | None = None) -> None:
        """Waits for the GPU."""
        if self._has_gpu:
            torch.cuda.synchronize(device_index)

    def manual_seed(self, seed: int) -> None:
        """Seeds the random numbers of the device."""
        if self._has_gpu:
            torch.cuda.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seeds the random numbers of all devices."""
        if self._has_gpu:
            torch.cuda.manual_seed_all(seed)
        else:
            torch.manual_seed(seed)

    def empty_cache(self) -> None:
        """Gives GPU memory that PyTorch holds and does not use back."""
        if self._has_gpu:
            torch.cuda.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes in use on the GPU; without one, by this process."""
        return torch.cuda.memory_allocated(device_index) if self._has_gpu else memory_of_process()[0]

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The most bytes that were in use on the GPU; without one, by this process."""
        return torch.cuda.max_memory_allocated(device_index) if self._has_gpu else memory_of_process()[1]

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Begins max_memory_allocated() of the GPU anew."""
        if self._has_gpu:
            torch.cuda.reset_peak_memory_stats(device_index)

    def is_bf16_supported(self) -> bool:
        """Whether the device computes in bf16."""
        return torch.cuda.is_bf16_supported() if self._has_gpu else True

    def is_fp16_supported(self) -> bool:
        """Whether the device computes in fp16: GPUs from compute capability 7.0 on, and few processors."""
        if self._has_gpu:
            return torch.cuda.get_device_capability() >= (7, 0)
        try:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        except (AttributeError, RuntimeError):  # PyTorch without oneDNN
            return False

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on such a device."""
        return tensor.device.type == self.device_name()


@functools.cache
def get_accelerator() -> Accelerator:
    """The one of this process."""
    return Accelerator()


__all__ = ["Accelerator", "get_accelerator"]
