"""The program on an emulated GPU, beside itself on the CPU."""

import json
import os
import re

import pytest
from conftest import make_model, random_rows, read_safetensors, write_rows, write_tokenizer

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_DEVICE") != "cuda",
    reason="needs a build that emulates a GPU (FOREBAY_CUDA=EMULATED), with FOREBAY_DEVICE=cuda",
)
SETTINGS = dict(batch=2, accum=2, seq=16, steps=3, ram="256MiB")


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    model = make_model(forebay, folder / "model", vocab_size=259)
    write_tokenizer(model)
    tokens, flags = random_rows(8, 16, 259, seed=5)
    return dict(model=model, data=write_rows(folder / "data.fbd", tokens, flags, 259))


BLOCKS = 5
MIB = 1 << 20


@pytest.fixture(scope="module")
def streamed(forebay, tmp_path_factory):
    """A task whose model has blocks of more than 1 MiB in any type, to which the least memory is rounded, and more of them
    than the window on the GPU has places: some of it has to pass through, where a run is told to do with little."""
    folder = tmp_path_factory.mktemp("streamed")
    model = make_model(forebay, folder / "model", vocab_size=259, hidden_size=256, intermediate_size=640,
                       num_hidden_layers=BLOCKS)
    write_tokenizer(model)
    tokens, flags = random_rows(4, 16, 259, seed=5)
    return dict(model=model, data=write_rows(folder / "data.fbd", tokens, flags, 259))


def least_mebibytes(forebay, *arguments, **settings):
    refused = forebay.run(*arguments, **settings, gpu_mem="1MiB", check=False)
    assert refused.returncode == 4, refused.stderr
    return int(refused.stderr.split("--gpu_mem=")[1].split("MiB")[0])


def weight_bytes(model, element_bytes):
    return sum(values.size for values in read_safetensors(f"{model}/model.safetensors").values()) * element_bytes


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    forebay.run("train", **task, **SETTINGS, out=out)
    return forebay.digest(out)


@pytest.mark.parametrize("by, said", [("unavailable", "cudaErrorDevicesUnavailable"), ("ecc", "uncorrectable ECC error")])
def test_a_lost_gpu_is_exit_9_and_the_run_goes_on_to_the_same_bits(forebay, task, expected, tmp_path, monkeypatch, by, said):
    monkeypatch.setenv("FOREBAY_EMULATION_LOST_AFTER", "1000")
    monkeypatch.setenv("FOREBAY_EMULATION_LOST_BY", by)
    lost = forebay.run("train", **task, **SETTINGS, out=tmp_path / "lost", check=False)
    assert lost.returncode == 9, lost.stderr
    assert said in lost.stderr and "--resume" in lost.stderr
    monkeypatch.undo()
    forebay.run("train", "--resume", out=tmp_path / "lost")
    assert forebay.digest(tmp_path / "lost") == expected


@pytest.mark.parametrize("state_tier", ["auto", "gpu"])
def test_a_killed_run_goes_on_to_the_same_bits(forebay, task, expected, tmp_path, state_tier):
    forebay.train_until_killed(**task, **SETTINGS, state_tier=state_tier, out=tmp_path / "run")
    done = forebay.run("train", "--resume", out=tmp_path / "run")
    assert forebay.digest(tmp_path / "run") == expected
    assert ("of it on the GPU while training" in done.stdout) == (state_tier == "gpu")


def test_a_gpu_that_is_lost_takes_no_state_with_it(forebay, task, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_EMULATION_LOST_AFTER", "1000")
    lost = forebay.run("train", **task, **SETTINGS, state_tier="gpu", out=tmp_path / "lost", check=False)
    assert lost.returncode == 9, lost.stderr
    monkeypatch.undo()
    # Elsewhere now: where state lives is a matter of each session.
    forebay.run("train", "--resume", state_tier="nvme", out=tmp_path / "lost")
    assert forebay.digest(tmp_path / "lost") == expected


@pytest.mark.parametrize("command", ["train", "eval", "generate"])
def test_a_driver_that_is_too_old_is_exit_9(forebay, task, tmp_path, monkeypatch, command):
    monkeypatch.setenv("FOREBAY_EMULATION_DRIVER", "old")
    arguments = dict(task, **SETTINGS, out=tmp_path / "run")
    if command != "train":
        arguments = dict(model=task["model"])
        arguments |= dict(data=task["data"]) if command == "eval" else dict(prompt="x")
    done = forebay.run(command, **arguments, check=False)
    assert done.returncode == 9
    assert "driver version is insufficient" in done.stderr and "--device=cpu" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_card_without_bf16_is_for_fp16(forebay, task, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_EMULATION_CAPABILITY", "75")
    settings = dict(SETTINGS, steps=1, out=tmp_path / "run")
    done = forebay.run("train", **task, **settings, check=False)
    assert done.returncode == 9
    assert "--precision=fp16" in done.stderr
    assert not (tmp_path / "run").exists()
    forebay.run("train", **task, **settings, precision="fp16")


def test_prompts_are_continued_as_on_the_cpu(forebay, streamed):
    flags = ["--prompt=once upon", "--prompt=a", "--prompt=and then there was one of them"]
    fp32 = dict(model=streamed["model"], precision="fp32", max_tokens=7)

    def generated(*prompts, device="cuda", **more):
        return json.loads(forebay.run("generate", *prompts, "--format=json", **fp32, device=device, **more).stdout)

    def with_spare(*prompts, mebibytes):
        """With so much more than the least, as whose least is rounded up to whole MiB."""
        least = least_mebibytes(forebay, "generate", *prompts, **fp32)
        return generated(*prompts, gpu_mem=f"{least + mebibytes}MiB")

    on_cpu = generated(*flags, device="cpu")["answers"]
    together = generated(*flags)
    on_gpu = together["answers"]
    assert on_gpu == on_cpu
    assert together["copied_bytes_per_token"] == 0  # all weights are there
    # No block stays on the GPU, or one does.
    tight, some = with_spare(*flags, mebibytes=1), with_spare(*flags, mebibytes=4)
    assert tight["answers"] == some["answers"] == on_cpu
    alone = with_spare(flags[1], mebibytes=1)
    # A pass over the weights for each token, whether of one answer or of three.
    all_weights = weight_bytes(streamed["model"], 4)
    assert all_weights * (BLOCKS - 1) / BLOCKS < alone["copied_bytes_per_token"] < all_weights
    assert tight["copied_bytes_per_token"] * 3 == pytest.approx(alone["copied_bytes_per_token"], rel=1e-3)
    assert 0 < some["copied_bytes_per_token"] < tight["copied_bytes_per_token"]
    assert alone["tokens"] == on_gpu[1]["tokens"] and alone["text"] == on_gpu[1]["text"]
    printed = forebay.run("generate", *flags, **fp32)
    assert printed.stdout == "".join(f"[{i + 1}] {answer['text']}\n" for i, answer in enumerate(on_gpu))
    assert "s for each answer" in printed.stderr


@pytest.mark.parametrize("precision, relative", [("fp32", 1e-6), ("bf16", 1e-3), ("fp16", 1e-3)])
def test_a_loss_is_that_of_the_cpu_whatever_memory_there_is(forebay, streamed, precision, relative):
    settings = dict(streamed, precision=precision, batch=1)

    def loss(**more):
        return json.loads(forebay.run("eval", "--format=json", **settings, **more).stdout)["loss"]

    on_gpu = loss()
    assert on_gpu == pytest.approx(loss(device="cpu"), rel=relative)
    # With the least memory no block stays on the GPU, with room for one more that one.
    least = least_mebibytes(forebay, "eval", **settings)
    one_block = weight_bytes(streamed["model"], 4 if precision == "fp32" else 2) // BLOCKS
    for mebibytes in (least, least + -(-one_block // MIB)):
        assert loss(gpu_mem=f"{mebibytes}MiB") == on_gpu


def test_its_speeds_are_measured_and_give_plans_and_runs_a_forecast(forebay, task, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = dict(model=task["model"], batch=2, accum=2, seq=16, ram="256MiB")
    assert "unknown: --measure" in forebay.run("plan", **settings).stdout
    measured = json.loads(forebay.run("plan", "--measure", "--format=json", **settings).stdout)["forecast"]
    assert measured["step_s"] > 0 and measured["forward"]["bus_s"] > 0 and measured["backward"]["bus_s"] > 0
    assert measured["speeds"].startswith("measured just now")
    assert len(list((tmp_path / "cache/forebay/speeds").iterdir())) == 4  # the disk, the GPU, its bus, RAM
    kept = json.loads(forebay.run("plan", "--format=json", **settings).stdout)["forecast"]
    assert kept["step_s"] == measured["step_s"]
    done = forebay.run("train", **task, **SETTINGS, out=tmp_path / "run")
    assert "forecast " in done.stdout
    on_cpu = forebay.run("plan", "--device=cpu", **settings)
    assert "unknown: --measure" in on_cpu.stdout


def test_a_large_vocabulary_fits_a_small_card_and_gives_the_same_bits(forebay, tmp_path):
    """The head's gradient, far larger than a block's, leaves its memory to those of blocks; and there is one place for large
    layers beside two for blocks."""
    model = make_model(forebay, tmp_path / "model", vocab_size=6000, tie_word_embeddings=False, hidden_size=256,
                       intermediate_size=640)
    task = dict(model=model, data=write_rows(tmp_path / "data.fbd", *random_rows(8, 16, 6000, seed=5), 6000))
    settings = dict(batch=2, seq=16, steps=2, ram="512MiB")
    least = least_mebibytes(forebay, "train", **task, **settings, out=tmp_path / "refused")
    bytes_of = {}
    for name, memory in (("roomy", "512MiB"), ("least", f"{least}MiB")):
        plan = forebay.run("plan", "--format=json", model=model, batch=2, seq=16, ram="512MiB", gpu_mem=memory)
        bytes_of[name] = {term["name"]: term["bytes"] for term in json.loads(plan.stdout)["gpu"]["terms"]}
        forebay.run("train", **task, **settings, out=tmp_path / name, gpu_mem=memory)
    assert bytes_of["least"]["gradients of layers (fp32)"] < bytes_of["roomy"]["gradients of layers (fp32)"]
    assert forebay.digest(tmp_path / "least") == forebay.digest(tmp_path / "roomy")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_gradients_of_a_larger_one_are_made_in_parts_with_the_same_bits(forebay, tmp_path, tied):
    model = make_model(forebay, tmp_path / "model", vocab_size=65_541, tie_word_embeddings=tied, hidden_size=32,
                       intermediate_size=48, num_hidden_layers=2)
    tokens, flags = random_rows(4, 16, 65_541, seed=5)
    task = dict(model=model, data=write_rows(tmp_path / "data.fbd", tokens * 257, flags, 65_541))
    settings = dict(batch=2, seq=16, steps=2, ram="512MiB")
    least = least_mebibytes(forebay, "train", **task, **settings, out=tmp_path / "refused")
    for name, memory, in_parts in (("roomy", "1GiB", False), ("least", f"{least}MiB", True)):
        plan = forebay.run("plan", "--format=json", model=model, batch=2, seq=16, ram="512MiB", gpu_mem=memory)
        assert json.loads(plan.stdout)["recompute"]["vocabulary_in_parts"] == in_parts
        forebay.run("train", **task, **settings, out=tmp_path / name, gpu_mem=memory)
    assert forebay.digest(tmp_path / "least") == forebay.digest(tmp_path / "roomy")


def least_ram(forebay, command, **settings):
    refused = forebay.run(command, check=False, ram="1MiB", **settings)
    assert refused.returncode == 4
    return re.findall(r"--ram=(\d+MiB)", refused.stdout + refused.stderr)[-1]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_weights_of_a_larger_one_pass_through_ram_in_pieces_with_the_same_bits(forebay, tmp_path, tied):
    model = make_model(forebay, tmp_path / "model", vocab_size=65_541, tie_word_embeddings=tied, hidden_size=32,
                       intermediate_size=48, num_hidden_layers=2)
    tokens, flags = random_rows(4, 16, 65_541, seed=5)
    data = write_rows(tmp_path / "data.fbd", tokens * 257, flags, 65_541)
    settings = dict(batch=2, seq=16, gpu_mem="1GiB", weights_tier="nvme", tile_elems=65_536)
    least = least_ram(forebay, "plan", model=model, **settings)
    planned = json.loads(forebay.run("plan", "--format=json", model=model, ram=least, **settings).stdout)
    assert planned["recompute"]["vocabulary_in_pieces"]
    for name, ram in (("ample", "512MiB"), ("least", least)):
        forebay.run("train", model=model, data=data, out=tmp_path / name, steps=2, ram=ram, **settings)
    assert forebay.digest(tmp_path / "least") == forebay.digest(tmp_path / "ample")

    # What fits stays on the GPU, and comes there through the same memory.
    settings = dict(model=model, data=data, batch=2, seq=16)
    least = least_ram(forebay, "eval", **settings)
    losses = {json.loads(forebay.run("eval", "--format=json", **settings, ram=ram, gpu_mem=gpu_mem).stdout)["loss"]
              for ram in (least, "512MiB") for gpu_mem in ("1GiB", f"{least_mebibytes(forebay, 'eval', **settings)}MiB")}
    assert len(losses) == 1
