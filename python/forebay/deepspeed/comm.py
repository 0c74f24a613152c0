"""The ranks that a launcher has started, this process being one of them; without a launcher there is one. All else,
such as all_reduce, is torch.distributed's."""

from __future__ import annotations

from typing import Any

import torch.distributed

from forebay.deepspeed import _process_group
from forebay.ranks import Ranks

_connected: Ranks | None = None


def ranks() -> Ranks:
    """All of them; the first call waits for the others. EnvironmentProblem: one did not come."""
    global _connected
    if _connected is None:
        _connected = Ranks()
    return _connected


def init_distributed(dist_backend: str | None = None, *_: Any, **__: Any) -> None:
    """Waits for the other ranks, and begins torch.distributed. The other arguments of DeepSpeed's are not needed."""
    _process_group.begin(ranks(), dist_backend)


def get_rank(group: Any = None) -> int:
    """The number of this rank among all."""
    return ranks().rank


def rank_so_far() -> int:
    """get_rank() without waiting for the other ranks; -1: nothing has waited for them yet."""
    return -1 if _connected is None else _connected.rank


def get_world_size(group: Any = None) -> int:
    """The number of ranks."""
    return ranks().size


def get_local_rank() -> int:
    """The number of this rank on its machine."""
    return ranks().local_rank


def is_initialized() -> bool:
    """True: what asks for ranks waits for them by itself."""
    return True


def barrier(group: Any = None) -> None:
    """Returns when every rank has called it."""
    ranks().barrier()


def __getattr__(name: str) -> Any:
    return getattr(torch.distributed, name)


__all__ = ["barrier", "get_local_rank", "get_rank", "get_world_size", "init_distributed", "is_initialized",
           "rank_so_far", "ranks"]
