"""Ranks under mpirun on two hosts, which it starts there as it would over ssh. Their bytes go through the cable."""

import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest
from rank_processes import digest_of_ranks, make_task, train_ranks, wait_for_steps
from two_hosts import TwoHosts
from option_flags import flag_of

SEQ = 48
STEPS = 40
RANK_TIMEOUT_S = 2
FAMILIES = ["openmpi", "mpich"]

# In the place of ssh: AGENT [OPTION]... ADDRESS COMMAND...
AGENT = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
case $1 in
{cases}
esac
"""


class Mpi:
    """mpirun of one family, on the first of the hosts."""

    def __init__(self, family, hosts, folder):
        self.hosts = hosts
        self._log = folder / "mpirun.log"
        agent = folder / "agent"
        cases = [f"  {address}) shift; exec {' '.join(map(_quoted, hosts.named(host)))} sh -c \"$*\" ;;"
                 for host, address in enumerate(hosts.addresses)]
        agent.write_text(AGENT.format(cases="\n".join(cases)))
        agent.chmod(0o755)
        on = ",".join(hosts.addresses)
        self._flags = {
            "openmpi": ["--allow-run-as-root", "--host", on, "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self",
                        "--mca", "btl_tcp_if_include", "cable", "--mca", "oob_tcp_if_include", "cable",
                        "--mca", "orte_tmpdir_base", folder],
            "mpich": ["-hosts", on, "-launcher", "ssh", "-launcher-exec", agent, "-iface", "cable"],
        }[family]
        self._mpirun = shutil.which(f"mpirun.{family}")

    def start(self, forebay, *flags, **settings):
        program = [forebay.binary, "train", *flags, *(flag_of(key, value) for key, value in settings.items())]
        command = [*self.hosts.named(0), self._mpirun, "-n", "2", *self._flags, *program]
        environment = dict(os.environ, UCX_TLS="tcp,self", UCX_NET_DEVICES="cable")
        self.hosts.await_cable()
        with self._log.open("w") as log:
            return subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, env=environment)

    def train(self, forebay, *flags, **settings):
        """A start by MPICH once hung on a busy machine. Where forebay has not said a word it is mpirun that hangs, or MPI_Init:
        that is tried again, once."""
        for is_last in [False, True]:
            process = self.start(forebay, *flags, **settings)
            try:
                assert process.wait(timeout=60) == 0, self.output()
                return
            except subprocess.TimeoutExpired as error:
                waiting = self.hosts.waiting()
                self.hosts.kill_all()
                process.wait(timeout=60)
                if is_last or self.output():
                    raise AssertionError(f"{waiting}\n{self.output()}") from error

    def output(self):
        return self._log.read_text()

    def await_ends_of_ranks(self):
        """mpirun itself may wait for a host that it has lost."""
        begin = time.monotonic()
        while any(self.hosts.processes(host, "forebay") for host in range(2)):
            assert time.monotonic() - begin < 30, self.output()
            time.sleep(0.01)


def _quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


@pytest.fixture
def two_hosts():
    with TwoHosts(f"forebay-mpi-{os.getpid()}") as hosts:
        yield hosts
        hosts.kill_all()


@pytest.fixture(params=FAMILIES)
def mpi(request, two_hosts, tmp_path):
    plugin = pathlib.Path(os.environ["FOREBAY_BIN"]) / f"libforebay_mpi_{request.param}.so"
    if shutil.which(f"mpirun.{request.param}") is None or not plugin.exists():
        pytest.skip(f"mpirun.{request.param} or {plugin} is not there")
    return Mpi(request.param, two_hosts, tmp_path)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    return make_task(forebay, tmp_path_factory.mktemp("task"), SEQ, steps=STEPS, ram="1GiB", precision="fp32", export="none")


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    """The digest of two ranks on one host: that of every stage."""
    out = tmp_path_factory.mktemp("expected") / "run"
    train_ranks(forebay, 2, out=out, **task)
    return digest_of_ranks(forebay, out, 2)


def test_two_hosts_compute_what_two_ranks_of_one_do(forebay, mpi, task, expected, tmp_path):
    for stage in [0, 3]:
        out = tmp_path / f"run{stage}"
        before = mpi.hosts.sent_bytes()
        mpi.train(forebay, out=out, zero_stage=stage, **task)
        assert forebay.digest(out) == expected
        planned = json.loads((out / "plan.json").read_text())["sent_bytes_per_step"]
        assert mpi.hosts.sent_bytes() - before > STEPS * planned > 0


@pytest.mark.parametrize("stage", [0, 3])
def test_a_host_that_is_cut_off_ends_the_other_and_the_run_goes_on(forebay, mpi, task, expected, tmp_path, stage):
    out = tmp_path / "run"
    process = mpi.start(forebay, out=out, zero_stage=stage, rank_timeout=RANK_TIMEOUT_S, **task)
    wait_for_steps(out, 3, [process])
    mpi.hosts.pull()
    mpi.await_ends_of_ranks()
    assert "rank 1 of 2 on host1 did not go on for 2 s" in mpi.output()
    mpi.hosts.kill_all()
    process.wait(timeout=60)
    mpi.hosts.plug_in()
    mpi.train(forebay, "--resume", out=out, zero_stage=stage)
    assert forebay.digest(out) == expected


def test_a_rank_that_is_killed_ends_the_other_and_the_run_goes_on(forebay, mpi, task, expected, tmp_path):
    out = tmp_path / "run"
    process = mpi.start(forebay, out=out, zero_stage=3, **task)
    wait_for_steps(out, 3, [process])
    for pid in mpi.hosts.processes(1, "forebay"):
        os.kill(pid, 9)
    assert process.wait(timeout=30) != 0
    assert mpi.hosts.addresses[1] in mpi.output()  # mpirun says where
    mpi.await_ends_of_ranks()
    mpi.train(forebay, "--resume", out=out, zero_stage=3)
    assert forebay.digest(out) == expected
