"""Runs that are killed at random moments, again and again, end with the bits of one that was not."""

import contextlib
import json
import multiprocessing
import os
import random
import time

import crash_run
import pytest
import torch

CONTEXT = multiprocessing.get_context("forkserver")  # a fork of it needs no time to import torch
CONTEXT.set_forkserver_preload(["crash_run", "torch._dynamo"])  # which the first optimizer imports


def start(folder, **options):
    folder.mkdir(exist_ok=True)
    process = CONTEXT.Process(target=crash_run.run, args=(folder,), kwargs=options)
    process.start()
    return process


def wait_for_the_end_of(process):
    """join() would wait for the workers of a DataLoader too, which live on for seconds."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process.pid, 0)
            time.sleep(0.002)


def lines_of(folder):
    """The lines of whole length, as the run wrote them."""
    text = (folder / "losses").read_text() if (folder / "losses").exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


@pytest.mark.parametrize("most_kills, options", [(25, {}), (3, {"num_workers": 2}), (8, {"streamed": False})],
                         ids=["streamed", "workers", "optimizer alone"])
def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(tmp_path, most_kills, options):
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    process = start(unbroken, **options)
    process.join()
    assert process.exitcode == 0
    expected = {line[0]: line for line in lines_of(unbroken)}
    assert sorted(expected) == list(range(1, 25))

    rng = random.Random(7)
    kills = 0
    while not (killed / "weights").exists():
        process = start(killed, **options)
        wanted = len(lines_of(killed)) + rng.randrange(1, 5)
        while process.is_alive() and len(lines_of(killed)) < wanted:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.02))
        if process.is_alive() and kills < most_kills:
            process.kill()
            kills += 1
            wait_for_the_end_of(process)
        else:
            process.join()
            assert process.exitcode == 0
    assert kills >= min(most_kills, 6)
    lines = lines_of(killed)
    for line in lines:
        assert line == expected[line[0]]
    # A kill takes the step that was running, and no step before it.
    assert len(lines) <= len(expected) + kills
    for before, after in zip(lines, lines[1:]):
        assert after[0] in (before[0], before[0] + 1)
    for name, value in torch.load(unbroken / "weights").items():
        assert torch.equal(value, torch.load(killed / "weights")[name]), name
