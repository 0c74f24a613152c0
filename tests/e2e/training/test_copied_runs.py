"""Runs that were copied or moved: `clean` and --resume touch what is theirs, and leave and name what is not known to be."""

import fcntl
import json
import os
import shutil

import pytest
from confined import tmpfs
from conftest import make_model, random_rows, write_rows

SEQ = 32


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=5), 256)
    return dict(model=make_model(forebay, folder / "model"), data=data, batch=2, seq=SEQ, steps=3, lr=1e-3, ram="1GiB")


@pytest.fixture(scope="module")
def digest(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out)


def stop_after_one(forebay, task, out, **settings):
    done = forebay.run("train", check=False, out=out, stop_after=1, **task, **settings)
    assert done.returncode == 75, done.stderr
    return out


@pytest.fixture
def run(forebay, task, tmp_path):
    """A run after step 1 of 3 whose swap area lies outside of it."""
    return stop_after_one(forebay, task, tmp_path / "run", nvme=tmp_path / "nvme")


def store_of(tmp_path):
    (store,) = (tmp_path / "nvme").iterdir()
    return store


def contents_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def clean(forebay, run):
    return json.loads(forebay.run("clean", run, "--format=json").stdout)


def test_clean_of_a_copied_run_leaves_the_store_to_the_original(forebay, run, digest, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", symlinks=True)
    before = contents_of(store_of(tmp_path))
    cleaned = clean(forebay, copy)
    assert cleaned["freed_bytes"] == 0 and cleaned["of_others"] == [str(store_of(tmp_path))]
    assert f"the run in '{run}'" in cleaned["reasons"][0]
    told = forebay.run("clean", copy).stdout
    assert f"what is in '{store_of(tmp_path)}' was left as it is" in told and str(run) in told
    refused = forebay.run("train", "--resume", check=False, out=copy)
    assert refused.returncode == 8, refused.stderr
    assert f"'{store_of(tmp_path)}' belongs to another run" in refused.stderr and str(run) in refused.stderr
    refused = forebay.run("inspect", copy, "--repair", check=False)
    assert refused.returncode == 8 and "belongs to another run" in refused.stderr, refused.stderr
    assert contents_of(store_of(tmp_path)) == before
    forebay.run("train", "--resume", out=run)
    assert forebay.digest(run) == digest
    assert clean(forebay, run)["freed_bytes"] > 0 and not list((tmp_path / "nvme").iterdir())


def test_the_original_is_known_by_another_name_too(forebay, run, digest, tmp_path):
    """It was renamed, and the copy has its place."""
    original = run.rename(tmp_path / "original")
    shutil.copytree(original, run)
    assert clean(forebay, run)["freed_bytes"] == 0
    refused = forebay.run("train", "--resume", check=False, out=run)
    assert refused.returncode == 8 and f"the run in '{original}'" in refused.stderr, refused.stderr
    forebay.run("train", "--resume", out=original)
    assert forebay.digest(original) == digest
    assert clean(forebay, original)["freed_bytes"] > 0


def test_a_copy_takes_over_when_the_original_is_gone(forebay, run, digest, tmp_path):
    copy = shutil.copytree(run, tmp_path / "elsewhere" / "copy")
    shutil.rmtree(run)
    # Not known to be the same run: left, and named.
    cleaned = clean(forebay, copy)
    assert cleaned["freed_bytes"] == 0 and f"a run that was in '{run}'" in cleaned["reasons"][0]
    forebay.run("train", "--resume", out=copy)
    assert forebay.digest(copy) == digest
    assert clean(forebay, copy)["freed_bytes"] > 0 and not list((tmp_path / "nvme").iterdir())


def test_a_copied_store_is_the_copys_once_it_is_named(forebay, run, digest, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.copytree(store_of(tmp_path), tmp_path / "store")
    forebay.run("train", "--resume", out=copy, nvme=tmp_path / "store")
    assert forebay.digest(copy) == digest
    assert forebay.digest(run) != digest, "the original has not moved"
    assert clean(forebay, copy)["freed_bytes"] > 0
    forebay.run("train", "--resume", out=run)
    assert forebay.digest(run) == digest


def test_a_copy_with_its_store_inside_is_a_run_of_its_own(forebay, task, digest, tmp_path):
    run = stop_after_one(forebay, task, tmp_path / "run")
    copy = shutil.copytree(run, tmp_path / "copy")
    forebay.run("train", "--resume", out=copy)
    assert forebay.digest(copy) == digest
    assert clean(forebay, copy)["freed_bytes"] > 0 and not (copy / "swap").exists()
    forebay.run("train", "--resume", out=run)
    assert forebay.digest(run) == digest
    # Of one that was not resumed before it is cleaned, too.
    copy = shutil.copytree(run, tmp_path / "second")
    assert clean(forebay, copy)["freed_bytes"] > 0
    assert forebay.digest(run) == digest


def test_a_link_to_the_store_is_not_a_store_inside(forebay, task, digest, tmp_path):
    """The swap area was moved to another disk, with a link in its place, and the run copied with the link."""
    run = stop_after_one(forebay, task, tmp_path / "run")
    (run / "swap").rename(tmp_path / "fast")
    os.symlink(tmp_path / "fast", run / "swap")
    copy = shutil.copytree(run, tmp_path / "copy", symlinks=True)
    before = contents_of(tmp_path / "fast")
    assert clean(forebay, copy)["freed_bytes"] == 0
    refused = forebay.run("train", "--resume", check=False, out=copy, nvme=tmp_path / "fast")
    assert refused.returncode == 8 and "belongs to another run" in refused.stderr, refused.stderr
    assert contents_of(tmp_path / "fast") == before
    forebay.run("train", "--resume", out=run, nvme=tmp_path / "fast")
    assert forebay.digest(run) == digest


@pytest.mark.parametrize("nvme", [None, "nvme"])
def test_a_run_that_was_moved_to_another_disk_goes_on(forebay, task, digest, tmp_path, nvme):
    where = {} if nvme is None else {"nvme": tmp_path / nvme}
    with tmpfs(tmp_path / "disk"):
        run = stop_after_one(forebay, task, tmp_path / "disk" / "run", **where)
        moved = shutil.move(run, tmp_path / "moved")
        forebay.run("train", "--resume", out=moved)
        assert forebay.digest(moved) == digest
        assert clean(forebay, moved)["freed_bytes"] > 0


def test_files_that_are_no_stores_are_left_and_named(forebay, run, tmp_path):
    """A folder of another program, where run.json says that the store is."""
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("lock", "manifest.json"):
        (precious / name).write_text(f'{{"my": "{name}"}}')
    record = json.loads((run / "run.json").read_text())
    for state in ("ready", "creating"):
        (run / "run.json").write_text(json.dumps({**record, "state": state, "stores": [str(precious)]}))
        before = contents_of(precious)
        cleaned = clean(forebay, run)
        assert cleaned["freed_bytes"] == 0 and cleaned["of_others"] == [str(precious)], state
        assert f"'{precious}'" in forebay.run("clean", run).stdout
        forebay.run("train", check=False, out=run, model="m", data="d")
        assert contents_of(precious) == before


def test_a_start_anew_leaves_what_is_not_its_own(forebay, task, tmp_path):
    """Of a start that was stopped in the middle, in whose folder others have put theirs meanwhile."""
    out = stop_after_one(forebay, task, tmp_path / "run")
    record = json.loads((out / "run.json").read_text())
    shutil.rmtree(out / "swap")
    (out / "swap").mkdir()
    for name in ("lock", "weights.fbs"):
        (out / "swap" / name).write_text("precious")
    (out / "run.json").write_text(json.dumps({**record, "state": "creating"}))
    before = contents_of(out / "swap")
    refused = forebay.run("train", check=False, out=out, **task)
    assert refused.returncode == 2 and f"'{out}/swap'" in refused.stderr, refused.stderr
    assert contents_of(out / "swap") == before


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"store_uuid": 3}', '{"store_uuid": "x", "run": 3}', None])
def test_without_a_word_on_whose_it_is_a_store_outside_is_left(forebay, run, digest, tmp_path, damage):
    owner = store_of(tmp_path) / "owner.json"
    owner.unlink()
    if damage is not None:
        owner.write_text(damage)
    cleaned = clean(forebay, run)
    assert cleaned["freed_bytes"] == 0 and "does not say whose it is" in cleaned["reasons"][0]
    forebay.run("train", "--resume", out=run)
    assert forebay.digest(run) == digest
    assert clean(forebay, run)["freed_bytes"] > 0


def test_a_run_in_use_is_not_cleaned(forebay, run, tmp_path):
    with open(run / "run.lock", "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for command in (["clean"], ["inspect", "--repair"], ["train", "--resume"]):
            where = [f"--out={run}"] if command[0] == "train" else [str(run)]
            refused = forebay.run(*command, *where, check=False)
            assert refused.returncode == 9 and f"the run in '{run}' is in use by process" in refused.stderr, refused.stderr
    assert clean(forebay, run)["freed_bytes"] > 0
