"""Plans of this machine: other settings beside the run's, speeds that are kept, and the search by short runs."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

ROWS, SEQ = 16, 32


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    model = make_model(forebay, folder / "model")
    data = write_rows(folder / "data.fbd", *random_rows(ROWS, SEQ, 256, seed=1), 256)
    return dict(model=model, data=data, seq=SEQ, batch=2, ram="256MiB")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def planned(forebay, task, *flags, **settings):
    settings = {key: value for key, value in {**task, **settings}.items() if key != "data"}
    done = forebay.run("plan", "--format=json", *flags, **settings)
    return json.loads(done.stdout)


def test_each_row_is_the_plan_of_those_settings(forebay, task):
    plan = planned(forebay, task, "--what_if=ram=300MiB,layout=int8-moments+batch=4", "--what-if=accum=2")
    assert [row["settings"] for row in plan["what_if"]] == ["", "ram=300MiB", "layout=int8-moments+batch=4", "accum=2"]
    for row, settings in zip(plan["what_if"], ({}, dict(ram="300MiB"), dict(layout="int8-moments", batch=4), dict(accum=2))):
        alone = planned(forebay, task, **settings)
        assert row["fits"] and all(row[key] == alone[key] for key in (
            "host_bytes", "nvme_bytes", "ram_budget_bytes", "read_bytes_per_step", "write_bytes_per_step"))


def test_a_run_that_does_not_fit_is_told_what_would(forebay, task):
    settings = dict(model=task["model"], seq=SEQ, batch=2, ram="2MiB")
    done = forebay.run("plan", "--what_if=ram=256MiB", check=False, **settings)
    assert done.returncode == 4 and "The least that works is --ram=" in done.stderr
    assert "as given    does not fit: this run needs at least" in done.stdout and "\nram=256MiB " in done.stdout
    done = forebay.run("plan", "--what_if=ram=256MiB", "--format=json", check=False, **settings)
    table, error = map(json.loads, done.stdout.splitlines())
    assert [row["fits"] for row in table["what_if"]] == [False, True] and error["error"]["exit_code"] == 4


def test_a_config_alone_has_the_plan_of_its_model(forebay, task, tmp_path):
    config = shutil.copy(os.path.join(task["model"], "config.json"), tmp_path / "any_name.json")
    assert planned(forebay, task, model=config) == planned(forebay, task)
    done = forebay.run("plan", tmp_path / "none.json", check=False)
    assert done.returncode == 3 and "none.json' does not exist. Name a config.json, or the folder of a model" in done.stderr


def test_a_machine_whose_gpu_is_left_idle_is_noted(forebay, task):
    settings = dict(model=task["model"], seq=SEQ, batch=2, machine="4090-64g")
    note = "forebay: this plan is for the CPU of '4090-64g'; --device=cuda is for its GeForce RTX 4090\n"
    assert forebay.run("plan", "--what_if=accum=2", **settings).stderr == note
    assert forebay.run("plan", device="cuda", **settings).stderr == ""


def test_the_usual_rows_need_no_value(forebay, task):
    plan = planned(forebay, task, "--what_if")
    names = [row["settings"] for row in plan["what_if"]]
    assert names[0] == "" and {"ram=512MiB", "accum=2", "batch=4", "layout=int8-moments", "durability=none"} <= set(names)


def test_rows_have_the_speeds_of_the_run_as_given(forebay, task):
    table = forebay.run("plan", "--what_if", **{key: value for key, value in task.items() if key != "data"}).stdout
    assert table.splitlines()[-1].startswith("forecast   unknown: --measure takes this machine's speeds")
    planned(forebay, task, "--measure")
    rows = [row for row in planned(forebay, task, "--what_if")["what_if"] if row["fits"]]
    assert len(rows) > 5 and all(row["step_s"] > 0 for row in rows)


def test_for_a_gpu_that_is_not_here_the_plan_says_how_it_gets_a_forecast(forebay, task, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    settings = dict({key: value for key, value in task.items() if key != "data"}, device="cuda", gpu_mem="8GiB")
    for what_if in ([], ["--what_if"]):
        printed = forebay.run("plan", *what_if, **settings).stdout
        assert "this machine has no GPU to measure; --machine says" in printed and "--measure" not in printed
    assert forebay.run("plan", "--measure", check=False, **settings).returncode == 9


def test_speeds_are_measured_once_and_kept_for_plans_and_runs(forebay, task, tmp_path):
    assert planned(forebay, task)["forecast"] is None
    measured = planned(forebay, task, "--measure")["forecast"]
    kept = planned(forebay, task)["forecast"]
    assert kept["step_s"] == measured["step_s"] and kept["speeds"].startswith("measured just now")
    files = list((tmp_path / "cache" / "forebay" / "speeds").iterdir())
    assert len(files) == 3
    then = json.loads(files[0].read_text())["measured_unix_s"]
    assert abs(time.time() - then) < 600
    # The run itself is what it is without them.
    runs = {}
    for name, cache in (("with", tmp_path / "cache"), ("without", tmp_path / "none")):
        runs[name] = tmp_path / name
        done = subprocess.run(
            [forebay.binary, "train", *(flag_of(key, value) for key, value in task.items()), f"--out={runs[name]}", "--steps=2"],
            capture_output=True, text=True, check=True, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
        assert ("forecast " in done.stdout) == (name == "with")
    assert forebay.digest(runs["with"]) == forebay.digest(runs["without"])
    # Damaged, they are as good as none.
    for file in files:
        file.write_text(file.read_text()[:-20])
    assert planned(forebay, task)["forecast"] is None
    assert "unknown: --measure" in forebay.run("plan", **{k: v for k, v in task.items() if k != "data"}).stdout


def test_a_cache_that_cannot_be_written_is_a_note(forebay, task, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    settings = {key: value for key, value in task.items() if key != "data"}
    done = forebay.run("plan", "--measure", **settings)
    assert "speeds are not kept for later plans" in done.stderr and "tokens/s" in done.stdout


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def untuned(settings, flags):
    """`settings` except those that `flags`, "--threads=2" or "--set=io_threads=2", give."""
    given = {flag.removeprefix("--set=").removeprefix("--").split("=")[0] for flag in flags}
    return {key: value for key, value in settings.items() if key not in given}


def test_autotuning_tries_settings_and_leaves_nothing_behind(forebay, task, tmp_path):
    (tmp_path / "nvme").mkdir()
    settings = dict(task, out=tmp_path / "run", nvme=tmp_path / "nvme", accum=2, threads=1)
    before = left_in(tmp_path)
    done = forebay.run("train", "--autotune", "--format=json", autotune_trials=4, **settings)
    report = json.loads(done.stdout)
    assert left_in(tmp_path) == before and not left_in(tmp_path / "nvme")
    trials = report["trials"]
    assert 2 <= len(trials) <= 4 and trials[0]["batch"] == 2 and trials[0]["threads"] == 1
    assert all(trial["batch"] * trial["accum"] == 4 for trial in trials)
    best = 0
    for number, trial in enumerate(trials):  # a setting is left only for one that is 2 % faster
        if trial["step_s"] and trial["step_s"] < trials[best]["step_s"] * (1 - 0.02):
            best = number
    assert report["best"] == best
    assert report["written_bytes"] > 0
    # The flags that it prints can be given to the run.
    flags = report["flags"].split()
    forebay.run("train", *flags, **{**untuned(settings, flags), "out": tmp_path / "tuned", "steps": 1})
    text = forebay.run("train", "--autotune", autotune_trials=2, **settings).stdout
    assert text.splitlines()[0].split()[:3] == ["trial", "batch", "accum"] and "the trials wrote" in text


def test_a_stop_removes_the_folders_of_a_trial(forebay, task, tmp_path):
    before = left_in(tmp_path)
    command = [forebay.binary, "train", "--autotune", f"--out={tmp_path / 'run'}",
               *(flag_of(key, value) for key, value in {**task, "batch": 1, "accum": 512, "ram": "2GiB"}.items())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.time() + 60
        while not list(tmp_path.glob(".forebay-autotune-*/run/metrics.jsonl")) and time.time() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.glob(".forebay-autotune-*")), process.poll()
        process.send_signal(signal.SIGTERM)  # Ctrl-C is ignored in the background of a shell
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 75 and "nothing is left of the trials" in errors and out == ""
    assert left_in(tmp_path) == before


def test_autotuning_is_for_new_runs(forebay, task, tmp_path):
    done = forebay.run("train", "--autotune", "--dry_run", check=False, out=tmp_path / "run", **task)
    assert done.returncode == 2 and "Leave --dry_run out" in done.stderr
    done = forebay.run("train", check=False, autotune_trials=3, out=tmp_path / "run", **task)
    assert done.returncode == 2 and "--autotune_trials is of --autotune" in done.stderr


def test_deepspeeds_section_says_what_is_tried(forebay, task, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "autotuning": {"enabled": True, "fast": True, "max_train_micro_batch_size_per_gpu": 2,
                       "min_train_micro_batch_size_per_gpu": 2, "start_profile_step": 1, "end_profile_step": 2,
                       "results_dir": "x"}}))
    settings = {key: value for key, value in task.items() if key != "batch"}
    done = forebay.run("train", "--autotune", "--format=json", ds_config=config, out=tmp_path / "run", **settings)
    assert len(json.loads(done.stdout)["trials"]) == 1
    assert "autotuning.results_dir is ignored: the results are printed" in done.stderr
