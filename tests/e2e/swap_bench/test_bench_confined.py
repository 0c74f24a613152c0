"""swap-bench where system calls are refused, as containers refuse them: it measures with what is left, and says in its
header and its JSON what that is and why."""

import json

import confined
import pytest
from conftest import SMALL


@pytest.fixture
def ring(bench, disk):
    engines = {engine["engine"]: engine["works"] for engine in bench.json("probe", disk)["devices"][0]["engines"]}
    if not engines["io_uring"]:
        pytest.skip("io_uring with direct I/O is not to be had here")


def assert_fell_back(bench, disk, confine, engine, *words):
    text = bench.run(disk, *SMALL, "--op=read", preexec_fn=confine).stdout
    (header,) = [line for line in text.splitlines() if line.startswith("  engine ")]
    assert header.startswith(f"  engine {engine}")
    report = json.loads(bench.run(disk, *SMALL, "--op=read,write", "--format=json", preexec_fn=confine).stdout)
    for run in report["runs"]:
        assert run["engine"] == engine and run["bytes"] > 0
        (reason,) = [reason for reason in run["reasons"] if reason.startswith("fell back to ")]
        assert reason.startswith(f"fell back to {engine}") and reason in "; ".join(run["verdict"])
        for word in words:
            assert word in header and word in reason


def test_a_container_that_forbids_io_uring(bench, disk, ring):
    confine = confined.forbidding(*confined.IO_URING)
    assert_fell_back(bench, disk, confine, "libaio", "io_uring was refused with EPERM", "--security-opt seccomp=")


def test_a_container_that_forbids_libaio_too(bench, disk, ring):
    confine = confined.forbidding(*confined.IO_URING, confined.io_setup())
    assert_fell_back(bench, disk, confine, "threads", "io_uring was refused", "libaio was refused", "seccomp")


def test_strict_refuses_a_lesser_engine_and_says_how_to_get_it(bench, disk, ring):
    confine = confined.forbidding(*confined.IO_URING)
    refused = bench.run(disk, *SMALL, "--engine=io_uring", "--engine-strict", expect=9, preexec_fn=confine)
    for word in ("--engine_strict", "io_uring was refused with EPERM", "--security-opt seccomp="):
        assert word in refused.stderr
    assert refused.stdout == ""
