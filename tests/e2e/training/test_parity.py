"""Training with forebay equals training with PyTorch: the same losses, gradient norms and final weights."""

import json
import os

import pytest
import reference
import tiny_models
from conftest import random_rows, read_metrics, write_rows

STEPS = 20
SETTINGS = dict(
    lr=2e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, clip=0.5, warmup=5, schedule="cosine"
)
# An emulated GPU takes some hundred times as long for a token.
BATCH, ACCUM, SEQ = (1, 2, 24) if "FOREBAY_DEVICE" in os.environ else (2, 2, 48)
# PyTorch takes long over bf16 where the CPU has no such products, and so the others are for scripts/test --full.
BF16_FAMILIES = list(tiny_models.FAMILIES) if os.environ.get("FOREBAY_FULL") else ["llama_tied", "gpt2"]


def train_with_forebay(forebay, model, data, out, **changes):
    settings = dict(SETTINGS, betas="0.9,0.95", batch=BATCH, accum=ACCUM, seq=SEQ, steps=STEPS)
    settings.update(changes)
    forebay.run("train", model=model, data=data, out=out, ram="1GiB", **settings)
    return read_metrics(out)


def compare(ours, theirs, loss_relative, norm_relative):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a["loss"] == pytest.approx(b["loss"], rel=loss_relative), (a["step"], a, b)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=norm_relative), (a["step"], a, b)
        assert a["lr"] == pytest.approx(b["lr"], rel=1e-9)


def logits_of(model, tokens):
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens[:, :32].astype("int64"))).logits.double()


def relative_difference(logits, expected):
    return float((logits - expected).norm() / expected.norm())


@pytest.mark.parametrize("family", list(tiny_models.FAMILIES))
def test_fp32_training_equals_pytorch(forebay, tmp_path, family):
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make(family, model_directory)
    # As many rows as a step takes: every step sees all of them, in whatever order.
    tokens, flags = random_rows(BATCH * ACCUM, SEQ, vocab, seed=1)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)

    model = reference.load(model_directory)
    batches = [list(zip(tokens.tolist(), flags.tolist()))] * STEPS
    theirs = reference.train(model, batches, SETTINGS)
    ours = train_with_forebay(forebay, model_directory, data, tmp_path / "run", precision="fp32")

    compare(ours, theirs, loss_relative=2e-4, norm_relative=1e-3)
    trained = reference.load(str(tmp_path / "run" / "model"))
    assert reference.relative_l2(trained, model) < 1e-4
    # And what transformers makes of the exported folder as a whole, beside how far the training went.
    expected = logits_of(model, tokens)
    went = relative_difference(logits_of(reference.load(model_directory), tokens), expected)
    assert relative_difference(logits_of(trained, tokens), expected) < 1e-3 < 0.05 < went


@pytest.mark.parametrize(
    "optimizer, own",
    [
        ("adam", dict(betas=(0.9, 0.95), eps=1e-6)),
        ("adagrad", dict(eps=1e-6, lr=1e-2)),
        # Signs of sums that are nearly zero depend on the order of their terms, and so on the CPU: each moves a parameter by 2 lr.
        ("lion", dict(betas=(0.9, 0.98), lr=1e-4)),
        ("sgd", dict(momentum=0.9, nesterov=False, lr=0.1)),
        ("sgd", dict(momentum=0.9, nesterov=True, lr=0.1)),
        ("sgd", dict(momentum=0.0, nesterov=False, lr=0.3)),
    ],
    ids=["adam", "adagrad", "lion", "sgd-momentum", "sgd-nesterov", "sgd"],
)
def test_every_optimizer_equals_pytorchs(forebay, tmp_path, optimizer, own):
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make("llama_tied", model_directory)
    tokens, flags = random_rows(BATCH * ACCUM, SEQ, vocab, seed=1)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)
    settings = dict(dict(lr=2e-3, weight_decay=0.1, clip=0.5, warmup=5, schedule="cosine"), **own)

    model = reference.load(model_directory)
    batches = [list(zip(tokens.tolist(), flags.tolist()))] * STEPS
    theirs = reference.train(model, batches, settings, optimizer=optimizer)
    flags_of = {key: ",".join(map(str, value)) if key == "betas" else str(value).lower() for key, value in settings.items()}
    forebay.run("train", model=model_directory, data=data, out=tmp_path / "run", ram="1GiB", precision="fp32", batch=BATCH,
                accum=ACCUM, seq=SEQ, steps=STEPS, optimizer=optimizer, **flags_of)

    compare(read_metrics(tmp_path / "run"), theirs, loss_relative=2e-4, norm_relative=1e-3)
    trained = reference.load(str(tmp_path / "run" / "model"))
    assert reference.relative_l2(trained, model) < 1e-4 < 1e-3 < reference.relative_l2(reference.load(model_directory), model)


@pytest.mark.parametrize("optimizer, decay_all", [("adamw", False), ("adamw", True), ("sgd", True)])
def test_parameter_groups_equal_pytorchs(forebay, tmp_path, optimizer, decay_all):
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make("qwen2", model_directory)
    tokens, flags = random_rows(BATCH * ACCUM, SEQ, vocab, seed=1)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)
    lr = 0.1 if optimizer == "sgd" else 2e-3
    groups = [
        {"match": "*layers.0.mlp.*", "lr": 3 * lr, "weight_decay": 0.5},
        {"match": "*.mlp.*", "weight_decay": 0.0},
        {"match": "*norm*", "lr": 0.2 * lr},
        {"match": "*.bias", "lr": 0},
    ]
    settings = dict(lr=lr, weight_decay=0.3, clip=0.5, warmup=5, schedule="cosine")
    own = dict(betas=(0.9, 0.95), eps=1e-6) if optimizer == "adamw" else dict(momentum=0.9, nesterov=False)

    model = reference.load(model_directory)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    batches = [list(zip(tokens.tolist(), flags.tolist()))] * STEPS
    theirs = reference.train(model, batches, dict(settings, param_groups=groups, decay_all=decay_all, **own), optimizer=optimizer)
    flags_of = dict(settings, betas="0.9,0.95", eps=1e-6) if optimizer == "adamw" else dict(settings, momentum=0.9)
    forebay.run("train", model=model_directory, data=data, out=tmp_path / "run", ram="1GiB", precision="fp32", batch=BATCH,
                accum=ACCUM, seq=SEQ, steps=STEPS, optimizer=optimizer, param_groups=json.dumps(groups),
                decay_all=str(decay_all).lower(), **flags_of)

    compare(read_metrics(tmp_path / "run"), theirs, loss_relative=2e-4, norm_relative=1e-3)
    trained = dict(reference.load(str(tmp_path / "run" / "model")).named_parameters())
    for name, parameter in model.named_parameters():  # each: all together would hide what small tensors do
        difference = float((trained[name] - parameter).detach().norm())
        assert difference <= 1e-3 * float((parameter.detach() - before[name]).norm()), name


@pytest.mark.parametrize("family", BF16_FAMILIES)
def test_bf16_training_follows_pytorch_autocast(forebay, tmp_path, family):
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make(family, model_directory)
    tokens, flags = random_rows(BATCH * ACCUM, SEQ, vocab, seed=2)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)

    model = reference.load(model_directory)
    batches = [list(zip(tokens.tolist(), flags.tolist()))] * STEPS
    theirs = reference.train(model, batches, SETTINGS, bf16=True)
    ours = train_with_forebay(forebay, model_directory, data, tmp_path / "run", precision="bf16")

    for a, b in zip(ours, theirs):
        assert abs(a["loss"] - b["loss"]) < 2e-2, (a, b)


@pytest.mark.parametrize("family", ["llama_tied", "gpt2"])
def test_fp16_training_follows_pytorch_autocast(forebay, tmp_path, family):
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make(family, model_directory)
    tokens, flags = random_rows(BATCH * ACCUM, SEQ, vocab, seed=2)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)

    model = reference.load(model_directory)
    batches = [list(zip(tokens.tolist(), flags.tolist()))] * STEPS
    theirs = reference.train(model, batches, SETTINGS, fp16_scale=1024.0)
    run = tmp_path / "run"
    ours = train_with_forebay(forebay, model_directory, data, run, precision="fp16", loss_scale=1024, export_dtype="fp32")

    compare(ours, theirs, loss_relative=5e-4, norm_relative=5e-3)
    trained = reference.load(str(run / "model"))
    went = reference.relative_l2(reference.load(model_directory), model)
    assert reference.relative_l2(trained, model) < 0.05 * went


def test_the_exported_folder_gives_the_same_logits_in_transformers(forebay, tmp_path):
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make("qwen2", model_directory)
    tokens, flags = random_rows(4, SEQ, vocab, seed=3)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)
    # One step of a size far below fp32: the weights come out as they went in.
    train_with_forebay(
        forebay, model_directory, data, tmp_path / "run",
        precision="fp32", lr=1e-30, weight_decay=0, steps=1, warmup=0,
    )
    before = reference.load(model_directory)
    after = reference.load(str(tmp_path / "run" / "model"))
    assert (logits_of(before, tokens) == logits_of(after, tokens)).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", list(tiny_models.FAMILIES))
def test_transformers_finds_the_loss_of_the_exported_folder_that_forebay_finds(forebay, tmp_path, family, precision):
    """After steps that moved every weight, so that nothing of the model it came from would pass for it."""
    import torch

    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make(family, model_directory)
    tokens, flags = random_rows(BATCH * ACCUM, SEQ, vocab, seed=3)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)
    train_with_forebay(forebay, model_directory, data, tmp_path / "run", precision=precision, steps=4, warmup=1, lr=1e-2)
    exported = str(tmp_path / "run" / "model")
    ours = json.loads(forebay.run("eval", model=exported, data=data, precision="fp32", format="json").stdout)["loss"]
    rows = list(zip(tokens.tolist(), flags.tolist()))

    def theirs(directory):
        model = reference.load(directory)
        groups = list(reference.segments_by_length(rows))
        trained = sum(sum(map(sum, (flags for _, flags in group))) for group in groups)
        with torch.no_grad():
            return sum(reference.loss_sum(model, group).item() for group in groups) / trained

    assert abs(ours - theirs(exported)) < 1e-4 * abs(ours)
    assert abs(ours - theirs(model_directory)) > 1e-2
