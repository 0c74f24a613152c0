"""deepspeed.runtime.utils."""

from __future__ import annotations

import gc

import torch

from forebay.deepspeed import comm
from forebay.deepspeed._timers import memory_of_process

_GB = 2**30


def see_memory_usage(message: str, force: bool = False) -> None:
    """Prints the message and, as DeepSpeed does, how much memory is in use on the GPU (without one: by this process)
    and on the host. Prints only with `force`, and only on the first rank."""
    if not force or comm.get_rank() != 0:
        return
    gc.collect()
    now, most, reserved, most_reserved = _of_device()
    print(message)
    print(f"MA {round(now / _GB, 2)} GB         Max_MA {round(most / _GB, 2)} GB "
          f"        CA {round(reserved / _GB, 2)} GB         Max_CA {round(most_reserved / _GB)} GB ")
    total, available = _of_host()
    used = total - available
    print(f"CPU Virtual Memory:  used = {round(used / _GB, 2)} GB, percent = {round(100 * used / total, 1)}%")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _of_device() -> tuple[int, int, int, int]:
    """Bytes that are allocated, now and at most since the last call, and the same of those that PyTorch holds."""
    if torch.cuda.is_available():
        return (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(),
                torch.cuda.max_memory_reserved())
    return memory_of_process() * 2


def _of_host() -> tuple[int, int]:
    """Bytes of RAM, and of those that are available."""
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":", 1) for line in file)}
    return sizes["MemTotal"], sizes["MemAvailable"]


__all__ = ["see_memory_usage"]
