"""A run that goes on with another memory budget or other tiers than it was started with gives the same bits."""

import json
import re
import signal
import subprocess
import time

import confined
import pytest
import tiny_models
from conftest import random_rows, write_rows
from transformers import LlamaConfig
from option_flags import flag_of

SETTINGS = dict(batch=2, accum=2, seq=48, steps=6, lr=1e-3, warmup=2, clip=0.5, seed=3)
AMPLE = "1GiB"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Large enough that the least budget, which is a whole number of MiB, cannot hold all gradients."""
    directory = tmp_path_factory.mktemp("budget")
    model = str(directory / "model")
    vocab = tiny_models.save_random(
        LlamaConfig(
            vocab_size=300,
            hidden_size=128,
            intermediate_size=400,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        ),
        model,
    )
    tokens, flags = random_rows(10, 48, vocab, seed=4)
    return dict(model=model, data=write_rows(directory / "data.fbd", tokens, flags, vocab))


def plan(forebay, task, ram, check=True):
    sizes = {key: SETTINGS[key] for key in ("batch", "accum", "seq")}
    return forebay.run("plan", task["model"], "--format=json", check=check, ram=ram, **sizes)


@pytest.fixture(scope="module")
def tight(forebay, task):
    """The least --ram, with which gradients and activations wait on disk."""
    refused = plan(forebay, task, "1MiB", check=False)
    least = re.findall(r"--ram=(\d+MiB)", refused.stdout + refused.stderr)[-1]
    assert json.loads(plan(forebay, task, least).stdout)["gradient_area_bytes"] > 0
    assert json.loads(plan(forebay, task, AMPLE).stdout)["gradient_area_bytes"] == 0
    return least


def train(forebay, task, out, check=True, extra=(), **changes):
    return forebay.run("train", *extra, check=check, out=out, **task, **dict(SETTINGS, **changes))


def stop_after(forebay, task, out, steps, **changes):
    stopped = train(forebay, task, out, check=False, stop_after=steps, **changes)
    assert stopped.returncode == 75, stopped.stderr


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    train(forebay, task, out, ram=AMPLE)
    return forebay.digest(out)


def gradient_file(out):
    return out / "swap" / "gradients.fbs"


@pytest.mark.parametrize("order", ["less", "more", "less-more-less"])
def test_another_budget_at_every_resume_gives_the_bits_of_one_run(
    forebay, task, expected, tight, tmp_path, order
):
    budgets = {"less": [AMPLE, tight], "more": [tight, AMPLE], "less-more-less": [AMPLE, tight, AMPLE, tight]}[order]
    out = tmp_path / "run"
    resume = []
    for ram in budgets[:-1]:
        stop_after(forebay, task, out, 1, ram=ram, extra=resume)
        assert gradient_file(out).exists() == (tight in budgets[: len(resume) + 1])
        resume = ["--resume"]
    train(forebay, task, out, ram=budgets[-1], extra=resume)
    assert forebay.digest(out) == expected
    if tight in budgets:
        of_tight = json.loads(plan(forebay, task, tight).stdout)
        # Activations lie behind the gradients.
        assert gradient_file(out).stat().st_size == of_tight["gradient_area_bytes"] + of_tight["activation_area_bytes"]
        assert gradient_file(out).stat().st_mode & 0o777 == 0o600


def test_other_tiers_at_every_resume_give_the_bits_of_one_run(forebay, task, expected, tight, tmp_path):
    out = tmp_path / "run"
    resume = []
    for weights, state, ram in [
        ("host", "host", AMPLE),
        ("nvme", "nvme", AMPLE),
        ("host", "nvme", AMPLE),
        ("nvme", "host", AMPLE),
        ("nvme", "nvme", tight),
    ]:
        stop_after(forebay, task, out, 1, ram=ram, weights_tier=weights, state_tier=state, extra=resume)
        resume = ["--resume"]
    train(forebay, task, out, ram=AMPLE, weights_tier="host", state_tier="host", extra=resume)
    assert forebay.digest(out) == expected


@pytest.mark.parametrize("left_bytes", [0, 5000, 1 << 22])
def test_a_gradient_file_of_any_size_is_no_obstacle(forebay, task, expected, tight, tmp_path, left_bytes):
    out = tmp_path / "run"
    stop_after(forebay, task, out, 2, ram=AMPLE)
    with open(gradient_file(out), "wb") as file:
        file.truncate(left_bytes)
    assert forebay.run("inspect", str(out)).returncode == 0
    train(forebay, task, out, ram=tight, extra=["--resume"])
    assert forebay.digest(out) == expected


def test_a_kill_at_any_moment_of_a_resume_with_less_memory_can_be_resumed(
    forebay, task, expected, tight, tmp_path
):
    out = tmp_path / "run"
    stop_after(forebay, task, out, 1, ram=AMPLE)
    arguments = dict(task, **SETTINGS, out=out, ram=tight)
    command = [forebay.binary, "train", "--resume"] + [flag_of(k, v) for k, v in arguments.items()]
    for attempt in range(20):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # Later every time, so that the kill meets the start, the making of the area and the steps.
        time.sleep(0.01 + 0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), errors
        if process.returncode == 0:
            break
    else:
        subprocess.run(command, check=True, capture_output=True)
    assert forebay.digest(out) == expected


def test_a_disk_without_room_for_gradients_is_named_and_nothing_is_lost(
    forebay, task, expected, tight, tmp_path
):
    nvme, out = tmp_path / "nvme", tmp_path / "run"
    # A store of 24 bytes per parameter, and less than the gradients beside it.
    area = json.loads(plan(forebay, task, tight).stdout)["gradient_area_bytes"]
    stop_after(forebay, task, tmp_path / "sized", 1, ram=AMPLE, export="none")
    store = sum(file.stat().st_size for file in (tmp_path / "sized" / "swap").iterdir())
    size = store + (64 << 10) + area // 2
    with confined.tmpfs(nvme, f"size={size}"):
        stop_after(forebay, task, out, 2, ram=AMPLE, nvme=nvme)
        before = forebay.digest(out)
        metrics = (out / "metrics.jsonl").read_bytes()
        for dry_run in (["--dry_run"], []):
            refused = train(forebay, task, out, check=False, ram=tight, extra=["--resume", *dry_run])
            assert refused.returncode == 4, refused.stderr
            assert "--ram" in refused.stderr and str(nvme) in refused.stderr
        assert forebay.digest(out) == before
        assert (out / "metrics.jsonl").read_bytes() == metrics
        train(forebay, task, out, ram=AMPLE, extra=["--resume"])
        assert forebay.digest(out) == expected
