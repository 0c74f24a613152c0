"""Bad input to the real program: each message names the place and the fix, the exit code is right, nothing is written."""

import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import time

import confined
import pytest
from conftest import make_model, random_rows, write_rows, write_tokenizer
from option_flags import flag_of

SEQ = 32


@pytest.fixture(scope="module")
def good(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    model = make_model(forebay, folder / "model")
    write_tokenizer(model)
    data = write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256)
    return dict(model=model, data=data, batch=2, seq=SEQ, steps=2, ram="1GiB")


@pytest.fixture
def model(good, tmp_path):
    """A copy of the model, to be broken."""
    return shutil.copytree(good["model"], tmp_path / "model")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refusal(forebay, tmp_path, settings, code, *flags, **changes):
    """What `train` says when it refuses; nothing may be left in the output folder."""
    out = changes.pop("out", tmp_path / "out")
    done = forebay.run("train", *flags, check=False, **dict(settings, out=out, **changes))
    assert done.returncode == code, f"exit {done.returncode}\n{done.stderr}"
    assert done.stderr.count("forebay: error: ") == 1, done.stderr
    assert not os.path.exists(tmp_path / "out")
    return done.stderr


def assert_words(text, *words):
    for word in words:
        assert word in text, text


def numbers(cases):
    """Names of parametrized cases that say nothing: pytest makes folders of them, and messages name folders."""
    return [str(number) for number in range(len(cases))]


# ---- The model ----

CONFIG_FAULTS = [
    (None, ["config.json"]),
    ("", ["config.json", "line 1"]),
    ('{\n  "vocab_size": 256,\n}', ["config.json", "line 3"]),
    ("[]", ["config.json", "object"]),
    ({"architectures": ["BertForMaskedLM"]}, ["BertForMaskedLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel"]),
    ({"rope_scaling": {"rope_type": "axial", "factor": 2.0}}, ["axial", "linear", "yarn", "longrope", "llama3"]),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ["rope_scaling.short_factor", "rope_scaling.long_factor"]),
    ({"hidden_size": -64}, ["hidden_size", "-64"]),
    ({"hidden_size": 0}, ["hidden_size"]),
    ({"num_hidden_layers": 1 << 40}, ["num_hidden_layers"]),
    ({"hidden_size": "64"}, ["hidden_size", '"64"']),
    ({"rms_norm_eps": 1e300}, ["rms_norm_eps"]),
    ({"num_key_value_heads": 3}, ["num_key_value_heads", "3"]),
    ({"hidden_act": "relu"}, ["hidden_act", "relu", "silu"]),
    ({"vocab_size": 300}, ["embed_tokens", "[256, 64]", "[300, 64]"]),
]


@pytest.mark.parametrize("fault, words", CONFIG_FAULTS, ids=numbers(CONFIG_FAULTS))
def test_config(forebay, good, model, tmp_path, fault, words):
    path = model / "config.json"
    if fault is None:
        path.unlink()
    elif isinstance(fault, str):
        path.write_text(fault)
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **fault}))
    assert_words(refusal(forebay, tmp_path, good, 3, model=model), str(model), *words)


def change_header(path, change):
    """Rewrites a safetensors file with `change(header, data)`, which may return other data."""
    contents = path.read_bytes()
    (size,) = struct.unpack("<Q", contents[:8])
    header, data = json.loads(contents[8 : 8 + size]), contents[8 + size :]
    data = change(header, data) or data
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def drop_last(header, data):
    name = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    begin = header.pop(name)["data_offsets"][0]
    return data[:begin]


def add_one(header, data):
    header["model.layers.0.self_attn.surprise"] = {
        "dtype": "BF16", "shape": [2], "data_offsets": [len(data), len(data) + 4]
    }
    return data + b"\0" * 4


def transpose(header, _):
    header["model.layers.0.mlp.up_proj.weight"]["shape"].reverse()


def change_dtype(header, _):
    header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I16"


def overlap(header, _):
    entry = header["model.layers.0.mlp.up_proj.weight"]
    entry["data_offsets"] = [offset - 64 for offset in entry["data_offsets"]]


NORM = "model.norm.weight"
FILE_FAULTS = [
    (lambda p: change_header(p, drop_last), ["is missing"]),
    (lambda p: change_header(p, add_one), ["model.layers.0.self_attn.surprise", "no such tensor"]),
    (lambda p: change_header(p, transpose), ["model.layers.0.mlp.up_proj.weight", "[64, 128]", "[128, 64]"]),
    (lambda p: change_header(p, change_dtype), ["model.layers.0.mlp.up_proj.weight", "I16", "BF16"]),
    (lambda p: change_header(p, overlap), ["overlap"]),
    (lambda p: p.write_bytes(p.read_bytes()[:-100]), ["bytes of data", "Download the file again"]),
    (lambda p: p.write_bytes(p.read_bytes()[:5]), ["5 bytes"]),
    (lambda p: p.write_bytes(b""), ["0 bytes"]),
    (lambda p: p.write_bytes(struct.pack("<Q", 1 << 60) + b"{}"), ["header"]),
    (lambda p: p.write_bytes(struct.pack("<Q", 1 << 20) + b"{}"), ["header"]),
    (lambda p: p.unlink(), ["model.safetensors"]),
]


@pytest.mark.parametrize("fault, words", FILE_FAULTS, ids=numbers(FILE_FAULTS))
def test_safetensors(forebay, good, model, tmp_path, fault, words):
    fault(model / "model.safetensors")
    assert_words(refusal(forebay, tmp_path, good, 3, model=model), str(model), *words)


def test_an_index_that_names_a_missing_shard(forebay, good, model, tmp_path):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    shards = {NORM: "model-00001-of-00002.safetensors", "lm_head.weight": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    message = refusal(forebay, tmp_path, good, 3, model=model)
    assert_words(message, "model.safetensors.index.json", "lm_head.weight", "model-00002-of-00002.safetensors")


def test_an_index_with_a_path_out_of_the_folder(forebay, good, model, tmp_path):
    (model / "model.safetensors").unlink()
    index = {"weight_map": {NORM: "../model/model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_words(refusal(forebay, tmp_path, good, 3, model=model), "model.safetensors.index.json", "same folder")


# ---- The tokenizer and the data ----

def test_a_missing_tokenizer(forebay, good, model, tmp_path, cache):
    (model / "tokenizer.json").unlink()
    (tmp_path / "d.txt").write_text("some words")
    message = refusal(forebay, tmp_path, good, 3, model=model, data=tmp_path / "d.txt")
    assert_words(message, "tokenizer.json' does not exist", "copy the tokenizer.json")


def test_a_tokenizer_larger_than_the_vocabulary(forebay, good, model, tmp_path, cache):
    write_tokenizer(model, largest_id=256)
    (tmp_path / "d.txt").write_text("some words")
    message = refusal(forebay, tmp_path, good, 3, model=model, data=tmp_path / "d.txt")
    assert_words(message, "tokenizer.json", "up to 256", "vocabulary has 256")


@pytest.mark.parametrize("contents, words", [("{", ["line 1"]), ('{"eos_token_id": "end"}', ["eos_token_id"])])
def test_a_damaged_generation_config_is_found_before_the_first_step(forebay, good, model, tmp_path, contents, words):
    (model / "generation_config.json").write_text(contents)
    assert_words(refusal(forebay, tmp_path, good, 3, model=model), "generation_config.json", *words)


TEXT = json.dumps({"text": "good line"}).encode()
DATA_FAULTS = [
    ("d.txt", b"", 3, ["d.txt", "empty"]),
    ("d.txt", b"words\nand \xff more", 3, ["d.txt:2", "not UTF-8", "0xff", "iconv"]),
    ("d.jsonl", TEXT + b"\n{'text': 1}\n", 3, ["d.jsonl:2", "not valid JSON"]),
    ("d.jsonl", TEXT + b'\n{"txt": "a"}\n', 3, ["d.jsonl:2", "unknown key 'txt'"]),
    ("d.jsonl", TEXT + b'\n\n{"prompt": "", "completion": ""}\n', 3, ["d.jsonl:3", "no trained token"]),
    ("d.jsonl", b'{"prompt": "' + b"x" * 40 + b'", "completion": "y"}', 3, ["d.jsonl:1", "--seq=32", "--truncate"]),
    ("d.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}', 3, ["d.jsonl:1", "chat template", "data pack"]),
    ("d.pdf", b"%PDF", 3, ["d.pdf", ".jsonl"]),
    ("d.packed", b"FBPACKED" + b"\0" * 100, 3, ["d.packed", "damaged", "forebay data pack"]),
]


@pytest.mark.parametrize("name, contents, code, words", DATA_FAULTS, ids=numbers(DATA_FAULTS))
def test_data(forebay, good, tmp_path, cache, name, contents, code, words):
    (tmp_path / name).write_bytes(contents)
    for key in ("data", "eval_data"):
        assert_words(refusal(forebay, tmp_path, good, code, **{key: tmp_path / name}), *words)


def test_data_that_is_not_there(forebay, good, tmp_path, cache):
    assert_words(refusal(forebay, tmp_path, good, 3, data=tmp_path / "no.txt"), "no.txt' does not exist")
    (tmp_path / "folder.txt").mkdir()
    assert_words(refusal(forebay, tmp_path, good, 3, data=tmp_path / "folder.txt"), "folder.txt")


def test_data_that_is_overwritten_under_a_run_is_named_with_its_row(forebay, good, tmp_path):
    data, out = tmp_path / "d.fbd", tmp_path / "run"
    shutil.copy(good["data"], data)
    original = data.read_bytes()
    write_rows(tmp_path / "other.fbd", *random_rows(8, SEQ, 256, seed=6), 256)
    settings = dict(good, data=data, out=out, steps=200, export="none", accum=2)
    forebay.run("train", **dict(settings, out=tmp_path / "whole"))
    # The file stays the one that the run has open: what is overwritten is seen by its next read.
    command = [forebay.binary, "train", *(flag_of(key, value) for key, value in settings.items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while not (out / "metrics.jsonl").exists() and run.poll() is None:
            time.sleep(0.01)
        with open(data, "r+b") as file:
            file.write((tmp_path / "other.fbd").read_bytes())
        errors = run.communicate(timeout=120)[1]
    assert run.returncode == 3, errors
    assert_words(errors, str(data), "damaged", "so it has changed since it was opened", "the run is saved after step")
    assert re.search(r"row \d+ does not match", errors), errors
    # A resume compares all of it; and with what the run began with, nothing is lost.
    refused = forebay.run("train", "--resume", out=out, check=False)
    assert refused.returncode == 2 and "not those that the run was started with" in refused.stderr, refused.stderr
    data.write_bytes(original)
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == forebay.digest(tmp_path / "whole")


def test_packed_data_of_other_rows_or_of_a_larger_vocabulary(forebay, good, tmp_path):
    assert_words(refusal(forebay, tmp_path, good, 3, seq=48), "rows of 32 tokens", "--seq=32")
    data = write_rows(tmp_path / "long.fbd", *random_rows(2, 129, 256, seed=5), 256)
    unsaid = {key: value for key, value in good.items() if key != "seq"}
    assert_words(refusal(forebay, tmp_path, unsaid, 2, data=data), "long.fbd", "--seq=129", "128 positions",
                 "pack its text again with --seq=128")
    data = write_rows(tmp_path / "large.fbd", *random_rows(4, SEQ, 256, seed=5), 300)
    assert_words(refusal(forebay, tmp_path, good, 3, data=data), "large.fbd", "300", "256")


def test_packed_data_of_another_tokenizer(forebay, good, model, tmp_path):
    (tmp_path / "d.jsonl").write_bytes(TEXT)
    packed = str(tmp_path / "d.packed")
    forebay.run("data", "pack", model=good["model"], data=tmp_path / "d.jsonl", seq=SEQ, out=packed)
    forebay.run("train", **dict(good, data=packed, out=tmp_path / "same"))
    write_tokenizer(model, normalizer={"type": "Lowercase"})
    for key in ("data", "eval_data"):
        message = refusal(forebay, tmp_path, good, 3, model=model, **{key: packed})
        assert_words(message, packed, "another tokenizer", str(model / "tokenizer.json"))
    measured = forebay.run("eval", check=False, model=model, data=packed)
    assert measured.returncode == 3 and "another tokenizer" in measured.stderr


def test_samples_longer_than_the_models_positions(forebay, good, tmp_path, cache):
    (tmp_path / "d.txt").write_text("words " * 100)
    message = refusal(forebay, tmp_path, good, 2, data=tmp_path / "d.txt", seq=129)
    assert_words(message, "--seq=129", "128 positions", "--seq=128")
    # `eval` measures rows of the length that was asked for, or nothing.
    settings = dict(model=good["model"], data=tmp_path / "d.txt", ram="1GiB")
    refused = forebay.run("eval", check=False, seq=129, **settings)
    assert refused.returncode == 2, refused.stderr
    assert_words(refused.stderr, "--seq=129 is more than the 128 positions of the model; use --seq=128 or less")
    unsaid, at_most = (forebay.run("eval", "--format=json", **settings, **seq).stdout for seq in ({}, {"seq": 128}))
    assert json.loads(unsaid)["loss"] == json.loads(at_most)["loss"]
    # More is no advice where the model has no more.
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "words " * 100, "completion": "b"}))
    for seq in (64, 128):
        refused = forebay.run("eval", check=False, seq=seq, **dict(settings, data=tmp_path / "d.jsonl"))
        assert refused.returncode == 3 and ("raise --seq" in refused.stderr) == (seq < 128), refused.stderr


# ---- Settings ----

BIG = str(1 << 64)
NUMBERS = [
    ("lr", ["0", "-1", "nan", "inf", "1e999", "11", "x", ""]),
    ("batch", ["0", "-1", "1.5", BIG, "65537"]),
    ("accum", ["0", BIG]),
    ("seq", ["1", "-3", BIG]),
    ("seed", ["-1", BIG]),
    ("steps", ["-1", BIG, "1e3"]),
    ("epochs", ["0", "-1", "nan", "inf"]),
    ("warmup", ["-1"]),
    ("weight_decay", ["-0.1", "nan"]),
    ("betas", ["1,0.9", "0.9,1", "-0.1,0.9", "0.9", "nan,0.9", "0.9,0.9,0.9", "a,b"]),
    ("eps", ["0", "-1", "nan"]),
    ("clip", ["-1", "nan", "inf"]),
    ("ram", ["0", "-1GiB", "nan", BIG, "1XB", "9999999999999GiB"]),
    ("threads", ["-1", "1025"]),
    ("io_threads", ["0", "257"]),
    ("tile_elems", ["0", "3", "2049", "-2048", BIG]),
    ("save_every", ["-1"]),
    ("keep", ["0"]),
    ("stop_after", ["-1"]),
    ("schedule", ["sine"]),
    ("schedule_args", ["power", "=2", "power="]),
    ("optimizer", ["adamax"]),
    ("momentum", ["-0.1", "1.5", "nan"]),
    ("param_groups", ["x", "{}", '[{"match": "a"}]']),
    ("opt_level", ["O4", "o1"]),
    ("loss_scaling", ["dynamic"]),
    ("loss_scale", ["-1", "nan", "1e39"]),
    ("initial_scale_power", ["-1", "127", "1.5"]),
    ("loss_scale_window", ["0", "-1"]),
    ("hysteresis", ["0"]),
    ("min_loss_scale", ["0", "-1", "inf"]),
    ("precision", ["fp8"]),
    ("layout", ["int4"]),
    ("grad_dtype", ["fp8"]),
    ("export_dtype", ["int8"]),
    ("durability", ["full"]),
    ("commit_every", ["-1"]),
    ("eval_every", ["-1"]),
    ("export", ["gguf"]),
]


@pytest.mark.parametrize("key, values", NUMBERS, ids=numbers(NUMBERS))
def test_impossible_values(forebay, good, tmp_path, key, values):
    for value in values:
        settings = {name: v for name, v in good.items() if name != key}
        for flag in (flag_of(key, value), f"--set={key}={value}"):
            message = refusal(forebay, tmp_path, settings, 2, flag)
            assert_words(message, key, value, "allowed: ")


def test_impossible_values_in_a_configuration(forebay, good, tmp_path):
    text = '{"optim": {"lr": 1e-400, "eps": "nan", "betas": [0.9]}, "data": {"batch": 2.5}, "io": {"keep": null}}'
    (tmp_path / "c.json").write_text(text)
    settings = {key: value for key, value in good.items() if key != "batch"}
    message = refusal(forebay, tmp_path, settings, 2, f"--config={tmp_path / 'c.json'}")
    assert_words(message, "c.json", "optim.lr", "optim.eps", "optim.betas", "data.batch", "io.keep", "5 problems")


def test_more_tokens_than_any_step_has(forebay, good, tmp_path):
    message = refusal(forebay, tmp_path, good, 2, batch=65536, accum=65536)
    assert_words(message, "--batch=65536", "--accum=65536", "tokens")


def test_a_warm_up_longer_than_the_run(forebay, good, tmp_path):
    assert_words(refusal(forebay, tmp_path, good, 2, warmup=3), "--warmup=3", "--steps=2")
    by_epochs = {key: value for key, value in good.items() if key != "steps"}
    message = refusal(forebay, tmp_path, by_epochs, 2, epochs=1, warmup=5)
    assert_words(message, "--warmup=5", "--epochs=1", "4 steps")


def test_unknown_names_suggest_the_nearest(forebay, good, tmp_path):
    (tmp_path / "c.json").write_text('{"optim": {"wamup": 3}, "dta": {}}')
    message = refusal(forebay, tmp_path, good, 2, f"--config={tmp_path / 'c.json'}", "--bacth=3", "--set=optim.lrr=1")
    assert_words(message, "did you mean 'warmup'?", "did you mean 'data'?", "did you mean '--batch'?", "'lr'?")


def test_a_cache_that_cannot_be_made_is_named(forebay, good, tmp_path, monkeypatch):
    (tmp_path / "d.txt").write_text("words " * 100)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nope")
    message = refusal(forebay, tmp_path, good, 5, data=tmp_path / "d.txt")
    assert_words(message, "the cache of packed text '/proc/nope/forebay/packed'", "XDG_CACHE_HOME")
    forebay.run("train", out=tmp_path / "packed", **good)  # packed data needs none


def test_names_that_are_not_utf8(forebay, good, tmp_path):
    done = subprocess.run(
        [forebay.binary.encode(), b"train", b"--out=" + os.fsencode(tmp_path) + b"/\xff",
         *(flag_of(key, value).encode() for key, value in good.items())],
        capture_output=True, timeout=60,
    )
    assert done.returncode == 2 and b"is not valid UTF-8" in done.stderr, done.stderr
    assert os.listdir(tmp_path) == []


# ---- Memory and disk ----

def test_the_least_memory_that_is_named_works(forebay, good, tmp_path):
    message = refusal(forebay, tmp_path, good, 4, ram="4MiB")
    assert_words(message, "--ram=4.00 MiB", "The least that works is --ram=")
    least = message.split("The least that works is --ram=")[1].split()[0].rstrip(".")
    forebay.run("train", **dict(good, out=tmp_path / "run", ram=least))


def test_more_memory_than_the_machine_has(forebay, good, tmp_path):
    assert_words(refusal(forebay, tmp_path, good, 4, ram="4T"), "--ram=4.00 TiB", "available", "Use --ram=")


def test_without_ram_a_share_of_what_is_available_is_taken(forebay, good):
    settings = {key: value for key, value in good.items() if key not in ("ram", "data", "steps")}
    plan = json.loads(forebay.run("plan", "--format=json", **settings).stdout)
    with open("/proc/meminfo", encoding="utf-8") as file:
        total = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemTotal:"))
    assert 0 < plan["ram_budget_bytes"] <= total


def test_a_disk_that_is_too_small_is_found_before_the_start(forebay, good, tmp_path):
    with confined.tmpfs(tmp_path / "disk", "size=1m") as disk:
        message = refusal(forebay, tmp_path, good, 4, out=disk / "run")
        assert_words(message, "swap area", str(disk / "run"), "free", "--nvme")
        assert os.listdir(disk) == []
        assert_words(refusal(forebay, tmp_path, good, 4, nvme=disk), "swap area", str(disk))
        assert os.listdir(disk) == []


def test_a_disk_that_is_full_at_the_end_costs_no_step(forebay, good, tmp_path):
    with confined.tmpfs(tmp_path / "disk", "size=64m") as disk:
        settings = dict(good, out=disk / "run")
        assert forebay.run("train", check=False, stop_after=1, **settings).returncode == 75
        filler = disk / "filler"
        with open(filler, "wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        stopped = forebay.run("train", "--resume", check=False, **settings)
        assert stopped.returncode in (4, 5), stopped.stderr
        assert str(disk / "run") in stopped.stderr
        filler.unlink()
        forebay.run("train", "--resume", **settings)
        forebay.run("train", **dict(good, out=tmp_path / "whole"))
        assert forebay.digest(disk / "run") == forebay.digest(tmp_path / "whole")


def test_a_folder_that_cannot_be_written_is_found_before_the_data_is_read(forebay, good, tmp_path):
    with confined.tmpfs(tmp_path / "disk", "ro") as disk:
        for changes in (dict(out=disk / "run"), dict(nvme=disk / "swap")):
            message = refusal(forebay, tmp_path, good, 5, **dict(changes, data=tmp_path / "not-there"))
            assert_words(message, str(disk), "EROFS")


def test_an_output_inside_a_file(forebay, good, tmp_path):
    (tmp_path / "file").write_text("x")
    assert_words(refusal(forebay, tmp_path, good, 2, out=tmp_path / "file"), "not a folder")
    assert_words(refusal(forebay, tmp_path, good, 2, out=tmp_path / "file" / "run"), "not a folder")
    assert (tmp_path / "file").read_text() == "x"


def test_an_occupied_output_is_found_before_the_data_is_read(forebay, good, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for flags in ([], ["--dry_run"]):
        changes = dict(out=tmp_path / "mine", data=tmp_path / "not-there")
        assert_words(refusal(forebay, tmp_path, good, 2, *flags, **changes), "mine", "not empty")
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_the_least_memory_without_training_works_too(forebay, good, tmp_path, cache, command):
    (tmp_path / "d.txt").write_text("some words")
    what = dict(data=tmp_path / "d.txt", seq=SEQ) if command == "eval" else dict(prompt="some", max_tokens=4)
    refused = forebay.run(command, check=False, model=good["model"], ram="3MiB", **what)
    assert refused.returncode == 4, refused.stderr
    assert_words(refused.stderr, "3.00 MiB", "at least", "Use --ram=")
    least = refused.stderr.split("Use --ram=")[1].split()[0]
    forebay.run(command, model=good["model"], ram=least, **what)


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_more_memory_than_there_is_is_refused_without_training_too(forebay, good, tmp_path, cache, command):
    (tmp_path / "d.txt").write_text("some words")
    what = dict(data=tmp_path / "d.txt", seq=SEQ) if command == "eval" else dict(prompt="some", max_tokens=4)
    refused = forebay.run(command, check=False, model=good["model"], ram="4T", **what)
    assert refused.returncode == 4, refused.stderr
    assert_words(refused.stderr, "--ram=4.00 TiB", "available", "Use --ram=")


@pytest.mark.parametrize("command", ["eval", "generate", "inspect", "plan"])
def test_a_damaged_model_is_named_by_every_command(forebay, good, model, tmp_path, cache, command):
    (tmp_path / "d.txt").write_text("some words")
    arguments = {
        "eval": [f"--model={model}", f"--data={tmp_path / 'd.txt'}", f"--seq={SEQ}", "--ram=1GiB"],
        "generate": [f"--model={model}", "--prompt=some", "--ram=1GiB"],
        "inspect": [str(model)],
        "plan": [str(model), "--ram=1GiB", f"--seq={SEQ}"],
    }[command]
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    if command != "plan":  # which asks for the sizes in config.json alone
        refused = forebay.run(command, *arguments, check=False)
        assert refused.returncode == 3, refused.stderr
        assert_words(refused.stderr, "model.safetensors", "bytes of data", "Download the file again")
    (model / "config.json").write_text("{")
    refused = forebay.run(command, *arguments, check=False)
    assert refused.returncode == 3, refused.stderr
    assert_words(refused.stderr, "config.json", "line 1")
