"""Ranks of which one is killed at random moments, or all are: the others end at once and say which, and the run ends
with the bits of one that nothing disturbed."""

import contextlib
import json
import os
import random
import re
import signal
import time

import pytest
import ranks_crash_run
import torch
from forked_ranks import ends_of, on_ranks, start_ranks

SOON_S = 15
SEED = os.environ.get("FOREBAY_KILLS_SEED", "1")  # of the moments


def lines_of(folder, rank):
    """The lines of whole length."""
    path = folder / f"rank-{rank}" / "losses"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def assert_same_weights(left, right):
    for rank in (0, 1):
        ours, theirs = (torch.load(folder / f"rank-{rank}" / "weights") for folder in (left, right))
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), (rank, name)


def end_of_killed(ranks, victims, begin):
    """One that lives ends soon, with an error that names who was killed, if it had anything to do with him."""
    ends = ends_of(ranks)
    for rank, end in enumerate(ends):
        if rank in victims or end is None:
            continue
        assert time.monotonic() - begin < SOON_S
        if end.error is not None:
            assert end.error == "EnvironmentProblem", end
            assert re.search(f"rank {1 - rank}\\b|: {1 - rank}\\.", end.message), end
    return ends


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A folder by options: the run that nothing disturbs."""
    made = {}

    def make(options):
        if str(options) not in made:
            folder = tmp_path_factory.mktemp("unbroken")
            digests = on_ranks(2, ranks_crash_run.run, folder, **options)
            assert len({*digests}) == 1
            assert [len(lines_of(folder, rank)) for rank in (0, 1)] == [ranks_crash_run.STEPS] * 2
            made[str(options)] = folder
        return made[str(options)]

    return make


OPTIONS = [{"zero_stage": 0}, {"zero_stage": 3}, {"zero_stage": 1, "update_in_backward": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("num_victims", [1, 2])
def test_killed_ranks_come_to_the_bits_of_an_unbroken_run(tmp_path, unbroken, options, num_victims):
    whole = unbroken(options)
    expected = [{line[0]: line for line in lines_of(whole, rank)} for rank in (0, 1)]
    draw = random.Random(f"{SEED} {options} {num_victims}")
    kills, most_kills, num_told = 0, 10 if num_victims == 1 else 5, 0
    while not all((tmp_path / f"rank-{rank}" / "weights").exists() for rank in (0, 1)):
        ranks = start_ranks(2, ranks_crash_run.run, tmp_path, **options)
        if kills == most_kills:
            assert all(end.error is None for end in ends_of(ranks)), "it does not go on"
            continue
        wanted = len(lines_of(tmp_path, 0)) + draw.randrange(1, 5)
        while all(rank.process.is_alive() for rank in ranks) and len(lines_of(tmp_path, 0)) < wanted:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.02))
        victims = draw.sample([0, 1], num_victims)
        begin = time.monotonic()
        for victim in victims:
            ranks[victim].kill()
            time.sleep(draw.choice([0, 0, draw.uniform(0, 0.01)]))
        kills += 1
        num_told += sum(end is not None and end.error is not None for end in end_of_killed(ranks, victims, begin))
    assert kills >= min(most_kills, 4) and (num_victims == 2 or num_told >= kills - 2)
    for rank in (0, 1):
        lines = lines_of(tmp_path, rank)
        assert lines[-1][0] == ranks_crash_run.STEPS
        for line in lines:
            assert line == expected[rank][line[0]]
        # A kill takes the step that was running, and where updates are made in backward the one before it.
        for before, after in zip(lines, lines[1:]):
            assert before[0] - 1 <= after[0] <= before[0] + 1
    assert_same_weights(tmp_path, whole)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_kills_while_the_store_is_made(tmp_path, unbroken, options):
    whole = unbroken(options)
    draw = random.Random(f"{SEED} made {options}")
    left = set()
    for kill in range(12):
        folder = tmp_path / f"run {kill}"
        folder.mkdir()
        ranks = start_ranks(2, ranks_crash_run.run, folder, **options)
        while not (folder / "store").exists():
            time.sleep(0.0005)
        time.sleep(draw.uniform(0, 0.03))
        victims = draw.choice([[0], [1], [0, 1], [1, 0]])
        begin = time.monotonic()
        for victim in victims:
            ranks[victim].kill()
        end_of_killed(ranks, victims, begin)
        left.add(tuple(commits_of(folder / "store" / f"rank-{rank}-of-2") for rank in (0, 1)))
        on_ranks(2, ranks_crash_run.run, folder, **options)
        assert_same_weights(folder, whole)
    assert len(left) > 1, left  # or the moments are not those that this is about


def commits_of(store):
    """Whether there is nothing, what has no commit, or a store."""
    file = store / "commit.fbs"
    return "store" if file.exists() and any(file.read_bytes()[:8]) else "half" if store.exists() else "nothing"


def test_workers_that_outlive_a_rank_do_not_hide_its_death(tmp_path):
    """They are forks of it, and would hold its connections open."""
    ranks = start_ranks(2, ranks_crash_run.meet_beside_workers, tmp_path)
    deadline = time.monotonic() + 60
    while sum(1 for _ in tmp_path.glob("rank-*/*")) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = [[int(path.name) for path in (tmp_path / f"rank-{rank}").iterdir()] for rank in (0, 1)]
    try:
        ranks[1].kill()
        end = ranks[0].end(time.monotonic() + 30)
        assert end.error == "EnvironmentProblem" and re.search(r"rank 1\b", end.message), end
        for worker in workers[1]:
            os.kill(worker, 0)  # they live
    finally:
        ranks[0].kill()
        for worker in workers[0] + workers[1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
