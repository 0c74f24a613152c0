"""What a run does beside its steps: held-out loss, saved exports, refusing what is not finite."""

import json
import os
import re

import pytest
import reference
import tiny_models
import torch
from conftest import random_rows, write_rows

BATCH, ACCUM, SEQ = 2, 1, 48
SETTINGS = dict(batch=BATCH, accum=ACCUM, seq=SEQ, lr=1e-3, clip=0.5, ram="1GiB", precision="fp32", seed=3)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    directory = tmp_path_factory.mktemp("beside")
    model = str(directory / "model")
    vocab = tiny_models.make("llama_tied", model)
    rows = random_rows(7, SEQ, vocab, seed=4)
    # More rows than a micro-batch, not a multiple of it, with untrained tokens and padding.
    held_out = random_rows(5, SEQ, vocab, seed=5)
    return dict(
        model=model,
        data=write_rows(directory / "data.fbd", *rows, vocab),
        held_out=write_rows(directory / "held_out.fbd", *held_out, vocab),
        held_out_rows=held_out,
    )


def train(forebay, task, out, check=True, extra=(), **changes):
    settings = dict(SETTINGS, model=task["model"], data=task["data"], **changes)
    return forebay.run("train", *extra, check=check, out=out, **settings)


def torch_loss(model_directory, rows):
    model = reference.load(str(model_directory))
    total, count = 0.0, 0
    with torch.no_grad():
        for segments in reference.segments_by_length(zip(*(part.tolist() for part in rows))):
            total += float(reference.loss_sum(model, segments))
            count += sum(sum(trained) for _, trained in segments)
    return total / count


def metrics(out):
    with open(out / "metrics.jsonl", encoding="utf-8") as file:
        return {line["step"]: line for line in map(json.loads, file)}


def test_the_held_out_loss_is_pytorchs_at_the_steps_asked_for(forebay, task, tmp_path):
    out = tmp_path / "run"
    train(forebay, task, out, steps=5, eval_data=task["held_out"], eval_every=2)
    lines = metrics(out)
    assert [step for step, line in lines.items() if "eval_loss" in line] == [0, 2, 4, 5]
    before = torch_loss(task["model"], task["held_out_rows"])
    after = torch_loss(out / "model", task["held_out_rows"])
    assert lines[0]["eval_loss"] == pytest.approx(before, rel=2e-5)
    assert lines[5]["eval_loss"] == pytest.approx(after, rel=2e-5)
    assert before != pytest.approx(after, rel=1e-3)


def test_eval_gives_pytorchs_loss_and_counts_trained_tokens(forebay, task):
    done = forebay.run(
        "eval", "--format=json", model=task["model"], data=task["held_out"], precision="fp32", ram="1GiB", seq=SEQ
    )
    result = json.loads(done.stdout)
    _, flags = task["held_out_rows"]
    assert result["trained_tokens"] == int((flags == 1).sum())
    assert result["loss"] == pytest.approx(torch_loss(task["model"], task["held_out_rows"]), rel=2e-5)


def test_evaluating_saving_and_stopping_change_no_bit(forebay, task, tmp_path):
    train(forebay, task, tmp_path / "plain", steps=6)
    beside = dict(eval_data=task["held_out"], eval_every=1, save_every=2, keep=1)
    train(forebay, task, tmp_path / "run", steps=6, check=False, stop_after=3, **beside)
    train(forebay, task, tmp_path / "run", steps=6, extra=["--resume"], **beside)
    assert forebay.digest(tmp_path / "run") == forebay.digest(tmp_path / "plain")
    assert list(metrics(tmp_path / "run")) == [0, 1, 2, 3, 4, 5, 6]


def test_saved_exports_are_the_models_of_their_steps_and_the_oldest_go(forebay, task, tmp_path):
    train(forebay, task, tmp_path / "run", steps=7, schedule="constant", save_every=2, keep=2)
    assert sorted(os.listdir(tmp_path / "run" / "exports")) == ["step-4", "step-6"]
    # With a constant learning rate a run of four steps is the beginning of one of seven.
    train(forebay, task, tmp_path / "short", steps=4, schedule="constant")
    name = "model.safetensors"
    saved = (tmp_path / "run" / "exports" / "step-4" / name).read_bytes()
    assert saved == (tmp_path / "short" / "model" / name).read_bytes()
    assert saved != (tmp_path / "run" / "exports" / "step-6" / name).read_bytes()


def test_a_step_that_is_not_finite_is_not_applied(forebay, task, tmp_path):
    # Decay that turns every weight over and makes it larger, until fp32 ends.
    wild = dict(steps=40, schedule="constant", lr=10, weight_decay=1, clip=0)
    failed = train(forebay, task, tmp_path / "run", check=False, **wild)
    assert failed.returncode == 7, failed.stderr
    assert "not finite" in failed.stderr
    step = int(re.search(r"step (\d+): ", failed.stderr)[1])
    assert step > 1 and f"after step {step - 1}." in failed.stderr
    stopped = train(forebay, task, tmp_path / "before", check=False, stop_after=step - 1, **wild)
    assert stopped.returncode == 75, stopped.stderr
    assert forebay.digest(tmp_path / "run") == forebay.digest(tmp_path / "before")


@pytest.mark.parametrize("key", ["data", "model"])
def test_resuming_with_other_data_or_another_model_names_the_difference(forebay, task, tmp_path, key):
    out = tmp_path / "run"
    train(forebay, task, out, check=False, steps=4, stop_after=1)
    before = forebay.digest(out)
    if key == "data":
        other = write_rows(tmp_path / "other.fbd", *random_rows(7, SEQ, 259, seed=6), 259)
    else:
        other = str(tmp_path / "other")
        tiny_models.make("llama_tied", other, seed=1)
    refused = train(forebay, dict(task, **{key: other}), out, check=False, extra=["--resume"], steps=4)
    assert refused.returncode == 2, refused.stderr
    assert f"--{key}" in refused.stderr and "not those that the run was started with" in refused.stderr
    assert forebay.digest(out) == before
