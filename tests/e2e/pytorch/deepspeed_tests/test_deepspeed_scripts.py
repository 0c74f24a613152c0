"""What scripts that are written for DeepSpeed use besides the engine: torch.distributed, what DeepSpeed prints of loss
scales and memory, deepspeed.checkpointing, monitors, and types of tensors."""

import csv
import gc
import logging
import os
import re
import subprocess
import sys
import types

import pytest
import torch
from test_deepspeed import batch_of, config_of, engine_of, make_model, of_deepspeed, train

import forebay
from forebay import deepspeed
from forebay.deepspeed import checkpointing
from forebay.deepspeed._config import Config, Fp16
from forebay.deepspeed._scaler import LossScaler
from forebay.deepspeed.runtime.utils import see_memory_usage

SCRIPT = """
import torch
import forebay.deepspeed as deepspeed
deepspeed.init_distributed(dist_backend="nccl" if %d else None)
model = torch.nn.Linear(3, 2)
engine, *_ = deepspeed.initialize(model=model, config={"train_batch_size": 2, "optimizer": {"type": "SGD"}})
engine.backward(engine(torch.ones(2, 3)).sum())
engine.step()
ones = torch.ones(2)
deepspeed.comm.all_reduce(ones)
print(torch.distributed.get_rank(), torch.distributed.get_world_size(), ones.tolist(), deepspeed.comm.get_rank())
"""


@pytest.mark.parametrize("asks_for_nccl", [0, 1])
def test_torch_distributed_is_there_and_taken_down(asks_for_nccl):
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT % asks_for_nccl], capture_output=True, text=True,
                          check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 1 [1.0, 1.0] 0" and "destroy_process_group" not in done.stderr


OVERFLOWS = [1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1]


def test_what_is_not_there_says_where_it_is():
    assert not hasattr(deepspeed, "pipe")
    with pytest.raises(AttributeError, match="no 'pipe'.*docs/pytorch.md.*install"):
        deepspeed.pipe  # noqa: B018


def lines_of_zero(power, window, hysteresis, consecutive):
    lines = []
    others = {"DeepSpeedConfigObject": object, "torch": torch, "logging": logging,
              "logger": types.SimpleNamespace(info=lines.append), "dist": types.SimpleNamespace(get_rank=lambda: 0)}
    _, scaler_of = of_deepspeed("runtime/fp16/loss_scaler.py", ["LossScalerBase", "DynamicLossScaler"], **others)
    scaler = scaler_of(2**power, window, 1, hysteresis, consecutive)
    for overflowed in OVERFLOWS:
        scaler.update_scale(bool(overflowed))
    return lines


def lines_of_stage_0(power, window, static):
    lines = []

    def say(text, *values):
        lines.append((text % values if values else text).strip())

    update, = of_deepspeed("runtime/fp16/fused_optimizer.py", ["_update_scale"],
                           logger=types.SimpleNamespace(info=say))
    scale = types.SimpleNamespace(dynamic_loss_scale=not static, cur_scale=static or 2**power, scale_factor=2.0,
                                  min_loss_scale=1, last_overflow_iter=-1, cur_iter=0, scale_window=window)
    optimizer = types.SimpleNamespace(loss_scale_config=scale, verbose=True)
    for overflowed in OVERFLOWS:
        update(optimizer, bool(overflowed))
    return lines


@pytest.mark.parametrize(("stage", "hysteresis", "consecutive", "static"), [
    (1, 2, False, 0), (3, 1, False, 0), (2, 3, True, 0), (0, 2, False, 0), (0, 2, False, 128.0)])
def test_lines_of_loss_scales_are_those_of_deepspeed(stage, hysteresis, consecutive, static):
    lines = []
    scaler = LossScaler(Fp16(False, static, 16, 2, hysteresis, consecutive, 1.0), stage, lines.append)
    for overflowed in OVERFLOWS:
        scaler.update(bool(overflowed))
    expected = lines_of_stage_0(16, 2, static) if stage == 0 else lines_of_zero(16, 2, hysteresis, consecutive)
    assert lines == expected and len(lines) >= 7


def test_the_engine_prints_them(tmp_path, capsys):
    engine = engine_of(config_of(tmp_path, fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 32}))
    train(engine, 0, 3)
    lines = [line for line in capsys.readouterr().out.splitlines() if "OVERFLOW" in line]
    skips = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, "
    assert lines == [skips + "but hysteresis is 2. Reducing hysteresis to 1", skips + "reducing to 2147483648",
                     skips.replace("4294967296", "2147483648") + "reducing to 1073741824"]


def test_memory_is_printed_as_deepspeed_does(capsys, tmp_path):
    see_memory_usage("nothing")
    assert capsys.readouterr().out == ""
    see_memory_usage("after the model", force=True)
    ours = capsys.readouterr().out
    one = types.SimpleNamespace(memory_allocated=lambda: 2**30, max_memory_allocated=lambda: 2**31,
                                reset_peak_memory_stats=lambda: None)
    host = types.SimpleNamespace(total=2**34, available=2**33, percent=50.0)
    theirs, = of_deepspeed("runtime/utils.py", ["see_memory_usage"], gc=gc, get_accelerator=lambda: one,
                           torch_memory_reserved=lambda: 2**30, torch_max_memory_reserved=lambda: 2**30,
                           dist=types.SimpleNamespace(is_initialized=lambda: False),
                           psutil=types.SimpleNamespace(virtual_memory=lambda: host))
    theirs("after the model", force=True)

    def without_numbers(text):
        return re.sub(r"\d+(\.\d+)?", "#", text)

    assert without_numbers(ours) == without_numbers(capsys.readouterr().out)
    engine = engine_of(config_of(tmp_path, memory_breakdown=True))
    train(engine, 0, 1)
    assert "Engine after step\nMA " in capsys.readouterr().out


def test_checkpointing_computes_again_what_it_does_not_keep():
    checkpointing.configure(None, {"activation_checkpointing": {"cpu_checkpointing": True, "number_checkpoints": 2}})
    assert deepspeed.checkpointing.is_configured()
    layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)) for _ in range(3)]
    calls = []

    def gradients(through):
        inputs = torch.linspace(-1, 1, 12).view(2, 6).requires_grad_()
        torch.manual_seed(0)
        hidden = inputs
        for layer in layers:
            hidden = through(lambda x, scale=1.0, layer=layer: calls.append(0) or layer(x) * scale, hidden)
        hidden.sum().backward()
        found = [inputs.grad, *(p.grad for layer in layers for p in layer.parameters())]
        for layer in layers:
            layer.zero_grad()
        return found

    expected = gradients(lambda function, x: function(x, scale=2.0))
    assert len(calls) == 3
    for given, wanted in zip(gradients(lambda function, x: checkpointing.checkpoint(function, x, scale=2.0)), expected):
        assert torch.equal(given, wanted)
    assert len(calls) == 9
    checkpointing.reset()
    with pytest.raises(forebay.UsageError, match="needs num_checkpoints"):
        checkpointing.configure(None, partition_activations=True, contiguous_checkpointing=True)


def rows_of(folder, name):
    with open(folder / f"Train_Samples_{name}.csv", newline="") as file:
        return list(csv.reader(file))


def test_csv_files_have_the_events_of_steps(tmp_path):
    engine = engine_of(config_of(
        tmp_path, gradient_accumulation_steps=2, wall_clock_breakdown=True,
        csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "job"}))
    losses = train(engine, 0, 4)
    assert rows_of(tmp_path / "job", "train_loss") == [
        ["step", "train_loss"], ["8", str(sum(losses[:2]) / 2)], ["16", str(sum(losses[2:]) / 2)]]
    assert rows_of(tmp_path / "job", "lr")[1:] == [["8", "0.0"], ["16", str(engine.get_lr()[0])]]
    assert len(rows_of(tmp_path / "job", "elapsed_time_ms_forward")) == 3
    assert not (tmp_path / "job" / "Train_Samples_loss_scale.csv").exists()


def test_tensorboard_has_the_events_of_steps(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    engine = engine_of(config_of(tmp_path, fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 4},
                                 tensorboard={"enabled": True, "output_path": str(tmp_path), "job_name": "job"}))
    train(engine, 0, 3)
    found = events.EventAccumulator(str(tmp_path / "job")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("Train/Samples/loss_scale")] == [
        (4, 16.0), (8, 16.0), (12, 16.0)]
    assert {"Train/Samples/lr", "Train/Samples/train_loss"} <= set(found.Tags()["scalars"])


def test_wandb_and_comet_get_the_events_if_they_are_installed(tmp_path, monkeypatch):
    said = []
    wandb = types.SimpleNamespace(init=lambda **given: said.append(given),
                                  log=lambda values, step: said.append((step, *values)))
    experiment = types.SimpleNamespace(set_name=said.append,
                                       log_metric=lambda name, value, step: said.append((step, name)))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "comet_ml", types.SimpleNamespace(start=lambda **given: experiment))
    config = config_of(tmp_path, wandb={"enabled": True, "project": "mine", "team": "us"},
                       comet={"enabled": True, "experiment_name": "first", "samples_log_interval": 8})
    train(engine_of(config), 0, 3)
    assert said[:2] == [{"project": "mine", "group": None, "entity": "us"}, "first"]
    assert said.count((4, "Train/Samples/lr")) == 2 and said.count((8, "Train/Samples/lr")) == 1
    for name, package in (("wandb", "wandb"), ("comet", "comet_ml")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(forebay.UsageError, match=rf"{name}.enabled is true, .*pip install {package}"):
            engine_of(config_of(tmp_path, **{name: {"enabled": True}}))


@pytest.mark.parametrize("nvme", [False, True])
def test_bf16_leaves_out_a_step_that_overflows_as_deepspeed_does(tmp_path, capsys, nvme):
    engine = engine_of(config_of(tmp_path, 2, nvme, bf16={"enabled": True, "check_grad_overflow": True}))
    before = {name: weight.clone() for name, weight in engine.module_state_dict().items()}
    engine.backward(engine(batch_of(0)[0].bfloat16()).float().sum() * float("inf"))
    engine.step()
    assert all(torch.equal(weight, before[name]) for name, weight in engine.module_state_dict().items())
    assert engine.skipped_steps == 1 and engine.lr_scheduler.last_batch_iteration == -1
    assert "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated." in \
        capsys.readouterr().out
    engine.backward(engine(batch_of(1)[0].bfloat16()).float().sum())
    engine.step()
    assert engine.was_step_applied() and engine.skipped_steps == 1
    engine.destroy()
    asked_not_to = engine_of(config_of(tmp_path, bf16={"enabled": True, "check_grad_overflow": False}))
    asked_not_to.backward(asked_not_to(batch_of(0)[0].bfloat16()).float().sum() * float("inf"))
    with pytest.raises(forebay.NumericalError):
        asked_not_to.step()


class WithBuffers(torch.nn.Module):
    _keep_in_fp32_modules_strict = ["bias_of_*"]

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("frequencies", torch.full((3,), 1 / 3))
        self.register_buffer("bias_of_routes", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.ones(3, dtype=torch.int64))


def types_of_buffers(**data_types):
    return [str(buffer.dtype).removeprefix("torch.") for buffer in trained_in_bf16(data_types).buffers()]


def trained_in_bf16(data_types):
    model = WithBuffers()
    deepspeed.initialize(model=model, config={"train_batch_size": 1, "bf16": {"enabled": True}, "data_types": data_types,
                                              "optimizer": {"type": "SGD"}})
    return model


def test_types_of_buffers():
    assert types_of_buffers() == ["float32", "float32", "int64"]
    assert types_of_buffers(buffer_dtype="bf16") == ["bfloat16", "float32", "int64"]
    assert types_of_buffers(buffer_dtype="bf16", keep_in_fp32_modules=["freq*"]) == ["float32", "bfloat16", "int64"]
    assert types_of_buffers(keep_in_fp32_modules=[]) == ["float32", "bfloat16", "int64"]
    assert Config.read({"bf16": {"enabled": True}, "data_types": {"param_dtype": "bfloat16"}}).bf16
    with pytest.raises(forebay.UsageError, match='data_types.param_dtype is "bf16", and .* say fp32'):
        Config.read({"data_types": {"param_dtype": "bf16"}})


def test_a_buffer_that_is_kept_in_fp32_keeps_its_bits():
    model = trained_in_bf16({"buffer_dtype": "bf16", "keep_in_fp32_modules": ["freq*"]})
    assert torch.equal(model.frequencies, torch.full((3,), 1 / 3))


def test_a_16_bit_model_without_a_precision_is_told_to_be_fp32(capsys):
    deepspeed.initialize(model=make_model(torch.bfloat16), config={"optimizer": {"type": "SGD"}})
    assert "weights of the model were torch.bfloat16: they are torch.float32 now" in capsys.readouterr().out


@pytest.mark.parametrize("nvme", [False, True])
@pytest.mark.parametrize("grad_accum", [None, "fp32"])
def test_gradients_of_micro_batches_add_up_in_the_type_that_is_asked_for(tmp_path, grad_accum, nvme):
    engine = engine_of(config_of(tmp_path, 2, nvme, gradient_accumulation_steps=8, bf16={"enabled": True},
                                 data_types={"grad_accum_dtype": grad_accum}, gradient_clipping=0,
                                 optimizer={"type": "SGD", "params": {"lr": 0.5}}, scheduler=None))
    model = make_model(torch.bfloat16)
    added = [torch.zeros(p.shape, dtype=torch.float32 if grad_accum else p.dtype) for p in model.parameters()]
    for step in range(8):
        inputs, labels = batch_of(step)
        loss = torch.nn.functional.cross_entropy(engine(inputs.bfloat16()).float(), labels)
        engine.backward(loss)
        engine.step()
        (torch.nn.functional.cross_entropy(model(inputs.bfloat16()).float(), labels) / 8).backward()
        for total, parameter in zip(added, model.parameters()):
            total += parameter.grad
            parameter.grad = None
    # A sum of 8 that is rounded to 8 bits each time differs in the third digit. A store rounds it once.
    norm = sum(total.double().square().sum() for total in added).sqrt().item()
    assert engine.get_global_grad_norm() == pytest.approx(norm, rel=2e-4 if nvme else 1e-6)
    engine.destroy()


@pytest.mark.parametrize("nvme", [False, True])
def test_a_step_that_is_refused_ends_as_any_other(tmp_path, nvme):
    """With accumulation the next step is as many micro-batches as every one."""
    zero = {"stage": 3 if nvme else 1, "ignore_unused_parameters": False,
            **({"offload_param": {"device": "nvme", "nvme_path": str(tmp_path)}} if nvme else {})}
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 4), "unused": torch.nn.Linear(4, 4)})
    model.forward = lambda x, all_of_it: model["unused"](model["used"](x)) if all_of_it else model["used"](x)
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}})

    def micro_batch(all_of_it):
        engine.backward(engine(torch.ones(2, 4), all_of_it).sum())
        engine.step()

    micro_batch(False)
    with pytest.raises(forebay.UsageError, match="2 parameters got no gradient"):
        micro_batch(False)
    micro_batch(True)
    assert engine.global_steps == 0
    micro_batch(True)
    assert engine.global_steps == 1 and engine.micro_steps == 4
    engine.destroy()

