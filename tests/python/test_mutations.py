"""Damaged files: each is accepted or refused with an error that names it; no traceback, hang or hunger for memory."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import make_model, write_lines
from test_gguf import write_gguf

WORKER = pathlib.Path(__file__).resolve().parent / "mutation_worker.py"


FULL = os.environ.get("FOREBAY_FULL") == "1"


def try_damaged_copies(kind, file, num_seeds, *arguments):
    """Of so many copies a quarter, but with FOREBAY_FULL=1 all."""
    if not FULL:
        num_seeds //= 4
    done = subprocess.run(
        [sys.executable, str(WORKER), kind, str(file), "1", str(num_seeds), *map(str, arguments)],
        capture_output=True, text=True, timeout=1800)
    last = "\n".join(done.stdout.splitlines()[-2:])
    assert done.returncode == 0, f"exit {done.returncode} after {last}\n{done.stderr[-3000:]}"
    # Most damage is seen: else the copies would not be damaged.
    refused = int(last.splitlines()[-1].split()[0])
    assert refused > num_seeds / 4, last


def test_damaged_gguf_files(tmp_path):
    pytest.importorskip("gguf")
    source = write_gguf(tmp_path / "m.gguf")
    try_damaged_copies("gguf", source, 200, "gguf", "--gguf={}", f"--out={tmp_path / 'mutated' / 'out'}")


RECORDS = [{"text": "In the beginning God created the heaven and the earth."}, {"prompt": "the cat", "completion": " sat"},
           {"messages": [{"role": "user", "content": "Hello é"}, {"role": "assistant", "content": "world 日本"}]}]


def test_damaged_json_lines(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", RECORDS * 3)
    try_damaged_copies("jsonl", data, 400, "pack", f"--model={model}", "--data={}", "--seq=64",
                       f"--out={tmp_path / 'mutated' / 'packed'}")


def test_damaged_tokenizers(tmp_path):
    folder = make_model(tmp_path / "model", bos=True)
    data = write_lines(tmp_path / "d.jsonl", RECORDS)
    try_damaged_copies("tokenizer", folder / "tokenizer.json", 300, "check", "--model={}", f"--data={data}", "--seq=64")
