"""The budget: train, generate and eval at the least --ram that they accept, which is less than what they work on."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

import pytest
from conftest import TINY, make_model, random_rows, read_safetensors, write_rows, write_tokenizer
from option_flags import flag_of

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_DEVICE") == "cuda", reason="the memory of an emulated GPU is the process's, to the kernel"
)
MIB = 1 << 20
SEQ, BATCH = 32, 2
MODEL = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=18, num_attention_heads=8, num_key_value_heads=8)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(2 * BATCH, SEQ, 256, seed=5), 256)
    model = make_model(forebay, folder / "model", **MODEL)
    write_tokenizer(model)
    return dict(model=model, data=data)


def peak_bytes(command):
    """Runs it and returns the most memory that it had, as the kernel counts it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, errors
    return usage.ru_maxrss * 1024


def least_ram(forebay, command):
    refused = subprocess.run([*command, "--ram=1MiB"], capture_output=True, text=True)
    assert refused.returncode == 4, refused.stderr
    return int(re.findall(r"--ram=(\d+)MiB", refused.stdout + refused.stderr)[-1]) * MIB


def test_training_stays_inside_the_least_budget(forebay, task, tmp_path):
    command = [
        forebay.binary, "train", f"--model={task['model']}", f"--data={task['data']}", f"--out={tmp_path / 'run'}",
        f"--batch={BATCH}", f"--seq={SEQ}", "--steps=2", "--threads=1",
    ]
    least = least_ram(forebay, command)
    peak = peak_bytes([*command, f"--ram={least}"])
    state = sum(file.stat().st_size for file in (tmp_path / "run" / "swap").iterdir()) / 2
    print(f"least {least / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB, state {state / MIB:.0f} MiB")
    assert peak <= least < state / 2


@pytest.fixture
def reserved_huge_pages():
    """128 MiB of them, as an administrator sets them aside."""
    setting = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    before = setting.read_text() if setting.exists() else ""
    try:
        setting.write_text(str(int(before) + 64))
    except (OSError, ValueError) as error:
        pytest.skip(f"no huge pages can be reserved here: {error}")
    if int(setting.with_name("free_hugepages").read_text()) == 0:
        setting.write_text(before)
        pytest.skip("the kernel found no 2 MiB in one piece to reserve")
    yield
    setting.write_text(before)


def test_reserved_huge_pages_are_taken_first_and_counted(forebay, task, tmp_path, reserved_huge_pages):
    out = tmp_path / "run"
    most = peak_bytes([
        forebay.binary, "train", f"--model={task['model']}", f"--data={task['data']}", f"--out={out}",
        f"--batch={BATCH}", f"--seq={SEQ}", "--steps=1", "--threads=1", "--ram=1GiB", "--export=none",
    ])
    (pages,) = [line for line in open(out / "events.log") if " pages: " in line]
    found = re.search(r"pages: ([0-9.]+) MiB in reserved huge pages of 2 MiB", pages)
    assert found is not None, pages
    taken = float(found[1]) * MIB
    (line,) = [json.loads(line) for line in open(out / "metrics.jsonl")]
    # The kernel's own peak leaves them out.
    assert line["rss_bytes"] > most + taken / 2, (line["rss_bytes"], most, taken)
    assert line["rss_bytes"] <= 1 << 30


@pytest.mark.parametrize("name", ["generate", "eval"])
def test_a_model_larger_than_the_budget_streams_through_it(forebay, task, name):
    what = {
        "generate": ["--prompt=abc", "--max_tokens=4", "--temperature=0"],
        "eval": [f"--data={task['data']}", f"--seq={SEQ}"],
    }[name]
    command = [forebay.binary, name, f"--model={task['model']}", "--threads=1", *what]
    least = least_ram(forebay, command)
    peak = peak_bytes([*command, f"--ram={least}"])
    weights = os.path.getsize(f"{task['model']}/model.safetensors")
    print(f"least {least / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB, weights {weights / MIB:.0f} MiB")
    assert peak <= least
    # 96 MiB are the program's own share.
    assert least - 96 * MIB < weights / 2


def test_a_model_is_made_without_ever_being_whole_in_memory(forebay, task, tmp_path):
    config = f"{task['model']}/config.json"
    weights = os.path.getsize(f"{task['model']}/model.safetensors")
    for name, flags in (("folder", []), ("run", ["--run"])):
        out = tmp_path / name
        peak = peak_bytes([forebay.binary, "init", f"--config={config}", f"--out={out}", *flags])
        print(f"{name}: peak {peak / MIB:.0f} MiB, weights {weights / MIB:.0f} MiB")
        assert peak < 0.75 * weights  # much of it the program's own share
        shutil.rmtree(out)


def test_no_tensor_is_whole_in_memory_when_a_model_is_made_or_exported(forebay, tmp_path):
    # An embedding of 160 MB in fp32.
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY | dict(vocab_size=40_000, hidden_size=1024, dtype="float32")))
    peaks = {
        "folder": peak_bytes([forebay.binary, "init", f"--config={config}", f"--out={tmp_path / 'folder'}"]),
        "run": peak_bytes([forebay.binary, "init", f"--config={config}", f"--out={tmp_path / 'run'}", "--run"]),
    }
    peaks["export"] = peak_bytes([forebay.binary, "export", tmp_path / "run", f"--out={tmp_path / 'exported'}"])
    # At the least --ram that each accepts.
    for name, command in (
        ("folder", ["init", f"--config={config}", f"--out={tmp_path / 'least_folder'}"]),
        ("run", ["init", f"--config={config}", f"--out={tmp_path / 'least_run'}", "--run"]),
        ("export", ["export", tmp_path / "run", f"--out={tmp_path / 'least_export'}"]),
    ):
        least = least_ram(forebay, [forebay.binary, *command])
        assert peaks[name] <= least < 160 * MIB
        assert peak_bytes([forebay.binary, *command, f"--ram={least}"]) <= least
    print({name: f"{peak / MIB:.0f} MiB" for name, peak in peaks.items()})
    assert max(peaks.values()) < 80 * MIB
    made, exported = (read_safetensors(tmp_path / folder / "model.safetensors") for folder in ("folder", "exported"))
    assert made.keys() == exported.keys() and all((made[name] == exported[name]).all() for name in made)


@pytest.mark.parametrize("command", ["train", "eval", "generate", "plan", "export"])
def test_a_limit_of_address_space_is_exit_6_or_enough(forebay, tmp_path, command):
    """At any limit: where it is reached, libraries end in a null pointer, and nothing can be said any more."""
    data = write_rows(tmp_path / "data.fbd", *random_rows(2 * BATCH, SEQ, 256, seed=5), 256)
    model = make_model(forebay, tmp_path / "model")
    write_tokenizer(model)
    settings = dict(model=model, data=data, seq=SEQ, batch=BATCH, steps=2, ram="256MiB", export="none")
    forebay.run("train", **settings, out=tmp_path / "run")
    arguments = {
        "train": [flag_of(key, value) for key, value in settings.items()] + [f"--out={tmp_path / 'new'}"],
        "eval": [f"--model={model}", f"--data={data}", "--ram=256MiB"],
        "generate": [f"--model={model}", "--prompt=abc", "--max_tokens=3", "--ram=256MiB"],
        "plan": [model, f"--seq={SEQ}"],
        "export": [str(tmp_path / "run"), f"--out={tmp_path / 'exported'}"],
    }[command]
    codes = []
    # What the program's own libraries take has to fit for it to begin.
    for limit in range(112 * MIB, 500 * MIB, 11 * MIB):
        done = subprocess.run([forebay.binary, command, *arguments], capture_output=True, text=True,
                              preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        assert done.returncode in (0, 6), (limit // MIB, done)
        if done.returncode == 6:
            assert "forebay: error: " in done.stderr and "ulimit -v" in done.stderr, done.stderr
            assert not (tmp_path / "new").exists() and not (tmp_path / "exported").exists()
        codes.append(done.returncode)
        if codes[-2:] == [0, 0]:
            break
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        shutil.rmtree(tmp_path / "exported", ignore_errors=True)
    assert 6 in codes and codes[-2:] == [0, 0], codes
