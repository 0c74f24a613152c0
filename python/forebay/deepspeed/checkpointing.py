"""deepspeed.checkpointing: parts of a model whose activations are computed again in backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from forebay.deepspeed import comm
from forebay.deepspeed._config import Config
from forebay.errors import UsageError

_is_configured = False
_in_cpu = False


def configure(mpu_: Any, deepspeed_config: Any = None, partition_activations: bool | None = None,
              contiguous_checkpointing: bool | None = None, num_checkpoints: int | None = None,
              checkpoint_in_cpu: bool | None = None, synchronize: bool | None = None,
              profile: bool | None = None) -> None:
    """As DeepSpeed has it. deepspeed_config: a configuration, whose section activation_checkpointing is used; the other
    arguments go before it. checkpoint_in_cpu (cpu_checkpointing) is the only setting that changes anything.

    UsageError: contiguous_checkpointing without partition_activations or num_checkpoints, as in DeepSpeed.
    """
    global _is_configured, _in_cpu
    section: dict[str, Any] = {}
    in_cpu = False
    if deepspeed_config is not None:
        config = Config.read(deepspeed_config, comm.get_world_size())
        section, in_cpu = config.document.get("activation_checkpointing") or {}, config.cpu_checkpointing

    def setting(given: Any, key: str) -> Any:
        return section.get(key) if given is None else given

    if setting(contiguous_checkpointing, "contiguous_memory_optimization"):
        for value, name in ((setting(partition_activations, "partition_activations"), "partition_activations"),
                            (setting(num_checkpoints, "number_checkpoints"), "num_checkpoints")):
            if not value:
                raise UsageError(f"forebay: contiguous checkpointing needs {name}, as in DeepSpeed. Give it, or leave "
                                 "contiguous_checkpointing (contiguous_memory_optimization) out.")
    _is_configured, _in_cpu = True, in_cpu if checkpoint_in_cpu is None else bool(checkpoint_in_cpu)


def is_configured() -> bool:
    """Whether configure() was called."""
    return _is_configured


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs), of which backward keeps the tensors among the arguments, and computes the rest again.
    With cpu_checkpointing those that are on a GPU are kept in RAM."""
    if not _in_cpu:
        return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)
    names, num_args = list(kwargs), len(args)

    def call(*given: Any) -> Any:
        return function(*given[:num_args], **dict(zip(names, given[num_args:])))

    on_gpu = any(isinstance(each, torch.Tensor) and each.is_cuda for each in (*args, *kwargs.values()))
    # The reentrant kind saves only tensors that are arguments.
    with torch.autograd.graph.save_on_cpu(pin_memory=True) if on_gpu else contextlib.nullcontext():
        return torch_checkpoint(call, *args, *kwargs.values(), use_reentrant=on_gpu)


def reset() -> None:
    """Nothing: no buffers are kept from pass to pass."""


__all__ = ["checkpoint", "configure", "is_configured", "reset"]
