"""What a step costs the disk: stated by the plan, counted by the trainer, replayed and tuned by swap-bench."""

import json
import os
import pathlib
import subprocess

import pytest
from conftest import make_model, random_rows, write_rows

SEQ = 32
# Six blocks, so that the window of three has to read some again.
SHAPE = dict(num_hidden_layers=6)


class SwapBench:
    def __init__(self, binary):
        self.binary = binary

    def run(self, *arguments, check=True, **settings):
        command = [self.binary, *map(str, arguments), *(f"--{key}={value}" for key, value in settings.items())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}\nexit {done.returncode}\n{done.stderr}")
        return done

    def json(self, *arguments, **settings):
        return json.loads(self.run(*arguments, format="json", **settings).stdout)


@pytest.fixture(scope="module")
def swap_bench():
    return SwapBench(os.path.join(os.environ["FOREBAY_BIN"], "swap-bench"))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def task(request, forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(12, SEQ, 256, seed=5), 256)
    model = make_model(forebay, folder / "model", tie_word_embeddings=request.param, **SHAPE)
    return dict(model=model, data=data, batch=2, seq=SEQ, steps=5, ram="1GiB", tile_elems=16384,
                weights_tier="nvme", state_tier="nvme")


def plan_of(forebay, task, *arguments, **settings):
    settings = {**{key: value for key, value in task.items() if key != "data"}, **settings}
    return forebay.run("plan", "--format=json", *arguments, **settings)


def test_plan_trainer_and_replay_state_the_same_bytes(forebay, swap_bench, task, tmp_path):
    plan = json.loads(plan_of(forebay, task).stdout)
    forebay.run("train", out=tmp_path / "run", **task)
    lines = [json.loads(line) for line in open(tmp_path / "run" / "metrics.jsonl", encoding="utf-8")]
    # The first step has no update to apply, the last applies its own too.
    for line in lines[1:-1]:
        assert (line["read_bytes"], line["write_bytes"]) == (plan["read_bytes_per_step"], plan["write_bytes_per_step"])
    result = swap_bench.json("step", tmp_path, config=task["model"], tile_elems=task["tile_elems"], time="500ms",
                             size="64M")
    step = result["step"]
    assert (step["read_bytes"], step["write_bytes"]) == (plan["read_bytes_per_step"], plan["write_bytes_per_step"])
    replayed = step["replayed"]
    assert (replayed["read_bytes"], replayed["write_bytes"]) == (step["read_bytes"], step["write_bytes"])
    assert not step["extrapolated"] and not replayed["folded"]
    assert step["steps_until_tbw"] == plan["steps_until_tbw"] == int(600e12 / step["write_bytes"])
    assert result["schema"] == 1 and result["runs"] == [] and result["devices"][0]["path"] == str(tmp_path)


@pytest.mark.parametrize("settings", [
    dict(precision="fp16"), dict(precision="fp16", optimizer="adagrad"), dict(layout="int8-moments"),
    dict(layout="bf16-moments", optimizer="lion"), dict(optimizer="sgd"), dict(precision="fp32", optimizer="sgd"),
    dict(precision="fp32", optimizer="sgd", momentum=0.9, grad_dtype="bf16"), dict(layout="int8-moments", durability="none"),
], ids=lambda settings: "-".join(map(str, settings.values())))
def test_plan_and_trainer_state_the_same_bytes_whatever_is_kept(forebay, task, tmp_path, settings):
    plan = json.loads(plan_of(forebay, task, **settings).stdout)
    forebay.run("train", out=tmp_path / "run", **task, **settings)
    lines = [json.loads(line) for line in open(tmp_path / "run" / "metrics.jsonl", encoding="utf-8")]
    assert not any(line.get("skipped") for line in lines)
    # With one copy, the first write after a commit is that of a record.
    for line in lines[2:-1]:
        assert (line["read_bytes"], line["write_bytes"]) == (plan["read_bytes_per_step"], plan["write_bytes_per_step"])


@pytest.fixture
def large_model(tmp_path):
    """The config.json of a model whose store is larger than the file, and whose step longer than the time."""
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536,
              "num_hidden_layers": 60, "num_attention_heads": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 128, "hidden_act": "silu", "tie_word_embeddings": False}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("extra", [{}, {"gradients": "nvme", "compute": "adamw"}, {"layout": "fp32", "engine": "threads"}],
                         ids=["default", "spilled-with-update", "fp32-threads"])
def test_a_slice_in_a_small_file_is_labelled_and_leaves_nothing(swap_bench, large_model, tmp_path, extra):
    folder = tmp_path / "disk"
    folder.mkdir()
    step = swap_bench.json("step", folder, config=large_model, time="100ms", size="128M", tile_elems="256K",
                           **extra)["step"]
    replayed = step["replayed"]
    assert step["extrapolated"] and replayed["folded"] and replayed["file_bytes"] == 128 << 20
    assert step["blocks"] == 60 and 4 <= replayed["blocks"] < 60
    scale = (step["read_bytes"] + step["write_bytes"]) / (replayed["read_bytes"] + replayed["write_bytes"])
    assert step["seconds"]["median"] == pytest.approx(replayed["seconds"]["median"] * scale, rel=1e-6)
    per_param = 14 if extra.get("gradients") == "nvme" else 12
    assert step["write_bytes_per_param"] == pytest.approx(per_param, rel=0.01)
    assert 0 < step["reading"] <= 1 and 0 < step["writing"] <= 1
    assert (step["updating"] is not None) == (extra.get("compute") == "adamw")
    assert replayed["host_peak_bytes"] <= replayed["budget_bytes"]
    assert os.listdir(folder) == []


def test_the_table_says_what_was_extrapolated(swap_bench, large_model, tmp_path):
    text = swap_bench.run("step", tmp_path, config=large_model, time="100ms", size="128M", tile_elems="256K").stdout
    assert "EXTRAPOLATED" in text and "of the 60 blocks" in text and "a file of 128 MiB stood for" in text
    csv = swap_bench.run("step", tmp_path, config=large_model, time="100ms", size="128M", tile_elems="256K",
                         format="csv").stdout.splitlines()
    assert len(csv) == 2 and len(csv[0].split(",")) == len(csv[1].split(","))


@pytest.mark.parametrize("arguments, code, words", [
    ([], 2, "which model"),
    (["--params=13B", "--config=x"], 2, "which model"),
    (["--params=13Q"], 2, "13Q"),
    (["--config=nothing"], 3, "nothing"),
    (["--params=135M", "--layout=int4"], 2, "int4"),
    (["--params=135M", "--set=tile_elems=1000"], 2, "tile_elems"),
    (["--params=135M", "--size=1M"], 2, "--size"),
    (["--params=135M", "--tbw=0"], 2, "tbw"),
    (["--params=13B", "--ram=1GiB"], 4, "--gradients=nvme"),
    (["--params=13B", "--ram=1GiB", "--gradients=nvme"], 4, "--ram="),
])
def test_bad_input_to_step(swap_bench, tmp_path, arguments, code, words):
    done = swap_bench.run("step", tmp_path, *arguments, check=False)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.fixture(scope="module")
def tuned(swap_bench, tmp_path_factory):
    """io.json of the disk of the tests, and what tune printed."""
    folder = tmp_path_factory.mktemp("tuned")
    path = folder / "io.json"
    printed = swap_bench.json("tune", folder, size="128M", budget="5s", out=path)
    assert os.listdir(folder) == ["io.json"]  # nothing else is left
    return path, printed


def test_tune_writes_what_it_prints(tuned):
    path, printed = tuned
    profile = json.loads(path.read_text())
    assert printed["profile"] == profile and profile["format"] == 1
    device = profile["devices"][0]
    assert device["block"] % 4096 == 0 and device["block"] <= device["inflight_read_bytes"]
    assert device["read_bw"] > 0 and device["write_bw"] > 0 and device["mixed_bw"] > 0
    aio = printed["deepspeed"][0]["aio"]
    assert aio["block_size"] == device["block"]
    assert aio["queue_depth"] == device["inflight_read_bytes"] // device["block"]
    [rates] = printed["rates"]
    assert device["read_bw"] == pytest.approx(rates["read_gbps"]["median"] * 1e9)
    assert device["mixed_bw"] == pytest.approx(rates["mixed_gbps"]["median"] * 1e9)
    # The knee is the least of its own curve, of those that the final turns measured; the others' single passes say less.
    if rates["turns"] < 2:
        return
    reads = {run["inflight"]: run["gbps"]["median"] for run in printed["runs"]
             if run["op"] == "read" and run["bs"] == device["block"] and run["gbps"]["min"] < run["gbps"]["max"]}
    enough = [inflight for inflight, gbps in reads.items() if gbps >= 0.97 * max(reads.values())]
    assert device["inflight_read_bytes"] == min(enough)


def test_tune_replaces_its_own_file_and_no_other(swap_bench, tmp_path):
    other = tmp_path / "mine.json"
    other.write_text("{}")
    done = swap_bench.run("tune", tmp_path, "--size=64M", "--budget=1s", f"--out={other}", check=False)
    assert done.returncode == 2 and "not made by swap-bench" in done.stderr
    assert other.read_text() == "{}"


def test_plan_states_the_disks_time_from_io_json(forebay, task, tuned):
    device = json.loads(tuned[0].read_text())["devices"][0]
    out = tuned[0].parent / "run"
    plan = json.loads(plan_of(forebay, task, out=out, bench=tuned[0]).stdout)
    expected = (plan["read_bytes_per_step"] / device["read_bw"] + plan["write_bytes_per_step"] / device["write_bw"])
    assert plan["io_seconds_per_step"] == pytest.approx(expected, rel=1e-6)
    assert json.loads(plan_of(forebay, task, out=out).stdout)["io_seconds_per_step"] is None
    text = forebay.run("plan", bench=tuned[0], out=out, tbw=300,
                       **{key: value for key, value in task.items() if key != "data"}).stdout
    assert "wear       5 steps write" in text and "of a drive of 300 TBW" in text


def test_training_with_io_json_gives_the_same_bits(forebay, task, tuned, tmp_path):
    plain, with_bench = tmp_path / "plain", tuned[0].parent / f"run-{tmp_path.name}"
    forebay.run("train", out=plain, **task)
    done = forebay.run("train", out=with_bench, bench=tuned[0], **task)
    assert "warning" not in done.stderr
    assert "as --bench says" in (with_bench / "events.log").read_text()
    assert forebay.digest(plain) == forebay.digest(with_bench)


@pytest.mark.parametrize("key, value, words", [
    ("kernel", "2.6.32", "measured under kernel 2.6.32"),
    ("fs_id", "uuid:00", "no measurement of the device"),
    ("engine", "libaio", "measured with the engine libaio"),
])
def test_a_stale_io_json_is_a_warning_and_not_used(forebay, task, tuned, tmp_path, key, value, words):
    profile = json.loads(tuned[0].read_text())
    if profile["devices"][0][key] == value:
        pytest.skip(f"the tests' disk has {key} {value}")
    profile["devices"][0][key] = value
    stale = tmp_path / "io.json"
    stale.write_text(json.dumps(profile))
    out = tuned[0].parent / f"run-{tmp_path.name}"
    done = forebay.run("train", out=out, bench=stale, **{**task, "steps": 1})
    assert "warning" in done.stderr and words in done.stderr
    assert "as --bench says" not in (out / "events.log").read_text()
    if key != "engine":
        planned = plan_of(forebay, task, out=out / "other", bench=stale)
        assert words in planned.stderr and json.loads(planned.stdout)["io_seconds_per_step"] is None


@pytest.mark.parametrize("change, words", [
    (lambda device: device.pop("block"), "'devices[0].block' is missing"),
    (lambda device: device.update(speed=1), "'devices[0].speed' is not known"),
    (lambda device: device.update(read_bw=-1), "'devices[0].read_bw' is -1"),
], ids=["missing", "unknown", "impossible"])
def test_a_wrong_io_json_is_bad_input(forebay, task, tuned, tmp_path, change, words):
    profile = json.loads(tuned[0].read_text())
    change(profile["devices"][0])
    wrong = tmp_path / "io.json"
    wrong.write_text(json.dumps(profile))
    for command in ("plan", "train"):
        settings = {key: value for key, value in task.items() if command == "train" or key != "data"}
        done = forebay.run(command, check=False, out=tmp_path / "run", bench=wrong, **settings)
        assert done.returncode == 3 and words in done.stderr
    assert not pathlib.Path(tmp_path / "run").exists()
