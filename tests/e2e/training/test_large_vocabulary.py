"""A vocabulary too large for its gradients to be in memory whole: they are made in parts, with the same bits."""

import json
import re

import pytest
import tiny_models
from conftest import random_rows, write_rows
from transformers import LlamaConfig

SETTINGS = dict(batch=2, accum=2, seq=48, steps=3, lr=1e-3, clip=0.5, seed=3)
SIZES = {key: SETTINGS[key] for key in ("batch", "accum", "seq")}
AMPLE = "1GiB"


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def task(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("vocabulary")
    model = str(directory / "model")
    vocab = tiny_models.save_random(
        LlamaConfig(
            vocab_size=70_001,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=request.param,
        ),
        model,
    )
    tokens, flags = random_rows(10, 48, vocab, seed=4)
    tokens = tokens * 273 + 5  # from all of the vocabulary
    assert tokens.max() > 65_536
    return dict(model=model, data=write_rows(directory / "data.fbd", tokens, flags, vocab))


def plan(forebay, task, check=True, **options):
    return forebay.run("plan", task["model"], "--format=json", check=check, **SIZES, **options)


def in_parts(forebay, task, **options):
    return json.loads(plan(forebay, task, **options).stdout)["recompute"]["vocabulary_in_parts"]


def least_ram(forebay, task, **options):
    """With which gradients are made in parts, and weights are read in pieces."""
    refused = plan(forebay, task, check=False, ram="1MiB", **options)
    least = re.findall(r"--ram=(\d+MiB)", refused.stdout + refused.stderr)[-1]
    recompute = json.loads(plan(forebay, task, ram=least, **options).stdout)["recompute"]
    assert recompute["vocabulary_in_parts"]
    assert recompute["vocabulary_in_pieces"] == (options.get("weights_tier") != "host")
    return least


def ram_for_gradients_in_parts(forebay, task, **options):
    """The least with which weights are whole, and gradients are not."""
    for mebibytes in range(int(least_ram(forebay, task, **options)[:-3]), 1024):
        recompute = json.loads(plan(forebay, task, ram=f"{mebibytes}MiB", **options).stdout)["recompute"]
        if not recompute["vocabulary_in_pieces"]:
            assert recompute["vocabulary_in_parts"]
            return f"{mebibytes}MiB"
    raise AssertionError("weights are always in pieces")


@pytest.fixture(scope="module")
def tight(forebay, task):
    assert not in_parts(forebay, task, ram=AMPLE)
    return least_ram(forebay, task)


HOW = pytest.mark.parametrize("ram_of", [least_ram, ram_for_gradients_in_parts], ids=["pieces", "parts"])


def train(forebay, task, out, *extra, check=True, **changes):
    return forebay.run("train", *extra, check=check, out=out, **task, **dict(SETTINGS, **changes))


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    train(forebay, task, out, ram=AMPLE)
    return forebay.digest(out)


@pytest.mark.parametrize("changes", [
    {},
    dict(gradients="speculate"),
    dict(gradients="hold", durability="none"),
    dict(activations_tier="nvme"),
    dict(threads=1),
    dict(gradients="speculate", weights_tier="host"),
    dict(number_checkpoints=1),
], ids=lambda changes: "-".join(map(str, changes.values())) or "usual")
@HOW
def test_little_memory_gives_the_bits_of_ample_memory(forebay, task, expected, tmp_path, changes, ram_of):
    out = tmp_path / "run"
    text = train(forebay, task, out, ram=ram_of(forebay, task, **changes), **changes)
    assert "vocabulary its gradients are made in parts" in text.stdout + text.stderr
    assert forebay.digest(out) == expected


def test_evaluations_between_steps_have_the_same_losses(forebay, task, tight, tmp_path):
    losses = {}
    for ram in (AMPLE, tight):
        out = tmp_path / ram
        train(forebay, task, out, ram=ram, eval_data=task["data"], eval_every=1)
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        losses[ram] = [line["eval_loss"] for line in lines if "eval_loss" in line]
        assert len(losses[ram]) >= SETTINGS["steps"]
    assert losses[tight] == losses[AMPLE]


def least_ram_of(forebay, *command):
    refused = forebay.run(*command, check=False, ram="1MiB")
    assert refused.returncode == 4
    return re.findall(r"--ram=(\d+MiB)", refused.stderr)[-1]


def test_an_evaluation_in_the_least_memory_has_the_same_loss(forebay, task):
    flags = ["eval", f"--model={task['model']}", f"--data={task['data']}", "--batch=2", "--format=json"]
    ample, tight = (json.loads(forebay.run(*flags, ram=ram).stdout)
                    for ram in (AMPLE, least_ram_of(forebay, *flags)))
    assert tight["loss"] == ample["loss"]


@pytest.mark.parametrize("changes", [dict(precision="fp16", initial_scale_power=20), dict(precision="fp32"),
                                     dict(delay_update_from=2, commit_every=2)], ids=["fp16", "fp32", "delayed"])
@HOW
def test_so_it_does_where_that_changes_the_result(forebay, task, tmp_path, changes, ram_of):
    """In fp16 the first steps overflow, in a part of a gradient."""
    for name, ram in (("ample", AMPLE), ("tight", ram_of(forebay, task, **changes))):
        train(forebay, task, tmp_path / name, ram=ram, **changes)
    assert forebay.digest(tmp_path / "tight") == forebay.digest(tmp_path / "ample")


def test_a_run_goes_on_with_more_or_less_memory(forebay, task, expected, tight, tmp_path):
    out = tmp_path / "run"
    for ram, resume in [(tight, []), (AMPLE, ["--resume"]), (tight, ["--resume"])]:
        stopped = train(forebay, task, out, *resume, check=False, ram=ram, stop_after=1)
        assert stopped.returncode in (0, 75), stopped.stderr
    assert forebay.digest(out) == expected


def test_a_killed_run_goes_on_to_the_same_bits(forebay, task, expected, tight, tmp_path):
    out = tmp_path / "run"
    forebay.train_until_killed(out=out, ram=tight, **task, **SETTINGS)
    train(forebay, task, out, "--resume", ram=tight)
    assert forebay.digest(out) == expected


def test_one_mebibyte_less_is_refused_before_the_start(forebay, task, tight, tmp_path):
    less = f"{int(tight[:-3]) - 1}MiB"
    refused = train(forebay, task, tmp_path / "run", check=False, ram=less)
    assert refused.returncode == 4
    assert f"--ram={tight}" in refused.stderr
    assert not (tmp_path / "run" / "swap").exists()


@pytest.mark.parametrize("divided", [dict(data_parallel=2), dict(ranks=2)], ids=["parts", "ranks"])
def test_sums_over_the_data_are_of_whole_layers(forebay, task, divided):
    refused = plan(forebay, task, check=False, ram="1MiB", **divided)
    least = re.findall(r"--ram=(\d+MiB)", refused.stdout + refused.stderr)[-1]
    assert not in_parts(forebay, task, ram=least, **divided)
