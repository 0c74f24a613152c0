"""Saving and loading of streamed modules, modules of the meta device, and what is wrong with files and folders."""

import json
import os
import pathlib
import subprocess
import sys

import forebay
import forebay.torch
import pytest
import safetensors.torch
import torch
import transformers
from test_stream_architectures import ARCHITECTURES, make, train
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import confined

transformers.utils.logging.disable_progress_bar()

# Tied weights, several files, experts that lie in the files one by one, encoders with decoders, buffers.
SAVED = ["llama", "gpt2", "mixtral", "t5", "clip", "albert"]


def make_plain():
    """A model of torch alone: a tied weight, buffers of which one is not saved, a parameter without elements."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 12, bias=False))
    model[2].weight = model[0].weight
    model.register_parameter("none", nn.Parameter(torch.empty(0, 3)))
    model.register_buffer("scratch", torch.ones(2), persistent=False)
    return model


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def hollow(name):
    model_class, config_class, settings = ARCHITECTURES[name]
    with torch.device("meta"):
        return getattr(transformers, model_class)(getattr(transformers, config_class)(**settings)).float().train()


@pytest.mark.parametrize("name", SAVED)
def test_from_pretrained_reads_what_is_saved(tmp_path, name):
    model = make(name)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    engine = forebay.torch.stream(make(name), nvme=tmp_path / "store", lr=1e-2)
    train(engine.module, engine, name)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "model-00001-of-00099.safetensors").write_bytes(b"left")
    engine.module.save_pretrained(tmp_path / "ours", max_shard_size="20KB")
    assert_same(type(model).from_pretrained(tmp_path / "ours").state_dict(), engine.state_dict())
    names = [set(json.loads((tmp_path / who / "model.safetensors.index.json").read_text())["weight_map"])
             for who in ("ours", "theirs")]
    assert names[0] == names[1]
    files = sorted(path.name for path in (tmp_path / "ours").iterdir())
    assert len([file for file in files if file.startswith("model-")]) > 2
    assert "model-00001-of-00099.safetensors" not in files and not any("unfinished" in file for file in files)
    assert ("generation_config.json" in files) == (tmp_path / "theirs" / "generation_config.json").exists()
    # A step goes on behind it, and a single file takes the place of the shards.
    before = train(engine.module, engine, name)
    engine.save_pretrained(tmp_path / "ours")
    assert not (tmp_path / "ours" / "model.safetensors.index.json").exists()
    assert before and safetensors.torch.load_file(tmp_path / "ours" / "model.safetensors")


def test_a_module_of_torch_alone_is_saved_and_loaded(tmp_path):
    model = make_plain()
    model[1].running_mean.fill_(3.0)
    engine = forebay.torch.stream(model, nvme=tmp_path / "store")
    engine.save_pretrained(tmp_path / "saved")
    saved = safetensors.torch.load_file(tmp_path / "saved" / "model.safetensors")
    state = engine.state_dict()
    assert saved.keys() == state.keys() - {"2.weight"}
    assert all(torch.equal(value, state[name]) for name, value in saved.items())
    assert dict(engine.named_weights()).keys() == dict(model.named_parameters()).keys() - {"none"}
    other = make_plain()
    with torch.no_grad():
        other[0].weight.zero_()
    again = forebay.torch.stream(other, nvme=tmp_path / "other")
    again.load_pretrained(tmp_path / "saved")
    assert_same(again.state_dict(), state)


def test_a_state_dict_is_loaded_before_the_first_step(tmp_path):
    expected = make("gpt2")
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.mul_(0.5)
    state = expected.state_dict()
    engine = forebay.torch.stream(make("gpt2"), nvme=tmp_path / "store", lr=1e-2)
    with torch.no_grad():
        engine(torch.tensor([[1, 2]]))
    part = {name: value for name, value in state.items() if "h.1." not in name}
    with pytest.raises(forebay.UsageError, match=r"lacks transformer\.h\.1\.attn"):
        engine.module.load_state_dict(part, strict=False)
    with pytest.raises(forebay.UsageError, match="has more.weight too much"):
        engine.module.load_state_dict({**state, "more.weight": torch.ones(1)})
    assert engine.module.load_state_dict(state) == ([], [])
    assert_same(engine.state_dict(), state)
    losses = train(expected, forebay.torch.AdamW(expected.parameters(), lr=1e-2), "gpt2")
    assert train(engine.module, engine, "gpt2") == losses
    with pytest.raises(forebay.UsageError, match="has made 3 steps"):
        engine.module.load_state_dict(state)
    engine.commit()
    engine.close()
    resumed = forebay.torch.stream(make("gpt2"), nvme=tmp_path / "store", lr=1e-2, resume=True)
    assert_same(resumed.state_dict(), expected.state_dict())


@pytest.mark.parametrize("name", [*SAVED, "bert"])
def test_a_module_of_the_meta_device_is_filled_from_files(tmp_path, name):
    """Bits of weights, buffers and losses are those of from_pretrained."""
    make(name).save_pretrained(tmp_path / "files", max_shard_size="20KB")
    plain = make(name).from_pretrained(tmp_path / "files").train()
    engine = forebay.torch.stream(hollow(name), nvme=tmp_path / "store", weights=tmp_path / "files", lr=1e-2)
    assert_same(engine.state_dict(), plain.state_dict())
    assert_same(dict(engine.module.named_buffers()), dict(plain.named_buffers()))
    losses = train(plain, forebay.torch.AdamW(plain.parameters(), lr=1e-2), name)
    assert train(engine.module, engine, name) == losses
    engine.commit()
    engine.close()
    # Going on needs no files.
    engine = forebay.torch.stream(hollow(name), nvme=tmp_path / "store", weights=tmp_path / "gone", resume=True)
    assert_same(engine.state_dict(), plain.state_dict())
    assert_same(dict(engine.module.named_buffers()), dict(plain.named_buffers()))


def test_a_module_of_the_meta_device_is_filled_by_a_function(tmp_path):
    def ones(module):
        for number, parameter in enumerate(module.parameters(recurse=False)):
            parameter.fill_(1.0 + number)

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5))
        model[2].weight.requires_grad_(False)
    engine = forebay.torch.stream(model, nvme=tmp_path / "store", weights=ones)
    for name, value in engine.state_dict().items():
        assert value.eq(2.0 if "bias" in name else 1.0).all(), name
    model = hollow("llama")
    engine = forebay.torch.stream(model, nvme=tmp_path / "llama", weights=model._init_weights)
    weight = engine.state_dict()["model.layers.1.mlp.up_proj.weight"]
    assert 0.015 < weight.std() < 0.025
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    with pytest.raises(forebay.UsageError, match=r"has left 0\.weight without values"):
        forebay.torch.stream(model, nvme=tmp_path / "half", weights=lambda module: module.bias.zero_())


def test_neither_loading_nor_saving_has_the_model_in_memory(tmp_path):
    config = transformers.LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=64,
                                      num_attention_heads=4, vocab_size=2000)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "files", max_shard_size="60MB")
    ram = 90 << 20
    command = [sys.executable, pathlib.Path(__file__).with_name("hollow_run.py"),
               *(tmp_path / name for name in ("files", "store", "saved")), str(ram)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    num_bytes, used, said = done.stdout.split(" ", 2)
    # All that the store takes, and little beside it: 18 MB were seen, and the model has 172.
    assert int(used) < ram + int(num_bytes) / 5 < 0.8 * int(num_bytes)
    assert "engine.save_pretrained(FOLDER)" in said
    assert_same(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved").state_dict(), model.state_dict())


def test_what_is_wrong_with_files_says_so(tmp_path):
    make("llama").save_pretrained(tmp_path / "files")
    make("gpt2").save_pretrained(tmp_path / "other")
    file = tmp_path / "files" / "model.safetensors"

    def stream(weights):
        forebay.torch.stream(hollow("llama"), nvme=tmp_path / "store", weights=weights)

    def wrong(text, kind=forebay.BadInputError):
        with pytest.raises(kind, match=text):
            stream(tmp_path / "files")

    with pytest.raises(forebay.UsageError, match="Say where they are"):
        stream(None)
    with pytest.raises(forebay.UsageError, match="it is empty, or not there"):
        stream(tmp_path / "nowhere")
    with pytest.raises(forebay.BadInputError, match=r"has no lm_head\.weight, .* another model"):
        stream(tmp_path / "other")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    wrong("ends within")
    file.write_bytes(b"x" * 100)
    wrong("is no safetensors file")
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    wrong("is a Git LFS pointer.*git lfs pull")
    state = safetensors.torch.load(whole)
    state["model.norm.weight"] = torch.ones(5)
    safetensors.torch.save_file(state, file)
    wrong(r"model\.norm\.weight is \(5,\) in .*, and \(32,\) in the module")
    file.rename(tmp_path / "files" / "model-00001-of-00002.safetensors")
    (tmp_path / "files" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    wrong("names b.safetensors, which is not there")
    with torch.device("meta"):
        model = make_plain()
    with pytest.raises(forebay.UsageError, match="scratch is a buffer on the meta device"):
        forebay.torch.stream(model, nvme=tmp_path / "plain", weights=tmp_path / "files")


def test_what_is_wrong_with_a_folder_says_so(tmp_path):
    with pytest.raises(forebay.UsageError, match="there is no folder"):
        forebay.torch.stream(make("llama"), nvme=tmp_path / "no" / "store")
    engine = forebay.torch.stream(make("llama"), nvme=tmp_path / "store", commit_every=1)
    train(engine.module, engine, "llama")
    engine.commit()
    with pytest.raises(forebay.UsageError, match="there can be no folder"):
        engine.save_pretrained(os.devnull)
    with pytest.raises(forebay.NotSupportedError, match="and got push_to_hub"):
        engine.module.save_pretrained(tmp_path / "saved", push_to_hub=True)
    with pytest.raises(forebay.EnvironmentProblem, match="in use by"):
        forebay.torch.stream(make("llama"), nvme=tmp_path / "store", resume=True)
    engine.close()
    for other in (make("gpt2"), nn.Sequential(nn.Linear(3, 4))):  # other names, or other shapes
        with pytest.raises(forebay.UsageError):
            forebay.torch.stream(other, nvme=tmp_path / "store", resume=True)
    wide = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**ARCHITECTURES["llama"][2], "vocab_size": 98}))
    with pytest.raises(forebay.UsageError, match="model.embed_tokens.weight"):
        forebay.torch.stream(wide, nvme=tmp_path / "store", resume=True)
    with pytest.raises(forebay.UsageError, match="step 3 is committed already, by commit_every=1"):
        engine = forebay.torch.stream(make("llama"), nvme=tmp_path / "store", resume=True, commit_every=1)
        engine.commit({"epoch": 1})
    engine.close()
    with pytest.raises(forebay.UsageError, match="Leave durability out"):
        forebay.torch.stream(make("llama"), nvme=tmp_path / "else", commit_every=1, durability="none")


def test_a_full_disk(tmp_path):
    with confined.tmpfs(tmp_path / "small", "size=1m") as disk:
        with pytest.raises(forebay.DoesNotFitError, match="(?s)disk|space|room"):
            forebay.torch.stream(make("llama"), nvme=disk / "store")
        engine = forebay.torch.stream(make("llama"), nvme=tmp_path / "store")
        engine.save_pretrained(disk / "saved")
        before = {path.name: path.read_bytes() for path in (disk / "saved").iterdir()}
        confined.fill(disk, 64 << 10)
        with pytest.raises(forebay.StorageError, match="No space left .* Make room"):
            engine.save_pretrained(disk / "saved")
        assert {path.name: path.read_bytes() for path in (disk / "saved").iterdir()} == before


def test_state_that_cannot_be_tracked_says_so(tmp_path):
    engine = forebay.torch.stream(make("gpt2"), nvme=tmp_path / "store", lr=1e-2)

    class State:
        def __init__(self, value):
            self.value = value

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    with pytest.raises(forebay.UsageError, match="list, cannot be tracked"):
        engine.track(average=[])
    for value, text in ((State(1), "cannot be loaded safely"), (torch.ones(20000), "has room for")):
        engine.track(state=State(value))
        train(engine.module, engine, "gpt2")
        with pytest.raises(forebay.UsageError, match=text):
            engine.commit()
    engine.track(state=State(5), loader=forebay.torch.ResumableLoader(range(9), 2))
    engine.commit()
    engine.close()
    engine = forebay.torch.stream(make("gpt2"), nvme=tmp_path / "store", lr=1e-2, resume=True)
    state = State(0)
    with pytest.warns(UserWarning, match="other begins anew: .* has state, loader"):
        engine.track(state=state, other=State(0))
    assert state.value == 5
    with pytest.raises(forebay.UsageError, match="num_samples=9, and would go on with 8"):
        engine.track(loader=forebay.torch.ResumableLoader(range(8), 2))
    with pytest.raises(forebay.UsageError, match="no sampler"):
        forebay.torch.ResumableLoader(range(8), sampler=range(8))
