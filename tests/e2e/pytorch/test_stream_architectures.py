"""Streamed models of transformers, made from tiny random configurations: the bits of the same optimizer in RAM."""

import pytest
import torch
import transformers

import forebay.torch

transformers.logging.set_verbosity_error()

USUAL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
GROUPED = {**USUAL, "num_key_value_heads": 2}
IMAGES = {**{key: value for key, value in USUAL.items() if key != "vocab_size"}, "image_size": 16, "patch_size": 4}
SEQUENCES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 99}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# Model class, configuration class, configuration. Decoders, encoders, both, mixture of experts, state space, vision, audio.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**GROUPED, **TOKENS}),
    "opt": ("OPTForCausalLM", "OPTConfig",
            {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
             "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", USUAL),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}),
    "mamba": ("MambaForCausalLM", "MambaConfig",
              {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 8}),
    "bert": ("BertForMaskedLM", "BertConfig", USUAL),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", USUAL),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**USUAL, "embedding_size": 16}),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 99}),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**USUAL, "embedding_size": 16}),
    "t5": ("T5ForConditionalGeneration", "T5Config",
           {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
            "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQUENCES),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGES),
    "clip": ("CLIPModel", "CLIPConfig",
             {"text_config": {**USUAL, "bos_token_id": 1, "eos_token_id": 2}, "vision_config": IMAGES,
              "projection_dim": 16}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                {**SEQUENCES, **TOKENS, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32,
                 "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None}),
}


def make(name):
    model_class, config_class, settings = ARCHITECTURES[name]
    torch.manual_seed(1)
    config = getattr(transformers, config_class)(**settings)
    return getattr(transformers, model_class)(config).float().train()


def batch_of(name, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 99, (2, 8), generator=generator)
    if name in ("vit", "clip"):
        pixels = torch.randn(2, 3, 16, 16, generator=generator)
        more = {"labels": torch.tensor([0, 1])} if name == "vit" else {"input_ids": tokens, "return_loss": True}
        return {"pixel_values": pixels, **more}
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 32, generator=generator), "labels": tokens}
    return {"input_ids": tokens, "labels": tokens}


def train(model, optimizer, name):
    losses = []
    for step in range(3):
        torch.manual_seed(step)  # of dropout
        loss = model(**batch_of(name, step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_streamed_has_the_bits_of_ram(tmp_path, name):
    model = make(name)
    losses = train(model, forebay.torch.AdamW(model.parameters(), lr=1e-2), name)
    engine = forebay.torch.stream(make(name), nvme=tmp_path / "store", lr=1e-2)
    assert train(engine.module, engine, name) == losses
    window = engine.optimizer._backend._window
    assert window.order.num_deviations == 0 and not window._here
    expected, state = model.state_dict(), engine.state_dict()
    assert state.keys() == expected.keys()
    for key, value in state.items():
        assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generation_with_a_cache(tmp_path, name):
    tokens = torch.tensor([[5, 6, 7, 8]])
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = make(name).eval().generate(tokens, **settings)
    engine = forebay.torch.stream(make(name).eval(), nvme=tmp_path / "store", lr=1e-2)
    assert torch.equal(engine.module.generate(tokens, **settings), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_of_transformers(tmp_path, reentrant):
    def prepared():
        model = make("llama")
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    model = prepared()
    losses = train(model, forebay.torch.AdamW(model.parameters(), lr=1e-2), "llama")
    engine = forebay.torch.stream(prepared(), nvme=tmp_path / "store", lr=1e-2)
    ours = []
    for step in range(3):
        torch.manual_seed(step)
        loss = engine(**batch_of("llama", step)).loss
        engine.backward(loss)
        engine.step()
        ours.append(loss.item())
    assert ours == losses


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        tokens = torch.randint(3, 99, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trainer_of_transformers(tmp_path, accumulation):
    """As it is: training, evaluation, a schedule, a last step of fewer passes."""
    def losses_of(model, optimizer):
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path / "out", per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
            num_train_epochs=2, report_to=[], save_strategy="no", eval_strategy="epoch", logging_steps=1, use_cpu=True,
            seed=3, disable_tqdm=True, max_grad_norm=0.0)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens(),
                                       optimizers=(optimizer, None))
        trainer.train()
        return [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history]

    settings = {"lr": 1e-2, "clip": 0.7}
    model = make("llama")
    expected = losses_of(model, forebay.torch.AdamW(model.parameters(), **settings))
    engine = forebay.torch.stream(make("llama"), nvme=tmp_path / "store", accumulation_steps=accumulation, **settings)
    assert losses_of(engine.module, engine.optimizer) == expected
    assert len(expected) > 8
