"""Ranks that train while programs which are no ranks reach their ports, on one host and on two."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from rank_processes import digest_of_ranks, ends_of, make_task, start_ranks, train_ranks
from strangers import listening
from two_hosts import TwoHosts

SEQ = 48
STAGES = [0, 3]
SECRET = "the secret of the ranks, of 40 characters"
NO_SECRET = "share no secret"


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    return make_task(forebay, tmp_path_factory.mktemp("task"), SEQ, steps=60, ram="1GiB", precision="fp32", export="none",
                     rank_timeout=120)


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    train_ranks(forebay, 2, out=out, zero_stage=0, **task)
    return digest_of_ranks(forebay, out, 2)


@pytest.fixture(params=["one host", "two hosts"])
def hosts(request):
    """The commands to start ranks behind, with the address of the first, and the addresses of both."""
    if request.param == "one host":
        yield ([[], []], "127.0.0.1"), ("127.0.0.1", "127.0.0.1")
        return
    with TwoHosts(f"forebay-{os.getpid()}") as two:
        yield two.hosts, two.addresses


@contextlib.contextmanager
def strangers_at(processes, addresses, prefix):
    """Yields when they are there. Those of the second host come through the cable."""
    program = pathlib.Path(__file__).parent / "strangers.py"
    ranks = [f"{address}={process.pid}" for address, process in zip(addresses, processes, strict=True)]
    with subprocess.Popen([*prefix, sys.executable, "-B", program, *ranks], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as strangers:
        report = {}
        try:
            assert strangers.stdout.readline() == "ready\n"
            yield report
        finally:
            output, _ = strangers.communicate()
            report.update(json.loads(output.splitlines()[-1]))


@pytest.mark.parametrize("secret", ["", SECRET], ids=["without a secret", "with a secret"])
def test_strangers_change_nothing_and_delay_nobody(forebay, task, expected, hosts, tmp_path, secret):
    """In the meeting, where rank 1 comes when the strangers are there, in steps and in commits."""
    (prefixes, address), addresses = hosts
    gate = tmp_path / "gate"
    late = ["sh", "-c", f'while [ ! -e "{gate}" ]; do sleep 0.02; done; exec "$@"', "-"]
    environments = [{"FOREBAY_JOB_SECRET": secret} if secret else {}] * 2
    processes = start_ranks(forebay, 2, out=tmp_path / "run", zero_stage=0, environments=environments,
                            hosts=([prefixes[0], [*prefixes[1], *late]], address), **task)
    with strangers_at(processes, addresses, prefixes[1]) as report:
        where = {at for at, _ in listening(processes[0].pid)}
        gate.touch()
        ends = ends_of(processes)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert digest_of_ranks(forebay, tmp_path / "run", 2) == expected
    # There were some, and nobody listens to them during the steps.
    assert report["connected"] >= 190 and report["refused"] > 0, report
    # Rank 0 listens only at the address that the others were given.
    assert where == {bytes(reversed([int(part) for part in address.split(".")])).hex().upper()}
    is_exposed = addresses[0] != addresses[1]
    assert (NO_SECRET in ends[0][2]) == (is_exposed and not secret), ends[0][2]
    assert NO_SECRET not in ends[1][2]


def test_ranks_with_other_secrets_say_so_and_tell_none(forebay, task, tmp_path):
    secrets = [SECRET, SECRET.upper()]
    processes = start_ranks(forebay, 2, out=tmp_path / "run", environments=[{"FOREBAY_JOB_SECRET": one} for one in secrets],
                            **{**task, "rank_timeout": 2})
    for code, output, errors in ends_of(processes):
        assert code == 9 and "FOREBAY_JOB_SECRET" in errors and "another secret" in errors, errors
        assert not any(one in output + errors for one in secrets)
    assert not (tmp_path / "run" / "store").exists()


def test_a_secret_that_is_none_is_refused_at_once(forebay, task, tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o644)
    for variables, says in [({"FOREBAY_JOB_SECRET": ""}, "has 0 characters"),
                            ({"FOREBAY_JOB_SECRET_FILE": str(file)}, "'chmod 600'")]:
        ends = ends_of(start_ranks(forebay, 2, out=tmp_path / "run", environments=[variables] * 2, **task))
        assert [code for code, _, _ in ends] == [2, 2], ends
        assert all(says in errors for _, _, errors in ends), ends
    file.chmod(0o600)
    train_ranks(forebay, 2, out=tmp_path / "run", environments=[{"FOREBAY_JOB_SECRET_FILE": str(file)},
                                                               {"FOREBAY_JOB_SECRET": SECRET}], **task)
