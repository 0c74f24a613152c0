"""Who only looks at a run changes nothing, and needs a disk that can be read and no more: one that became read-only after
an error, one that is full, one where this user may not write. And what a full disk means for who resumes."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile

import confined
import pytest
from conftest import make_model, random_rows, write_rows, write_tokenizer
from option_flags import flag_of

SEQ = 32


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    model = make_model(forebay, folder / "model")
    write_tokenizer(model)
    data = write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256)
    return dict(model=model, data=data, batch=2, seq=SEQ, steps=4, lr=1e-3, seed=1, ram="1GiB", weights_tier="nvme",
                state_tier="nvme")


@pytest.fixture(scope="module")
def stopped(forebay, task, tmp_path_factory):
    """A run that was stopped after three of four steps, with an export of the second."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    done = forebay.run("train", out=out, stop_after=3, save_every=2, check=False, **task)
    assert done.returncode == 75, done.stderr
    return out


@pytest.fixture(scope="module")
def expected(forebay, task, stopped, tmp_path_factory):
    """What the looks at the run say where nothing is in the way."""
    return look_at(forebay, task, shutil.copytree(stopped, tmp_path_factory.mktemp("expected") / "run"))


def look_at(forebay, task, run, preexec_fn=None, with_python=True):
    """Everything that reads a run and its export: the digests of the run and of what was exported elsewhere, and what the
    model says."""
    def say(*arguments, **settings):
        command = [forebay.binary, *arguments, *(flag_of(key, value) for key, value in settings.items())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=preexec_fn)
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}"
        return json.loads(done.stdout)

    with tempfile.TemporaryDirectory(prefix="forebay-elsewhere-") as elsewhere:
        os.chmod(elsewhere, 0o777)
        inspected = say("inspect", run, "--verify", "--hash", "--format=json")
        assert inspected["verified"]["damaged"] == [] and not inspected["in_use"]
        assert say("inspect", run, "--format=json")["step"] == inspected["step"] == 3
        exported = say("export", run, "--format=json", out=f"{elsewhere}/model")
        digest = say("inspect", exported["folder"], "--hash", "--verify", "--format=json")["digest"]
        assert os.listdir(elsewhere) == ["model"]
    export = f"{run}/exports/step-2"
    assert say("inspect", export, "--verify", "--format=json")["verified"]["damaged"] == []
    loss = say("eval", "--format=json", model=export, data=task["data"], ram="1GiB")["loss"]
    if not with_python:
        return inspected["digest"], digest, loss
    text = say("generate", "--format=json", model=export, prompt="a", max_tokens=4, ram="1GiB")["text"]
    return inspected["digest"], digest, loss, text


def state_of(folder):
    """Of every file and folder below: what of it a change would show."""
    state = {}
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            full = os.path.join(path, name)
            info = os.lstat(full)
            contents = b"" if name in folders else open(full, "rb").read()
            state[full] = (info.st_mtime_ns, info.st_ctime_ns, info.st_ino, hashlib.sha256(contents).digest())
    return state


def test_looking_changes_nothing_and_makes_no_file(forebay, task, stopped, expected, tmp_path):
    run = shutil.copytree(stopped, tmp_path / "run")
    before = state_of(tmp_path)
    assert look_at(forebay, task, run) == expected
    assert state_of(tmp_path) == before


def test_a_run_without_its_lock_can_be_looked_at(forebay, task, stopped, expected, tmp_path):
    run = shutil.copytree(stopped, tmp_path / "run")
    (run / "swap" / "lock").unlink()
    assert look_at(forebay, task, run) == expected
    assert not (run / "swap" / "lock").exists()


@pytest.mark.parametrize("file_system", ["ext4", "xfs", "btrfs"])
def test_a_disk_that_is_mounted_read_only(forebay, task, stopped, expected, tmp_path, file_system):
    with getattr(confined, file_system)(tmp_path / "disk", tmp_path / "image") as disk:
        run = shutil.copytree(stopped, disk / "run")
        confined.remount_read_only(disk)
        assert look_at(forebay, task, run) == expected


def test_an_ext4_that_became_read_only_after_an_error(forebay, task, stopped, expected, tmp_path):
    with confined.ext4(tmp_path / "disk", tmp_path / "image", options="errors=remount-ro") as disk:
        run = shutil.copytree(stopped, disk / "run")
        subprocess.run(["sync", "-f", str(disk)], check=True)
        confined.fail_ext4(disk)
        with pytest.raises(OSError):
            (disk / "file").write_text("text")
        assert look_at(forebay, task, run) == expected
        # Who wants to go on is told what is in the way.
        done = forebay.run("train", "--resume", out=run, check=False, **task)
        assert done.returncode == 5 and "EROFS" in done.stderr, done.stderr


@pytest.mark.parametrize("file_system", ["ext4", "xfs", "btrfs"])
def test_a_disk_that_is_full(forebay, task, stopped, expected, tmp_path, file_system):
    with getattr(confined, file_system)(tmp_path / "disk", tmp_path / "image") as disk:
        run = shutil.copytree(stopped, disk / "run")
        confined.fill_to_the_last_block(disk)
        assert look_at(forebay, task, run) == expected


def test_a_user_who_may_only_read(forebay, task, stopped, expected):
    with tempfile.TemporaryDirectory(prefix="forebay-read-") as folder:
        run = shutil.copytree(stopped, f"{folder}/run")
        readable = dict(task, data=shutil.copy(task["data"], folder))
        program = type(forebay)(shutil.copy(forebay.binary, folder))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        before = state_of(folder)
        seen = look_at(program, readable, run, preexec_fn=confined.as_nobody(8 << 20), with_python=False)
        assert seen == expected[:3]
        assert state_of(folder) == before


def test_a_run_whose_swap_area_has_filled_its_disk_goes_on(forebay, task, tmp_path):
    expected = tmp_path / "undisturbed"
    forebay.run("train", out=expected, **task)
    with confined.ext4(tmp_path / "disk", tmp_path / "image") as disk:
        out = tmp_path / "run"
        assert forebay.run("train", out=out, nvme=disk, stop_after=2, check=False, **task).returncode == 75
        confined.fill_to_the_last_block(disk)
        done = forebay.run("train", "--resume", out=out, check=False, **task)
        assert done.returncode == 0, done.stderr
        assert forebay.digest(out) == forebay.digest(expected)


@pytest.mark.parametrize("export", ["hf", "none"])
@pytest.mark.parametrize("file_system", ["ext4", "xfs", "btrfs"])
def test_a_resume_that_lacks_room_says_so_before_it_begins(forebay, task, tmp_path, file_system, export):
    task = dict(task, export=export)
    with getattr(confined, file_system)(tmp_path / "disk", tmp_path / "image") as disk:
        assert forebay.run("train", out=disk / "run", stop_after=2, check=False, **task).returncode == 75
        confined.fill_to_the_last_block(disk)
        done = forebay.run("train", "--resume", out=disk / "run", check=False, **task)
        if done.returncode == 0 and file_system == "xfs" and export == "none":
            return  # of what xfs keeps for itself, so little is enough
        assert done.returncode == 4, done.stderr
        assert ("ENOSPC" in done.stderr or export == "hf") and "ree " in done.stderr and "engine" not in done.stderr
        for full in disk.glob("full-*"):
            full.unlink()
        forebay.run("train", "--resume", out=disk / "run", **task)
