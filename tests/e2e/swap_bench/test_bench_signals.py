"""swap-bench that is stopped: in every phase, by every signal, and nothing is left behind."""

import os
import signal
import subprocess
import time

import pytest

# Whatever goes on when the signal comes goes on for long enough.
PHASES = {
    "filling a file in": ["--size=1G"],
    "read": ["--size=64M", "--op=read", "--warmup=300s"],
    "write": ["--size=64M", "--op=write", "--warmup=0", "--time=300s"],
    "mixed50": ["--size=64M", "--op=mixed", "--warmup=0", "--time=300s", "--verify"],
    "reading back": ["--size=1G", "--op=write", "--warmup=0", "--time=0.1s", "--verify"],
}


def start(bench, *arguments):
    return subprocess.Popen([bench.binary, *map(str, arguments), "--live"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def wait_for(process, phase):
    for line in process.stderr:
        if line.startswith(phase):
            return
    raise AssertionError(f"the program ended without '{phase}'")


def free_bytes(folder):
    return os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize


def assert_space_comes_back(folder, before):
    # File systems free in the background, and others use this one too.
    for _ in range(100):
        if free_bytes(folder) > before - (256 << 20):
            return
        time.sleep(0.1)
    raise AssertionError(f"{before - free_bytes(folder)} bytes did not come back")


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_every_phase(bench, disk, phase):
    before = free_bytes(disk)
    process = start(bench, disk, *PHASES[phase])
    wait_for(process, phase)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "stopping; once more ends at once" in errors and "stopped on request" in errors
    assert output == ""
    assert_space_comes_back(disk, before)


@pytest.mark.parametrize("command, phase", [
    (["sweep", "--size=1G", "--budget=300s"], "filling"), (["sweep", "--size=256M", "--budget=300s"], "read"),
    (["tune", "--size=256M", "--budget=300s"], "read"), (["step", "--params=200M", "--size=1G", "--time=300s"], "replaying"),
], ids=lambda value: value if isinstance(value, str) else value[0])
def test_ctrl_c_in_the_other_commands(bench, disk, command, phase):
    before = free_bytes(disk)
    process = start(bench, command[0], disk, *command[1:])
    wait_for(process, phase)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "stopped on request" in errors and output == ""
    assert os.listdir(disk) == []
    assert_space_comes_back(disk, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(bench, disk, number):
    process = start(bench, disk, *PHASES["write"])
    wait_for(process, "write")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 75


def test_a_killed_one_leaves_nothing_behind(bench, disk):
    before = free_bytes(disk)
    process = start(bench, disk, *PHASES["write"], "--size=1G")
    wait_for(process, "write")
    process.kill()
    process.communicate(timeout=60)
    assert_space_comes_back(disk, before)


def test_a_closed_pipe_does_not_kill_it(bench, disk):
    process = start(bench, disk, *PHASES["read"])
    wait_for(process, "read")
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    process.stderr.close()
