"""Disks that fail under a run: the error is theirs, and not that of a log which lay on them too. The file systems do
here what they do when their device is lost; every single transfer that fails is in tests/train/faults."""

import fcntl
import os
import re
import struct
import subprocess
import time

import confined
import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 32
_GOING_DOWN = 0x8004587D  # _IOR('X', 125, __u32), of ext4 and XFS
_WITHOUT_THE_LOG = 2


def shut_down(disk):
    """Every call on the file system fails from here on, as after an error of its device."""
    folder = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, _GOING_DOWN, struct.pack("I", _WITHOUT_THE_LOG))
    finally:
        os.close(folder)


def make_read_only(disk):
    """What ext4 does by itself with errors=remount-ro."""
    subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    return dict(
        model=make_model(forebay, folder / "model"), data=write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256),
        batch=2, seq=SEQ, lr=1e-3, seed=1, ram="1GiB", weights_tier="nvme", state_tier="nvme", export="none",
    )


@pytest.mark.parametrize("durability", ["step", "none"])
@pytest.mark.parametrize("file_system, fail", [(confined.ext4, shut_down), (confined.ext4, make_read_only), (confined.xfs, shut_down)])
def test_the_error_is_the_disks_and_not_the_logs(forebay, task, tmp_path, file_system, fail, durability):
    with file_system(tmp_path / "disk", tmp_path / "image") as disk:
        out = disk / "run"
        settings = dict(task, out=out, steps=100000, durability=durability)
        command = [forebay.binary, "train", *(flag_of(key, value) for key, value in settings.items())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            metrics = out / "metrics.jsonl"
            while not (metrics.exists() and metrics.read_text().count("\n") > 3) and run.poll() is None:
                time.sleep(0.05)
            fail(disk)
            _, errors = run.communicate(timeout=120)
    assert run.returncode == 5, errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith("forebay: error: "), errors
    assert re.search(r"EIO|EROFS", last) and "dmesg" in last, last
    assert "events.log" not in last, last
    # Of the log at most this, beside the error.
    told = [line for line in errors.splitlines() if "events.log" in line]
    assert len(told) <= 1 and all("the log is given up" in line for line in told), errors
