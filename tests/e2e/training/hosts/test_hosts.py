"""Ranks on two hosts that reach each other over TCP alone."""

import os
import time

import pytest
from rank_processes import digest_of_ranks, ends_of, make_task, start_ranks, train_ranks, wait_for_steps
from two_hosts import TwoHosts

SEQ = 48
STAGES = [0, 3]


@pytest.fixture
def two_hosts():
    with TwoHosts(f"forebay-{os.getpid()}") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    return make_task(forebay, tmp_path_factory.mktemp("task"), SEQ, steps=150, ram="1GiB", precision="fp32", export="none")


@pytest.fixture(scope="module", params=STAGES, ids=lambda stage: f"stage{stage}")
def stage(request, forebay, task, tmp_path_factory):
    """The stage, and the digest of two ranks of it on one host."""
    out = tmp_path_factory.mktemp("expected") / "run"
    train_ranks(forebay, 2, out=out, zero_stage=request.param, **task)
    return request.param, digest_of_ranks(forebay, out, 2)


def test_two_hosts_compute_what_two_ranks_of_one_do(forebay, task, stage, two_hosts, tmp_path):
    zero_stage, expected = stage
    ends = train_ranks(forebay, 2, out=tmp_path / "run", hosts=two_hosts.hosts, zero_stage=zero_stage, **task)
    assert "step 150/150" in ends[0][1]
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected


@pytest.mark.parametrize("num_steps", [1, 30])
def test_hosts_that_lose_each_other_end_and_go_on_when_they_meet(forebay, task, stage, two_hosts, tmp_path, num_steps):
    zero_stage, expected = stage
    processes = start_ranks(forebay, 2, out=tmp_path / "run", hosts=two_hosts.hosts, zero_stage=zero_stage, rank_timeout=2,
                            **task)
    wait_for_steps(tmp_path / "run", num_steps, processes)
    two_hosts.pull()
    begin = time.monotonic()
    ends = ends_of(processes)
    assert time.monotonic() - begin < 30
    assert [code for code, _, _ in ends] == [9, 9], ends
    for rank, (_, _, errors) in enumerate(ends):
        assert f"rank {1 - rank} " in errors, errors
    two_hosts.plug_in()
    train_ranks(forebay, 2, "--resume", out=tmp_path / "run", hosts=two_hosts.hosts)
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected


def test_a_host_that_is_not_reached_says_so(forebay, task, two_hosts, tmp_path):
    two_hosts.pull()
    begin = time.monotonic()
    ends = ends_of(start_ranks(forebay, 2, out=tmp_path / "run", hosts=two_hosts.hosts, rank_timeout=2, **task))
    assert time.monotonic() - begin < 30
    assert [code for code, _, _ in ends] == [9, 9], ends
    assert "10.77.0.1" in ends[1][2], ends[1][2]
    assert not (tmp_path / "run" / "store").exists()
