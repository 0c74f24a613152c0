"""Adapters of PEFT: the bits of the same optimizer in RAM, and folders as PEFT saves them."""

import os

import pytest
import torch
from safetensors.torch import load_file
from test_newer_architectures import make, train

import forebay.torch

peft = pytest.importorskip("peft")

TARGETS = {"target_modules": ["q_proj", "v_proj"]}
LM = {"task_type": "CAUSAL_LM"}
KINDS = {
    "lora": lambda: peft.LoraConfig(r=4, lora_dropout=0.1, **TARGETS, **LM),
    "dora": lambda: peft.LoraConfig(r=4, use_dora=True, **TARGETS, **LM),
    "lora with whole modules": lambda: peft.LoraConfig(r=4, target_modules="all-linear",
                                                       modules_to_save=["lm_head", "embed_tokens"], **LM),
    "lora with biases": lambda: peft.LoraConfig(r=4, bias="all", **TARGETS, **LM),
    "lora of tokens": lambda: peft.LoraConfig(r=4, trainable_token_indices=[1, 2], **TARGETS, **LM),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], **LM),
    "adalora": lambda: peft.AdaLoraConfig(init_r=4, target_r=2, total_step=10, **TARGETS, **LM),
    "lokr": lambda: peft.LoKrConfig(r=4, **TARGETS),
    "vera": lambda: peft.VeraConfig(r=4, **TARGETS, **LM),
    "oft": lambda: peft.OFTConfig(oft_block_size=8, **TARGETS),
    "fourierft": lambda: peft.FourierFTConfig(n_frequency=16, **TARGETS, **LM),
    "layer norms": lambda: peft.LNTuningConfig(target_modules=["post_feedforward_layernorm"], **LM),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, **LM),
}


def adapted(kind, reentrant):
    torch.manual_seed(2)
    model = peft.get_peft_model(make("olmo2", "plain"), KINDS[kind]())
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.enable_input_require_grads()
    return model.train()


def trained_in_ram(model):
    trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
    return train(model, forebay.torch.AdamW(trained, lr=1e-2), "olmo2", torch.Tensor.backward)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_adapters_have_the_bits_of_ram(tmp_path, kind, reentrant):
    in_ram = adapted(kind, reentrant)
    expected = trained_in_ram(in_ram)
    engine = forebay.torch.stream(adapted(kind, reentrant), nvme=tmp_path / "store", lr=1e-2)
    assert train(engine.module, engine, "olmo2", engine.backward) == expected
    state = engine.state_dict()
    assert [key for key, value in in_ram.state_dict().items() if not torch.equal(state[key], value)] == []


@pytest.mark.parametrize("save", [lambda engine, folder: engine.module.save_pretrained(folder),
                                  lambda engine, folder: engine.save_pretrained(folder)], ids=["module", "engine"])
def test_the_adapters_of_a_peft_model_are_saved_as_peft_saves_them(tmp_path, save):
    expected = adapted("lora with whole modules", None)
    trained_in_ram(expected)
    expected.save_pretrained(tmp_path / "of ram")
    engine = forebay.torch.stream(adapted("lora with whole modules", None), nvme=tmp_path / "store", lr=1e-2)
    train(engine.module, engine, "olmo2", engine.backward)
    save(engine, tmp_path / "saved")
    ours, theirs = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("saved", "of ram"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert sorted(os.listdir(tmp_path / "saved")) == sorted(os.listdir(tmp_path / "of ram"))
    peft.PeftModel.from_pretrained(make("olmo2", "plain"), tmp_path / "saved")
