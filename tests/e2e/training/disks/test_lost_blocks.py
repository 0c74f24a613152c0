"""A bad sector anywhere in a run: whatever block of whatever file cannot be read, nothing is lost but what was there once.

tests/swap/store/lost_blocks_test.cc has every block of a store; this has the files of a run, through the programs."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import confined
import pytest
from conftest import make_model, random_rows, write_rows, write_tokenizer
from option_flags import flag_of

SEQ = 32
BLOCK = 4096


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return confined.compile_shim(pathlib.Path(__file__).with_name("bad_block.c"), tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    model = make_model(forebay, folder / "model")
    write_tokenizer(model)
    data = write_rows(folder / "data.fbd", *random_rows(12, SEQ, 256, seed=5), 256)
    return dict(model=model, data=data, batch=2, seq=SEQ, steps=4, lr=1e-3, ram="1GiB", commit_every=1, engine="threads")


@pytest.fixture(scope="module")
def begun(forebay, task, tmp_path_factory):
    """A run that was stopped after step 2, which is in slot A, and the digest of one that was not."""
    folder = tmp_path_factory.mktemp("begun")
    forebay.run("train", out=folder / "whole", **task)
    forebay.run("train", out=folder / "run", stop_after=2, check=False, **task)
    return folder / "run", forebay.digest(folder / "whole")


def with_bad_block(forebay, shim, path, block, *arguments):
    # Held open: a program that replaces the file would free its inode otherwise, and a new file could get the number.
    with path.open("rb") as bad:
        inode = os.fstat(bad.fileno()).st_ino
        env = dict(os.environ, LD_PRELOAD=str(shim), BAD_INODE=str(inode), BAD_BLOCK=str(block))
        return subprocess.run([forebay.binary, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=300)


def blocks_of(path):
    num = -(-path.stat().st_size // BLOCK)
    return range(num) if num < 12 else [0, num // 4, num // 2 - 1, num // 2, num - 1]


def is_committed_tile(path, block):
    return path.name in ("weights.fbs", "state.fbs") and block < path.stat().st_size // BLOCK // 2


def files_of(run):
    return sorted(path for path in run.rglob("*") if path.is_file())


def test_nothing_is_locked_by_a_block_that_cannot_be_read(forebay, shim, begun):
    run, _ = begun
    num_cases = 0
    for path in files_of(run):
        for block in blocks_of(path):
            case = (str(path.relative_to(run)), block)
            told = with_bad_block(forebay, shim, path, block, "inspect", run, "--verify", "--format=json")
            assert told.returncode == (8 if is_committed_tile(path, block) else 0), (case, told.stderr)
            if is_committed_tile(path, block):
                (damage,) = json.loads(told.stdout.splitlines()[0])["verified"]["damaged"]
                assert damage["file"] == str(path) and "EIO" in damage["message"], case
            num_cases += 1
    assert num_cases > 30


def test_a_resume_mends_what_is_there_twice_and_ends_in_the_same_bits(forebay, shim, begun, tmp_path):
    begun_run, digest = begun
    num_resumed = 0
    for path in files_of(begun_run):
        name = path.relative_to(begun_run)
        if path.name in ("weights.fbs", "state.fbs", "lock", "run.lock"):
            continue
        run = tmp_path / f"run-{num_resumed}"
        shutil.copytree(begun_run, run)
        done = with_bad_block(forebay, shim, run / name, 0, "train", "--resume", f"--out={run}", "--stop_after=0")
        assert done.returncode == 0, (str(name), done.stderr)
        assert forebay.digest(run) == digest, str(name)
        shutil.rmtree(run)
        num_resumed += 1
    assert num_resumed > 10


@pytest.mark.parametrize("name", ["weights.fbs", "state.fbs"])
def test_a_repair_goes_back_a_step_for_a_tile_and_the_run_ends_in_the_same_bits(forebay, shim, begun, tmp_path, name):
    run, digest = tmp_path / "run", begun[1]
    shutil.copytree(begun[0], run)
    path = run / "swap" / name
    done = with_bad_block(forebay, shim, path, 1, "inspect", run, "--repair", "--format=json")
    assert done.returncode == 0, done.stderr
    repaired = json.loads(done.stdout)["repaired"]
    assert (repaired["step_before"], repaired["step"]) == (2, 1)
    forebay.run("train", "--resume", out=run, stop_after=0)
    assert forebay.digest(run) == digest


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("stop", [True, False], ids=["ctrl_c", "next_commit"])
def test_files_that_go_while_a_run_goes_on_end_it(forebay, task, tmp_path, how, stop):
    run = tmp_path / "run"
    # With Ctrl-C all of it is in RAM, and nothing is committed before that.
    settings = dict(task, steps=1000000, weights_tier="host", state_tier="host", commit_every=1000000 if stop else 1)
    command = [forebay.binary, "train", f"--out={run}", "--format=json"] + [flag_of(key, value) for key, value in settings.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while '"step":2' not in process.stdout.readline().replace(" ", ""):
            assert process.poll() is None, process.stderr.read()
        if how == "removed":
            shutil.rmtree(run / "swap")
        else:
            shutil.copy(run / "swap/state.fbs", tmp_path / "state.fbs")
            os.replace(tmp_path / "state.fbs", run / "swap/state.fbs")
        if stop:
            process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # or one that did not end would be waited for without end
    assert process.returncode == 5, errors
    assert f"{run}/swap/" in errors and f"was {how}" in errors, errors
    assert "All of it is saved" not in errors, errors
