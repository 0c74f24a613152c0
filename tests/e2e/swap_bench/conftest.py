"""Shared pieces: where the program is, small runs of it, and mounts that only one process sees."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # what all e2e tests share

SMALL = ("--size=64M", "--qd=8", "--time=200ms", "--warmup=50ms", "--repeats=1")


class SwapBench:
    def __init__(self, binary):
        self.binary = binary

    def run(self, *arguments, expect=0, **options):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)
        assert expect in (None, done.returncode), f"{arguments}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments, **options):
        return json.loads(self.run(*arguments, "--format=json", **options).stdout)


@pytest.fixture(scope="session")
def bench():
    return SwapBench(os.path.join(os.environ["FOREBAY_BIN"], "swap-bench"))


@pytest.fixture
def disk(tmp_path):
    """A folder that has to be empty again at the end."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def mounted(tmp_path):
    """Makes a command that runs swap-bench where a file system of our choice is mounted on a folder."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("private mounts are not allowed here")
    folder = tmp_path / "mounted"
    folder.mkdir()

    def run(binary, mount_arguments, *arguments):
        script = 'mount "$1" "$2" $3 none "$4" && folder=$4 && shift 4 && exec "$@"'
        kind, *options = mount_arguments
        command = ["unshare", "--mount", "sh", "-c", script, "sh", "-t", kind, " ".join(options), str(folder),
                   binary, *(a.replace("FOLDER", str(folder)) for a in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode == 32:  # mount's own
            pytest.skip(f"the mount failed: {done.stderr}")
        return done

    return run

