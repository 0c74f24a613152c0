"""`forebay export`: the committed step of a run that was stopped, as a Hugging Face folder."""

import fcntl
import json
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest
from confined import tmpfs
from conftest import make_model, make_too_large_for_fp16, random_rows, read_safetensors, write_rows
from store_reader import Store

SETTINGS = dict(batch=2, seq=32, steps=4, lr=1e-3, ram="1GiB")


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    tokens, flags = random_rows(8, 32, 256, seed=1)
    return dict(model=make_model(forebay, folder / "model"), data=write_rows(folder / "data.fbd", tokens, flags, 256))


@pytest.fixture
def stopped(forebay, task, tmp_path):
    """A run of which two steps of four are done, and that has exported the second."""
    done = forebay.run("train", check=False, out=tmp_path / "run", stop_after=2, save_every=2, **task, **SETTINGS)
    assert done.returncode == 75, done.stderr
    return tmp_path / "run"


def test_it_is_the_model_of_the_committed_step(forebay, stopped, tmp_path):
    out = tmp_path / "models" / "mine"
    done = json.loads(forebay.run("export", stopped, "--format=json", out=out).stdout)
    assert done["step"] == 2 and done["folder"] == str(out)
    assert forebay.digest(out) == forebay.digest(stopped / "exports" / "step-2")
    assert forebay.run("inspect", out, "--verify").returncode == 0
    assert not (tmp_path / "models" / "mine.tmp").exists()


def test_without_a_folder_it_goes_to_the_exports_of_the_run(forebay, task, tmp_path):
    run = tmp_path / "run"
    forebay.run("train", check=False, out=run, stop_after=3, **task, **SETTINGS)
    done = forebay.run("export", run)
    assert "step 3" in done.stdout and str(run / "exports" / "step-3") in done.stdout
    first = forebay.digest(run / "exports" / "step-3")
    forebay.run("export", run)  # made anew
    assert forebay.digest(run / "exports" / "step-3") == first


def test_the_run_goes_on_as_if_nothing_had_been(forebay, stopped, task, tmp_path):
    forebay.run("train", out=tmp_path / "whole", **task, **SETTINGS)
    before = forebay.digest(stopped)
    forebay.run("export", stopped, out=tmp_path / "exported")
    assert forebay.digest(stopped) == before
    forebay.run("train", "--resume", out=stopped)
    assert forebay.digest(stopped) == forebay.digest(tmp_path / "whole")


def as_exported(w, master, layout, dtype):
    """What the file has to hold of weights that are stored as `w` of `layout` and stand for `master`."""
    if dtype == "bf16" and layout == "bf16":
        return w
    if dtype == "bf16":  # to nearest, ties to even
        bits = master.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return master.astype({"fp16": np.float16, "fp32": np.float32}[dtype])


@pytest.mark.parametrize("layout", ["bf16", "fp32"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_dtype_can_be_chosen(forebay, task, tmp_path, layout, dtype):
    run = tmp_path / "run"
    forebay.run("train", out=run, precision=layout, export_dtype=dtype, **task, **SETTINGS)
    exported = read_safetensors(run / "model" / "model.safetensors")
    stored = Store([run / "swap"]).tensors()
    assert set(exported) == set(stored)
    for name, (_, w, master, *_) in stored.items():
        expected = as_exported(w, master, layout, dtype)
        assert exported[name].dtype == expected.dtype and (exported[name] == expected).all(), name
    config = json.loads((run / "model" / "config.json").read_text())
    spelled = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]
    assert {config.get("dtype"), config.get("torch_dtype")} - {None} == {spelled}
    # And afterwards, without a word about it: as the run keeps its weights.
    for given, suffix in [(dtype, {"dtype": dtype}), (layout, {})]:
        done = json.loads(forebay.run("export", run, "--format=json", out=tmp_path / f"as{len(suffix)}", **suffix).stdout)
        assert done["dtype"] == {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[given]
        assert done["bytes"] == sum(len(w) for _, w, *_ in stored.values()) * (4 if given == "fp32" else 2)
    again = tmp_path / "as1" / "model.safetensors"
    assert again.read_bytes() == (run / "model" / "model.safetensors").read_bytes()


def test_the_dtype_may_change_on_the_way(forebay, task, tmp_path):
    run = tmp_path / "run"
    forebay.run("train", check=False, out=run, stop_after=2, **task, **SETTINGS)
    forebay.run("train", "--resume", out=run, export_dtype="fp32")
    forebay.run("train", out=tmp_path / "whole", export_dtype="fp32", **task, **SETTINGS)
    assert forebay.digest(run) == forebay.digest(tmp_path / "whole")
    assert forebay.digest(run / "model") == forebay.digest(tmp_path / "whole" / "model")


def test_a_weight_that_fp16_has_no_number_for(forebay, task, tmp_path):
    model = tmp_path / "large"
    last = make_too_large_for_fp16(task["model"], model)
    settings = {**SETTINGS, "steps": 1, "lr": 1e-12, "weight_decay": 0}
    failed = forebay.run("train", check=False, out=tmp_path / "run", export_dtype="fp16", model=model, data=task["data"], **settings)
    assert failed.returncode == 2, failed.stderr
    assert f"'{last}' has a weight of 65536, and fp16 ends at 65504" in failed.stderr
    assert not (tmp_path / "run" / "model").exists() and not (tmp_path / "run" / "model.tmp").exists()
    # The advice of the message.
    assert "forebay export RUN --dtype=bf16" in failed.stderr
    forebay.run("export", tmp_path / "run", dtype="bf16", out=tmp_path / "mine")
    assert read_safetensors(tmp_path / "mine" / "model.safetensors")[last][-1] == 0x4780


@pytest.mark.parametrize("name", ["mine", "mine.tmp", "mine.removed.tmp"])
def test_what_is_there_is_left_as_it_is(forebay, stopped, tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "letter.txt").write_text("dear")
    done = forebay.run("export", stopped, check=False, out=tmp_path / "mine")
    assert done.returncode == 2 and str(tmp_path / name) in done.stderr
    assert (tmp_path / name / "letter.txt").read_text() == "dear"
    assert (tmp_path / "mine").exists() == (name == "mine")


def test_what_is_no_run_is_an_error(forebay, task, tmp_path):
    done = forebay.run("export", task["model"], check=False, out=tmp_path / "mine")
    assert done.returncode == 3 and "run.json" in done.stderr
    assert not (tmp_path / "mine").exists()


@pytest.fixture
def lock(stopped):
    """That of the store, which somebody else has."""
    with open(stopped / "swap" / "lock", "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def test_a_run_in_use_is_an_error(forebay, stopped, tmp_path, lock):
    done = forebay.run("export", stopped, check=False, out=tmp_path / "mine")
    assert done.returncode == 9 and f"{stopped / 'swap'}' is in use by process" in done.stderr
    assert not (tmp_path / "mine").exists() and not (tmp_path / "mine.tmp").exists()


def test_a_signal_ends_it_and_leaves_nothing(forebay, stopped, tmp_path, lock):
    command = [forebay.binary, "export", str(stopped), f"--out={tmp_path / 'mine'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # It waits for the lock, for a while.
    while "signals\n" not in [name.read_text() for name in pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm")]:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    while "once more ends at once" not in process.stderr.readline():
        assert process.poll() is None
    fcntl.flock(lock, fcntl.LOCK_UN)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75 and "nothing was exported" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_too_little_room_is_found_before_anything_is_written(forebay, stopped, tmp_path):
    with tmpfs(tmp_path / "small", "size=64k") as small:
        done = forebay.run("export", stopped, check=False, out=small / "models" / "mine")
        assert done.returncode == 4 and str(small) in done.stderr and "--out" in done.stderr
        assert not list(small.iterdir())


def test_a_disk_that_fills_up_leaves_nothing(forebay, stopped, tmp_path):
    forebay.run("export", stopped, out=tmp_path / "whole")
    weights = (tmp_path / "whole" / "model.safetensors").stat().st_size
    # Enough for the weights, but not for the files beside them.
    with tmpfs(tmp_path / "small", f"size={-(-weights // 4096) * 4096}") as small:
        done = forebay.run("export", stopped, check=False, out=small / "mine")
        assert done.returncode == 5 and str(small / "mine.tmp") in done.stderr
        assert not list(small.iterdir())
    assert forebay.run("export", stopped, out=tmp_path / "again").returncode == 0
