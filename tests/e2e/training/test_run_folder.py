"""The run folder: which files a run leaves, what they hold, who may read them, and what is never touched."""

import json
import os
import re
import shutil
import stat
import subprocess

import pytest
from conftest import make_model, random_rows, write_rows, write_tokenizer
from option_flags import flag_of

SEQ = 32
STEP_KEYS = {
    "step", "loss", "grad_norm", "lr", "tokens", "step_s", "tokens_per_s", "compute_s", "io_wait_s", "waits", "optimizer_s",
    "read_bytes", "write_bytes", "host_peak_bytes", "rss_bytes",
}


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(12, SEQ, 256, seed=5), 256)
    held_out = write_rows(folder / "held_out.fbd", *random_rows(5, SEQ, 256, seed=6), 256)
    model = make_model(forebay, folder / "model")
    # Each step committed, so that both slots are in use.
    return dict(model=model, data=data, eval_data=held_out, batch=2, seq=SEQ, steps=4, lr=1e-3, ram="1GiB", commit_every=1)


@pytest.fixture(scope="module")
def run(forebay, task, tmp_path_factory):
    """A whole run with everything in it, and what it printed."""
    out = tmp_path_factory.mktemp("run") / "run"
    old_mask = os.umask(0)
    try:
        done = forebay.run("train", "--format=json", out=out, eval_every=2, save_every=1, keep=2, **task)
    finally:
        os.umask(old_mask)
    return out, [json.loads(line) for line in done.stdout.splitlines()]


def metrics(out):
    return [json.loads(line) for line in open(out / "metrics.jsonl", encoding="utf-8")]


def test_metrics_have_exactly_the_promised_keys(run):
    lines = metrics(run[0])
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert set(lines[0]) == {"step", "eval_loss"}  # the loss before the first step
    for line in lines[1:]:
        assert set(line) == STEP_KEYS | ({"eval_loss"} if line["step"] in (2, 4) else set())
        waits = line.pop("waits")
        assert all(isinstance(value, (int, float)) for value in [*line.values(), *waits.values()])
        assert sum(waits.values()) == pytest.approx(line["io_wait_s"], abs=1e-6)


def test_packed_data_says_how_long_its_rows_are(forebay, task, tmp_path):
    settings = {key: value for key, value in task.items() if key != "seq"} | {"steps": 1, "export": "none"}
    forebay.run("train", out=tmp_path / "run", **settings)
    config = json.loads((tmp_path / "run" / "resolved_config.json").read_text())
    assert config["data"]["seq"] == {"value": SEQ, "origin": "planner"}
    forebay.run("train", "--resume", "--dry_run", out=tmp_path / "run")
    evaluated = forebay.run("eval", "--format=json", model=task["model"], data=task["eval_data"], ram="1GiB")
    assert json.loads(evaluated.stdout)["tokens"] > 0


def test_json_output_is_one_object_per_line(run):
    out, events = run
    assert [e["event"] for e in events if e["event"] != "note"] == ["plan", "step", "step", "step", "step", "done"]
    steps = [e for e in events if e["event"] == "step"]
    for printed, kept in zip(steps, metrics(out)[1:], strict=True):
        assert {key: printed[key] for key in kept} == kept
        assert set(printed) - set(kept) == {"event", "num_steps", "eta_s"}
    done = events[-1]
    assert done["model"] == str(out / "model")
    losses = [line["eval_loss"] for line in metrics(out) if "eval_loss" in line]
    assert (done["eval_loss_before"], done["eval_loss"]) == (losses[0], losses[-1])


def test_the_last_exports_are_kept(run):
    # Of the steps 1 to 3: that of the last step is the result itself.
    assert sorted(os.listdir(run[0] / "exports")) == ["step-2", "step-3"]
    assert sorted(os.listdir(run[0] / "exports" / "step-3")) == sorted(os.listdir(run[0] / "model"))


def test_events_are_dated_lines_that_say_what_happened(run):
    lines = (run[0] / "events.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ .", line) for line in lines)
    text = "\n".join(lines)
    for words in ("compute: ", "disk: ", "pages: ", "held-out loss before the first step", "exported the model of step 3"):
        assert words in text


def test_an_error_is_the_last_event(forebay, task, tmp_path):
    out = tmp_path / "run"
    stopped = forebay.run("train", check=False, out=out, stop_after=2, **task)
    assert stopped.returncode == 75
    last = (out / "events.log").read_text().splitlines()[-1]
    assert "stopped, as --stop_after=2 asks, after step 2 of 4" in last


def test_a_committed_step_without_its_line_gets_one_on_resume(forebay, task, tmp_path):
    """A kill may come between the commit of a step and its line in metrics.jsonl."""
    out = tmp_path / "run"
    assert forebay.run("train", check=False, out=out, stop_after=2, **task).returncode == 75
    whole = metrics(out)
    assert [line["step"] for line in whole] == [0, 1, 2]
    torn = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(torn[:-1]) + torn[-1][:20])
    forebay.run("train", "--resume", out=out, **task)
    lines = metrics(out)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[2] == {key: whole[2][key] for key in ("step", "loss", "grad_norm", "lr", "tokens")}


def modes_of(path):
    """{path: permissions} of a folder and all that is in it."""
    return {each: stat.S_IMODE(each.lstat().st_mode) for each in [path, *path.rglob("*")]}


def test_models_obey_the_umask_and_stores_are_their_owners_alone(run):
    # The run was made with umask 0.
    out = run[0]
    assert stat.S_IMODE(out.stat().st_mode) == 0o777
    for model in (out / "model", out / "exports"):
        for path, mode in modes_of(model).items():
            assert mode == (0o777 if path.is_dir() else 0o666), path
    for path, mode in modes_of(out / "swap").items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir() if path.is_file()} == {0o600}


def test_the_resolved_configuration_names_every_origin(run):
    resolved = json.loads((run[0] / "resolved_config.json").read_text())
    assert resolved["optim"]["steps"] == {"value": 4, "origin": "flag"}
    assert resolved["optim"]["warmup"] == {"value": 0, "origin": "default"}
    assert resolved["offload"]["layout"] == {"value": "bf16", "origin": "planner"}
    assert json.loads((run[0] / "plan.json").read_text())["fits"] is True


def test_without_export_no_model_is_written(forebay, task, tmp_path):
    out = tmp_path / "run"
    done = forebay.run("train", "--export=none", out=out, **task)
    assert not os.path.exists(out / "model") and not os.path.exists(out / "exports")
    assert "forebay generate" not in done.stdout
    # The state is all there: a resume with export makes the model without another step.
    forebay.run("train", "--resume", "--export=hf", out=out, **task)
    assert os.path.exists(out / "model" / "model.safetensors")


def test_a_run_without_a_model_says_how_to_get_one(forebay, task, tmp_path):
    out = tmp_path / "my run"
    forebay.run("train", check=False, out=out, stop_after=1, **task)
    stopped = forebay.run("generate", check=False, model=out, prompt="a")
    assert stopped.returncode == 2, stopped.stderr
    assert f"forebay train --resume --out='{out}'" in stopped.stderr and "export:" not in stopped.stderr
    forebay.run("train", "--resume", check=False, out=out, save_every=1, stop_after=1, **task)
    stopped = forebay.run("eval", check=False, model=out, data=task["data"])
    assert f"--model='{out}/exports/step-2'" in stopped.stderr
    forebay.run("eval", model=out / "exports" / "step-2", data=task["data"])


def test_a_whole_run_is_not_overwritten(forebay, run, task):
    before = forebay.digest(run[0])
    refused = forebay.run("train", check=False, out=run[0], **task)
    assert refused.returncode == 2
    assert "holds another run. Continue it with --resume" in refused.stderr
    assert forebay.digest(run[0]) == before


def test_links_in_the_run_folder_are_not_followed(forebay, task, tmp_path):
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    settings = dict(task, out=out, save_every=1)
    assert forebay.run("train", check=False, stop_after=1, **settings).returncode == 75
    for name in ("metrics.jsonl", "events.log", "exports"):
        if os.path.isdir(out / name):
            (out / name / "step-1").rename(tmp_path / "step-1")
            os.rmdir(out / name)
        else:
            os.remove(out / name)
        os.symlink(elsewhere if name == "exports" else elsewhere / "precious", out / name)
        refused = forebay.run("train", "--resume", check=False, **settings)
        assert refused.returncode in (2, 5), refused.stderr
        assert "is a symbolic link" in refused.stderr and name in refused.stderr
        os.remove(out / name)
    # What is replaced as a whole replaces the link.
    replaced = ("plan.json", "resolved_config.json", "run.json")
    for name in replaced:
        (out / name).rename(elsewhere / name)
        os.symlink(elsewhere / name, out / name)
    before = {name: (elsewhere / name).read_text() for name in replaced}
    forebay.run("train", "--resume", **settings)
    assert not any(os.path.islink(out / name) for name in ("plan.json", "resolved_config.json"))
    assert {name: (elsewhere / name).read_text() for name in replaced} == before
    assert sorted(os.listdir(elsewhere)) == sorted(["precious", *replaced])
    assert (elsewhere / "precious").read_text() == "x"


def store_inside(nvme):
    """The one folder that a run makes inside --nvme."""
    (name,) = os.listdir(nvme)
    return nvme / name


def test_the_swap_area_gets_a_folder_of_its_own_inside_nvme(forebay, task, tmp_path):
    nvme = tmp_path / "nvme"
    done = forebay.run("train", out=tmp_path / "run", nvme=nvme, **task)
    assert f"'{nvme}' was not there and is made" in done.stderr
    assert store_inside(nvme).name.startswith("forebay-run-")
    assert not os.path.exists(tmp_path / "run" / "swap")
    forebay.run("clean", str(tmp_path / "run"))
    assert os.listdir(nvme) == []


def test_the_swap_area_of_another_run_is_never_removed(forebay, task, tmp_path):
    """A run folder was deleted, its swap area in --nvme was not: the same command must not take that as its own,
    however often it is tried."""
    nvme, settings = tmp_path / "nvme", dict(task, out=tmp_path / "run", nvme=tmp_path / "nvme")
    forebay.run("train", **settings)
    (tmp_path / "run").rename(tmp_path / "moved")
    before = forebay.digest(tmp_path / "moved")
    for _ in range(3):
        refused = forebay.run("train", check=False, **settings)
        assert refused.returncode == 2 and "holds something already" in refused.stderr
        assert str(store_inside(nvme)) in refused.stderr
    assert forebay.digest(tmp_path / "moved") == before


def test_a_link_in_place_of_the_swap_area_is_not_followed(forebay, task, tmp_path):
    nvme, elsewhere = tmp_path / "nvme", tmp_path / "elsewhere"
    elsewhere.mkdir()
    forebay.run("train", out=tmp_path / "run", nvme=nvme, **task)
    store = store_inside(nvme)
    forebay.run("clean", str(tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "moved")
    os.symlink(elsewhere, store)
    refused = forebay.run("train", check=False, out=tmp_path / "run", nvme=nvme, **task)
    assert refused.returncode == 2, refused.stderr
    assert os.listdir(elsewhere) == []


def test_a_swap_area_that_became_a_link_is_not_written_through(forebay, task, tmp_path):
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    stopped = forebay.run("train", check=False, out=out, stop_after=2, **task)
    assert stopped.returncode == 75, stopped.stderr
    (out / "swap").rename(elsewhere)
    os.symlink(elsewhere, out / "swap")
    before = sorted(os.listdir(elsewhere))
    for flags in ([], ["--commit_every=3"], ["--dry_run"]):
        refused = forebay.run("train", "--resume", *flags, check=False, out=out)
        assert refused.returncode == 2, refused.stderr
        assert f"'{out}/swap', the swap area of the run, is a symbolic link now" in refused.stderr
        assert "with --nvme" in refused.stderr
    assert sorted(os.listdir(elsewhere)) == before
    # Named by the user it is another matter.
    forebay.run("train", "--resume", out=out, nvme=elsewhere)


def test_a_start_anew_is_not_written_through_a_link(forebay, task, tmp_path):
    """As the one before, where the run was stopped before its first commit."""
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    forebay.run("train", check=False, out=out, stop_after=1, **task)
    run_json = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**run_json, "state": "creating"}))
    (out / "swap").rename(elsewhere)
    os.symlink(elsewhere, out / "swap")
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    refused = forebay.run("train", check=False, out=out, **task)
    assert refused.returncode == 2 and f"'{out}/swap'" in refused.stderr, refused.stderr
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_out_may_be_a_link_to_a_folder(forebay, task, run, tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    forebay.run("train", check=False, out=tmp_path / "link", stop_after=2, **task)
    forebay.run("train", "--resume", out=tmp_path / "link")
    assert forebay.digest(tmp_path / "real") == forebay.digest(run[0])
    os.symlink("nowhere", tmp_path / "dangling")
    refused = forebay.run("train", check=False, out=tmp_path / "dangling", **task)
    assert refused.returncode == 2, refused.stderr
    assert "dangling' is a symbolic link that leads nowhere: there is no 'nowhere'" in refused.stderr
    assert not os.path.lexists(tmp_path / "nowhere")


@pytest.mark.parametrize("state", ["ready", "creating"])
def test_a_run_json_of_others_cannot_make_us_remove_their_files(forebay, task, tmp_path, state):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "weights.fbs").write_text("x")
    out = tmp_path / "run"
    out.mkdir()
    run_json = {"format": 2, "state": state, "stores": [str(precious)], "store_uuid": "0" * 32, "model": task["model"],
                "fingerprint": None}
    (out / "run.json").write_text(json.dumps(run_json))
    forebay.run("clean", str(out), check=False)
    forebay.run("train", check=False, out=out, **task)
    assert (precious / "weights.fbs").read_text() == "x"


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"format": 3}', '{"format": 2, "state": 3, "stores": ["swap"]}',
    '{"format": 1, "state": "ready", "store": "swap", "model": "m"}',
    '{"format": 2, "state": "ready", "stores": [], "store_uuid": "0", "model": "m"}',
    '{"format": 2, "state": "ready", "stores": [3], "store_uuid": "0", "model": "m"}',
    '{"format": 2, "state": "ready", "stores": ["swap"], "model": "m"}',
    '{"format": 2, "state": "creating", "stores": ["swap"], "store_uuid": null, "model": "m"}',
])
def test_a_damaged_run_json_is_named(forebay, task, tmp_path, text):
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.json").write_text(text)
    for arguments in (["inspect", str(out)], ["clean", str(out)]):
        refused = forebay.run(*arguments, check=False)
        assert refused.returncode == 8 and "run.json" in refused.stderr, refused.stderr
        assert ("has format " in refused.stderr) == (text[:12] in ('{"format": 1', '{"format": 3')), refused.stderr
    for flags in ([], ["--resume"]):
        refused = forebay.run("train", *flags, check=False, out=out, **task)
        assert refused.returncode in (3, 8) and "run.json" in refused.stderr, refused.stderr
    assert os.listdir(out) == ["run.json"]


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("tier", ["nvme", "host"])  # read layer by layer and tile by tile, or as a whole at the start
def test_damage_to_the_store_is_found_named_and_not_trained_on(forebay, task, tmp_path, tier):
    task = dict(task, weights_tier=tier, state_tier=tier)
    undamaged, out = tmp_path / "undamaged", tmp_path / "run"
    forebay.run("train", out=undamaged, **task)
    forebay.run("train", out=out, stop_after=1, check=False, **task)
    whole = forebay.run("inspect", str(out), "--verify")
    assert "all of it is what was written" in whole.stdout
    for name in ("weights.fbs", "state.fbs"):
        path = out / "swap" / name
        offsets = (100, path.stat().st_size // 2 + 100)  # in slot A, and in slot B
        for offset in offsets:
            flip(path, offset)
        found = forebay.run("inspect", str(out), "--verify", "--format=json", check=False)
        assert found.returncode == 8, found.stderr
        (damage,) = json.loads(found.stdout.splitlines()[0])["verified"]["damaged"]
        assert damage["file"] == str(path) and damage["layer"] and damage["tile"] == 0
        assert any(0 <= offset - damage["offset_bytes"] < damage["size_bytes"] for offset in offsets)
        told = forebay.run("inspect", str(out), "--verify", check=False)
        assert told.returncode == 8 and f"'{path}'" in told.stdout and "1 part of the state" in told.stderr
        for arguments in (["train", "--resume", f"--out={out}"], ["inspect", str(out), "--hash"]):
            refused = forebay.run(*arguments, check=False)
            assert refused.returncode == 8 and f"'{path}'" in refused.stderr, refused.stderr
        for offset in offsets:
            flip(path, offset)
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == forebay.digest(undamaged)


def test_a_data_file_that_was_replaced_is_found(forebay, task, tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    forebay.run("train", out=out, stop_after=1, check=False, **dict(task, tile_elems=2048))
    forebay.run("train", out=other, stop_after=1, check=False, **dict(task, tile_elems=2048, lr=2e-3))
    for names in (["weights.fbs"], ["state.fbs"], ["seals.fbs", "copy/seals.fbs"], ["commit.fbs", "copy/commit.fbs"]):
        paths = [out / "swap" / name for name in names]
        path, name = paths[0], names[0]
        whole, foreign = path.read_bytes(), (other / "swap" / name).read_bytes()
        zeros = bytes(len(whole))
        for instead in (zeros, foreign, whole[:-4096], whole + bytes(4096), None):
            for each in paths:
                each.unlink()
                if instead is not None:
                    each.write_bytes(instead)
            for arguments in (["train", "--resume", f"--out={out}"], ["inspect", str(out), "--verify"]):
                refused = forebay.run(*arguments, check=False)
                case = (name, "none" if instead is None else len(instead), arguments[0], refused.stderr)
                assert refused.returncode == 8, case
                assert f"'{path}'" in refused.stderr + refused.stdout, case
                if name == "state.fbs" and instead == zeros and arguments[0] == "inspect":
                    assert refused.stdout.count("differ from their checksum") == 100
                    assert "more: --format=json has all" in refused.stdout
        for each in paths:
            each.write_bytes(whole)
    forebay.run("train", "--resume", out=out)


def repaired(forebay, out):
    return json.loads(forebay.run("inspect", str(out), "--repair", "--format=json").stdout)["repaired"]


@pytest.mark.parametrize("name", ["weights.fbs", "state.fbs", "seals.fbs", "commit.fbs"])
def test_repair_goes_back_to_the_newest_step_that_is_whole(forebay, task, tmp_path, name):
    whole, out = tmp_path / "whole", tmp_path / "run"
    forebay.run("train", out=whole, **task)
    forebay.run("train", out=out, stop_after=3, check=False, **task)
    assert repaired(forebay, out) == {"changed": False, "step_before": 3, "step": 3, "damaged": [], "notes": []}
    assert "nothing: step 3 is whole" in forebay.run("inspect", str(out), "--repair").stdout
    # The first commit, of step 0, went to slot A: step 3 is in slot B, the second half of each file.
    path = out / "swap" / name
    size = path.stat().st_size
    flip(path, 5 if name == "commit.fbs" else size // 2 + 5)
    if name in ("commit.fbs", "seals.fbs"):
        flip(out / "swap/copy" / name, 5 if name == "commit.fbs" else size // 2 + 5)
    refused = forebay.run("train", "--resume", check=False, out=out)
    assert refused.returncode == 8 and f"'{path}'" in refused.stderr, refused.stderr
    done = repaired(forebay, out)
    # Nothing is lost with the records alone: the checksums have them too.
    goes_on_from = 3 if name == "commit.fbs" else 2
    assert done["changed"] and done["step"] == goes_on_from
    assert done["step_before"] == (-1 if name == "commit.fbs" else 3)
    assert len(done["damaged"]) == (1 if name in ("weights.fbs", "state.fbs") else 0)
    again = repaired(forebay, out)
    assert (again["changed"], again["step_before"], again["step"], again["damaged"]) == (False, goes_on_from, goes_on_from, [])
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == forebay.digest(whole)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(task["steps"] + 1))  # from the evaluation before the first


def test_repair_guesses_nothing(forebay, task, tmp_path):
    out = tmp_path / "run"
    forebay.run("train", out=out, stop_after=3, check=False, **task)
    for name in ("weights.fbs", "state.fbs"):
        path = out / "swap" / name
        for offset in (5, path.stat().st_size // 2 + 5):
            flip(path, offset)
    before = {path.name: path.read_bytes() for path in (out / "swap").glob("*.fbs")}
    refused = forebay.run("inspect", str(out), "--repair", check=False)
    assert refused.returncode == 8, refused.stderr
    for text in ("no step is whole", "of step 3, in slot B, 2 parts are damaged", "of step 2, in slot A, 2 parts are"):
        assert text in refused.stderr, refused.stderr
    assert {path.name: path.read_bytes() for path in (out / "swap").glob("*.fbs")} == before


def test_verify_of_a_model_folder_says_that_it_has_no_checksums(forebay, task):
    refused = forebay.run("inspect", task["model"], "--verify", check=False)
    assert refused.returncode == 3 and "has no 'forebay_export.json'" in refused.stderr, refused.stderr
    refused = forebay.run("inspect", task["model"], "--repair", check=False)
    assert refused.returncode == 2 and "is a model folder" in refused.stderr, refused.stderr


def test_a_run_json_with_other_settings_than_the_store_was_trained_with_is_refused(forebay, task, tmp_path):
    out = tmp_path / "run"
    forebay.run("train", out=out, stop_after=2, check=False, **task)
    before = (out / "run.json").read_text()
    json_text = json.loads(before)
    json_text["fingerprint"]["lr"] = "0.5"
    (out / "run.json").write_text(json.dumps(json_text))
    refused = forebay.run("train", "--resume", out=out, lr=0.5, check=False)
    assert refused.returncode == 8 and "has other settings" in refused.stderr, refused.stderr
    (out / "run.json").write_text(before)
    forebay.run("train", "--resume", out=out)


def test_an_exported_model_is_compared_with_its_manifest(forebay, task, tmp_path):
    out = tmp_path / "run"
    forebay.run("train", out=out, **task)
    model = out / "model"
    manifest = json.loads((model / "forebay_export.json").read_text())
    assert manifest["format"] == 1 and manifest["step"] == 4
    names = {entry["name"] for entry in manifest["files"]}
    assert names == set(os.listdir(model)) - {"forebay_export.json"} and "model.safetensors" in names
    for entry in manifest["files"]:
        assert entry["bytes"] == (model / entry["name"]).stat().st_size
    assert "all of it is what was written" in forebay.run("inspect", str(model), "--verify").stdout
    # Whether it is a model still or none that could be read: the file is named.
    for name in sorted(names):
        path = model / name
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        first_flipped = bytes([whole[0] ^ 1]) + whole[1:]
        for contents in (flipped, first_flipped, whole[:-1], whole[: len(whole) // 2], b"", whole + b" ", None):
            path.unlink(missing_ok=True)
            if contents is not None:
                path.write_bytes(contents)
            case = (name, None if contents is None else len(contents))
            found = forebay.run("inspect", str(model), "--verify", "--format=json", check=False)
            assert found.returncode == 8, (case, found.stderr)
            printed = json.loads(found.stdout.splitlines()[0])
            assert set(printed) == {"kind", "path", "verified"} and printed["kind"] == "model", case
            assert [damage["file"] for damage in printed["verified"]["damaged"]] == [str(path)], case
        told = forebay.run("inspect", str(model), "--verify", check=False)
        assert told.returncode == 8 and f"'{path}' is missing" in told.stdout and "1 file of" in told.stderr, told.stderr
        path.write_bytes(whole)
    forebay.run("inspect", str(model), "--verify")
    manifest_text = (model / "forebay_export.json").read_text()
    (model / "forebay_export.json").write_text(manifest_text[:-20])
    refused = forebay.run("inspect", str(model), "--verify", check=False)
    assert refused.returncode == 8 and "forebay_export.json" in refused.stderr, refused.stderr
    (model / "forebay_export.json").write_text('{"format": 1, "files": [{"name": "../x", "bytes": 1, "xxh3_128": ""}]}')
    refused = forebay.run("inspect", str(model), "--verify", check=False)
    assert refused.returncode == 8 and "names the file '../x'" in refused.stderr, refused.stderr


def test_a_run_goes_on_from_another_folder(forebay, task, tmp_path):
    """The records of a run hold whole paths, however they were written."""
    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "run"
    for folder in (here, there):
        folder.mkdir()
    os.symlink(task["model"], here / "model")
    os.symlink(task["data"], here / "data.fbd")
    settings = dict(task, model="model", data="data.fbd", eval_data=os.path.relpath(task["eval_data"], here), out=out)
    first = [forebay.binary, "train", "--stop_after=1", *(flag_of(key, value) for key, value in settings.items())]
    assert subprocess.run(first, cwd=here, capture_output=True).returncode == 75
    second = subprocess.run([forebay.binary, "train", "--resume", f"--out={out}"], cwd=there, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr


def test_resume_without_a_run_says_so_first(forebay, tmp_path):
    refused = forebay.run("train", "--resume", check=False, out=tmp_path / "nothing")
    assert refused.returncode == 2
    assert "nothing' holds no run. Check --out" in refused.stderr and "--model" not in refused.stderr


def test_other_tiles_than_the_runs_are_refused(forebay, task, tmp_path):
    out = tmp_path / "run"
    assert forebay.run("train", check=False, out=out, stop_after=1, tile_elems=8192, **task).returncode == 75
    refused = forebay.run("train", "--resume", check=False, out=out, tile_elems=4096, **task)
    assert refused.returncode == 2
    assert "--set=tile_elems=4096: the run has tiles of 8192, which are made once" in refused.stderr
    forebay.run("train", "--resume", out=out)
    resolved = json.loads((out / "resolved_config.json").read_text())
    assert resolved["offload"]["tile_elems"]["value"] == 8192


def test_another_tokenizer_than_the_runs_is_named(forebay, task, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = shutil.copytree(task["model"], tmp_path / "model")
    write_tokenizer(model)
    (tmp_path / "d.txt").write_text("Some Words " * 100)
    text = dict(task, model=model, data=tmp_path / "d.txt", eval_data=tmp_path / "d.txt", out=tmp_path / "run")
    assert forebay.run("train", check=False, stop_after=1, **text).returncode == 75
    write_tokenizer(model, normalizer={"type": "Lowercase"})
    refused = forebay.run("train", "--resume", check=False, **text)
    assert refused.returncode == 2
    assert "the tokenizer in --model is not the one that the run was started with" in refused.stderr


def test_other_data_than_the_runs_is_named(forebay, task, tmp_path):
    out = tmp_path / "run"
    assert forebay.run("train", check=False, out=out, stop_after=1, **task).returncode == 75
    refused = forebay.run("train", "--resume", check=False, out=out, **dict(task, data=task["eval_data"]))
    assert refused.returncode == 2
    assert "the tokens of --data are not those that the run was started with" in refused.stderr


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_run_of_random_weights_trains_with_the_command_that_init_prints(forebay, task, tmp_path, dtype):
    out = tmp_path / "run"
    config = os.path.join(task["model"], "config.json")
    made = forebay.run("init", "--run", config=config, out=out, dtype=dtype)
    assert f"it has no tokenizer: copy a tokenizer.json into '{out}/source'" in made.stdout
    printed = made.stdout.split("train it with: ")[1].splitlines()[0].split()
    assert printed[:2] == ["forebay", "train"]
    command = [f"--data={task['data']}" if word == "--data=FILE" else word for word in printed[2:]]
    forebay.run("train", *command, seq=SEQ, batch=2, steps=1)


def test_the_exported_config_says_what_transformers_needs(run, task):
    # The config of the task has `architectures` alone.
    assert "model_type" not in json.loads(open(os.path.join(task["model"], "..", "model.config.json")).read())
    assert json.loads((run[0] / "model" / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize("engine", ["auto", "buffered"])
def test_closed_standard_streams_are_nobodys_files(forebay, task, run, tmp_path, engine):
    """A file of the run that got their numbers would be written to by whatever is printed."""
    closed = {"<&-", ">&-", "2>&-"}
    for number, streams in enumerate([closed, {">&-"}, {"2>&-"}]):
        out = tmp_path / str(number)
        settings = dict(task, out=out, eval_every=2, engine=engine)
        flags = " ".join(flag_of(key, value) for key, value in settings.items())
        for more in ("--stop_after=2", "--resume"):
            done = subprocess.run(f"{forebay.binary} train {flags} {more} {' '.join(streams)}", shell=True,
                                  capture_output=True, text=True, timeout=300)
            # Results that cannot be written are told, once all else is done.
            written = ">&-" not in streams
            assert done.returncode == (5 if not written and more == "--resume" else 0 if more == "--resume" else 75)
        assert forebay.digest(out) == forebay.digest(run[0])
        assert [line["step"] for line in metrics(out)] == [0, 1, 2, 3, 4]
