"""Runs on disks that others have filled, with the file systems that people have: a run does not ask again for space that
is its own."""

import contextlib
import resource
import signal
import subprocess
import time

import confined
import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 32


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    """Of a model whose files are larger than what a resume needs beside them."""
    folder = tmp_path_factory.mktemp("task")
    return dict(
        model=make_model(forebay, folder / "model", hidden_size=512, intermediate_size=1024),
        data=write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256),
        batch=2, seq=SEQ, steps=4, lr=1e-3, seed=1, ram="1GiB", weights_tier="nvme", state_tier="nvme", export="none",
    )


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out)


@pytest.mark.parametrize("file_system", [confined.xfs, confined.ext4])
def test_a_resume_asks_for_no_space_that_the_store_has(forebay, task, expected, tmp_path, file_system):
    with file_system(tmp_path / "disk", tmp_path / "image") as disk:
        out = disk / "run"
        forebay.run("train", out=out, stop_after=2, check=False, **task)
        files = [path for path in (out / "swap").iterdir() if path.suffix == ".fbs"]
        leave_bytes = 4 << 20
        assert leave_bytes < max(file.stat().st_size for file in files) / 2
        confined.fill(disk, leave_bytes)
        forebay.run("train", "--resume", "--dry_run", out=out)
        forebay.run("train", "--resume", out=out)
        assert forebay.digest(out) == expected


def test_what_a_copy_on_xfs_left_out_has_to_be_free_and_no_more(forebay, task, expected, tmp_path):
    forebay.run("train", out=tmp_path / "run", stop_after=2, check=False, **task)
    with confined.xfs(tmp_path / "disk", tmp_path / "image") as disk:
        out = disk / "run"
        subprocess.run(["cp", "-r", tmp_path / "run", out], check=True)
        state = out / "swap" / "state.fbs"
        hole_bytes = 6 << 20
        assert state.stat().st_size > 2 * hole_bytes
        # Of the slot that the next step writes: that of step 1.
        offset = state.stat().st_size // 2
        offset -= offset % 4096
        command = ["fallocate", "--punch-hole", "--offset", str(offset), "--length", str(hole_bytes), state]
        subprocess.run(command, check=True)
        confined.fill(disk, hole_bytes // 2)
        for dry_run in (["--dry_run"], []):
            refused = forebay.run("train", "--resume", *dry_run, out=out, check=False)
            assert refused.returncode == 4 and "left out of its files as holes" in refused.stderr, refused.stderr
        confined.fill(disk, hole_bytes + (4 << 20))
        forebay.run("train", "--resume", out=out)
        assert forebay.digest(out) == expected


def with_files_of(limit_bytes):
    """A preexec_fn: 'ulimit -f'."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


@pytest.mark.parametrize("limit_bytes", [1000, 1 << 20, 8 << 20])
def test_a_limit_of_file_sizes_is_named_before_anything_is_begun(forebay, task, tmp_path, limit_bytes):
    command = [forebay.binary, "train", *(flag_of(key, value) for key, value in dict(task, out=tmp_path / "run").items())]
    refused = subprocess.run(command, capture_output=True, text=True, preexec_fn=with_files_of(limit_bytes))
    assert refused.returncode == 4, refused
    assert "in one file" in refused.stderr and "ulimit -f" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("limit_bytes", [1000, 1 << 20, 8 << 20])
def test_a_resume_and_an_export_name_the_limit_of_file_sizes_too(forebay, task, expected, tmp_path, limit_bytes):
    out = tmp_path / "run"
    forebay.run("train", out=out, stop_after=2, check=False, **task)
    for command in (["train", "--resume", f"--out={out}"], ["export", str(out), f"--out={tmp_path / 'model'}"]):
        refused = subprocess.run([forebay.binary, *command], capture_output=True, text=True,
                                 preexec_fn=with_files_of(limit_bytes))
        assert refused.returncode == 4 and "ulimit -f" in refused.stderr, refused
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == expected


def has_space(metrics):
    return metrics.exists() and metrics.stat().st_blocks > 0


def train_beside_a_program_that_fills(forebay, disk, settings, fill):
    """Exit code and messages of a run, behind the start of which `fill` takes the space of its disk. The space of the
    metrics is the last that a run takes."""
    out = disk / "run"
    command = [forebay.binary, "train", *(flag_of(key, value) for key, value in dict(settings, out=out).items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while not has_space(out / "metrics.jsonl") and run.poll() is None:
            time.sleep(0.002)
        run.send_signal(signal.SIGSTOP)
        fill(disk)
        run.send_signal(signal.SIGCONT)
        errors = run.communicate(timeout=300)[1]
    return run.returncode, errors


@pytest.fixture(scope="module")
def saving(forebay, tmp_path_factory):
    """Of a run that exports on its way, of a model whose exports are larger than what a disk loses in its corners."""
    folder = tmp_path_factory.mktemp("saving")
    return dict(
        model=make_model(forebay, folder / "model", hidden_size=256, intermediate_size=512),
        data=write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256), batch=2, seq=SEQ, steps=20,
        save_every=2, keep=3, lr=1e-3, seed=1, ram="1GiB", weights_tier="nvme", state_tier="nvme", schedule="constant")


@pytest.mark.parametrize("file_system", [confined.xfs, confined.ext4])
def test_the_space_of_exports_is_the_runs_to_the_last_inode(forebay, saving, tmp_path, file_system):
    with file_system(tmp_path / "disk", tmp_path / "image") as disk:
        code, errors = train_beside_a_program_that_fills(forebay, disk, saving, confined.fill_beside)
        assert code == 0, errors
        assert errors.count("exported the model of step") == 9, errors
        exports = sorted((disk / "run" / "exports").iterdir())
        assert [path.name for path in exports] == ["step-14", "step-16", "step-18"]
        for export in [*exports, disk / "run" / "model"]:
            forebay.run("inspect", str(export), "--verify")


def take_all_names(disk):
    with contextlib.suppress(OSError):
        for number in range(1 << 20):
            (disk / f"other-{number}").touch()


def test_an_export_that_finds_the_disk_full_is_left_out_and_the_run_goes_on(forebay, saving, tmp_path):
    forebay.run("train", out=tmp_path / "whole", **saving)
    # Names cannot be held: a file system that has no more of them refuses the exports, and what they hold is no help.
    with confined.tmpfs(tmp_path / "disk", "size=128m,nr_inodes=64") as disk:
        code, errors = train_beside_a_program_that_fills(forebay, disk, saving, take_all_names)
        out = disk / "run"
        assert code == 4, errors
        assert errors.count("is not exported, as the disk is full, and training goes on") == 9, errors
        assert "all steps are done and saved" in errors and f"forebay export {out} --out" in errors, errors
        assert not any((out / "exports").iterdir()) if (out / "exports").exists() else True
        assert forebay.digest(out) == forebay.digest(tmp_path / "whole")
        # As the message says.
        forebay.run("export", str(out), out=tmp_path / "model")
        for other in disk.glob("other-*"):
            other.unlink()
        forebay.run("train", "--resume", out=out)
        weights = (out / "model" / "model.safetensors").read_bytes()
        assert weights == (tmp_path / "model" / "model.safetensors").read_bytes()
        assert weights == (tmp_path / "whole" / "model" / "model.safetensors").read_bytes()
