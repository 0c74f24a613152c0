"""swap-bench that is stopped: in every phase, by every signal, and nothing is left behind."""

import os
import shutil
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


def await_that(condition, what):
    """However much else the machine has to do."""
    deadline_s = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def has_open(pid, folder):
    """Whether the process has a file of the folder open."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
        return any(os.readlink(f"/proc/{pid}/fd/{name}").startswith(f"{folder}/") for name in names)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return False


def assert_nothing_is_left(folder):
    """A file without a name takes space as long as a process has it open. (How much is free says less: others use the
    same file system.)"""
    assert os.listdir(folder) == []
    await_that(lambda: not any(has_open(entry, folder) for entry in os.listdir("/proc") if entry.isdigit()),
               f"a process still has a file of {folder} open")


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_every_phase(bench, disk, phase):
    process = start(bench, disk, *PHASES[phase])
    wait_for(process, phase)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 75, errors
    assert "stopping; once more ends at once" in errors and "stopped on request" in errors
    assert output == ""
    assert_nothing_is_left(disk)


@pytest.mark.parametrize("command, phase", [
    (["sweep", "--size=1G", "--budget=300s"], "filling"), (["sweep", "--size=256M", "--budget=300s"], "read"),
    (["tune", "--size=256M", "--budget=300s"], "read"), (["step", "--params=200M", "--size=1G", "--time=300s"], "replaying"),
], ids=lambda value: value if isinstance(value, str) else value[0])
def test_ctrl_c_in_the_other_commands(bench, disk, command, phase):
    process = start(bench, command[0], disk, *command[1:])
    wait_for(process, phase)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 75, errors
    assert "stopped on request" in errors and output == ""
    assert_nothing_is_left(disk)


def has_signals_in_hand(process):
    """Whether the program has come to where a signal is a request."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        (blocked,) = [int(line.split()[1], 16) for line in file if line.startswith("SigBlk:")]
    return blocked >> (signal.SIGINT - 1) & 1


def test_ctrl_c_in_probe(bench, disk):
    # The same folder often enough to take minutes.
    process = subprocess.Popen([bench.binary, "probe", *[str(disk)] * 20000], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not has_signals_in_hand(process):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 75, errors
    assert "stopped on request" in errors and output == ""


@pytest.mark.parametrize("busy_with", ["--version", "--name=swap-bench"])
def test_a_stop_while_fio_runs_ends_fio_too(bench, disk, tmp_path, busy_with):
    started = tmp_path / "started"
    fio = tmp_path / "fio"
    fio.write_text(f"""#!/bin/sh
[ "$1" = {busy_with} ] || exit 0
echo $$ > {started}.new && mv {started}.new {started}
exec sleep 300
""")
    fio.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen([bench.binary, str(disk), "--size=64M", "--op=read", "--time=100ms", "--fio"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    await_that(started.exists, "fio was not started")
    pid = int(started.read_text())
    process.send_signal(signal.SIGTERM)  # which the terminal would have sent to both
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 75, errors
    assert "stopped on request" in errors and output == ""
    assert not os.path.exists(f"/proc/{pid}")


def processes_with(words):
    """All whose command line has these words."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if words.encode() in file.read():
                    found.append(int(entry))
        except (NotADirectoryError, FileNotFoundError, ProcessLookupError):
            pass
    return found


def test_fio_does_not_outlive_a_kill(bench, disk, tmp_path):
    real = shutil.which("fio")
    if real is None:
        pytest.skip("fio is not installed")
    fio = tmp_path / "fio"  # the real one, with more to do than anybody waits for
    fio.write_text(f"""#!/bin/sh
[ "$1" = --version ] && exit 0
exec {real} "$@" --runtime=300s
""")
    fio.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen([bench.binary, str(disk), "--size=64M", "--op=write", "--time=100ms", "--fio"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    its_file = f"--filename=/proc/{process.pid}/fd/"
    try:
        # Before it has the file, it would end because there is none any more.
        await_that(lambda: any(has_open(pid, disk) for pid in processes_with(its_file)), "fio was not started")
        process.kill()
        process.wait()
        await_that(lambda: not processes_with(its_file), "fio is still there")
    finally:
        process.kill()
        process.wait()
        for pid in processes_with(its_file):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(bench, disk, number):
    process = start(bench, disk, *PHASES["write"])
    wait_for(process, "write")
    process.send_signal(number)
    process.communicate(timeout=200)
    assert process.returncode == 75


def test_a_killed_one_leaves_nothing_behind(bench, disk):
    process = start(bench, disk, *PHASES["write"], "--size=1G")
    wait_for(process, "write")
    process.kill()
    process.communicate(timeout=200)
    assert_nothing_is_left(disk)


def test_a_closed_pipe_does_not_kill_it(bench, disk):
    process = start(bench, disk, *PHASES["read"])
    wait_for(process, "read")
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    process.stderr.close()
