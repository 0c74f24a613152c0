"""Schedules of the learning rate in whole runs: what each step is made with, and that stops and crashes do not show."""

import json

import pytest
from conftest import make_model, random_rows, write_rows

SETTINGS = dict(batch=2, seq=32, steps=6, lr=1e-3, ram="1GiB", weights_tier="nvme", state_tier="nvme")
# Cycles beta1 as well.
ONE_CYCLE = dict(schedule="one_cycle", schedule_args="pct_start=0.5,div_factor=10,anneal_strategy=linear")


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schedules")
    tokens, flags = random_rows(12, 32, 256, seed=1)
    return dict(model=make_model(forebay, folder / "model"), data=write_rows(folder / "data.fbd", tokens, flags, 256))


def rates(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line["lr"] for line in map(json.loads, lines) if "lr" in line]


def test_each_step_has_the_rate_of_its_schedule(forebay, task, tmp_path):
    forebay.run("train", out=tmp_path / "run", **task, **SETTINGS, **ONE_CYCLE)
    # PyTorch: 1e-4 to 1e-3 at 0.5 * 6 - 1 = 2, then to 1e-4 / 1e4 at 5.
    fall = [1e-3 + (1e-8 - 1e-3) * part / 3 for part in (1, 2, 3)]
    assert rates(tmp_path / "run") == pytest.approx([1e-4, 5.5e-4, 1e-3, *fall])


def test_the_betas_of_a_schedule_are_used(forebay, task, tmp_path):
    for name, cycles in (("with", "true"), ("without", "false")):
        args = ONE_CYCLE["schedule_args"] + f",cycle_momentum={cycles}"
        forebay.run("train", out=tmp_path / name, **task, **SETTINGS, schedule="one_cycle", schedule_args=args)
    assert rates(tmp_path / "with") == rates(tmp_path / "without")
    assert forebay.digest(tmp_path / "with") != forebay.digest(tmp_path / "without")


def test_a_stop_does_not_show(forebay, task, tmp_path):
    forebay.run("train", out=tmp_path / "whole", **task, **SETTINGS, **ONE_CYCLE)
    forebay.run("train", out=tmp_path / "parts", stop_after=2, check=False, **task, **SETTINGS, **ONE_CYCLE)
    forebay.run("train", "--resume", out=tmp_path / "parts")
    assert forebay.digest(tmp_path / "parts") == forebay.digest(tmp_path / "whole")


@pytest.mark.parametrize("flags, words", [
    (dict(schedule="WarmupLR", schedule_args="warmup_num_step=3"), ["'warmup_num_step'", "did you mean 'warmup_num_steps'?"]),
    (dict(schedule="WarmupLR", warmup=3), ["--warmup=3", "WarmupLR", "warmup_num_steps=3"]),
    (dict(schedule="OneCycle"), ["needs 'cycle_min_lr'"]),
    (dict(schedule="polynomial", schedule_args="power"), ["--schedule_args", "power=2"]),
    (dict(schedule_args="power=2"), ["'power'", "--schedule=linear has no arguments"]),
])
def test_what_a_schedule_cannot_have_is_an_error(forebay, task, tmp_path, flags, words):
    done = forebay.run("train", out=tmp_path / "run", check=False, **task, **SETTINGS, **flags)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "run").exists()


def test_arguments_may_stand_in_a_configuration(forebay, task, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"optim": {"schedule": "polynomial", "schedule_args": {"power": 2, "end_lr": 1e-4}}}))
    forebay.run("train", out=tmp_path / "run", config=config, **task, **SETTINGS)
    assert rates(tmp_path / "run") == pytest.approx([1e-4 + 9e-4 * (1 - p / 6) ** 2 for p in range(6)])
    other = forebay.run("train", "--resume", out=tmp_path / "run", set="schedule_args=power=3", check=False)
    assert other.returncode == 2 and "--schedule_args" in other.stderr


def test_a_deepspeed_configuration_is_the_flags_that_it_stands_for(forebay, task, tmp_path):
    disk = {"device": "nvme", "nvme_path": str(tmp_path / "disk"), "pin_memory": True}
    (tmp_path / "disk").mkdir()
    (tmp_path / "ds.json").write_text(json.dumps({
        "train_batch_size": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.8, 0.95], "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 2e-3}},
        "zero_optimization": {"stage": 3, "offload_param": disk, "offload_optimizer": disk}}))
    size = dict(seq=32, steps=3, ram="1GiB")
    done = forebay.run("train", out=tmp_path / "ds", ds_config=tmp_path / "ds.json", **task, **size)
    assert "pin_memory is ignored: memory is pinned only for GPUs" in done.stderr
    assert (tmp_path / "disk" / "forebay").is_dir()
    forebay.run("train", "--optimizer_args=decay_all", out=tmp_path / "flags", batch=2, accum=2, clip=0.5, lr=2e-3, betas="0.8,0.95",
                weight_decay=0.1, schedule="WarmupLR", schedule_args="warmup_num_steps=3,warmup_max_lr=2e-3",
                weights_tier="nvme", state_tier="nvme", **task, **size)
    assert forebay.digest(tmp_path / "ds") == forebay.digest(tmp_path / "flags")


def test_what_is_auto_in_a_deepspeed_configuration_is_the_flags(forebay, task, tmp_path):
    """As the Trainer of transformers has it, with activation checkpointing."""
    auto = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    (tmp_path / "ds.json").write_text(json.dumps({
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": auto},
        "scheduler": {"type": "WarmupDecayLR", "params": {
            "total_num_steps": "auto", "warmup_num_steps": 2, "warmup_min_lr": "auto", "warmup_max_lr": "auto"}},
        "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto"},
        "activation_checkpointing": {"number_checkpoints": 2, "cpu_checkpointing": True}}))
    size = dict(batch=4, seq=32, steps=4, ram="1GiB", lr=1e-3, clip=0.5)
    done = forebay.run("train", out=tmp_path / "ds", ds_config=tmp_path / "ds.json", **task, **size)
    assert 'gradient_clipping' in done.stderr and '"auto" leaves it to the flags' in done.stderr
    forebay.run("train", "--optimizer_args=decay_all", out=tmp_path / "flags", schedule="WarmupDecayLR", activations_tier="ram",
                schedule_args="warmup_num_steps=2,warmup_max_lr=0.001", number_checkpoints=2, **task, **size)
    assert forebay.digest(tmp_path / "ds") == forebay.digest(tmp_path / "flags")
