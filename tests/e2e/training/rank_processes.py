"""Starts ranks that find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and says how they ended."""

import concurrent.futures
import os
import pathlib
import socket
import subprocess
import time

from conftest import make_model, random_rows, write_rows
from option_flags import flag_of


def make_task(forebay, folder, seq, **settings):
    """The settings of a run that two ranks share: a tiny model and random rows, in `folder`."""
    data = write_rows(folder / "data.fbd", *random_rows(10, seq, 256, seed=4), 256)
    model = make_model(forebay, folder / "model")
    return {"model": model, "data": data, "batch": 4, "seq": seq, "lr": 1e-3, "warmup": 2, "clip": 0.5, "seed": 3,
            "threads": 1, **settings}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start_ranks(forebay, num_ranks, *flags, hosts=None, environments=None, **settings):
    command = [forebay.binary, "train", *flags] + [flag_of(key, value) for key, value in settings.items()]
    return start_each(command, num_ranks, hosts, environments)


def start_each(command, num_ranks, hosts=None, environments=None):
    """hosts: for each rank a command to start it behind, and the address of the first; None: all run here.
    environments: for each rank the variables that it has besides."""
    prefixes, address = hosts or ([[]] * num_ranks, "127.0.0.1")
    port = free_port()
    processes = []
    for rank, prefix in enumerate(prefixes):
        own = environments[rank] if environments else {}
        environment = dict(os.environ, **own, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks),
                           MASTER_ADDR=address, MASTER_PORT=str(port))
        processes.append(subprocess.Popen([*prefix, *command], env=environment, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    return processes


def ends_of(processes):
    """[(exit code, output, errors)]. All are read at a time: one whose pipe is full would hold up the others."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as threads:
        ends = list(threads.map(lambda process: process.communicate(timeout=300), processes))
    return [(process.returncode, *texts) for process, texts in zip(processes, ends, strict=True)]


def train_ranks(forebay, num_ranks, *flags, **settings):
    ends = ends_of(start_ranks(forebay, num_ranks, *flags, **settings))
    assert [code for code, _, _ in ends] == [0] * num_ranks, ends
    return ends


def folder_of(out, rank):
    return pathlib.Path(out) if rank == 0 else pathlib.Path(out) / f"rank-{rank:03}"


def digest_of_ranks(forebay, out, num_ranks):
    digests = {forebay.digest(folder_of(out, rank)) for rank in range(num_ranks)}
    assert len(digests) == 1
    return digests.pop()


def wait_for_steps(out, num_steps, processes):
    """Until metrics.jsonl has so many lines, or a process has ended."""
    metrics = pathlib.Path(out) / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < num_steps:
        if any(process.poll() is not None for process in processes):
            return
        time.sleep(0.002)
