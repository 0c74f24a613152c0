"""forebay.deepspeed.install(): the released Trainer of transformers with DeepSpeed configurations, beside itself
without them."""

import os
import shutil
import sys

import pytest
import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
import accelerate
import deepspeed
import transformers
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

import forebay.deepspeed
import forebay.torch
from forebay.deepspeed import _schedules

forebay.deepspeed.install()
forebay.deepspeed.install()  # again, it does nothing

STEPS, SAVED_AT = 6, 3
AUTO = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, number):
        tokens = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


def make_model():
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True))


def config_of(folder, stage, offload, **more):
    zero = {"stage": stage, "reduce_bucket_size": "auto", "overlap_comm": True, "contiguous_gradients": True}
    if offload is not None:
        section = {"device": offload, "pin_memory": True, **({"nvme_path": str(folder)} if offload == "nvme" else {})}
        zero["offload_optimizer"] = section
        if stage == 3:
            zero["offload_param"] = section
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        zero["stage3_prefetch_bucket_size"] = "auto"
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "optimizer": {"type": "AdamW", "params": AUTO}, "zero_optimization": zero,
            "scheduler": {"type": "WarmupDecayLR", "params": {
                "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                "total_num_steps": "auto"}}, **more}


def fresh_process():
    """The state that a new one would have."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    unset_hf_deepspeed_config()
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)


def trainer_of(folder, config, model=None, optimizers=(None, None), **more):
    fresh_process()
    arguments = {"output_dir": str(folder), "max_steps": STEPS, "per_device_train_batch_size": 4, "logging_steps": 1,
                 "learning_rate": 1e-2, "warmup_steps": 2, "save_strategy": "steps", "save_steps": SAVED_AT,
                 "eval_strategy": "steps", "eval_steps": SAVED_AT, "report_to": [], "disable_tqdm": True, "seed": 3,
                 "use_cpu": True, "dataloader_pin_memory": False, **more}
    return transformers.Trainer(
        model=make_model() if model is None else model,
        args=transformers.TrainingArguments(deepspeed=config, **arguments), train_dataset=Data(), eval_dataset=Data(),
        optimizers=optimizers)


def values(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def plain(folder, **more):
    """The same without DeepSpeed. Its own clipping rounds otherwise: the optimizer clips."""
    model = make_model()
    optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, clip=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    schedule.step = _schedules.make("WarmupDecayLR", {"warmup_max_lr": 1e-2, "warmup_num_steps": 2,
                                                      "total_num_steps": STEPS}, optimizer).step
    trainer = trainer_of(folder, None, model, (optimizer, schedule), max_grad_norm=0.0, save_strategy="no", **more)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return {steps: plain(tmp_path_factory.mktemp("plain"), gradient_accumulation_steps=steps) for steps in (1, 2)}


@pytest.mark.parametrize(("stage", "offload", "accumulation"), [
    (1, None, 1), (2, None, 2), (2, "cpu", 1), (2, "nvme", 2), (3, None, 1), (3, "nvme", 1), (3, "nvme", 2)])
def test_it_trains_as_it_does_without_and_goes_on_after_a_stop(tmp_path, expected, stage, offload, accumulation):
    config = config_of(tmp_path / "nvme", stage, offload)
    trainer = trainer_of(tmp_path / "out", config, gradient_accumulation_steps=accumulation)
    trainer.train()
    assert isinstance(trainer.model_wrapped, forebay.deepspeed.DeepSpeedEngine)
    reference = expected[accumulation]
    for key in ("loss", "eval_loss"):
        assert values(trainer, key) == values(reference, key), key
    assert all(norm > 0 for norm in values(trainer, "grad_norm"))
    assert values(trainer, "learning_rate")[-1] < max(values(trainer, "learning_rate"))
    trainer.save_model(str(tmp_path / "saved"))
    trainer.model_wrapped.destroy()
    saved = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    for name, weights in reference.model.state_dict().items():
        assert torch.equal(saved[name], weights), name
    # Its last checkpoint was lost.
    shutil.rmtree(tmp_path / "out" / f"checkpoint-{STEPS}")
    again = trainer_of(tmp_path / "out", config, gradient_accumulation_steps=accumulation)
    again.train(resume_from_checkpoint=True)
    for key in ("loss", "learning_rate", "grad_norm"):
        assert values(again, key) == values(trainer, key), key
    again.model_wrapped.destroy()


@pytest.mark.parametrize(("stage", "offload"), [(2, "cpu"), (3, "nvme")])
def test_the_trainer_s_own_optimizer_and_scheduler(tmp_path, stage, offload):
    """Which accelerate makes a DeepSpeedCPUAdam of. Its two groups and its schedule come back after a stop."""
    config = {key: value for key, value in config_of(tmp_path / "nvme", stage, offload).items()
              if key not in ("optimizer", "scheduler")}
    trainer = trainer_of(tmp_path / "out", config, weight_decay=0.1, save_total_limit=1)
    trainer.train()
    assert len(trainer.model_wrapped.optimizer.param_groups) == 2
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == [f"checkpoint-{STEPS}"]
    torchs = trainer_of(tmp_path / "torch", None, weight_decay=0.1, save_strategy="no")
    torchs.train()
    assert values(trainer, "loss") == pytest.approx(values(torchs, "loss"), rel=1e-5)
    assert values(trainer, "grad_norm") == pytest.approx(values(torchs, "grad_norm"), rel=1e-3)
    assert values(trainer, "learning_rate") == values(torchs, "learning_rate")
    trainer.model_wrapped.destroy()
    first = trainer_of(tmp_path / "two", config, weight_decay=0.1)
    first.add_callback(StopAt(SAVED_AT))
    first.train()
    first.model_wrapped.destroy()
    again = trainer_of(tmp_path / "two", config, weight_decay=0.1)
    again.train(resume_from_checkpoint=True)
    for key in ("loss", "learning_rate", "grad_norm"):
        assert values(again, key) == values(trainer, key), key
    again.model_wrapped.destroy()


class StopAt(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == self.step


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path):
    """Into an engine whose store is at a later step. Here the best is the first one: the rate is far too high."""
    config = config_of(tmp_path / "nvme", 3, "nvme")
    trainer = trainer_of(tmp_path / "out", config, learning_rate=3.0, save_steps=1, eval_steps=1,
                         load_best_model_at_end=True)
    trainer.train()
    losses = values(trainer, "eval_loss")
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{1 + losses.index(min(losses))}")
    assert min(losses) < losses[-1]
    assert trainer.evaluate()["eval_loss"] == min(losses)
    trainer.model_wrapped.destroy()


def test_bfloat16_and_a_model_that_is_loaded_under_zero_3(tmp_path, capsys):
    make_model().save_pretrained(tmp_path / "model")
    losses = {}
    for offload in (None, "nvme"):
        config = config_of(tmp_path / "nvme", 3, offload, bf16={"enabled": "auto"})
        trainer = trainer_of(tmp_path / "out", config, bf16=True, save_strategy="no")  # its arguments say ZeRO-3
        trainer.model = trainer.model_wrapped = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model")
        assert torch.equal(trainer.model.lm_head.weight, make_model().lm_head.weight)
        trainer.train()
        engine = trainer.model_wrapped
        assert engine.bfloat16_enabled() and engine.module.lm_head.weight.dtype == torch.bfloat16
        assert engine.module.model.rotary_emb.inv_freq.dtype == torch.float32
        losses[offload] = values(trainer, "loss"), values(trainer, "eval_loss")
        engine.destroy()
    assert losses[None] == losses["nvme"]
    assert capsys.readouterr().out.count("zero.Init: the model is made in RAM") <= 1


def test_without_the_weights_in_a_model_file_the_checkpoint_has_them(tmp_path):
    config = config_of(tmp_path / "nvme", 3, "nvme")
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = False
    trainer = trainer_of(tmp_path / "out", config)
    trainer.train()
    trainer.model_wrapped.destroy()
    assert not list((tmp_path / "out").glob("checkpoint-*/*.safetensors"))
    again = trainer_of(tmp_path / "out", config, max_steps=STEPS + 1)
    again.train(resume_from_checkpoint=True)
    assert values(again, "loss")[:STEPS] == values(trainer, "loss") and again.model_wrapped.global_steps == STEPS + 1
    again.model_wrapped.destroy()


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_alone(tmp_path, stage):
    fresh_process()
    disk = str(tmp_path / "nvme")
    more = {"offload_optimizer_device": "nvme", "offload_param_device": "nvme", "zero3_init_flag": False,
            "offload_optimizer_nvme_path": disk, "offload_param_nvme_path": disk,
            "zero3_save_16bit_model": True} if stage == 3 else {}
    accelerator = accelerate.Accelerator(deepspeed_plugin=accelerate.DeepSpeedPlugin(
        zero_stage=stage, gradient_accumulation_steps=2, **more))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    engine, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(torch.ones(16, 5), batch_size=4), schedule)

    def epoch():
        losses = []
        for batch in loader:
            with accelerator.accumulate(engine):
                loss = engine(batch).square().mean()
                accelerator.backward(loss)
                assert not accelerator.sync_gradients or accelerator.clip_grad_norm_(engine.parameters(), 1.0) > 0
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    first = epoch()
    assert first[0] == first[1] > first[3] and engine.global_steps == 2 and engine.get_lr() == [pytest.approx(0.01 / 3)]
    accelerator.save_state(tmp_path / "state")
    second = epoch()
    accelerator.load_state(tmp_path / "state")
    assert epoch() == second
    assert accelerator.unwrap_model(engine) is model
    assert accelerator.get_state_dict(engine).keys() == model.state_dict().keys()
    accelerator.free_memory()
    assert stage == 2 or not list((tmp_path / "nvme").iterdir())


def test_evaluation_alone(tmp_path):
    trainer = trainer_of(tmp_path / "out", config_of(tmp_path / "nvme", 3, "nvme"))
    torchs = trainer_of(tmp_path / "torch", None)
    expected = torchs.evaluate()["eval_loss"]
    trainer = trainer_of(tmp_path / "out", config_of(tmp_path / "nvme", 3, "nvme"))
    assert trainer.evaluate()["eval_loss"] == expected


def test_a_script_that_imports_deepspeed(tmp_path):
    model = torch.nn.Linear(6, 3)
    optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=0.1, adamw_mode=False)
    engine, made, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 2})
    assert isinstance(engine, deepspeed.DeepSpeedEngine) and made.kind == "adam" and deepspeed.comm.get_rank() == 0
    # One rank sums nothing: DeepSpeed's sums in shared memory, which it would compile for minutes, are left out.
    assert deepspeed.comm.comm.cdb.shm_comm_op is None
    with deepspeed.zero.Init(), deepspeed.zero.GatheredParameters(model.weight, modifier_rank=0):
        model.weight.data.fill_(1.0)
    assert model.weight.min() == 1.0


def test_what_cannot_be_installed_says_why(monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(deepspeed.runtime.zero.partition_parameters, "GatheredParameters")
        with pytest.raises(forebay.EnvironmentProblem, match=r"no deepspeed\.runtime\.zero\S*\.GatheredParameters"):
            forebay.deepspeed.install()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "deepspeed.runtime.zero", None)
        with pytest.raises(forebay.EnvironmentProblem, match="cannot be used"):
            forebay.deepspeed.install()
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not os.path.isdir(os.path.join(path, "deepspeed"))
                                      or path.endswith("forebay")])
    with pytest.raises(forebay.EnvironmentProblem, match="DeepSpeed is not installed"):
        forebay.deepspeed.install()
