"""More models of transformers, tiny and with random weights: newer decoders, hybrids of attention and state spaces,
encoders, vision, audio and several towers; without checkpointing and with both kinds. The bits of the same optimizer in
RAM."""

import pytest
import torch
import torch.utils.checkpoint
import transformers

import forebay.torch

transformers.logging.set_verbosity_error()

USUAL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**USUAL, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
IMAGES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "image_size": 16, "patch_size": 4}

# Model class, configuration class, configuration.
ARCHITECTURES = {
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3Config", GROUPED),
    "granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", GROUPED),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", HEADS),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**HEADS, **EXPERTS}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config",
        {**GROUPED, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", HEADS),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", GROUPED),
    "falcon": ("FalconForCausalLM", "FalconConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", GROUPED),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4Config", GROUPED),
    "ernie4_5": ("Ernie4_5ForCausalLM", "Ernie4_5Config", HEADS),
    "seed_oss": ("SeedOssForCausalLM", "SeedOssConfig", HEADS),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config", HEADS),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {**USUAL, "cls_token_id": 1, "sep_token_id": 2}),
    "phimoe": ("PhimoeForCausalLM", "PhimoeConfig", {**GROUPED, "num_local_experts": 4}),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "helium": ("HeliumForCausalLM", "HeliumConfig", HEADS),
    "arcee": ("ArceeForCausalLM", "ArceeConfig", GROUPED),
    "jamba": ("JambaForCausalLM", "JambaConfig",
        {**GROUPED, "num_hidden_layers": 4, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2,
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 4,
        "mamba_dt_rank": 4, "use_mamba_kernels": False}),
    "zamba2": ("Zamba2ForCausalLM", "Zamba2Config",
        {**USUAL, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "hybrid_layer_ids": [1, 3], "mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups":
        1, "num_mem_blocks": 1, "use_mem_rope": False, "adapter_rank": 4}),
    "bamba": ("BambaForCausalLM", "BambaConfig",
        {**GROUPED, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}),
    "falcon_h1": ("FalconH1ForCausalLM", "FalconH1Config",
        {**GROUPED, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
        "mamba_n_groups": 1}),
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig",
        {**HEADS, "num_hidden_layers": 4, "hybrid_override_pattern": "M*-M", "mamba_num_heads": 8,
        "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
        {**HEADS, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8}),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig",
        {**GROUPED, "layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 32, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}),
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig",
        {**HEADS, **EXPERTS, "shared_expert_intermediate_size": 32, "layer_types": ["linear_attention",
        "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8}),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 8, "num_heads": 8,
        "head_dim": 8, "n_groups": 1}),
    "falcon_mamba": ("FalconMambaForCausalLM", "FalconMambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 8}),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig",
        {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}),
    "deberta_v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", USUAL),
    "xlnet": ("XLNetLMHeadModel", "XLNetConfig",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 99}),
    "funnel": ("FunnelForMaskedLM", "FunnelConfig",
        {"d_model": 32, "d_head": 8, "n_head": 4, "d_inner": 64, "block_sizes": [1, 1], "vocab_size": 99}),
    "longformer": ("LongformerForMaskedLM", "LongformerConfig", {**USUAL, "attention_window": 4}),
    "big_bird": ("BigBirdForMaskedLM", "BigBirdConfig", {**USUAL, "attention_type": "original_full"}),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig",
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 99, "pad_token_id": 0}),
    "siglip": ("SiglipModel", "SiglipConfig",
        {"text_config": {**USUAL, "max_position_embeddings": 16, "projection_size": 32}, "vision_config":
        IMAGES}),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", IMAGES),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}),
    "swin": ("SwinForImageClassification", "SwinConfig",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
        "window_size": 2}),
    "resnet": ("ResNetForImageClassification", "ResNetConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 16, "layer_type": "basic"}),
    "wav2vec2": ("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config",
        {**USUAL, "conv_dim": [16, 16], "conv_stride": [4, 4], "conv_kernel": [8, 8], "num_feat_extract_layers":
        2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16,
        "apply_spec_augment": False}),
    "blip": ("BlipModel", "BlipConfig",
        {"text_config": {**USUAL, "encoder_hidden_size": 32}, "vision_config": IMAGES, "projection_dim": 16}),
}
OF_IMAGES = {"siglip", "dinov2", "convnext", "swin", "resnet", "blip"}
WITHOUT_CHECKPOINTING = {"xlnet", "funnel", "convnext", "resnet"}


def make(name, checkpointing):
    model_class, config_class, settings = ARCHITECTURES[name]
    torch.manual_seed(1)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**settings)).float().train()
    if checkpointing != "plain":
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    if checkpointing == "reentrant" and name not in OF_IMAGES | {"wav2vec2"}:
        model.enable_input_require_grads()
    return model


def batch_of(name, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 99, (2, 8), generator=generator)
    if name in OF_IMAGES:
        pixels = torch.randn(2, 3, 16, 16, generator=generator)
        if name in ("siglip", "blip"):
            return {"pixel_values": pixels, "input_ids": tokens, "return_loss": True}
        return {"pixel_values": pixels, "labels": torch.tensor([0, 1])}
    if name == "wav2vec2":
        return {"input_values": torch.randn(2, 256, generator=generator), "labels": torch.tensor([0, 1])}
    return {"input_ids": tokens, "labels": tokens}


def train(model, optimizer, name, backward):
    losses = []
    for step in range(3):
        torch.manual_seed(step)  # of dropout
        loss = model(**batch_of(name, step)).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:forebay.* kept the graph of a pass")
@pytest.mark.parametrize("name, checkpointing", [
    (name, how) for name in ARCHITECTURES for how in ("plain", "reentrant", "non-reentrant")
    if how == "plain" or name not in WITHOUT_CHECKPOINTING])
def test_streamed_has_the_bits_of_ram(tmp_path, name, checkpointing):
    model = make(name, checkpointing)
    trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
    losses = train(model, forebay.torch.AdamW(trained, lr=1e-2), name, torch.Tensor.backward)
    engine = forebay.torch.stream(make(name, checkpointing), nvme=tmp_path / "store", lr=1e-2)
    assert train(engine.module, engine, name, engine.backward) == losses
    assert not engine.optimizer._backend._window._here
    state = engine.state_dict()
    assert [key for key, value in model.state_dict().items() if not torch.equal(state[key], value)] == []


class Block(torch.nn.Module):
    """Keeps what it computed, with the graph."""

    def __init__(self):
        super().__init__()
        self.linear, self.act, self.last = torch.nn.Linear(8, 8), torch.nn.Tanh(), []

    def work(self, x):
        hidden = self.linear(x)
        self.last = [{"x": hidden}]
        return self.act(hidden)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.work, x, use_reentrant=False)


def test_a_graph_that_modules_keep_is_detached_and_named(tmp_path):
    def make_blocks():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[Block() for _ in range(5)])

    def train_blocks(model, optimizer):
        for _ in range(4):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict()

    model = make_blocks()
    expected = train_blocks(model, forebay.torch.AdamW(model.parameters(), lr=1e-2))
    engine = forebay.torch.stream(make_blocks(), nvme=tmp_path / "store", lr=1e-2)
    with pytest.warns(UserWarning, match=r"forebay: .*[1-4]\.last, .*kept the graph of a pass that is over"):
        found = train_blocks(engine.module, engine)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
