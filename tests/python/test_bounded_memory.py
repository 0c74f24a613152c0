"""Data of any size: it is packed in little memory, and its rows are those of one piece."""

import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest
from conftest import make_model, pack_file, write_lines

from forebay_data import pack, packed_file, row_packer, samples
from forebay_data.packed_file import PADDING, SEGMENT_START

MAIN = pathlib.Path(__file__).resolve().parents[2] / "python" / "forebay_data_main.py"
MOST_BYTES = 300 << 20
WORDS = "the cat sat on the mat and the dog ran in the beginning God created 12345".split()


def write_text(path, size, between):
    """About `size` bytes of words."""
    rng = random.Random(1)
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write(" ".join(rng.choices(WORDS, k=2000)) + between)
    return path


def write_rows_of(path, make_row, size):
    rng = random.Random(2)
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write(json.dumps(make_row(rng)) + "\n")
    return path


# A process begins with the most memory of the one that starts it, so that is a small one.
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10)
"""


def most_memory_of(*arguments):
    """(exit code, the most memory that the program held)."""
    command = [sys.executable, "-c", MEASURE, sys.executable, str(MAIN), *map(str, arguments)]
    return map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())


@pytest.mark.parametrize("command, write", [
    ("pack", lambda path: write_text(path / "d.txt", 12 << 20, "\n")),
    ("check", lambda path: write_text(path / "d.txt", 12 << 20, "\n")),
    # Without lines, and with three bytes for each character.
    ("pack", lambda path: write_rows_of(path / "d.jsonl", lambda rng: {"text": "".join(rng.choices("日本語の本、文。", k=2 << 20))}, 6 << 20)),
    ("pack", lambda path: write_rows_of(path / "d.jsonl", lambda rng: {"text": rng.choice(WORDS)}, 1 << 20)),
    ("pack", lambda path: write_rows_of(path / "d.jsonl", lambda rng: {"messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": " ".join(rng.choices(WORDS, k=700_000))}]}, 1 << 20)),
], ids=["text", "text that is checked", "huge rows", "tiny rows", "huge chats"])
def test_memory_does_not_grow_with_the_data(tmp_path, command, write):
    model = make_model(tmp_path / "model", positions=1 << 24)
    data = write(tmp_path)
    out = [f"--out={tmp_path / 'o'}"] if command == "pack" else []
    code, most_bytes = most_memory_of(command, f"--model={model}", f"--data={data}", "--seq=4096", "--truncate", *out)
    assert code == 0 and most_bytes < MOST_BYTES, most_bytes


def test_parts_of_a_long_text_are_the_rows_of_the_whole(model, tmp_path, monkeypatch):
    data = tmp_path / "d.txt"
    data.write_text("the cat sat on the mat, and the dog ran. 123\n" * 400)
    whole = pack_file(model, data, 16, tmp_path / "whole")
    monkeypatch.setattr(samples, "PART_TOKENS", 50)
    parts = pack_file(model, data, 16, tmp_path / "parts")
    assert parts[0] == {**whole[0], "path": parts[0]["path"]}
    assert (parts[1] == whole[1]).all() and (parts[2] == whole[2]).all()


def test_rows_are_the_same_however_many_are_tokenized_together(model, tmp_path, monkeypatch):
    rng = random.Random(3)
    words = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(300)]
    data = write_lines(tmp_path / "d.jsonl", [
        {"text": text} if index % 3 else {"prompt": text, "completion": text} for index, text in enumerate(words)])
    whole = pack_file(model, data, 48, tmp_path / "whole")
    monkeypatch.setattr(samples, "BATCH_RECORDS", 2)
    apart = pack_file(model, data, 48, tmp_path / "apart")
    assert apart[0] == {**whole[0], "path": apart[0]["path"]}
    assert (apart[1] == whole[1]).all() and (apart[2] == whole[2]).all()


@pytest.mark.parametrize("limits", [{"WINDOW_TOKENS": 100, "WINDOW_ROWS": 1}, {"WINDOW_SEGMENTS": 3}, {"BLOCK_TOKENS": 1}])
def test_rows_that_are_made_in_windows_have_every_segment_once(model, tmp_path, monkeypatch, limits):
    rng = random.Random(7)
    data = write_lines(tmp_path / "d.jsonl", [{"text": " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))} for _ in range(200)])
    whole = pack_file(model, data, 48, tmp_path / "whole")
    for name, value in limits.items():
        monkeypatch.setattr(row_packer, name, value)
    report, tokens, flags = pack_file(model, data, 48, tmp_path / "windows")
    for key in ("tokens", "trained", "samples", "cut", "longest_segment"):
        assert report[key] == whole[0][key], key
    assert segments(tokens, flags) == segments(*whole[1:])


def segments(tokens, flags):
    """All segments with their flags, sorted."""
    found = []
    for row_tokens, row_flags in zip(tokens, flags):
        used = int((row_flags != PADDING).sum())
        starts = np.flatnonzero(row_flags & SEGMENT_START).tolist()
        found += [(row_tokens[begin:end].tolist(), row_flags[begin:end].tolist()) for begin, end in zip(starts, starts[1:] + [used])]
    return sorted(found)


def test_a_disk_without_room_for_rows_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_file.tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb"))
    with pytest.raises(pack.packed_file.StorageError, match="No space left.*twice the size") as caught:
        with packed_file.RowSpool(str(tmp_path)) as spool:
            for seq in (4, 1 << 16):  # the first is in a buffer, which closing the file tries to write again
                spool.append(np.zeros((1, seq), "<u4"), np.zeros((1, seq), "u1"))
    assert str(tmp_path) in str(caught.value)
