"""The master test: the same run gives the same bits whatever the tiers, tiles, threads, stops and resumes."""

import json
import os
import signal
import subprocess

import pytest
import tiny_models
from conftest import random_rows, read_metrics, train_through_signals, write_rows
from option_flags import flag_of

SETTINGS = dict(batch=2, accum=2, seq=48, steps=6, lr=1e-3, warmup=2, clip=0.5, ram="1GiB", seed=3)


@pytest.fixture(scope="module", params=["llama_tied", "qwen2"])
def task(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model = str(directory / "model")
    vocab = tiny_models.make(request.param, model)
    tokens, flags = random_rows(10, 48, vocab, seed=4)
    data = write_rows(directory / "data.fbd", tokens, flags, vocab)
    return dict(model=model, data=data)


def train(forebay, task, out, check=True, extra=(), **changes):
    return forebay.run("train", *extra, check=check, out=out, **task, **dict(SETTINGS, **changes))


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    train(forebay, task, out, weights_tier="nvme", state_tier="nvme")
    return forebay.digest(out)


@pytest.mark.parametrize(
    "changes",
    [
        dict(weights_tier="host", state_tier="host"),
        dict(weights_tier="nvme", state_tier="host"),
        dict(weights_tier="host", state_tier="nvme"),
        dict(engine="threads", io_threads=1),
        dict(engine="threads", io_threads=2),
        dict(engine="threads", io_threads=4),
        dict(threads=1),
        dict(threads=3),
        dict(update_threads=1),
        dict(threads=1, update_threads=4, state_tier="host"),
        dict(tile_elems=2048),
        dict(tile_elems=8192, threads=1, engine="threads", io_threads=3),
        dict(engine="io_uring"),
        dict(engine="libaio"),
        dict(engine="buffered"),
        dict(engine="libaio", tile_elems=2048, state_tier="host"),
        dict(activations_tier="nvme"),
        dict(recompute="none"),
        dict(number_checkpoints=2),
        dict(recompute="attention", recompute_layers=1, threads=3),
        dict(activations_tier="nvme", engine="threads", threads=3, tile_elems=2048),
        dict(activations_tier="nvme", weights_tier="host", state_tier="host"),
        dict(activations_tier="nvme", durability="none"),
        dict(gradients="speculate", speculate_layers=2, weights_tier="host", activations_tier="nvme"),
    ],
    ids=lambda changes: "-".join(f"{k}={v}" for k, v in changes.items()),
)
def test_the_digest_does_not_depend_on(forebay, task, expected, tmp_path, changes):
    train(forebay, task, tmp_path / "run", **dict(dict(weights_tier="nvme", state_tier="nvme"), **changes))
    assert forebay.digest(tmp_path / "run") == expected


def test_activations_in_bf16_have_a_digest_and_losses_of_their_own(forebay, task, tmp_path):
    settings = dict(precision="fp32", layout="fp32", steps=20)
    train(forebay, task, tmp_path / "fp32", **settings)
    digests = set()
    for number, changes in enumerate([dict(), dict(activations_tier="nvme", threads=1), dict(recompute="none"),
                                      dict(number_checkpoints=2), dict(recompute="attention", recompute_layers=1)]):
        out = tmp_path / f"bf16-{number}"
        train(forebay, task, out, activations_dtype="bf16", **settings, **changes)
        digests.add(forebay.digest(out))
    assert len(digests) == 1 and forebay.digest(tmp_path / "fp32") not in digests
    pairs = list(zip(read_metrics(tmp_path / "fp32"), read_metrics(tmp_path / "bf16-0")))
    assert len(pairs) == 20
    for wide, narrow in pairs:
        assert narrow["loss"] == pytest.approx(wide["loss"], abs=2e-2)
    # It changes the result, so a run keeps it.
    train(forebay, task, tmp_path / "stopped", check=False, stop_after=1, activations_dtype="bf16", **settings)
    other = train(forebay, task, tmp_path / "stopped", check=False, extra=["--resume"], activations_dtype="fp32", **settings)
    assert other.returncode == 2 and '--set=activations_dtype: the run has "bf16"' in other.stderr
    train(forebay, task, tmp_path / "stopped", extra=["--resume"], activations_dtype="bf16", **settings)
    assert forebay.digest(tmp_path / "stopped") in digests


@pytest.mark.parametrize(
    "settings",
    [
        dict(layout="bf16-moments"),
        dict(layout="int8-moments"),
        dict(layout="int8-moments", optimizer="lion"),
        dict(layout="bf16-moments", optimizer="adagrad", lr=1e-2),
        dict(optimizer="sgd", momentum=0.9, nesterov="true", lr=0.1),
        dict(optimizer="sgd", precision="fp32", lr=0.1),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_nor_with_other_layouts_and_optimizers(forebay, task, tmp_path, settings):
    """Moments are rounded by their element and step, wherever their tile lies and however often the run is stopped."""
    train(forebay, task, tmp_path / "a", weights_tier="nvme", state_tier="nvme", tile_elems=2048, **settings)
    train(forebay, task, tmp_path / "b", weights_tier="host", state_tier="host", threads=1, engine="threads", **settings)
    for stop_after in (2, 1, 0):
        train(forebay, task, tmp_path / "c", check=False, stop_after=stop_after, tile_elems=8192,
              extra=["--resume"] if (tmp_path / "c").exists() else [], **settings)
    digests = {forebay.digest(tmp_path / name) for name in "abc"}
    assert len(digests) == 1
    train(forebay, task, tmp_path / "other", **dict(settings, seed=4))
    assert forebay.digest(tmp_path / "other") not in digests


@pytest.mark.parametrize("update_threads, workers", [(1, 0), (4, 3), (0, 1)])
def test_the_update_has_the_threads_that_it_was_given(forebay, task, tmp_path, update_threads, workers):
    """Beside the one that stages layers, on which updates run. Without a number: as many as compute."""
    settings = dict(SETTINGS, steps=1000, threads=2, update_threads=update_threads)
    command = [forebay.binary, "train", *(flag_of(key, value) for key, value in {**task, **settings}.items())]
    process = subprocess.Popen([*command, f"--out={tmp_path / 'run'}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True)
    try:
        assert any(line.startswith("step ") for line in process.stdout)
        threads = os.listdir(f"/proc/{process.pid}/task")
        names = [open(f"/proc/{process.pid}/task/{thread}/comm").read().strip() for thread in threads]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert sum(name.startswith("optimizer") for name in names) == workers, names


@pytest.mark.parametrize("engine", ["threads", "buffered"])  # which every machine has
def test_the_log_and_the_summary_name_the_engine(forebay, task, tmp_path, engine):
    done = train(forebay, task, tmp_path / "run", engine=engine, extra=["--engine_strict"], format="json", export="none")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert "threads (2)" in summary["engine"]
    log = (tmp_path / "run" / "events.log").read_text()
    assert f"disk: {summary['engine']}, " in log
    assert ("through the page cache" in log) == (engine == "buffered")


def test_a_run_goes_on_with_another_engine(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    for engine in ("io_uring", "buffered"):
        assert train(forebay, task, out, check=False, stop_after=1, engine=engine,
                     extra=["--resume"] if out.exists() else []).returncode == 75
    train(forebay, task, out, engine="libaio", extra=["--resume"])
    assert forebay.digest(out) == expected


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_stop_and_resume_gives_the_bits_of_one_run(forebay, task, expected, tmp_path, stop_after):
    out = tmp_path / "run"
    stopped = train(forebay, task, out, check=False, stop_after=stop_after)
    assert stopped.returncode == 75, stopped.stderr
    train(forebay, task, out, extra=["--resume"])
    assert forebay.digest(out) == expected
    steps = [json.loads(line)["step"] for line in open(out / "metrics.jsonl")]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_resume_computes_again_what_the_run_did(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    chosen = dict(recompute="attention", recompute_layers=1)
    train(forebay, task, out, check=False, stop_after=1, **chosen)
    train(forebay, task, out, extra=["--resume"])
    assert forebay.digest(out) == expected
    resolved = json.loads((out / "resolved_config.json").read_text())["offload"]
    assert {name: resolved[name]["value"] for name in chosen} == chosen


def test_metrics_of_steps_that_were_never_committed_are_replaced(forebay, task, tmp_path):
    out = tmp_path / "run"
    train(forebay, task, out, check=False, stop_after=3)
    before = (out / "metrics.jsonl").read_text()
    # A kill leaves the line of the step that was being committed, and maybe the beginning of one more.
    (out / "metrics.jsonl").write_text(before + before.splitlines()[-1].replace('"step":3', '"step":4') + '\n{"st')
    train(forebay, task, out, extra=["--resume"])
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[:3] == before.splitlines()


@pytest.mark.parametrize("kind, changes", [(signal.SIGTERM, {}), (signal.SIGINT, {}), (signal.SIGKILL, {}),
                                           (signal.SIGKILL, dict(activations_tier="nvme"))])
def test_a_signal_at_any_moment_can_be_resumed(forebay, task, expected, tmp_path, kind, changes):
    out = tmp_path / "run"
    # Later every time, so that the signal meets start, steps, commits and export.
    pauses = [0.02 + 0.013 * attempt for attempt in range(40)]
    train_through_signals(forebay, {**task, **SETTINGS, **changes, "out": out}, kind, pauses)
    assert forebay.digest(out) == expected


@pytest.fixture(scope="module")
def begun(forebay, task, tmp_path_factory):
    """A run that stopped after its first step, and its digest."""
    out = tmp_path_factory.mktemp("begun") / "run"
    assert train(forebay, task, out, check=False, stop_after=1).returncode == 75
    return out, forebay.digest(out)


@pytest.mark.parametrize(
    "changes",
    [dict(lr=2e-3), dict(seed=4), dict(batch=4, accum=1), dict(clip=1.0), dict(steps=7), dict(warmup=3),
     dict(schedule="constant"), dict(weight_decay=0.3), dict(betas="0.8,0.9"), dict(eps=1e-5), dict(decay_all="true"),
     dict(param_groups='[{"match": "*norm*", "lr": 1e-5}]'), dict(optimizer="adam"),
     dict(layout="bf16-moments"),
     dict(precision="fp32"), dict(layout="fp32"), dict(grad_dtype="fp32")],
    ids=lambda changes: ",".join(changes),
)
def test_resuming_with_other_settings_names_the_difference(forebay, task, begun, changes):
    out, before = begun
    refused = train(forebay, task, out, check=False, extra=["--resume"], **changes)
    assert refused.returncode == 2, refused.stderr
    for key in changes:
        assert key in refused.stderr
    assert forebay.digest(out) == before


def test_an_occupied_folder_is_refused_and_left_alone(forebay, task, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.txt").write_text("do not touch")
    refused = train(forebay, task, out, check=False)
    assert refused.returncode == 2, refused.stderr
    assert os.listdir(out) == ["thesis.txt"]


def test_a_run_made_from_random_weights_trains(forebay, task, tmp_path):
    out = tmp_path / "run"
    forebay.run("init", "--run", config=f"{task['model']}/config.json", out=out, seed=7)
    before = forebay.digest(out)
    # The config says float32, so that is how the run was made.
    train(forebay, dict(task, model=f"{out}/source"), out, extra=["--resume"], precision="fp32")
    assert forebay.digest(out) != before
    assert os.path.exists(out / "model" / "model.safetensors")
