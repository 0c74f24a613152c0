"""--precision=fp16: steps that overflow are skipped by the scaler's rules, and nothing else about a run changes."""

import json
import os
import signal
import subprocess

import pytest
from conftest import make_model, make_too_large_for_fp16, random_rows, read_metrics, write_rows
from option_flags import flag_of

SEQ = 48
SETTINGS = dict(batch=2, accum=2, seq=SEQ, steps=14, lr=1e-3, warmup=2, clip=0.5, ram="1GiB", seed=3, precision="fp16",
                initial_scale_power=26, loss_scale_window=2, hysteresis=2)
ON_DISK = dict(weights_tier="nvme", state_tier="nvme")
IN_RAM = dict(weights_tier="host", state_tier="host")


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(20, SEQ, 256, seed=4), 256)
    return dict(SETTINGS, model=make_model(forebay, folder / "model"), data=data)


@pytest.fixture(scope="module")
def whole(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    done = forebay.run("train", out=out, **dict(task, **ON_DISK))
    return dict(out=out, digest=forebay.digest(out), lines=read_metrics(out), stdout=done.stdout, stderr=done.stderr)


def zero_rule(lines, power, window, hysteresis):
    """DeepSpeed's DynamicLossScaler over the overflows that a run had: the scale of each step."""
    scale, left, last, scales = 2.0**power, hysteresis, -1, []
    for i, line in enumerate(lines):
        scales.append(scale)
        if line["skipped"]:
            if left == 1:
                scale = max(scale / 2, 1)
            else:
                left -= 1
            last = i
        elif i - last - 1 > 0 and (i - last - 1) % window == 0:
            left = hysteresis
            scale *= 2
    return scales


def torch_rule(lines, power, window):
    """torch.amp.GradScaler over the same."""
    scale, good, scales = 2.0**power, 0, []
    for line in lines:
        scales.append(scale)
        good = 0 if line["skipped"] else good + 1
        scale *= 0.5 if line["skipped"] else 2 if good == window else 1
        good %= window
    return scales


def test_overflows_move_the_scale_and_skip_steps(whole):
    lines = whole["lines"]
    skipped = [line["skipped"] for line in lines]
    # It overflows from the start, comes to rest, grows and overflows again.
    assert skipped[0] and not all(skipped)
    first_good = skipped.index(False)
    assert any(skipped[first_good:])
    assert [line["loss_scale"] for line in lines] == zero_rule(lines, 26, 2, 2)
    # The schedule counts updates alone: two of warm-up, then it falls.
    updates = 0
    for line in lines:
        assert line["lr"] == pytest.approx(1e-3 * min((updates + 1) / 2, (14 - updates) / 12)), line
        updates += not line["skipped"]
        assert (line["grad_norm"] is None) == line["skipped"]
    assert f"skipped    {sum(skipped)} of the run's 14 steps" in whole["stdout"]
    assert "step 1 is skipped: the gradient of 'head' overflowed at loss scale 67108864" in whole["stderr"]


@pytest.mark.parametrize("rules", ["stage0", "torch"])
def test_other_rules(forebay, task, tmp_path, rules):
    settings = {key: value for key, value in task.items() if key != "hysteresis"}
    forebay.run("train", out=tmp_path / "run", loss_scaling=rules, **settings)
    lines = read_metrics(tmp_path / "run")
    assert any(line["skipped"] for line in lines) and not all(line["skipped"] for line in lines)
    expected = torch_rule(lines, 26, 2) if rules == "torch" else zero_rule(lines, 26, 2, 1)
    assert [line["loss_scale"] for line in lines] == expected


@pytest.mark.parametrize(
    "changes",
    [
        IN_RAM,
        dict(ON_DISK, tile_elems=2048, engine="threads"),
        dict(ON_DISK, threads=1),
        dict(ON_DISK, durability="none"),
        dict(IN_RAM, commit_every=3),
        dict(ON_DISK, commit_every=100),
    ],
    ids=lambda changes: "-".join(f"{key}={value}" for key, value in changes.items()),
)
@pytest.mark.parametrize("stops", [(), (1, 2, 1, 1, 3)], ids=["whole", "stopped"])
def test_the_digest_does_not_depend_on(forebay, task, whole, tmp_path, changes, stops):
    out = tmp_path / "run"
    settings = dict(task, **changes)
    resume = []
    for stop in [*stops, 0]:
        done = forebay.run("train", *resume, out=out, stop_after=stop, check=False, **settings)
        assert done.returncode == (75 if stop else 0), done.stderr
        assert forebay.run("inspect", str(out), "--verify").returncode == 0
        resume = ["--resume"]
    assert forebay.digest(out) == whole["digest"]
    keys = ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped")
    assert [{key: line[key] for key in keys} for line in read_metrics(out)] == [
        {key: line[key] for key in keys} for line in whole["lines"]]


def test_a_run_that_is_killed_after_each_step_ends_in_the_same_bits(forebay, task, whole, tmp_path):
    out = tmp_path / "run"
    settings = dict(task, **ON_DISK)
    command = [forebay.binary, "train", f"--out={out}", *(flag_of(key, value) for key, value in settings.items())]
    for killed_after in range(1, 40):
        resume = ["--resume"] if (out / "run.json").exists() else []
        process = subprocess.Popen([*command, *resume], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        reported = 0
        for line in process.stdout:
            reported += line.startswith("step ")
            if reported == 1 + killed_after % 3:  # in the midst of what follows
                os.kill(process.pid, signal.SIGKILL)
                break
        process.communicate()
        if process.returncode == 0:
            break
    assert process.returncode == 0 and killed_after > 3
    assert forebay.digest(out) == whole["digest"]


@pytest.fixture(scope="module")
def begun(forebay, task, tmp_path_factory):
    """A run with the default rules that stopped after its first step, and its digest."""
    out = tmp_path_factory.mktemp("begun") / "run"
    rules = ("initial_scale_power", "loss_scale_window", "hysteresis")
    settings = {key: value for key, value in task.items() if key not in rules}
    assert forebay.run("train", out=out, stop_after=1, check=False, **settings).returncode == 75
    return out, forebay.digest(out)


@pytest.mark.parametrize("changes", [
    dict(loss_scaling="torch"), dict(loss_scale=64), dict(initial_scale_power=20), dict(loss_scale_window=3), dict(hysteresis=3),
    dict(consecutive_hysteresis="true"), dict(min_loss_scale=0.5), dict(grad_dtype="fp32"), dict(precision="bf16"),
], ids=lambda changes: next(iter(changes)))
def test_resuming_with_other_rules_names_the_difference(forebay, begun, changes):
    out, before = begun
    refused = forebay.run("train", "--resume", out=out, check=False, **changes)
    assert refused.returncode == 2, refused.stderr
    assert f"{flag_of(next(iter(changes)), '')[:-1]}: the run has" in refused.stderr, refused.stderr
    assert forebay.digest(out) == before


def test_a_skipped_step_changes_nothing(forebay, task, tmp_path):
    """With the same row in each step, a run that skips the first is one that starts later, at the scale it came to."""
    data = write_rows(tmp_path / "row.fbd", *random_rows(1, SEQ, 256, seed=6), 256)
    same = {key: value for key, value in task.items() if key not in ("data", "hysteresis", "initial_scale_power", "steps")}
    same.update(data=data, batch=1, accum=1, schedule="constant", loss_scale_window=100, hysteresis=1, export_dtype="fp32")
    forebay.run("train", out=tmp_path / "a", steps=16, initial_scale_power=26, **same)
    lines = read_metrics(tmp_path / "a")
    num_skipped = sum(line["skipped"] for line in lines)
    assert 0 < num_skipped < 16 and not any(line["skipped"] for line in lines[num_skipped:])
    forebay.run("train", out=tmp_path / "b", steps=16 - num_skipped, initial_scale_power=26 - num_skipped, **same)
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_the_least_scale_ends_the_run_and_keeps_it(forebay, task, whole, tmp_path):
    first_good = [line["skipped"] for line in whole["lines"]].index(False)
    power = 26 - first_good + 1  # as large as the first step bears; then the model is made to diverge
    settings = dict(task, loss_scale_window=1000, hysteresis=1, initial_scale_power=power, min_loss_scale=2.0**power,
                    schedule="constant", lr=3, warmup=0, clip=0)
    done = forebay.run("train", "--format=json", out=tmp_path / "run", check=False, **settings)
    assert done.returncode == 7, done.stderr
    message = json.loads(done.stdout.splitlines()[-1])["error"]["message"]
    lines = read_metrics(tmp_path / "run")
    assert lines
    for words in ("even at the least loss scale", "--precision=bf16", "--loss_scaling_args=min_loss_scale below", f"after step {len(lines)}"):
        assert words in message
    assert json.loads(forebay.run("inspect", str(tmp_path / "run"), "--verify", "--format=json").stdout)["step"] == len(lines)


def test_a_fixed_scale_stays(forebay, task, tmp_path):
    settings = {key: value for key, value in task.items()
                if key not in ("hysteresis", "initial_scale_power", "loss_scale_window")}
    for scale in (1000, 2.0**30):
        out = tmp_path / str(scale)
        forebay.run("train", out=out, loss_scale=scale, **settings)
        lines = read_metrics(out)
        assert {line["loss_scale"] for line in lines} == {scale}
        assert {line["skipped"] for line in lines} == {scale > 1000}


def test_evaluation_and_generation_take_it(forebay, whole, task):
    def loss_of(precision):
        done = forebay.run("eval", "--format=json", model=whole["out"] / "model", data=task["data"], precision=precision)
        return json.loads(done.stdout)["loss"]

    assert loss_of("fp16") == pytest.approx(loss_of("fp32"), rel=1e-3)
    assert loss_of("fp16") != loss_of("fp32")


def test_a_model_that_fp16_cannot_hold_is_found_before_the_first_step(forebay, task, tmp_path):
    model = tmp_path / "model"
    last = make_too_large_for_fp16(task["model"], model)
    settings = dict(task, model=model, out=tmp_path / "run")
    refused = forebay.run("train", check=False, **settings)
    assert refused.returncode == 3, refused.stderr
    for words in (str(model), f"tensor '{last}' has a weight of 65536", "65504", "--precision=bf16 or fp32"):
        assert words in refused.stderr, refused.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    # The advice of the message, with the same --out.
    of_fp16 = ("precision", "initial_scale_power", "loss_scale_window", "hysteresis")
    forebay.run("train", **{key: value for key, value in settings.items() if key not in of_fp16})
    # Nor is there a loss to measure.
    measured = forebay.run("eval", "--format=json", check=False, model=model, data=task["data"], precision="fp16")
    assert measured.returncode == 7, measured.stderr
    assert "is not finite" in json.loads(measured.stdout.splitlines()[-1])["error"]["message"]
    forebay.run("eval", model=model, data=task["data"])
