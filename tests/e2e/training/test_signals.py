"""Stopping a run from outside: what each signal promises, and that a resume gives the bits of one run."""

import json
import os
import signal
import subprocess

import pytest
from conftest import make_model, random_rows, write_rows

SEQ, BATCH, ACCUM, STEPS = 64, 2, 2, 8
SETTINGS = dict(batch=BATCH, accum=ACCUM, seq=SEQ, steps=STEPS, lr=1e-3, ram="1GiB", seed=3)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    tokens, flags = random_rows(24, SEQ, 256, seed=5)
    data = write_rows(folder / "data.fbd", tokens, flags, 256)
    return dict(SETTINGS, model=make_model(forebay, folder / "model"), data=data)


@pytest.fixture(scope="module")
def slow_task(forebay, tmp_path_factory):
    """One layer takes longer than two signals: 64 rows go through each before the next is begun."""
    folder = tmp_path_factory.mktemp("slow")
    tokens, flags = random_rows(64, 128, 256, seed=6)
    data = write_rows(folder / "data.fbd", tokens, flags, 256)
    model = make_model(forebay, folder / "model", hidden_size=256, intermediate_size=512)
    return dict(model=model, data=data, batch=8, accum=8, seq=128, steps=2, lr=1e-3, ram="2GiB", threads=1)


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out)


def start(forebay, out, settings, *extra):
    command = [forebay.binary, "train", f"--out={out}", *extra] + [f"--{k}={v}" for k, v in settings.items()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(stream, words):
    """Reads lines until one holds `words`."""
    for line in stream:
        if words in line:
            return
    raise AssertionError(f"the program ended without a line with '{words}'")


def finish(process):
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_ends_the_run_resumably(forebay, task, expected, tmp_path, kind):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    wait_for(process.stdout, "step 3/")
    process.send_signal(kind)
    code, errors = finish(process)
    assert code == 75, errors
    assert "stopped on request after step" in errors and "--resume" in errors
    forebay.run("train", "--resume", out=out, **task)
    assert forebay.digest(out) == expected


def test_a_second_ctrl_c_ends_at_once_and_the_run_can_be_resumed(forebay, slow_task, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, slow_task)
    wait_for(process.stdout, "step 1/")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "once more ends at once")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    forebay.run("train", "--resume", out=out, **slow_task)
    forebay.run("train", out=tmp_path / "whole", **slow_task)
    assert forebay.digest(out) == forebay.digest(tmp_path / "whole")


def test_two_signals_that_arrive_together_end_at_once(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    wait_for(process.stdout, "step 3/")
    # Both are pending when the process goes on, so that nothing of it runs in between.
    for kind in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        process.send_signal(kind)
    code, errors = finish(process)
    assert code == 130, errors
    forebay.run("train", "--resume", out=out, **task)
    assert forebay.digest(out) == expected


@pytest.mark.parametrize("words", ["step 1/", "step 4/", "step 8/"])
def test_a_killed_run_is_resumed_with_the_bits_of_one_run(forebay, task, expected, tmp_path, words):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    wait_for(process.stdout, words)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    forebay.run("train", "--resume", out=out, **task)
    assert forebay.digest(out) == expected
    assert os.path.exists(out / "model" / "model.safetensors")


def test_a_run_killed_before_its_first_commit_is_started_again(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    while not os.path.exists(out / "run.json"):
        assert process.poll() is None, finish(process)
    process.kill()
    finish(process)
    settings = dict(task, out=out)
    if '"creating"' in (out / "run.json").read_text():
        refused = forebay.run("train", "--resume", check=False, **settings)
        assert refused.returncode == 2 and "Start it again without --resume" in refused.stderr
        forebay.run("train", **settings)
    else:
        forebay.run("train", "--resume", **settings)
    assert forebay.digest(out) == expected


def test_an_interrupted_evaluation_is_made_up_for(forebay, slow_task, tmp_path):
    settings = dict(slow_task, eval_data=slow_task["data"])
    out, whole = tmp_path / "run", tmp_path / "whole"
    forebay.run("train", out=whole, **settings)
    expected = [json.loads(line).get("eval_loss") for line in open(whole / "metrics.jsonl")]

    before_the_steps = start(forebay, out, settings)
    wait_for(before_the_steps.stderr, "evaluating")
    before_the_steps.send_signal(signal.SIGTERM)
    code, errors = finish(before_the_steps)
    assert code == 75 and "after step 0 of 2. All of it is saved" in errors, errors

    after_the_steps = start(forebay, out, settings, "--resume")
    wait_for(after_the_steps.stderr, "held-out loss before the first step")
    wait_for(after_the_steps.stderr, "evaluating")
    after_the_steps.send_signal(signal.SIGTERM)
    code, errors = finish(after_the_steps)
    assert code == 75 and "after step 2 of 2. All of it is saved" in errors, errors

    done = forebay.run("train", "--resume", out=out, **settings)
    assert "nothing was left to train: all 2 steps are committed" in done.stdout
    assert "nan" not in done.stdout
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert [line.get("eval_loss") for line in lines] == expected
    assert f"loss       {lines[2]['loss']:.4f} in the last step" in done.stdout
