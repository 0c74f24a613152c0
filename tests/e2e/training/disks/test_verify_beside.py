"""Verifying a run beside the process that trains it: damage is found while it can still be mended, and nothing else is taken
for damage."""

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 32


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(12, SEQ, 256, seed=5), 256)
    model = make_model(forebay, folder / "model")
    return dict(model=model, data=data, batch=2, seq=SEQ, lr=1e-3, ram="1GiB", export="none", tile_elems=4096)


class Training:
    """A run in the background, which is killed at the end."""

    def __init__(self, forebay, out, wait_for_step=2, **settings):
        command = [forebay.binary, "train", "--format=json", f"--out={out}", *(flag_of(k, v) for k, v in settings.items())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while json.loads(self.process.stdout.readline()).get("step", 0) < wait_for_step:
            assert self.process.poll() is None

    def __enter__(self):
        # Whoever does not read what it says would make it wait.
        self.reader = subprocess.Popen(["cat"], stdin=self.process.stdout, stdout=subprocess.DEVNULL)
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.wait()


def verify(forebay, out, check=True):
    return forebay.run("inspect", out, "--verify", "--format=json", check=check)


def flip_byte(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
        os.fsync(file.fileno())


ON_DISK = dict(weights_tier="nvme", state_tier="nvme")
IN_RAM = dict(weights_tier="host", state_tier="host")
MODES = {"on_disk": ON_DISK, "in_ram": dict(IN_RAM, commit_every=1), "delayed": dict(ON_DISK, commit_every=2, delay_update_from=2),
         "speculative": dict(ON_DISK, gradients="speculate", clip=0)}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_a_run_that_trains_is_verified_through_many_commits(forebay, task, tmp_path, mode):
    out = tmp_path / "run"
    steps = set()
    with Training(forebay, out, steps=1000000, **task, **mode) as process:
        for _ in range(15):
            inspected = json.loads(verify(forebay, out).stdout)
            assert inspected["in_use"] and inspected["verified"]["damaged"] == []
            of_steps = inspected["verified"]["steps"]
            assert sum(of_step["bytes"] for of_step in of_steps) == inspected["verified"]["bytes"]
            assert [of_step["step"] for of_step in of_steps] == sorted({of_step["step"] for of_step in of_steps})
            steps |= {of_step["step"] for of_step in of_steps}
        assert process.poll() is None
    assert len(steps) >= 15


def test_damage_beside_a_run_is_named_and_can_still_be_mended(forebay, task, tmp_path):
    out = tmp_path / "run"
    # Its state is in RAM, and the disk is left alone but where it commits: for the evaluations.
    settings = dict(task, steps=1000000, **IN_RAM, eval_data=task["data"], eval_every=20)
    with Training(forebay, out, wait_for_step=41, **settings) as process:
        process.send_signal(signal.SIGSTOP)
        step = json.loads(verify(forebay, out).stdout)["step"]
        # One of the two slots is the committed one.
        size = os.stat(out / "swap" / "state.fbs").st_size
        for offset in (5000, size // 2 + 5000):
            flip_byte(out / "swap" / "state.fbs", offset)
            done = verify(forebay, out, check=False)
            if done.returncode != 0:
                break
            flip_byte(out / "swap" / "state.fbs", offset)
        assert done.returncode == 8
        inspected, error = map(json.loads, done.stdout.splitlines())
        (damage,) = inspected["verified"]["damaged"]
        assert damage["file"] == str(out / "swap" / "state.fbs") and damage["offset_bytes"] <= offset
        assert f"of step {step}" in damage["message"] and "kill -KILL" in error["error"]["message"]
    repaired = json.loads(forebay.run("inspect", out, "--repair", "--format=json").stdout)["repaired"]
    assert repaired["changed"] and repaired["step"] < step


def test_one_copy_cannot_be_verified_beside_its_run(forebay, task, tmp_path):
    out = tmp_path / "run"
    with Training(forebay, out, steps=1000000, durability="none", **task, **ON_DISK):
        done = verify(forebay, out, check=False)
        assert done.returncode == 9 and "one copy" in done.stderr and "Stop the run" in done.stderr
        inspected = json.loads(forebay.run("inspect", out, "--format=json").stdout)
        assert inspected["in_use"] and inspected["slots"] == 1


def test_looking_at_a_run_beside_its_process_changes_no_bit(forebay, task, tmp_path):
    settings = dict(task, steps=60, **ON_DISK)
    forebay.run("train", out=tmp_path / "alone", **settings)
    command = [forebay.binary, "train", f"--out={tmp_path / 'run'}", *(flag_of(k, v) for k, v in settings.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if (tmp_path / "run" / "metrics.jsonl").exists():
            assert verify(forebay, tmp_path / "run", check=False).returncode in (0, 9)
        time.sleep(0.01)
    assert process.returncode == 0
    assert forebay.digest(tmp_path / "run") == forebay.digest(tmp_path / "alone")
