"""Runs that are killed at random moments, again and again, end with the bits of one that was not."""

import contextlib
import json
import multiprocessing
import os
import random
import time

import forebay.torch
import pytest
import torch

import crash_run

CONTEXT = multiprocessing.get_context("forkserver")  # a fork of it needs no time to import torch
CONTEXT.set_forkserver_preload(["crash_run", "torch._dynamo"])  # which the first optimizer imports


def start(folder, run=crash_run.run, **options):
    folder.mkdir(exist_ok=True)
    process = CONTEXT.Process(target=run, args=(folder,), kwargs=options)
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


@pytest.mark.parametrize("most_kills, options", [
    (20, {}), (12, {"run": crash_run.run_by_steps}), (3, {"num_workers": 2}), (8, {"streamed": False}),
    (8, {"update_in_backward": True}), (8, {"run": crash_run.run_by_steps, "update_in_backward": True}),
    (8, {"skips": True})],
    ids=["streamed", "by steps", "workers", "optimizer alone", "in backward", "in backward, by steps", "scaled"])
def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(tmp_path, most_kills, options):
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    process = start(unbroken, **options)
    process.join()
    assert process.exitcode == 0
    # A step that a scaler leaves out has the number of the one before it, and another scale.
    skips = "skips" in options
    expected = {(line[0], line[-1] if skips else None): line for line in lines_of(unbroken)}
    assert len(expected) == 24
    num_steps = len({step for step, _ in expected} - {0})
    assert 8 <= num_steps <= 20 if skips else num_steps == 24

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
        assert line == expected[line[0], line[-1] if skips else None]
    # A kill takes the step that was running, and with update_in_backward the one before it, whose commit waits; and
    # those before it that a scaler has left out.
    assert len(lines) <= len(expected) + kills * (1 + 2 * skips)
    for before, after in zip(lines, lines[1:]):
        assert before[0] - skips <= after[0] <= before[0] + 1
    for name, value in torch.load(unbroken / "weights").items():
        assert torch.equal(value, torch.load(killed / "weights")[name]), name


def batches_of(loader, num_epochs):
    return [[batch.tolist() for batch in loader] for _ in range(loader.epoch, num_epochs)]


@pytest.mark.parametrize("options", [
    {"batch_size": 4}, {"batch_size": 4, "shuffle": True}, {"batch_size": 4, "shuffle": True, "drop_last": True},
    {"batch_size": None, "shuffle": True}, {"batch_size": 3, "shuffle": True, "num_workers": 2, "prefetch_factor": 3},
    {"batch_size": 3, "shuffle": True, "num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_loader_goes_on_with_the_batch_that_comes_next(options):
    def make(seed=5):
        return forebay.torch.ResumableLoader(torch.arange(22), seed=seed, **options)

    whole = batches_of(make(), 3)
    for epoch in whole:
        indices = epoch if options["batch_size"] is None else [index for batch in epoch for index in batch]
        assert len(indices) == len(set(indices)) == (20 if options.get("drop_last") else 22)
    assert (whole[0] != whole[1]) == options.get("shuffle", False)
    state, loader = None, make()
    for epoch in range(loader.epoch, 2):
        for number, _ in enumerate(loader, 1):
            if (epoch, number) == (1, 4):
                state = loader.state_dict()
                break
    assert state["epoch"] == 1
    resumed = make()
    resumed.load_state_dict(state)
    assert batches_of(resumed, 3) == [whole[1][4:], whole[2]]
    # A loop that was left begins the next epoch.
    assert [batch.tolist() for batch in loader] == whole[2]
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (3, 0) and loader.epoch == 3
