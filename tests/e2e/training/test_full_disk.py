"""Runs on disks that others have filled, with the file systems that people have: a run does not ask again for space that
is its own."""

import resource
import subprocess

import confined
import pytest
from conftest import make_model, random_rows, write_rows

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


@pytest.mark.parametrize("durability", ["step", "replay"])
@pytest.mark.parametrize("file_system", [confined.xfs, confined.ext4])
def test_a_resume_asks_for_no_space_that_the_store_has(forebay, task, expected, tmp_path, file_system, durability):
    with file_system(tmp_path / "disk", tmp_path / "image") as disk:
        out = disk / "run"
        forebay.run("train", out=out, stop_after=2, durability=durability, check=False, **task)
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
    command = [forebay.binary, "train", *(f"--{key}={value}" for key, value in dict(task, out=tmp_path / "run").items())]
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
