"""What --durability and --commit_every promise: to whoever kills a run, stops it, or has little room on the disk."""

import json
import os
import random
import signal
import subprocess
import time

import confined
import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 32
NUM_STEPS = 8
NUM_KILLS = 1000 if os.environ.get("FOREBAY_FULL") == "1" else 20
ON_DISK = dict(weights_tier="nvme", state_tier="nvme")
IN_RAM = dict(weights_tier="host", state_tier="host")


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(12, SEQ, 256, seed=5), 256)
    model = make_model(forebay, folder / "model")
    return dict(model=model, data=data, batch=2, seq=SEQ, steps=NUM_STEPS, lr=1e-3, ram="1GiB", export="none")


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out)


def committed_step(forebay, out):
    return json.loads(forebay.run("inspect", str(out), "--format=json").stdout)["step"]


def store_bytes(out):
    return sum((out / "swap" / name).stat().st_size for name in ("weights.fbs", "state.fbs", "seals.fbs"))


@pytest.mark.parametrize("tiers", [ON_DISK, IN_RAM], ids=["on_disk", "in_ram"])
@pytest.mark.parametrize(
    "mode",
    [
        dict(durability="none", export="hf"),  # without an export nothing is kept of what is in RAM
        dict(durability="step"),
        dict(commit_every=1),
        dict(commit_every=3),
        dict(commit_every=100),
    ],
    ids=lambda mode: "-".join(f"{key}={value}" for key, value in mode.items()),
)
def test_the_digest_does_not_depend_on_the_mode_with_a_stop_anywhere(forebay, task, expected, tmp_path, tiers, mode):
    out = tmp_path / "run"
    settings = dict(task, **tiers, **mode)
    for stop, resume in [(2, []), (1, ["--resume"]), (0, ["--resume"])]:
        done = forebay.run("train", *resume, out=out, stop_after=stop, check=False, **settings)
        assert done.returncode == (75 if stop else 0), done.stderr
        assert forebay.run("inspect", str(out), "--verify").returncode == 0
    assert committed_step(forebay, out) == NUM_STEPS
    assert forebay.digest(out) == expected


def test_one_copy_takes_half_the_space(forebay, task, tmp_path):
    for mode in ("none", "step"):
        forebay.run("train", out=tmp_path / mode, durability=mode, **task)
    assert store_bytes(tmp_path / "none") * 2 == store_bytes(tmp_path / "step")
    assert " in one slot" in forebay.run("inspect", str(tmp_path / "none")).stdout
    assert " in two slots" in forebay.run("inspect", str(tmp_path / "step")).stdout


def kill_in_step(forebay, settings, out, step, resume=()):
    """Kills a run when it reports that `step` is done."""
    command = [forebay.binary, "train", "--format=json", *resume, f"--out={out}"]
    command += [flag_of(key, value) for key, value in settings.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "step" and event["step"] == step:
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL


def test_a_kill_of_a_run_with_one_copy_is_told_and_nothing_is_resumed(forebay, task, tmp_path):
    out = tmp_path / "run"
    # Longer than any kill takes to arrive.
    kill_in_step(forebay, dict(task, **ON_DISK, durability="none", steps=5000), out, 3)
    for arguments in (["train", "--resume", f"--out={out}"], ["inspect", str(out)], ["inspect", str(out), "--verify"]):
        refused = forebay.run(*arguments, check=False)
        assert refused.returncode == 8, refused.stderr
        assert "keeps one copy (--durability=none)" in refused.stderr and "after step 0" in refused.stderr
    refused = forebay.run("inspect", str(out), "--repair", check=False)
    assert refused.returncode == 8 and "no step is whole" in refused.stderr, refused.stderr


def test_a_kill_of_a_run_with_one_copy_that_wrote_nothing_takes_the_steps_alone(forebay, task, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    settings = dict(task, **IN_RAM, durability="none", steps=5000, export="hf")
    kill_in_step(forebay, settings, out, 3)
    assert committed_step(forebay, out) == 0
    assert forebay.run("train", "--resume", out=out, stop_after=4, check=False).returncode == 75
    forebay.run("train", out=whole, stop_after=4, check=False, **settings)
    assert forebay.digest(out) == forebay.digest(whole)


@pytest.mark.parametrize("tiers", [ON_DISK, IN_RAM], ids=["on_disk", "in_ram"])
def test_one_copy_is_whole_for_every_evaluation_and_export(forebay, task, expected, tmp_path, tiers):
    out = tmp_path / "run"
    beside = dict(durability="none", eval_data=task["data"], eval_every=3, save_every=2, export="hf")
    forebay.run("train", out=out, **{**task, **tiers, **beside})
    assert forebay.digest(out) == expected
    assert sorted(os.listdir(out / "exports")) == ["step-4", "step-6"]


@pytest.mark.parametrize("tiers", [ON_DISK, IN_RAM], ids=["on_disk", "in_ram"])
def test_a_kill_between_two_commits_goes_back_to_the_last(forebay, task, tmp_path, tiers):
    whole, out = tmp_path / "whole", tmp_path / "run"
    # Longer than any kill takes to arrive.
    settings = dict(task, **tiers, steps=5000, commit_every=4)
    kill_in_step(forebay, settings, out, 7)
    step = committed_step(forebay, out)
    assert step >= 4 and step % 4 == 0
    forebay.run("train", "--resume", out=out, stop_after=5, check=False)
    forebay.run("train", out=whole, stop_after=step + 5, check=False, **settings)
    assert forebay.digest(out) == forebay.digest(whole)
    lines = [json.loads(line)["step"] for line in open(out / "metrics.jsonl", encoding="utf-8")]
    assert lines == list(range(1, step + 6))


def test_what_lives_in_ram_is_written_for_commits_alone(forebay, task, tmp_path):
    every, seldom = tmp_path / "every", tmp_path / "seldom"
    forebay.run("train", out=every, commit_every=1, **task, **IN_RAM)
    forebay.run("train", out=seldom, commit_every=100, **task, **IN_RAM)

    def written(out):
        lines = [json.loads(line) for line in open(out / "metrics.jsonl", encoding="utf-8")]
        return [line["write_bytes"] for line in lines]

    # The update of a step is written while the next one runs.
    assert min(written(every)[1:]) > 0
    assert written(seldom)[1:-1] == [0] * (NUM_STEPS - 2)
    assert written(seldom)[-1] >= min(written(every)[1:])


def test_what_was_done_is_committed_when_the_loss_is_not_finite(forebay, task, tmp_path):
    out = tmp_path / "run"
    for mode in (dict(commit_every=100), dict(durability="none", export="hf")):
        # Decay that turns every weight over and makes it larger, until fp32 ends.
        wild = dict(lr=10, weight_decay=1, clip=0, steps=100, schedule="constant")
        settings = dict(task, **IN_RAM, **mode) | wild
        failed = forebay.run("train", out=out, check=False, **settings)
        assert failed.returncode == 7 and "is not finite" in failed.stderr, failed.stderr
        failed_step = int(failed.stderr.split("step ")[1].split(":")[0])
        assert failed_step > 1, "nothing was trained"
        assert f"committed after step {failed_step - 1}" in failed.stderr
        assert committed_step(forebay, out) == failed_step - 1
        subprocess.run(["rm", "-r", str(out)], check=True)


@pytest.mark.parametrize(
    "run_mode, said, named",
    [
        (dict(durability="none"), dict(durability="step"), "one copy"),
        (dict(durability="step"), dict(durability="none"), "two copies"),
        (dict(durability="none"), dict(durability="auto", commit_every=2), "one copy"),
    ],
)
def test_the_mode_of_a_run_is_fixed(forebay, task, expected, tmp_path, run_mode, said, named):
    out = tmp_path / "run"
    forebay.run("train", out=out, stop_after=1, check=False, **task, **run_mode)
    refused = forebay.run("train", "--resume", out=out, check=False, **said)
    assert refused.returncode == 2 and named in refused.stderr and "Leave --" in refused.stderr, refused.stderr
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == expected


def test_commits_of_one_copy_cannot_be_asked_for(forebay, task, tmp_path):
    refused = forebay.run("train", out=tmp_path / "run", check=False, durability="none", commit_every=2, **task)
    assert refused.returncode == 2 and "--commit_every=2 does not go with --durability=none" in refused.stderr


@pytest.mark.parametrize("tiers", [ON_DISK, IN_RAM], ids=["on_disk", "in_ram"])
def test_a_step_writes_what_the_plan_says(forebay, task, tmp_path, tiers):
    out = tmp_path / "run"
    forebay.run("train", out=out, commit_every=1, **task, **tiers)
    plan = json.loads((out / "plan.json").read_text())
    lines = [json.loads(line) for line in open(out / "metrics.jsonl", encoding="utf-8")]
    assert {line["write_bytes"] for line in lines[1:-1]} == {plan["write_bytes_per_step"]}
    assert plan["durability"] == "step" and plan["commit_every"] == 1


def test_a_run_that_an_earlier_version_began_goes_on_and_is_cleaned(forebay, task, expected, tmp_path):
    """It could keep the gradients of a step (--durability=replay), beside a store like that of today."""
    out = tmp_path / "run"
    forebay.run("train", out=out, stop_after=1, check=False, **task, **ON_DISK)
    for path in (out / "resolved_config.json", out / "files" / "resolved_config.json"):
        if not path.exists():
            continue
        config = json.loads(path.read_text())
        config["offload"]["durability"] = dict(value="replay", origin="--durability")
        path.write_text(json.dumps(config))
    (out / "swap" / "intent.fbs").write_bytes(bytes(8192))
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == expected
    forebay.run("clean", out)
    assert not (out / "swap").exists()


def test_without_room_for_two_copies_there_is_one_and_a_warning(forebay, task, expected, tmp_path):
    plan = json.loads(forebay.run("plan", task["model"], "--format=json", seq=SEQ, durability="none", export="none").stdout)
    size = plan["nvme_bytes"] + (256 << 10)
    with confined.tmpfs(tmp_path / "disk", f"size={size}") as disk:
        for mode in (dict(durability="step"), dict(commit_every=1)):
            refused = forebay.run("train", out=tmp_path / "run", nvme=disk, check=False, **task, **mode)
            assert refused.returncode == 4 and "--durability=none" in refused.stderr, refused.stderr
        done = forebay.run("train", out=tmp_path / "run", nvme=disk, **task)
        assert "no room for two copies" in done.stderr
        assert "durability none: one copy, as the disk has no room for two" in done.stdout + done.stderr
        assert forebay.digest(tmp_path / "run") == expected


@pytest.fixture(scope="module")
def large_task(forebay, task, tmp_path_factory):
    """Of a model so large that what is missing is more than the try of an engine takes, which comes first."""
    folder = tmp_path_factory.mktemp("large")
    model = make_model(forebay, folder / "model", hidden_size=256, intermediate_size=512)
    settings = dict(task, **ON_DISK, model=model, steps=40)
    forebay.run("train", out=folder / "whole", **settings)
    return settings, forebay.digest(folder / "whole")


def test_a_copy_with_holes_has_its_space_before_its_first_step(forebay, large_task, tmp_path):
    settings, expected = large_task
    out = tmp_path / "run"
    forebay.run("train", out=out, stop_after=1, check=False, **settings)
    before = forebay.digest(out)
    # Moments are zero at first: those of the slot of step 0 are holes in the copy.
    with confined.tmpfs(tmp_path / "disk", "size=128m") as disk:
        subprocess.run(["cp", "-r", "--sparse=always", out, disk / "run"], check=True)
        state = (disk / "run" / "swap" / "state.fbs").stat()
        assert state.st_blocks * 512 < state.st_size, "the copy has no holes"
        confined.fill(disk, 2 << 20)
        for dry_run in (["--dry_run"], []):
            refused = forebay.run("train", "--resume", *dry_run, out=disk / "run", check=False)
            assert refused.returncode == 4 and "left out of its files as holes" in refused.stderr, refused.stderr
        (disk / "other").unlink()
        assert forebay.digest(disk / "run") == before
        forebay.run("train", "--resume", out=disk / "run")
        assert forebay.digest(disk / "run") == expected


# So many that the disk is full long before the last.
MANY_STEPS = 200


@pytest.fixture(scope="module")
def expected_after_many(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("many") / "run"
    forebay.run("train", out=out, **(task | dict(steps=MANY_STEPS)))
    return forebay.digest(out)


def train_while_another_program_fills(forebay, disk, out, settings):
    """Exit code and messages of a run that meets a full disk, some steps from its beginning."""
    command = [forebay.binary, "train", "--format=json", f"--out={out}"]
    command += [flag_of(key, value) for key, value in settings.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            event = json.loads(line)
            if event.get("event") == "step" and event["step"] == 2:
                process.send_signal(signal.SIGSTOP)
                confined.fill(disk)
                process.send_signal(signal.SIGCONT)
        return process.wait(), process.stderr.read()


@pytest.mark.parametrize("mode", ["step", "none"])
def test_a_swap_area_has_its_space_when_another_program_fills_the_disk(
    forebay, task, expected_after_many, tmp_path, mode
):
    settings = task | dict(ON_DISK, durability=mode, steps=MANY_STEPS)
    with confined.tmpfs(tmp_path / "disk", "size=64m") as disk:
        out = tmp_path / "run"
        code, errors = train_while_another_program_fills(forebay, disk, out, dict(settings, nvme=disk))
        assert code == 0, errors
        assert forebay.digest(out) == expected_after_many


def test_a_run_whose_logs_are_there_too_has_space_for_them(forebay, task, expected_after_many, tmp_path):
    with confined.tmpfs(tmp_path / "disk", "size=64m") as disk:
        out = disk / "run"
        settings = task | dict(ON_DISK, export="none", steps=MANY_STEPS)
        code, errors = train_while_another_program_fills(forebay, disk, out, settings)
        assert code == 0, errors
        assert forebay.digest(out) == expected_after_many
        assert len((out / "metrics.jsonl").read_text().splitlines()) == MANY_STEPS
        # What they did not need is nobody's any more.
        for log in (out / "metrics.jsonl", out / "events.log"):
            assert log.stat().st_blocks * 512 < log.stat().st_size + 4096 * 2


def test_too_little_space_for_the_logs_is_found_before_the_first_step(forebay, task, tmp_path):
    with confined.tmpfs(tmp_path / "disk", "size=256k") as disk:
        settings = task | dict(ON_DISK, export="none", steps=100_000)
        refused = forebay.run("train", out=disk / "run", nvme=tmp_path, check=False, **settings)
        assert refused.returncode == 4 and "metrics.jsonl" in refused.stderr, refused.stderr


@pytest.mark.parametrize("keep", [2, 100])
def test_the_exports_of_a_run_have_their_space_too(forebay, task, expected_after_many, tmp_path, keep):
    with confined.tmpfs(tmp_path / "disk", "size=64m") as disk:
        out = disk / "run"
        settings = task | dict(ON_DISK, save_every=20, keep=keep, export="hf", steps=MANY_STEPS)
        code, errors = train_while_another_program_fills(forebay, disk, out, settings)
        assert code == 0, errors
        assert forebay.digest(out) == expected_after_many
        exports = sorted((out / "exports").iterdir())
        assert len(exports) == min(keep, MANY_STEPS // 20 - 1)
        for export in [*exports, out / "model"]:
            forebay.run("inspect", str(export), "--verify")


def test_a_resume_on_a_disk_that_is_full_says_so_before_its_first_step(forebay, large_task, tmp_path):
    settings, expected = large_task
    with confined.tmpfs(tmp_path / "disk", "size=192m") as disk:
        out = disk / "run"
        saves = dict(save_every=4, keep=3, export="hf")
        forebay.run("train", out=out, stop_after=10, check=False, **(settings | saves))
        before = forebay.digest(out)
        confined.fill(disk)
        # What the run will write is known before anything is read, and so what has no room.
        refused = forebay.run("train", "--resume", out=out, check=False)
        assert refused.returncode == 4 and "Free space there" in refused.stderr, refused.stderr
        (disk / "other").unlink()
        model_bytes = (out / "exports" / "step-4" / "model.safetensors").stat().st_size
        # Two exports are there: two more and the model are to come, all but those two, or the model alone.
        for more, models in ([], 3), (["--set=keep=20"], 9), (["--save_every=0"], 1):
            confined.fill(disk, models * model_bytes - (128 << 10))
            refused = forebay.run("train", "--resume", *more, out=out, check=False)
            assert refused.returncode == 4 and "the exported model needs" in refused.stderr, (more, refused.stderr)
            (disk / "other").unlink()
        assert forebay.digest(out) == before
        forebay.run("train", "--resume", out=out)
        assert forebay.digest(out) == expected


def test_exports_are_whole_or_absent_whenever_the_run_is_killed(forebay, task, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    # Each step is exported while the next ones run, of which at most one can end meanwhile.
    settings = task | dict(ON_DISK, save_every=1, keep=3, export="hf", schedule="constant")
    rng = random.Random(7)
    for _ in range(6):
        # On a busy machine it may have been killed before its first commit.
        is_begun = out.exists() and forebay.run("inspect", str(out), check=False).returncode == 0
        command = [forebay.binary, "train", *(["--resume"] if is_begun else []), f"--out={out}"]
        command += [flag_of(key, value) for key, value in (settings | dict(steps=5000)).items()]
        kill_after(command, rng.uniform(0.3, 1.5))
        for export in (out / "exports").glob("step-*[0-9]"):
            assert forebay.run("inspect", str(export), "--verify").returncode == 0
    stopped = forebay.run("train", "--resume", out=out, stop_after=2, check=False)
    assert stopped.returncode == 75, stopped.stderr
    step = committed_step(forebay, out)
    # And what is left of an unfinished one goes with the next that is finished.
    assert f"step-{step}" in os.listdir(out / "exports") and len(os.listdir(out / "exports")) <= 3
    forebay.run("train", out=whole, **(settings | dict(steps=step, save_every=0)))
    digest = json.loads(forebay.run("inspect", str(out / "exports" / f"step-{step}"), "--hash", "--format=json").stdout)
    expected = json.loads(forebay.run("inspect", str(whole / "model"), "--hash", "--format=json").stdout)
    assert digest["digest"] == expected["digest"]


def kill_after(command, seconds):
    """Whether the process was killed, and not at its end by then."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


@pytest.mark.parametrize(
    "mode",
    [dict(ON_DISK), dict(IN_RAM, commit_every=3)],
    ids=["each_step_on_disk", "each_third_in_ram"],
)
def test_killed_again_and_again_it_ends_in_the_same_bits(forebay, task, tmp_path, mode):
    seed = int(os.environ.get("FOREBAY_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"FOREBAY_KILL_SEED={seed}")
    rng = random.Random(seed)
    settings = dict(task, **mode, steps=40)
    whole = tmp_path / "whole"
    started = time.monotonic()
    forebay.run("train", out=whole, **settings)
    longest_s = time.monotonic() - started
    expected = forebay.digest(whole)
    arguments = [flag_of(key, value) for key, value in settings.items()]
    num_kills = num_runs = 0
    while num_kills < NUM_KILLS:
        num_runs += 1
        out = tmp_path / f"run{num_runs}"
        while True:
            is_a_run = (out / "run.json").exists() and json.loads((out / "run.json").read_text())["state"] == "ready"
            command = [forebay.binary, "train", f"--out={out}", *(["--resume"] if is_a_run else arguments)]
            # At any moment, and sooner or later the run reaches its end.
            if not kill_after(command, rng.uniform(0, longest_s * 1.2)):
                break
            num_kills += 1
        assert forebay.digest(out) == expected, f"run {num_runs} after {num_kills} kills"
