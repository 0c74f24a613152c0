"""A swap area in several folders: the bits of one, found again wherever the folders are, and an error that names the
one that is not right."""

import json
import os
import re
import shutil
import signal
import subprocess

import confined
import pytest
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of

SEQ = 48
SETTINGS = dict(batch=2, accum=2, seq=SEQ, steps=6, lr=1e-3, warmup=2, clip=0.5, ram="1GiB", seed=3, tile_elems=4096,
                weights_tier="nvme", state_tier="nvme")


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(10, SEQ, 256, seed=4), 256)
    return dict(SETTINGS, model=make_model(forebay, folder / "model"), data=data)


@pytest.fixture(scope="module")
def whole(forebay, task, tmp_path_factory):
    """A run in one folder: its digest, and what its steps computed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out), losses(out)


def losses(out):
    lines = [json.loads(line) for line in open(out / "metrics.jsonl", encoding="utf-8")]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def folders(tmp_path, names="ab"):
    return [tmp_path / name for name in names]


def joined(paths):
    return ",".join(str(path) for path in paths)


def inside(folder):
    """The one folder that a run makes in a folder of --nvme."""
    (name,) = os.listdir(folder)
    return folder / name


def stop_after(forebay, task, out, steps, *extra, **changes):
    stopped = forebay.run("train", *extra, check=False, out=out, stop_after=steps, **dict(task, **changes))
    assert stopped.returncode == 75, stopped.stderr
    return stopped


def refusal(forebay, code, *arguments, **settings):
    refused = forebay.run(*arguments, check=False, **settings)
    assert refused.returncode == code, refused.stdout + refused.stderr
    return refused.stderr


@pytest.mark.parametrize("names, changes", [
    ("ab", {}),
    ("ab", dict(nvme_weights="2,1")),
    ("ab", dict(nvme_weights="1,50", engine="threads", io_threads=1)),
    ("abc", dict(nvme_weights="1,2,3.5", engine="libaio")),
    ("abc", dict(tile_elems=2048, state_tier="host")),
    ("ab", dict(tile_elems="1M", engine="buffered")),  # fewer tiles than would fill both evenly
], ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()))
def test_the_result_does_not_depend_on_the_folders(forebay, task, whole, tmp_path, names, changes):
    out, nvme = tmp_path / "run", folders(tmp_path, names)
    forebay.run("train", out=out, nvme=joined(nvme), **dict(task, **changes))
    assert (forebay.digest(out), losses(out)) == whole
    for folder in nvme:
        assert inside(folder).name.startswith("forebay-run-")
    assert not (out / "swap").exists()


def test_memory_that_is_short_spills_gradients_into_all_folders(forebay, task, tmp_path):
    settings = dict(task, weights_tier="nvme", state_tier="nvme", ram="4MiB")
    nvme = folders(tmp_path)
    message = refusal(forebay, 4, "train", out=tmp_path / "none", **settings)
    enough = 1024 * int(message.split("The least that works is --ram=")[1].split("MiB")[0])
    # To the KiB: the message rounds up to where all gradients of so small a model may fit.
    too_little = enough - 1024
    question = {key: value for key, value in settings.items() if key not in ("data", "ram")}
    question["nvme"] = joined(nvme)
    while enough - too_little > 1:
        ram = (too_little + enough) // 2
        fits = forebay.run("plan", check=False, ram=f"{ram}KiB", **question).returncode == 0
        too_little, enough = (too_little, ram) if fits else (ram, enough)
    settings["ram"] = f"{enough}KiB"
    forebay.run("train", out=tmp_path / "run", nvme=joined(nvme), **settings)
    forebay.run("train", out=tmp_path / "one", **settings)
    assert forebay.digest(tmp_path / "run") == forebay.digest(tmp_path / "one")
    areas = [(inside(folder) / "gradients.fbs").stat().st_size for folder in nvme]
    assert all(size > 0 for size in areas)
    assert sum(areas) >= (tmp_path / "one" / "swap" / "gradients.fbs").stat().st_size


def test_shares_follow_the_weights_and_are_shown(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    settings = dict(task, nvme=joined(nvme), nvme_weights="2,1", tile_elems=2048)
    done = forebay.run("train", out=out, **settings)
    bytes_in = [sum(path.stat().st_size for path in inside(folder).rglob("*.fbs")) for folder in nvme]
    assert 1.8 < bytes_in[0] / bytes_in[1] < 2.2
    run = json.loads(forebay.run("inspect", str(out), "--format=json").stdout)
    assert [stripe["folder"] for stripe in run["stripes"]] == [str(inside(folder)) for folder in nvme]
    assert [stripe["weight"] for stripe in run["stripes"]] == [2, 1]
    assert [stripe["bytes"] for stripe in run["stripes"]] == bytes_in
    assert run["store_bytes"] == sum(bytes_in)
    shown = forebay.run("inspect", str(out)).stdout
    assert all(str(inside(folder)) in shown for folder in nvme)
    for text in (done.stdout, (out / "events.log").read_text()):
        # What every folder has of its own, whatever its share, shows in so small a store.
        shares = [int(share) for share in re.findall(r"(?:' |\()(\d+) %", text)]
        assert str(nvme[0]) in text and str(nvme[1]) in text and shares in ([66, 34], [67, 33]), shares
    settings.pop("data")
    plan = json.loads(forebay.run("plan", "--format=json", **settings).stdout)
    assert [stripe["folder"] for stripe in plan["stripes"]] == [str(folder) for folder in nvme]
    assert [stripe["nvme_bytes"] for stripe in plan["stripes"]] == bytes_in
    table = forebay.run("plan", **settings).stdout
    assert re.search(rf"in {nvme[0]} \(6[67] %\)", table) and re.search(rf"in {nvme[1]} \(3[34] %\)", table)


def test_a_run_measures_its_disks_once(forebay, task, whole, tmp_path):
    """On two file systems; whatever the speeds, they are the store's from then on."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no second file system")
    out, other = tmp_path / "run", f"/dev/shm/forebay-test-{os.getpid()}"
    try:
        nvme = f"{tmp_path / 'a'},{other}"
        stop_after(forebay, task, out, 1, nvme=nvme)
        assert "(measured: " in (out / "events.log").read_text()
        weights = [stripe["weight"] for stripe in inspect(forebay, out)["stripes"]]
        forebay.run("train", "--resume", out=out, **dict(task, nvme=nvme))
        assert [stripe["weight"] for stripe in inspect(forebay, out)["stripes"]] == weights
        assert (forebay.digest(out), losses(out)) == whole
        assert os.listdir(other) != []
        forebay.run("clean", str(out))
        assert os.listdir(other) == []
    finally:
        shutil.rmtree(other, ignore_errors=True)


def inspect(forebay, out):
    return json.loads(forebay.run("inspect", str(out), "--format=json").stdout)


def test_a_killed_run_goes_on_with_the_same_bits(forebay, task, whole, tmp_path):
    out, nvme = tmp_path / "run", joined(folders(tmp_path))
    command = [forebay.binary, "train", f"--out={out}", f"--nvme={nvme}", *(flag_of(k, v) for k, v in task.items())]
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith("step "):
                process.send_signal(signal.SIGKILL)
                break
        process.communicate(timeout=120)
        # Where reading the line took long, the run may have come to its end.
        assert process.returncode in (-signal.SIGKILL, 0)
        if "--resume" not in command:
            command.append("--resume")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert forebay.digest(out) == whole[0]


def mark_as_being_created(nvme):
    """With the mark, and without checksums of steps, as a creation leaves it that was killed."""
    for folder in nvme:
        (inside(folder) / "creating").touch()
        for name in ("seals.fbs", "copy/seals.fbs"):
            seals = inside(folder) / name
            seals.write_bytes(bytes(seals.stat().st_size))


def test_a_killed_start_is_started_again(forebay, task, whole, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(dict(run, state="creating")))
    # A store that its creation has not marked is not removed, whatever run.json says.
    before = {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()}
    assert "whose creation ended" in refusal(forebay, 2, "train", out=out, nvme=joined(nvme), **task)
    assert {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()} == before
    # As a kill between the two manifests leaves it.
    mark_as_being_created(nvme)
    for name in ("manifest.json", "copy/manifest.json"):
        (inside(nvme[0]) / name).unlink()
    forebay.run("train", out=out, nvme=joined(nvme), **task)
    assert forebay.digest(out) == whole[0]
    # The same, killed before the first record.
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(dict(run, state="creating")))
    mark_as_being_created(nvme)
    for name in ("manifest.json", "copy/manifest.json"):
        (inside(nvme[0]) / name).unlink()
    for name in ("commit.fbs", "copy/commit.fbs"):
        (inside(nvme[0]) / name).write_bytes(bytes(8192))
    forebay.run("train", out=out, nvme=joined(nvme), **task)
    assert forebay.digest(out) == whole[0]


def test_a_moved_run_is_found_by_naming_its_folders_in_any_order(forebay, task, whole, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path, "abc")
    stop_after(forebay, task, out, 2, nvme=joined(nvme))
    moved = folders(tmp_path, "xyz")
    for old, new in zip(nvme, moved, strict=True):
        old.rename(new)
    out.rename(tmp_path / "elsewhere")
    out = tmp_path / "elsewhere"
    message = refusal(forebay, 3, "train", "--resume", out=out)
    assert "is not at" in message and "--nvme" in message and str(nvme[0]) in message
    # The folder that the run made, or the one that it lies in.
    named = [moved[2], inside(moved[0]), moved[1]]
    stop_after(forebay, task, out, 2, "--resume", nvme=joined(named))
    forebay.run("train", "--resume", out=out)  # and now it knows
    assert forebay.digest(out) == whole[0]
    forebay.run("clean", str(out))
    assert [os.listdir(folder) for folder in moved] == [[], [], []]


def test_one_folder_that_was_moved_is_enough_to_name(forebay, task, whole, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme), nvme_weights="3,2")
    inside(nvme[1]).rename(tmp_path / "moved")
    stop_after(forebay, task, out, 1, "--resume", nvme=tmp_path / "moved")
    # What is recorded are all folders, of which a plan and a new run can be made.
    resolved = json.loads((out / "resolved_config.json").read_text())
    assert resolved["offload"]["nvme"]["value"] == [str(nvme[0]), str(tmp_path / "moved")]
    forebay.run("plan", "--resume", out=out, model=task["model"])
    message = refusal(forebay, 2, "plan", "--resume", out=out, model=task["model"], nvme=tmp_path / "moved")
    assert "--set=nvme_weights=3,2 has 2 numbers for 1 folder" in message
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == whole[0]
    forebay.run("train", out=tmp_path / "new", config=out / "resolved_config.json", set="resume=false")
    assert forebay.digest(tmp_path / "new") == whole[0]


def test_a_plan_says_what_is_wrong_with_its_shares(forebay, task, tmp_path):
    settings = dict(model=task["model"], nvme_weights="1,2", nvme=tmp_path / "a")
    stop_after(forebay, task, tmp_path / "run", 1)
    for arguments in ([], ["--set=resume=true", f"--out={tmp_path / 'run'}"]):
        message = refusal(forebay, 2, "plan", *arguments, **settings)
        assert "--set=nvme_weights=1,2 has 2 numbers for 1 folder" in message


def test_a_swap_area_inside_the_run_can_be_moved_out(forebay, task, whole, tmp_path):
    out = tmp_path / "run"
    stop_after(forebay, task, out, 1)
    (out / "swap").rename(tmp_path / "fast")
    forebay.run("train", "--resume", out=out, nvme=tmp_path / "fast")
    assert forebay.digest(out) == whole[0]


def test_a_missing_folder_is_named(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    lost = inside(nvme[1])
    lost.rename(tmp_path / "lost")
    for arguments in (["train", "--resume", f"--out={out}"], ["inspect", str(out)]):
        message = refusal(forebay, 3, *arguments)
        assert str(lost) in message and str(inside(nvme[0])) not in message
    message = refusal(forebay, 3, "train", "--resume", out=out, nvme=joined(nvme))
    assert f"--nvme '{nvme[1]}' holds no part" in message and str(lost) in message
    message = refusal(forebay, 3, "train", "--resume", out=out, nvme=nvme[0])
    assert "part 2 of 2 of the run's swap area is missing" in message and str(lost) in message


def test_a_folder_of_another_run_or_another_time_is_named(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    stop_after(forebay, task, tmp_path / "other", 1, nvme=joined(folders(tmp_path, "cd")))
    other = inside(tmp_path / "d")
    message = refusal(forebay, 3, "train", "--resume", out=out, nvme=f"{nvme[0]},{other}")
    assert f"--nvme '{other}' holds no part" in message
    mine = inside(nvme[1])
    shutil.copytree(mine, tmp_path / "kept")
    stop_after(forebay, task, out, 1, "--resume", nvme=joined(nvme))
    # The other run's folder in the place of this one's.
    mine.rename(tmp_path / "mine")
    other.rename(mine)
    message = refusal(forebay, 8, "train", "--resume", out=out)
    assert "belong to different stores" in message and str(mine) in message
    # A copy from before.
    mine.rename(other)
    (tmp_path / "kept").rename(mine)
    message = refusal(forebay, 8, "train", "--resume", out=out)
    assert "do not belong together" in message and f"'{mine}/commit.fbs' was last committed at step 1" in message
    shutil.rmtree(mine)
    (tmp_path / "mine").rename(mine)
    forebay.run("train", "--resume", out=out)


def test_a_damaged_manifest_is_named_wherever_it_is_looked_for(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    manifest, copy = inside(nvme[1]) / "manifest.json", inside(nvme[1]) / "copy/manifest.json"
    whole = manifest.read_text()
    for path in (manifest, copy):
        path.write_text(whole.replace('"stripe": 1', '"stripe": 0'))
    for settings in ({}, dict(nvme=joined(nvme)), dict(nvme=nvme[0])):
        message = refusal(forebay, 8, "train", "--resume", out=out, **settings)
        assert f"the manifest '{manifest}' is damaged" in message
    # Of a store as an earlier version made it.
    version = json.loads(whole)["version"]
    for path in (manifest, copy):
        path.write_text(whole.replace(f'"version": {version}', f'"version": {version - 1}'))
    message = refusal(forebay, 8, "train", "--resume", out=out)
    assert f"has format version {version - 1}; this program reads version {version}" in message
    manifest.unlink()
    copy.write_text(whole)
    # One folder by two names is one folder.
    forebay.run("train", "--resume", out=out, nvme=joined([*nvme, inside(nvme[0])]))


def test_two_copies_of_one_folder_are_not_guessed_between(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    shutil.copytree(inside(nvme[0]), tmp_path / "copy")
    message = refusal(forebay, 3, "train", "--resume", out=out, nvme=joined([*nvme, tmp_path / "copy"]))
    assert "one is a copy of the other" in message and str(tmp_path / "copy") in message


@pytest.mark.parametrize("changes, words", [
    (dict(nvme="{a},{a}/../a"), ["the same folder", "{a}"]),
    (dict(nvme="{a},,{b}"), ["--nvme is {a},,{b}", "allowed: 1 to 64 paths"]),
    (dict(nvme="{a},{b}", nvme_weights="1"), ["--set=nvme_weights=1 has 1 numbers for 2 folders"]),
    (dict(nvme="{a},{b}", nvme_weights="1,-2"), ["--set=nvme_weights is 1,-2"]),
    (dict(nvme="{a},{b},{a}/../link"), ["the same folder"]),
])
def test_folders_that_make_no_sense_are_refused(forebay, task, tmp_path, changes, words):
    names = dict(a=tmp_path / "a", b=tmp_path / "b")
    (tmp_path / "a").mkdir()
    os.symlink(tmp_path / "a", tmp_path / "link")
    settings = {key: value.format(**names) for key, value in changes.items()}
    message = refusal(forebay, 2, "train", out=tmp_path / "run", **dict(task, **settings))
    for word in words:
        assert word.format(**names) in message
    assert not (tmp_path / "run").exists() and os.listdir(tmp_path / "a") == []


def test_a_folder_with_a_comma_is_named_in_a_list(forebay, task, whole, tmp_path):
    odd = tmp_path / "a,b"
    odd.mkdir()
    message = refusal(forebay, 2, "train", out=tmp_path / "run", nvme=odd, **task)
    assert "commas part folders" in message and "--config" in message
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"offload": {"nvme": [str(odd)]}}))
    stop_after(forebay, task, tmp_path / "run", 1, config=config)
    assert inside(odd).name.startswith("forebay-run-")
    forebay.run("train", "--resume", out=tmp_path / "run")
    assert forebay.digest(tmp_path / "run") == whole[0]


def test_the_shares_of_a_run_are_fixed(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", joined(folders(tmp_path))
    stop_after(forebay, task, out, 1, nvme=nvme, nvme_weights="2,1")
    message = refusal(forebay, 2, "train", "--resume", out=out, nvme_weights="1,1")
    assert "--set=nvme_weights=1,1: the folders of the run have the shares 2,1" in message
    stop_after(forebay, task, out, 1, "--resume", nvme=nvme, nvme_weights="4,2")


def test_an_unmounted_disk_does_not_keep_clean_from_the_others(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    lost = inside(nvme[1])
    lost.rename(tmp_path / "lost")
    cleaned = json.loads(forebay.run("clean", str(out), "--format=json").stdout)
    assert cleaned["not_there"] == [str(lost)] and cleaned["freed_bytes"] > 0
    assert os.listdir(nvme[0]) == []


def test_clean_frees_the_rest_when_its_disk_is_there_again(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    parts = [inside(folder) for folder in nvme]
    parts[1].rename(tmp_path / "lost")
    (parts[0] / "notes.txt").write_text("precious")
    forebay.run("clean", str(out))
    assert os.listdir(parts[0]) == ["notes.txt"]
    (tmp_path / "lost").rename(parts[1])
    cleaned = json.loads(forebay.run("clean", str(out), "--format=json").stdout)
    assert cleaned["not_there"] == [str(parts[0])] and cleaned["freed_bytes"] > 0
    assert os.listdir(nvme[1]) == [] and (parts[0] / "notes.txt").read_text() == "precious"


def test_folders_that_another_run_took_are_not_touched(forebay, task, whole, tmp_path):
    """A run that was moved together with its folders, and a new one in its place: the names are the same."""
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 2, nvme=joined(nvme))
    old, kept = tmp_path / "run-old", [tmp_path / "kept-a", tmp_path / "kept-b"]
    mine = [json.loads((out / "run.json").read_text())["store_uuid"], *map(inside, nvme)]
    out.rename(old)
    for part, place in zip(mine[1:], kept, strict=True):
        part.rename(place)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    theirs = json.loads((out / "run.json").read_text())["store_uuid"]
    before = {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()}
    for arguments in (["inspect", str(old)], ["train", "--resume", f"--out={old}"]):
        message = refusal(forebay, 8, *arguments)
        assert all(str(word) in message for word in [*mine, theirs, "--nvme"])
    cleaned = json.loads(forebay.run("clean", str(old), "--format=json").stdout)
    assert cleaned["freed_bytes"] == 0 and cleaned["of_others"] == [str(part) for part in mine[1:]]
    assert str(mine[1]) in forebay.run("clean", str(old)).stdout
    assert {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()} == before
    # Nor are they when the run that they are taken from was never whole.
    record = (old / "run.json").read_text()
    (old / "run.json").write_text(json.dumps(dict(json.loads(record), state="creating")))
    assert json.loads(forebay.run("clean", str(old), "--format=json").stdout)["freed_bytes"] == 0
    assert {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()} == before
    (old / "run.json").write_text(record)
    # Both go on.
    forebay.run("train", "--resume", out=old, nvme=joined(kept))
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(old) == forebay.digest(out) == whole[0]


def test_a_start_that_was_killed_replaces_its_own_folders_alone(forebay, task, whole, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    record = (out / "run.json").read_text()
    other = dict(json.loads(record), state="creating", store_uuid="0" * 32)
    (out / "run.json").write_text(json.dumps(other))
    before = {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()}
    message = refusal(forebay, 2, "train", out=out, nvme=joined(nvme), **task)
    assert f"'{inside(nvme[0])}' already holds a store" in message
    assert {path: path.read_bytes() for folder in nvme for path in inside(folder).rglob("*") if path.is_file()} == before
    # The new start has an identity from its first moment.
    failed = json.loads((out / "run.json").read_text())
    assert failed["state"] == "creating" and failed["store_uuid"].strip("0123456789abcdef") == ""
    assert failed["store_uuid"] not in (other["store_uuid"], json.loads(record)["store_uuid"])
    (out / "run.json").write_text(record)
    forebay.run("train", "--resume", out=out)
    assert forebay.digest(out) == whole[0]


@pytest.mark.parametrize("named", ["run/swap", "link/swap", "run"])
def test_a_swap_area_inside_the_run_moves_with_it_however_it_was_named(forebay, task, whole, tmp_path, named):
    out = tmp_path / "run"
    os.symlink(out, tmp_path / "link")
    stop_after(forebay, task, out, 1)
    relative = os.path.relpath(out)
    stop_after(forebay, task, relative, 1, "--resume", nvme=tmp_path / named)
    assert json.loads((out / "run.json").read_text())["stores"] == ["swap"]
    moved = out.rename(tmp_path / "moved")
    assert inspect(forebay, moved)["step"] == 2
    forebay.run("train", "--resume", out=moved)
    assert forebay.digest(moved) == whole[0]


def test_a_damaged_manifest_beside_a_whole_one_is_named(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    both = tmp_path / "both"
    both.mkdir()
    for number, folder in enumerate(nvme):
        inside(folder).rename(both / f"forebay-{number}")
    manifest, copy = both / "forebay-1" / "manifest.json", both / "forebay-1" / "copy/manifest.json"
    whole = manifest.read_text()
    for path in (manifest, copy):
        path.write_text(whole.replace('"stripe": 1', '"stripe": 0'))
    message = refusal(forebay, 8, "train", "--resume", out=out, nvme=both)
    assert "part 2 of 2" in message and f"the manifest '{manifest}' is damaged" in message
    copy.write_text(whole)
    # What others have there does not matter while nothing is missing.
    (both / "forebay-other").mkdir()
    (both / "forebay-other" / "manifest.json").write_text("{")
    forebay.run("train", "--resume", out=out, nvme=both)


def test_a_folder_that_cannot_be_listed_is_named_with_the_reason(forebay, task, tmp_path):
    out, nvme = tmp_path / "run", folders(tmp_path)
    stop_after(forebay, task, out, 1, nvme=joined(nvme))
    os.symlink("loop", tmp_path / "loop")
    message = refusal(forebay, 5, "train", "--resume", out=out, nvme=f"{nvme[0]},{tmp_path / 'loop'}")
    assert f"listing '{tmp_path / 'loop'}' failed: ELOOP" in message


def test_a_folder_on_a_small_disk_gets_what_it_has_room_for(forebay, task, whole, tmp_path):
    with confined.tmpfs(tmp_path / "small", "size=1200k") as small:
        settings = dict(task, nvme=f"{tmp_path / 'a'},{small}", nvme_weights="1,1", durability="step")
        message = refusal(forebay, 4, "train", out=tmp_path / "run", **settings)
        assert f"the file system of '{small}'" in message and "are missing" in message
        assert "a smaller share with --set=nvme_weights" in message
        assert os.listdir(small) == []
        # With what fits on it, it does its part.
        stop_after(forebay, task, tmp_path / "run", 1, nvme=settings["nvme"], nvme_weights="9,1")
        forebay.run("clean", str(tmp_path / "run"))
        # Without --set=nvme_weights that is found: there is no room to measure, and none for equal shares.
        settings.pop("nvme_weights")
        forebay.run("train", out=tmp_path / "other", **settings)
        assert (forebay.digest(tmp_path / "other"), losses(tmp_path / "other")) == whole
        assert "less where there is no room for more" in (tmp_path / "other" / "events.log").read_text()
        used = sum(path.stat().st_size for path in inside(small).rglob("*.fbs"))
        assert 600 << 10 < used < 1200 << 10
        plan = {key: value for key, value in settings.items() if key != "data"}
        forebay.run("clean", str(tmp_path / "other"))
        forebay.run("plan", **plan)
