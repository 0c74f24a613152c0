"""The disk engines on the machines that they are made for: containers, users with limits, odd file systems. A run
trains on all of them, says in one line which engine it has, why no better one and how to get it, and has the same
bits. The engines alone are tested in tests/aio/open_engine_test.cc."""

import os
import shutil
import subprocess
import tempfile

import confined
import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 32


@pytest.fixture(scope="module")
def public(tmp_path_factory, forebay):
    """A folder that every user may read, with the program, a model and data."""
    folder = tempfile.mkdtemp(prefix="forebay-ladder-")
    os.chmod(folder, 0o755)
    path = tmp_path_factory.mktemp("ladder")
    shutil.copytree(make_model(forebay, path / "model"), f"{folder}/model")
    write_rows(f"{folder}/data.fbd", *random_rows(8, SEQ, 256, seed=5), 256)
    shutil.copy(forebay.binary, f"{folder}/forebay")
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    yield folder
    shutil.rmtree(folder)


def train(public, out, *flags, preexec_fn=None):
    settings = dict(model=f"{public}/model", data=f"{public}/data.fbd", batch=2, seq=SEQ, steps=3, lr=1e-3, seed=1,
                    ram="1GiB", weights_tier="nvme", state_tier="nvme", out=out)
    command = [f"{public}/forebay", "train", *flags, *(flag_of(key, value) for key, value in settings.items())]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=preexec_fn)


def disk_line(done, out):
    """What the run said of its disk, in its log and on the screen."""
    assert done.returncode == 0, done.stderr
    with open(f"{out}/events.log", encoding="utf-8") as file:
        (line,) = [line.split(" ", 1)[1].strip() for line in file if " disk: " in line]
    assert line in done.stderr or line in done.stdout
    return line.removeprefix("disk: ")


@pytest.fixture(scope="module")
def usual(forebay, public, tmp_path_factory):
    """The same run where nothing is in the way: its digest and its line."""
    out = tmp_path_factory.mktemp("usual") / "run"
    line = disk_line(train(public, out), out)
    return dict(digest=forebay.digest(out), line=line)


@pytest.fixture
def ring(usual):
    if not usual["line"].startswith("io_uring"):
        pytest.skip(f"io_uring with direct I/O is not to be had here: {usual['line']}")


def assert_words(text, *words):
    for word in words:
        assert word in text, text


def test_a_container_that_forbids_io_uring(forebay, public, usual, ring, tmp_path):
    out = tmp_path / "run"
    line = disk_line(train(public, out, preexec_fn=confined.forbidding(*confined.IO_URING)), out)
    assert line.startswith("libaio, direct I/O: io_uring was refused with EPERM")
    assert_words(line, "seccomp profile", "--security-opt seccomp=")
    assert forebay.digest(out) == usual["digest"]


def test_a_container_that_forbids_libaio_too(forebay, public, usual, ring, tmp_path):
    out = tmp_path / "run"
    confine = confined.forbidding(*confined.IO_URING, confined.io_setup())
    line = disk_line(train(public, out, preexec_fn=confine), out)
    assert line.startswith("threads (2), direct I/O: ")
    assert_words(line, "io_uring was refused", "libaio was refused", "seccomp")
    assert forebay.digest(out) == usual["digest"]


def test_strict_refuses_a_lesser_engine_before_anything_is_written(public, ring, tmp_path):
    out = tmp_path / "run"
    refused = train(public, out, "--engine_strict", preexec_fn=confined.forbidding(*confined.IO_URING))
    assert refused.returncode == 9, refused.stderr
    assert_words(refused.stderr, "--engine_strict", "seccomp profile")
    assert not out.exists()


def test_a_run_goes_on_inside_a_container_and_outside_again(forebay, public, usual, ring, tmp_path):
    out = tmp_path / "run"
    confine = confined.forbidding(*confined.IO_URING)
    assert train(public, out, "--stop_after=1").returncode == 75
    assert train(public, out, "--resume", "--stop_after=1", preexec_fn=confine).returncode == 75
    assert train(public, out, "--resume").returncode == 0
    assert forebay.digest(out) == usual["digest"]


@pytest.mark.parametrize("memlock_bytes", [8 << 20, 64 << 10], ids=["8MiB", "64KiB"])
def test_a_user_with_little_locked_memory(forebay, public, usual, ring, memlock_bytes):
    with tempfile.TemporaryDirectory(prefix="forebay-nobody-") as folder:
        os.chmod(folder, 0o777)
        out = f"{folder}/run"
        line = disk_line(train(public, out, preexec_fn=confined.as_nobody(memlock_bytes)), out)
        assert line.startswith("io_uring")
        assert os.stat(f"{out}/swap/state.fbs").st_uid == 65534
        assert forebay.digest(out) == usual["digest"]


def test_tmpfs(forebay, public, usual, tmp_path):
    with confined.tmpfs(tmp_path / "disk") as disk:
        line = disk_line(train(public, disk / "run"), disk / "run")
        assert line.startswith("buffered threads (2), through the page cache: ")
        assert_words(line, "tmpfs keeps its files in RAM", "ext4 or XFS", "--nvme")
        assert forebay.digest(disk / "run") == usual["digest"]


@pytest.mark.parametrize("engine", ["io_uring", "libaio", "threads"])
def test_sectors_of_4096_bytes(forebay, public, usual, ring, tmp_path, engine):
    with confined.ext4(tmp_path / "disk", tmp_path / "image", sector_bytes=4096) as disk:
        line = disk_line(train(public, disk / "run", f"--engine={engine}", "--engine_strict"), disk / "run")
        assert line.startswith(engine) and line.endswith("direct I/O")
        assert forebay.digest(disk / "run") == usual["digest"]


def test_a_file_system_that_reserves_no_space_is_named(forebay, public, usual, tmp_path):
    # Block maps, which ext4 has for disks of ext2 and ext3, know no space that is not written yet.
    with confined.ext4(tmp_path / "disk", tmp_path / "image", features="^extent,^64bit") as disk:
        disk_line(train(public, disk / "run"), disk / "run")
        (line,) = [line for line in (disk / "run/events.log").read_text().splitlines() if " space: " in line]
        assert_words(line, f"'{disk}/run/swap'", "reserves no space", "written in full", "exported")
        assert forebay.digest(disk / "run") == usual["digest"]
        # Its second copy too, which one step alone would not have written to.
        init = subprocess.run([f"{public}/forebay", "init", f"--config={public}/model/config.json", f"--out={disk}/new", "--run"],
                              capture_output=True, text=True)
        assert init.returncode == 0, init.stderr
        for name in ("weights", "state", "seals"):
            with open(disk / f"new/swap/{name}.fbs", "rb") as file:
                assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == os.fstat(file.fileno()).st_size, name


@pytest.mark.parametrize("copies", [True, False])
def test_a_file_system_that_copies_on_write_is_named_unless_that_is_off(forebay, public, usual, tmp_path, copies):
    with confined.btrfs(tmp_path / "disk", tmp_path / "image") as disk:
        if not copies:
            subprocess.run(["chattr", "+C", str(disk)], check=True)
        disk_line(train(public, disk / "run"), disk / "run")
        lines = [line for line in (disk / "run/events.log").read_text().splitlines() if " space: " in line]
        assert len(lines) == copies
        for line in lines:
            assert_words(line, f"'{disk}/run/swap/weights.fbs'", "copies on write", "'chattr +C'")
        assert forebay.digest(disk / "run") == usual["digest"]
        # There the second copy is not written in advance: its first write is the one that a reservation holds.
        init = subprocess.run([f"{public}/forebay", "init", f"--config={public}/model/config.json", f"--out={disk}/new", "--run"],
                              capture_output=True, text=True)
        assert init.returncode == 0, init.stderr
        extents = subprocess.run(["filefrag", "-v", f"{disk}/new/swap/state.fbs"], capture_output=True, text=True, check=True)
        assert ("unwritten" in extents.stdout) == copies


def test_of_several_folders_the_worst_is_named(forebay, public, usual, tmp_path):
    with (confined.ext4(tmp_path / "mapped", tmp_path / "image", features="^extent,^64bit") as mapped,
          confined.btrfs(tmp_path / "copying", tmp_path / "image2") as copying):
        out = tmp_path / "run"
        disk_line(train(public, out, f"--nvme={mapped},{copying}"), out)
        (line,) = [line for line in (out / "events.log").read_text().splitlines() if " space: " in line]
        assert_words(line, f"'{copying}/", "copies on write")
        assert forebay.digest(out) == usual["digest"]


def test_nothing_is_said_of_space_that_is_reserved(public, tmp_path):
    with confined.ext4(tmp_path / "disk", tmp_path / "image") as disk:
        disk_line(train(public, disk / "run"), disk / "run")
        assert " space: " not in (disk / "run/events.log").read_text()


def test_a_file_system_without_direct_io(forebay, public, usual, tmp_path):
    with confined.ext4(tmp_path / "disk", tmp_path / "image", options="data=journal") as disk:
        line = disk_line(train(public, disk / "run"), disk / "run")
        assert line.startswith("buffered threads (2), through the page cache: ")
        assert_words(line, "has no direct I/O", "ext4 or XFS", "--nvme")
        assert forebay.digest(disk / "run") == usual["digest"]
