"""Starts functions as ranks, which find each other as under torchrun. They are forks of a process that has torch, so
that they begin in a moment."""

import contextlib
import hashlib
import multiprocessing
import os
import socket
import sys
import time
import traceback
from typing import Any, NamedTuple

import pytest
import torch

CONTEXT = multiprocessing.get_context("forkserver")
# The functions that are started, and what the first optimizer imports.
CONTEXT.set_forkserver_preload(["torch_ranks_run", "torch._dynamo"])
NO_HANG_S = 180  # longer than any of them takes, on a machine that has much else to do
LATE_S = 170  # timeout_s of ranks that all come: nobody waits for it


class End(NamedTuple):
    """value: what the function returned. error: the name of what it raised, with its message and traceback."""

    value: Any = None
    error: str | None = None
    message: str = ""
    trace: str = ""
    seconds: float = 0.0  # from its start


class Rank:
    def __init__(self, number, num_ranks, port, function, arguments, options):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        environment = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(num_ranks),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.number = number
        self.process = CONTEXT.Process(target=_run, args=(theirs, environment, function, arguments, options))
        self._results = ours
        self._begin = time.monotonic()
        self.process.start()
        theirs.close()

    def kill(self):
        self.process.kill()

    def end(self, deadline):
        """None: it was killed, or ended by itself. Fails the test where it does not end."""
        end = None
        if not self._results.poll(max(0.0, deadline - time.monotonic())):
            self.kill()
            pytest.fail(f"rank {self.number} hangs")
        with contextlib.suppress(EOFError):
            end = self._results.recv()._replace(seconds=time.monotonic() - self._begin)
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.kill()
            pytest.fail(f"rank {self.number} does not end behind {end}")
        return end


def _run(results, environment, function, arguments, options):
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        end = End(value=function(*arguments, **options))
    except Exception as error:
        # Frames hold what destructors wait for.
        end = End(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
        del error
        sys.last_value = None
    results.send(end)
    results.close()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start_ranks(num_ranks, function, *arguments, **options):
    """function(*arguments, **options) on each: it makes forebay.Ranks()."""
    port = free_port()
    return [Rank(number, num_ranks, port, function, arguments, options) for number in range(num_ranks)]


def ends_of(ranks, within_s=NO_HANG_S):
    deadline = time.monotonic() + within_s
    try:
        return [rank.end(deadline) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def on_ranks(num_ranks, function, *arguments, **options):
    """Returns what the function returns on each rank. None of them fails."""
    ends = ends_of(start_ranks(num_ranks, function, *arguments, **options))
    for number, end in enumerate(ends):
        assert end is not None and end.error is None, f"rank {number}: {end and end.trace}"
    return [end.value for end in ends]


def errors_of(num_ranks, function, *arguments, **options):
    """[(name of the error, message)]; (None, "") where there was none."""
    ends = ends_of(start_ranks(num_ranks, function, *arguments, **options))
    assert all(end is not None for end in ends), "a rank has crashed"
    return [(end.error, end.message) for end in ends]


def digest_of(tensors):
    """tensors: by name."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(name.encode())
        hashed.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
