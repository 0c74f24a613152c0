"""torch.distributed over the same ranks, for scripts that ask it for ranks or sum losses by themselves. The engine does
not need it: its ranks are forebay's own."""

from __future__ import annotations

import atexit
import os
import socket
from datetime import timedelta
from typing import Any

import torch

from forebay.errors import EnvironmentProblem
from forebay.ranks import Ranks

dist: Any = torch.distributed  # its types hide what is there only if it is built in
_ADDRESS_BYTES = 256
_TIMEOUT = timedelta(minutes=10)


def begin(ranks: Ranks, backend: str | None = None) -> None:
    """Begins it, unless the script has; it ends with the process. backend: None: nccl if there are GPUs, else gloo.

    EnvironmentProblem: the ranks do not reach each other.
    """
    if not dist.is_available() or dist.is_initialized():
        return
    if backend is None or (backend == "nccl" and not _has_nccl()):
        backend = "nccl" if _has_nccl() else "gloo"
    try:
        store = dist.HashStore() if ranks.size == 1 else _store(ranks)
        dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size)
    except (RuntimeError, OSError) as error:
        raise EnvironmentProblem(f"forebay: torch.distributed cannot begin on rank {ranks.rank} of {ranks.size} with "
                                 f"{backend}: {error}. Call torch.distributed.init_process_group() before "
                                 "initialize(), or pass dist_init_required=False.") from error
    atexit.register(end)


def end() -> None:
    """Takes it down, so that PyTorch does not warn of one that was left."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _has_nccl() -> bool:
    return torch.cuda.is_available() and bool(dist.is_nccl_available())


def _store(ranks: Ranks) -> Any:
    """The store of rank 0, which tells the others where it listens."""
    address = bytearray(_ADDRESS_BYTES)
    store = None
    if ranks.rank == 0:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        text = f"{host}:{store.port}".encode()
        address[:len(text)] = text
    ranks.broadcast(address)
    if store is None:
        host, _, port = address.rstrip(b"\0").decode().rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False, timeout=_TIMEOUT)
    return store


__all__ = ["begin", "end"]
