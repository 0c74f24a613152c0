"""Several commands that want one run folder at the same moment: one gets it, and its run is whole."""

import errno
import fcntl
import json
import os
import pathlib
import subprocess

import confined
import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 16
NUM_PAIRS = 20


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256)
    model = make_model(forebay, folder / "model", hidden_size=32, intermediate_size=48, num_hidden_layers=1)
    return dict(model=model, data=data, batch=2, seq=SEQ, steps=3, ram="1GiB", threads=1)


def start(forebay, *flags, **settings):
    command = [forebay.binary, "train", *flags] + [flag_of(key, value) for key, value in settings.items()]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ends_of(processes):
    """[(exit code, errors)]."""
    errors = [process.communicate(timeout=120)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, errors, strict=True)]


@pytest.fixture(scope="module")
def digests(forebay, task, tmp_path_factory):
    """By learning rate."""
    folder = tmp_path_factory.mktemp("whole")
    for lr in (1e-3, 2e-3):
        forebay.run("train", out=folder / str(lr), lr=lr, **task)
    return {lr: forebay.digest(folder / str(lr)) for lr in (1e-3, 2e-3)}


@pytest.mark.parametrize("nvme", [False, True])
def test_of_two_starts_one_wins_and_its_run_is_its_own(forebay, task, digests, tmp_path, nvme):
    for pair in range(NUM_PAIRS // 2):
        out = tmp_path / str(pair)
        where = {"nvme": tmp_path / "nvme"} if nvme else {}
        rates = [1e-3, 2e-3]
        ends = ends_of([start(forebay, out=out, stop_after=1, lr=lr, **task, **where) for lr in rates])
        codes = [code for code, _ in ends]
        # In use, or occupied by a run that has ended since.
        assert sorted(codes) in ([2, 75], [9, 75]), ends
        winner = rates[codes.index(75)]
        loser = ends[1 - codes.index(75)][1]
        assert "is in use by process" in loser or "holds another run" in loser or "holds something already" in loser, loser
        for record in (out / "resolved_config.json", out / "files" / "resolved_config.json"):
            assert json.loads(record.read_text())["optim"]["lr"]["value"] == winner
        assert json.loads((out / "run.json").read_text()) == json.loads((out / "files" / "run.json").read_text())
        assert json.loads(forebay.run("inspect", out, "--verify", "--format=json").stdout)["step"] == 1
        forebay.run("train", "--resume", out=out)
        assert forebay.digest(out) == digests[winner], pair


def test_of_many_starts_one_wins(forebay, task, digests, tmp_path):
    ends = ends_of([start(forebay, out=tmp_path / "run", lr=1e-3, **task) for _ in range(8)])
    codes = sorted(code for code, _ in ends)
    assert codes[0] == 0 and set(codes[1:]) <= {2, 9}, ends
    assert forebay.digest(tmp_path / "run") == digests[1e-3]


def test_of_two_resumes_one_goes_on(forebay, task, digests, tmp_path):
    for pair in range(5):
        out = tmp_path / str(pair)
        assert forebay.run("train", check=False, out=out, stop_after=1, lr=1e-3, **task).returncode == 75
        ends = ends_of([start(forebay, "--resume", out=out, stop_after=1) for _ in range(2)])
        # The second may come when the first has stopped, and goes on from there (and so ends the run).
        assert sorted(code for code, _ in ends) in ([9, 75], [75, 75], [0, 75]), ends
        forebay.run("train", "--resume", out=out)
        assert forebay.digest(out) == digests[1e-3]


def test_a_start_beside_a_clean_or_a_repair_is_whole_or_none(forebay, task, digests, tmp_path):
    for kind in (["clean"], ["inspect", "--repair"]):
        out = tmp_path / kind[0]
        training = start(forebay, out=out, lr=1e-3, **task)
        while training.poll() is None:
            forebay.run(*kind, out, check=False)
        code, errors = ends_of([training])[0]
        assert code == 0, errors
        forebay.run("inspect", out / "model", "--verify")


def test_a_killed_start_leaves_no_lock_behind(forebay, task, digests, tmp_path):
    out = tmp_path / "run"
    killed = start(forebay, out=out, lr=1e-3, **task)
    while not (out / "run.lock").exists():
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    resume = ["--resume"] if (out / "run.json").exists() and '"ready"' in (out / "run.json").read_text() else []
    forebay.run("train", *resume, out=out, lr=1e-3, **task)
    assert forebay.digest(out) == digests[1e-3]


def test_a_file_of_others_named_as_the_lock_is_theirs(forebay, task, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.lock").write_text("my notes")
    for command in (["train"], ["init", "--run", f"--config={task['model']}"]):
        settings = task if command[0] == "train" else {}
        refused = forebay.run(*command, check=False, out=out, **settings)
        assert refused.returncode == 2 and "is not empty" in refused.stderr, refused.stderr
    assert os.listdir(out) == ["run.lock"] and (out / "run.lock").read_text() == "my notes"


@pytest.mark.parametrize("kind", [[], ["--run"]])
def test_an_init_leaves_a_folder_that_is_in_use_alone(forebay, task, tmp_path, kind):
    out = tmp_path / "run"
    out.mkdir()
    with open(out / "run.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for names in (["run.lock"], ["begun", "run.lock"]):
            refused = forebay.run("init", *kind, config=task["model"], out=out, check=False)
            assert refused.returncode == 9 and "is in use by process" in refused.stderr, refused.stderr
            assert sorted(os.listdir(out)) == names
            (out / "begun").touch()
    (out / "begun").unlink()
    forebay.run("init", *kind, config=task["model"], out=out)
    assert (out / "run.lock").exists() == bool(kind)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_said_once_and_used(forebay, task, digests, tmp_path, monkeypatch, number):
    shim = confined.compile_shim(pathlib.Path(__file__).with_name("no_run_lock.c"), tmp_path)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("NO_LOCK_ERRNO", str(number))
    out = tmp_path / "run"
    for resume in ([], ["--resume"]):
        done = forebay.run("train", *resume, out=out, stop_after=0 if resume else 1, lr=1e-3, check=False, **task)
        assert done.returncode == (0 if resume else 75), done.stderr
        assert done.stderr.count("has no locks (flock)") == 1, done.stderr
    assert forebay.digest(out) == digests[1e-3]
    forebay.run("clean", out)


def test_of_two_inits_one_wins(forebay, task, tmp_path):
    for pair in range(5):
        out = tmp_path / str(pair)
        command = [forebay.binary, "init", "--run", f"--config={task['model']}", f"--out={out}"]
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                     for _ in range(2)]
        codes = sorted(code for code, _ in ends_of(processes))
        assert codes in ([0, 2], [0, 9]), codes
        forebay.run("train", "--resume", out=out, data=task["data"], seq=SEQ, steps=1, ram="1GiB")
