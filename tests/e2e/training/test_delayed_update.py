"""--delay_update_from: steps that do not see the update before them compute what PyTorch computes with such weights, and
have the same bits however they are run, stopped and resumed."""

import json
import random
import signal

import pytest
from conftest import make_model, random_rows, read_metrics, train_through_signals, write_rows

SEQ = 48
STEPS, FROM, EVERY = 7, 2, 3
SETTINGS = dict(batch=2, accum=2, seq=SEQ, steps=STEPS, lr=1e-3, warmup=2, ram="1GiB", seed=3, tile_elems=2048, clip=0.5,
                commit_every=EVERY, delay_update_from=FROM)
SPILLED = dict(ram="104MiB", state_tier="nvme")  # not all gradients fit in RAM; checked below
BIG = dict(hidden_size=128, intermediate_size=400, num_hidden_layers=6)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(28, SEQ, 256, seed=4), 256)
    return dict(SETTINGS, model=make_model(forebay, folder / "model"), data=data)


@pytest.fixture(scope="module")
def whole(forebay, task, tmp_path_factory):
    """(digest, lines) of a run that nobody disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out), read_metrics(out)


def losses(lines):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


@pytest.mark.parametrize("delay_update_from, commit_every", [(2, 100), (6, 4)])
def test_losses_are_those_of_pytorch_with_weights_one_step_stale(forebay, tmp_path, delay_update_from, commit_every):
    import reference
    import tiny_models

    # Steps long enough that a step's update shows in the next loss.
    settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, clip=0.5, warmup=3, schedule="cosine")
    num_steps = 12
    model_directory = str(tmp_path / "model")
    vocab = tiny_models.make("llama_tied", model_directory)
    tokens, flags = random_rows(4, SEQ, vocab, seed=1)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, vocab)
    batches = [list(zip(tokens.tolist(), flags.tolist()))] * num_steps
    model = reference.load(model_directory)
    theirs = reference.train(model, batches, settings, delay_update_from=delay_update_from, commit_every=commit_every)
    in_time = reference.train(reference.load(model_directory), batches, settings)
    forebay.run("train", model=model_directory, data=data, out=tmp_path / "run", ram="1GiB", precision="fp32", batch=2,
                accum=2, seq=SEQ, steps=num_steps, commit_every=commit_every, delay_update_from=delay_update_from,
                **dict(settings, betas="0.9,0.95"))
    ours = read_metrics(tmp_path / "run")
    assert len(ours) == num_steps
    for a, b, without in zip(ours, theirs, in_time):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-4), (a["step"], a, b)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3), (a["step"], a, b)
        assert a["lr"] == pytest.approx(b["lr"], rel=1e-9)
        # One that sees the update is another, up to the first that does not.
        assert (abs(a["loss"] - without["loss"]) > 1e-3 * without["loss"]) == (a["step"] >= delay_update_from), a["step"]
    trained = reference.load(str(tmp_path / "run" / "model"))
    assert reference.relative_l2(trained, model) < 1e-4


@pytest.mark.parametrize(
    "changes",
    [dict(state_tier="host"), dict(state_tier="nvme"), dict(weights_tier="nvme", threads=1), dict(weights_tier="host"),
     dict(engine="threads", io_threads=1), dict(engine="threads", io_threads=2, state_tier="nvme"),
     dict(tile_elems=6144), dict(tile_elems=65536, state_tier="nvme")],
    ids=lambda changes: "-".join(f"{key}={value}" for key, value in changes.items()),
)
def test_the_bits_do_not_depend_on_tiers_threads_and_tiles(forebay, task, whole, tmp_path, changes):
    if "threads" in changes:  # those of the computation may change bits, so one is compared with one
        forebay.run("train", out=tmp_path / "one", **{**task, "threads": 1})
        expected = (forebay.digest(tmp_path / "one"), read_metrics(tmp_path / "one"))
    else:
        expected = whole
    out = tmp_path / "run"
    forebay.run("train", out=out, **{**task, **changes})
    assert forebay.digest(out) == expected[0]
    assert losses(read_metrics(out)) == losses(expected[1])


def test_the_bits_do_not_depend_on_where_gradients_wait(forebay, task, tmp_path):
    # Large enough that the least budget, which is a whole number of MiB, cannot hold all gradients.
    task = dict(task, model=make_model(forebay, tmp_path / "model", **BIG))
    settings = {key: value for key, value in task.items() if key != "data"}
    done = forebay.run("plan", format="json", check=False, **dict(settings, ram="1MiB"))
    least = json.loads(done.stdout.splitlines()[-1])["error"]["message"].split("--ram=")[-1]
    digests = set()
    for name, changes in dict(held={}, spilled=dict(ram=least)).items():
        forebay.run("train", out=tmp_path / name, **{**task, **changes})
        plan = json.load(open(tmp_path / name / "plan.json"))
        held_layers = plan["placement"]["gradient_layers_in_ram"]
        assert (held_layers == plan["placement"]["num_layers"]) == (name == "held")
        digests.add((forebay.digest(tmp_path / name), *losses(read_metrics(tmp_path / name))))
    assert len(digests) == 1
    # And from one to the other in the middle.
    out = tmp_path / "changed"
    forebay.run("train", out=out, check=False, **task, stop_after=4)
    forebay.run("train", "--resume", out=out, check=False, ram=least, stop_after=3)
    forebay.run("train", "--resume", out=out, ram="1GiB", stop_after=0)
    assert forebay.digest(out) == next(iter(digests))[0]


def test_a_run_that_ends_before_it_is_one_without(forebay, task, tmp_path):
    digests = set()
    for value in (0, STEPS + 1, STEPS, STEPS - 1):  # the step before the last is committed, and leaves nothing out
        forebay.run("train", out=tmp_path / str(value), **{**task, "delay_update_from": value})
        digests.add(forebay.digest(tmp_path / str(value)))
        assert len(digests) == (2 if value == STEPS - 1 else 1)


def test_a_step_moves_what_the_plan_says(forebay, task, whole, tmp_path):
    for name, changes in dict(disk=dict(state_tier="nvme"), ram=dict(state_tier="host")).items():
        out = tmp_path / name
        forebay.run("train", out=out, **{**task, **changes}, export="none")
        plan = json.load(open(out / "plan.json"))
        assert plan["delay_update_from"] == FROM
        # The step before was one that does not see an update, and its own is committed neither then nor now.
        for line in [line for line in read_metrics(out)[:-1] if line["step"] > EVERY and line["step"] % EVERY == 0]:
            assert line["read_bytes"] == plan["read_bytes_per_step"], (name, line["step"])
            of_commits = plan["commit_bytes"] // EVERY  # their share of a step
            assert line["write_bytes"] == plan["write_bytes_per_step"] - of_commits, (name, line["step"])


def test_plan_and_train_say_what_it_does(forebay, task, tmp_path):
    settings = {key: value for key, value in task.items() if key != "data"}
    line = f"from step {FROM} on each is applied in the backward pass of the next step, which sees the weights before it"
    assert line in forebay.run("plan", **settings).stdout
    done = forebay.run("train", out=tmp_path / "run", **task)
    assert line in done.stdout + done.stderr
    assert line not in forebay.run("plan", **dict(settings, delay_update_from=0)).stdout


@pytest.mark.parametrize("stop_after", [3, 4, 5])
def test_stopped_and_resumed_again_and_again(forebay, task, whole, tmp_path, stop_after):
    out = tmp_path / "run"
    resume = []
    for _ in range(STEPS):
        done = forebay.run("train", *resume, out=out, check=False, **task, stop_after=stop_after)
        if done.returncode == 0:
            break
        assert done.returncode == 75, done.stderr
        assert ("All of it is saved" in done.stderr) == (stop_after == 3), done.stderr
        resume = ["--resume"]
    assert forebay.digest(out) == whole[0]
    assert losses(read_metrics(out)) == losses(whole[1])


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("changes", [dict(), dict(state_tier="nvme")], ids=["roomy", "on_disk"])
def test_a_signal_at_any_moment_can_be_resumed(forebay, task, whole, tmp_path, kind, changes):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    out = tmp_path / "run"
    print("seed", seed)
    pauses = [rng.uniform(0.03, 0.25 + 0.01 * attempt) for attempt in range(60)]
    train_through_signals(forebay, {**task, **changes, "out": out}, kind, pauses)
    assert forebay.digest(out) == whole[0], seed
    assert losses(read_metrics(out)) == losses(whole[1]), seed


def test_exports_and_evaluations_beside_do_not_change_the_bits(forebay, task, whole, tmp_path):
    plain = tmp_path / "plain"
    forebay.run("train", out=plain, **task, save_every=EVERY, keep=9)
    out = tmp_path / "run"
    forebay.run("train", out=out, **task, save_every=EVERY, keep=9, eval_every=2 * EVERY, eval_data=task["data"])
    assert forebay.digest(out) == forebay.digest(plain) == whole[0]
    assert losses(read_metrics(out)) == losses(read_metrics(plain)) == losses(whole[1])
    for step in range(EVERY, STEPS, EVERY):
        weights = [(run / "exports" / f"step-{step}" / "model.safetensors").read_bytes() for run in (plain, out)]
        assert weights[0] == weights[1]
    # Evaluations see the newest weights: those of the export of the same step.
    line = read_metrics(out)[2 * EVERY - 1]
    done = forebay.run("eval", model=out / "exports" / f"step-{2 * EVERY}", data=task["data"], format="json")
    assert json.loads(done.stdout)["loss"] == pytest.approx(line["eval_loss"], rel=1e-6)
    # So does what a stop leaves.
    stopped = tmp_path / "stopped"
    forebay.run("train", out=stopped, check=False, **task, stop_after=EVERY + 1)
    forebay.run("export", stopped, out=tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (
        out / "exports" / f"step-{EVERY}" / "model.safetensors").read_bytes()


def test_steps_that_overflow_leave_nothing_out(forebay, task, tmp_path):
    """Of fp16: after a step that was skipped the next sees all updates, in one process and in many."""
    task = dict(task, steps=14, precision="fp16", initial_scale_power=24, loss_scale_window=2, hysteresis=1, export="none")
    forebay.run("train", out=tmp_path / "whole", **task)
    lines = read_metrics(tmp_path / "whole")
    skipped = [line["skipped"] for line in lines]
    # One after an update, and then an update, among the steps that are delayed.
    assert any(b and not a and not c for a, b, c in zip(skipped[1:], skipped[2:], skipped[3:])), skipped
    out = tmp_path / "run"
    resume = []
    for _ in lines:
        done = forebay.run("train", *resume, out=out, check=False, **task, stop_after=EVERY + 1)
        resume = ["--resume"]
        if done.returncode == 0:
            break
    assert forebay.digest(out) == forebay.digest(tmp_path / "whole")
    assert losses(read_metrics(out)) == losses(lines)


@pytest.mark.parametrize(
    "changes, message",
    [(dict(durability="none"), "--delay_update_from=2 needs --commit_every=N, 2 or more, and --durability=step"),
     (dict(commit_every=0), "--delay_update_from=2 needs --commit_every=N"),
     (dict(commit_every=1), "--delay_update_from=2 needs --commit_every=N"),
     (dict(save_every=2), "--save_every=2 commits a step where --commit_every=3 has none"),
     (dict(eval_every=4, eval_data="x"), "--eval_every=4 commits a step where --commit_every=3 has none"),
     (dict(gradients="speculate"), "--delay_update_from=2 does not go with --gradients=speculate"),
     (dict(delay_update_from=1), "--delay_update_from=1: no step is before the first"),
     (dict(delay_update_from=-1), "delay_update_from")],
    ids=["none", "by_pace", "each_step", "save", "eval", "speculate", "first_step", "negative"],
)
def test_what_it_does_not_go_with_is_named(forebay, task, tmp_path, changes, message):
    done = forebay.run("train", check=False, out=tmp_path / "run", **{**task, **changes})
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [0, 3, 4])
def test_a_resume_with_another_value_is_refused(forebay, task, whole, tmp_path, value):
    out = tmp_path / "run"
    forebay.run("train", out=out, check=False, **task, stop_after=1)
    done = forebay.run("train", "--resume", out=out, check=False, delay_update_from=value, stop_after=0)
    assert done.returncode == 2
    assert f'--delay_update_from: the run has "{FROM}", this command has "{value}"' in done.stderr
    forebay.run("train", "--resume", out=out, stop_after=0)
    assert forebay.digest(out) == whole[0]
