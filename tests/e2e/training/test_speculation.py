"""--gradients=speculate: gradients are applied before their norm is known, and the result has the bits of held ones."""

import json
import signal
import subprocess

import pytest
from conftest import make_model, random_rows, read_metrics, train_through_signals, write_rows
from option_flags import flag_of

SEQ = 48
SETTINGS = dict(batch=2, accum=2, seq=SEQ, steps=6, lr=1e-3, warmup=2, ram="1GiB", seed=3, tile_elems=2048)
ALWAYS, NEVER, SOMETIMES = 0.01, 1e6, None  # SOMETIMES: between the norms of the steps


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(20, SEQ, 256, seed=4), 256)
    return dict(SETTINGS, model=make_model(forebay, folder / "model"), data=data)


@pytest.fixture(scope="module")
def held(forebay, task, tmp_path_factory):
    """By what is clipped: (clip, digest, lines) of a run that holds its gradients."""
    runs = {}
    folder = tmp_path_factory.mktemp("held")
    for clip in (NEVER, ALWAYS, SOMETIMES):
        if clip is SOMETIMES:
            norms = sorted(line["grad_norm"] for line in runs[NEVER][2])
            used = (norms[2] + norms[3]) / 2
        else:
            used = clip
        out = folder / str(clip)
        forebay.run("train", out=out, **task, clip=used, gradients="hold", state_tier="nvme", weights_tier="nvme")
        runs[clip] = (used, forebay.digest(out), read_metrics(out))
    return runs


ON_NVME = dict(weights_tier="nvme", state_tier="nvme")
# Speculation of all layers or some, which live on NVMe or in RAM: a failed hope undoes different things.
WAYS = {
    "all": {}, "all on nvme": ON_NVME, "two": dict(speculate_layers=2), "two on nvme": dict(ON_NVME, speculate_layers=2),
    "one, weights in RAM": dict(speculate_layers=1, weights_tier="host", state_tier="nvme"),
    "all, state in RAM": dict(weights_tier="nvme", state_tier="host"),
}


@pytest.mark.parametrize("clip", [NEVER, ALWAYS, SOMETIMES])
@pytest.mark.parametrize("way", WAYS)
def test_the_bits_are_those_of_held_gradients(forebay, task, held, tmp_path, clip, way):
    used, digest, lines = held[clip]
    forebay.run("train", out=tmp_path / "run", **task, clip=used, gradients="speculate", **WAYS[way])
    placement = json.load(open(tmp_path / "run" / "plan.json"))["placement"]
    assert placement["speculative_layers"] == WAYS[way].get("speculate_layers", placement["num_layers"])
    assert forebay.digest(tmp_path / "run") == digest
    ours = read_metrics(tmp_path / "run")
    clipped = [line["grad_norm"] > used for line in lines]
    assert any(clipped) == (clip is not NEVER) and all(clipped) == (clip == ALWAYS)
    assert [line["recomputed"] for line in ours if line["step"] > 0][0] == clipped[0]
    for line, expected in zip(ours, lines):
        assert (line["loss"], line["grad_norm"]) == (expected["loss"], expected["grad_norm"])
        # After a clipped step none is hoped for, so the next is computed twice whether it is clipped or not.
        assert line["recomputed"] or not expected["grad_norm"] > used


def test_nothing_is_written_but_weights_and_state(forebay, task, held, tmp_path):
    out = tmp_path / "run"
    forebay.run("train", out=out, **task, clip=0, gradients="speculate")
    plan = json.load(open(out / "plan.json"))
    assert plan["placement"]["speculative_layers"] == plan["placement"]["num_layers"]
    assert plan["placement"]["host_gradient_bytes"] == plan["gradient_area_bytes"] == 0
    for line in read_metrics(out)[1:]:
        assert line["write_bytes"] == plan["write_bytes_per_step"]
        assert line["read_bytes"] == plan["read_bytes_per_step"]


def test_auto_takes_it_where_nothing_clips_and_memory_is_short(forebay, task, tmp_path):
    # Large enough that the least budget, which is a whole number of MiB, cannot hold all gradients.
    model = make_model(forebay, tmp_path / "model", hidden_size=128, intermediate_size=400, num_hidden_layers=6)
    task = dict(task, model=model)

    def plan(**changes):
        settings = {key: value for key, value in {**task, **changes}.items() if key != "data"}
        done = forebay.run("plan", format="json", check=False, **settings)
        return json.loads(done.stdout.splitlines()[-1])

    least = plan(ram="1MiB", clip=0)["error"]["message"].split("--ram=")[-1]
    short = {**task, "ram": least}
    speculates = plan(**short, clip=0)
    assert speculates["placement"]["speculative_layers"] > 0 and speculates["gradient_area_bytes"] == 0
    for changes in (dict(clip=1), dict(clip=0, gradients="hold"), dict(clip=0, commit_every=2)):
        planned = plan(**{**short, **changes})
        assert planned["placement"]["speculative_layers"] == 0 and planned["gradient_area_bytes"] > 0, changes
    assert plan(clip=0)["placement"]["speculative_layers"] == 0
    # The digest is the same, of course.
    digests = set()
    for name, changes in dict(spilled=dict(gradients="hold", ram=least), auto=dict(ram=least), held={}).items():
        forebay.run("train", out=tmp_path / name, **{**task, **changes}, clip=0, export="none")
        digests.add(forebay.digest(tmp_path / name))
    assert len(digests) == 1


def test_of_some_layers(forebay, task, tmp_path):
    """With room for some gradients those are held, and their layers updated in the next forward pass."""
    model = make_model(forebay, tmp_path / "model", hidden_size=128, intermediate_size=400, num_hidden_layers=6)
    settings = {**task, "model": model, "clip": 0}
    for_plan = {key: value for key, value in settings.items() if key != "data"}

    def plan(ram):
        done = forebay.run("plan", format="json", check=False, **{**for_plan, "ram": ram})
        return json.loads(done.stdout.splitlines()[-1])

    least = int(plan("1MiB")["error"]["message"].split("--ram=")[-1].removesuffix("MiB"))
    by_ram = {ram: plan(ram)["placement"] for ram in range(least << 20, least + 3 << 20, 1 << 18)}
    some = [ram for ram, placement in by_ram.items() if 1 < placement["speculative_layers"] < placement["num_layers"] - 1]
    ram = some[len(some) // 2]
    digests = set()
    for name, gradients in (("held", "hold"), ("some", "auto"), ("stopped", "auto")):
        out = tmp_path / name
        changes = dict(gradients=gradients, export="none", ram="1GiB" if name == "held" else ram)
        for stop in (1, 2, 1, 0) if name == "stopped" else (0,):
            resume = ["--resume"] if out.exists() else []
            done = forebay.run("train", *resume, out=out, check=False, stop_after=stop, **{**settings, **changes})
            assert done.returncode == (75 if stop else 0), done.stderr
        placement = json.load(open(out / "plan.json"))["placement"]
        assert placement["speculative_layers"] == (0 if name == "held" else by_ram[ram]["speculative_layers"])
        digests.add(forebay.digest(out))
    assert len(digests) == 1


def test_a_step_that_is_not_finite_is_undone(forebay, task, tmp_path):
    # Decay that turns every weight over and makes it larger, until fp32 ends.
    wild = {**task, "steps": 40, "schedule": "constant", "lr": 10, "weight_decay": 1, "clip": 0, "warmup": 0}
    ended = set()
    for gradients in ("hold", "speculate"):
        out = tmp_path / gradients
        failed = forebay.run("train", check=False, out=out, gradients=gradients, state_tier="nvme", weights_tier="nvme", **wild)
        assert failed.returncode == 7, failed.stderr
        assert forebay.run("inspect", str(out), "--verify").returncode == 0
        message = next(line for line in failed.stderr.splitlines() if "is not finite" in line)
        ended.add((message, forebay.digest(out)))
    assert len(ended) == 1, ended


def test_a_kill_loses_the_running_step_alone(forebay, task, tmp_path):
    settings = dict(task, gradients="speculate")
    told = forebay.run("plan", **{key: value for key, value in settings.items() if key != "data"}).stdout
    assert "each step is committed as it ends" in told and "a crash loses the running one" in told
    command = [forebay.binary, "train", f"--out={tmp_path / 'run'}", *(flag_of(k, v) for k, v in settings.items())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        next(line for line in process.stdout if line.startswith("step 3/"))
        process.kill()
    inspected = json.loads(forebay.run("inspect", tmp_path / "run", format="json").stdout)
    assert inspected["step"] >= 3


@pytest.mark.parametrize("clip, way", [(NEVER, "all"), (SOMETIMES, "all on nvme"), (SOMETIMES, "two")])
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_can_be_resumed(forebay, task, held, tmp_path, kind, clip, way):
    used, digest, _ = held[clip]
    out = tmp_path / "run"
    pauses = [0.05 + 0.017 * attempt for attempt in range(40)]
    settings = {**task, "out": out, "clip": used, "gradients": "speculate", **WAYS[way]}
    train_through_signals(forebay, settings, kind, pauses)
    assert forebay.digest(out) == digest


def test_overflows_of_fp16_are_dropped(forebay, task, tmp_path):
    digests = set()
    ways = {"held": dict(ON_NVME, gradients="hold"), **{name: dict(way, gradients="speculate") for name, way in WAYS.items()}}
    for name, way in ways.items():
        out = tmp_path / name
        forebay.run("train", out=out, **{**task, "steps": 10}, clip=0.5, precision="fp16", initial_scale_power=26,
                    loss_scale_window=2, export="none", **way)
        lines = read_metrics(out)
        assert any(line["skipped"] for line in lines) and not all(line["skipped"] for line in lines)
        digests.add((forebay.digest(out), tuple((line["loss_scale"], line["loss"]) for line in lines)))
    assert len(digests) == 1


@pytest.mark.parametrize("changes, message", [
    (dict(gradients="speculate", speculate_layers=99), "--set=speculate_layers=99: the model has "),
    (dict(gradients="hold", speculate_layers=2), "gradients are applied at once with --gradients=speculate"),
    (dict(clip=1, speculate_layers=2), "gradients are applied at once with --gradients=speculate"),
])
def test_a_number_of_layers_that_is_none_is_refused(forebay, task, tmp_path, changes, message):
    done = forebay.run("train", check=False, out=tmp_path / "run", **{**task, **changes})
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "run").exists()


def test_with_exports_and_evaluations_beside(forebay, task, held, tmp_path):
    used, digest, _ = held[NEVER]
    out = tmp_path / "run"
    forebay.run("train", out=out, **task, clip=used, gradients="speculate", save_every=1, keep=9, eval_every=2,
                eval_data=task["data"])
    assert forebay.digest(out) == digest
    assert sorted(path.name for path in (out / "exports").iterdir()) == [f"step-{i}" for i in range(1, 6)]


@pytest.mark.parametrize(
    "changes",
    [dict(durability="none"), dict(commit_every=2)],
    ids=lambda changes: next(iter(changes)),
)
def test_what_it_does_not_go_with_is_named(forebay, task, tmp_path, changes):
    done = forebay.run("train", check=False, out=tmp_path / "run", **{**task, **changes}, gradients="speculate")
    (name, value), = changes.items()
    assert done.returncode == 2
    assert f"--gradients=speculate does not go with --{name}={value}" in done.stderr
    assert not (tmp_path / "run").exists()
