"""Two hosts that reach each other over TCP alone: network namespaces with one cable between them, which can be pulled."""

import contextlib
import os
import subprocess
import time

import pytest
from rank_processes import digest_of_ranks, ends_of, make_task, start_ranks, train_ranks, wait_for_steps

SEQ = 48
STAGES = [0, 3]


def ip(*arguments):
    return subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True)


class TwoHosts:
    """Has of each host the command to start a program behind, and the address of the first."""

    def __init__(self, name):
        self.names = [f"{name}-{host}" for host in range(2)]
        self.hosts = [["ip", "netns", "exec", name] for name in self.names], "10.77.0.1"

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "cable", "netns", self.names[1])
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            self._remove()
            pytest.skip(f"there can be no other host here: {error}: {getattr(error, 'stderr', '')}")
        for host, name in enumerate(self.names):
            ip("-n", name, "address", "add", f"10.77.0.{host + 1}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "up")
        return self

    def __exit__(self, *_):
        self._remove()

    def _remove(self):
        for name in self.names:
            with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):
                ip("netns", "delete", name)

    def pull(self):
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def plug_in(self):
        ip("-n", self.names[0], "link", "set", "cable", "up")


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
