"""The budget: train, generate and eval at the least --ram that they accept, which is less than what they work on."""

import os
import re
import subprocess

import pytest
from conftest import make_model, random_rows, write_rows, write_tokenizer

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
