"""Runs forebay-data on damaged copies of one file, in a process of its own that may hold little more memory.

Usage: mutation_worker.py KIND FILE FIRST_SEED NUM_SEEDS ARGUMENT...; "{}" in ARGUMENT becomes the damaged copy's path, or
with KIND "tokenizer" the path of its folder. Ends with 0 when every copy was accepted or refused in a clean way; else it
says which seed was not. tests/python/test_mutations.py runs it.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

from forebay_data import cli  # noqa: E402

MORE_MEMORY_BYTES = 512 << 20
MOST_SECONDS = 60  # for one copy that takes milliseconds on an idle machine

NUMBERS = [b"\x00" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x00" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f",
           b"\x00\x00\x00\x00\x01\x00\x00\x00", b"\x01", b"\x80", b"\x08\x00\x00\x00", b"\x09\x00\x00\x00"]
WORDS = [b"null", b"true", b"-1", b"0", b"1e999", b"18446744073709551616", b'""', b"[]", b"{}", b"[[[[", b'{"a":',
         b'"\\ud800"', b"\\", b'"', b",", b"\n", b"\xff", b"\xe2\x82", b"\x00", b'"text"', b'"type": "WordPiece"']


def mutated(contents, kind, rng):
    data = bytearray(contents)
    # What is not header in a GGUF file is values, of which any will do.
    end = min(len(data), 12000) if kind == "gguf" and rng.random() < 0.9 else len(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(end)
        length = rng.choice((1, 2, 4, 8, 50, 1000))
        what = rng.randrange(7)
        if what == 0:
            data[at:at + 1] = bytes([data[at % len(data)] ^ 1 << rng.randrange(8)])
        elif what == 1:
            number = rng.choice(NUMBERS)
            data[at:at + len(number)] = number
        elif what == 2:
            del data[at:at + length]
        elif what == 3:
            data[at:at] = data[at:at + length]
        elif what == 4:
            data[at:at + rng.choice((0, 1, 4))] = rng.choice(NUMBERS if kind == "gguf" else WORDS)
        elif what == 5:
            other = rng.randrange(end)
            data[at:at + length] = data[other:other + length]
        else:
            del data[rng.randrange(len(data)) if rng.random() < 0.3 else max(at, len(data) - length):]
        if not data:
            break
        end = min(end, len(data))
    return bytes(data)


def value_changed(contents, rng):
    """One value of a JSON document by another, wherever it is."""
    document = json.loads(contents)
    places = []

    def visit(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                visit(value[key])

    visit(document)
    # Nearly all values are ids of the vocabulary and merges; the rest is chosen more often than that.
    rest = [(holder, key) for holder, key in places if isinstance(holder, dict) and type(holder[key]) is not int]
    holder, key = rng.choice(rest if rng.random() < 0.7 else places)
    holder[key] = rng.choice([None, True, -1, 0, 2**31, 2**32, 2**64, 1.5, "", "x" * 1000, "[UNK]", [], {}, [[]],
                              {"type": "Unknown"}, {"type": "Sequence", "pretokenizers": []}, {"Regex": "(a+)+$"},
                              {"type": "ByteLevel"}])
    return json.dumps(document).encode()


def run(arguments):
    """(exit code, standard output)."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = cli.main([*arguments, "--format=json"])
        output.flush()
    return code, output.buffer.getvalue().decode("utf-8")


def problem_with(code, output, path, kind):
    """What is wrong with this end, or None."""
    document = json.loads(output)
    if code == 0:
        return None
    if code != 3:
        return f"exit code {code}: {output}"
    messages = [document["error"]["message"]] if "error" in document else document["problems"]
    for message in messages:
        # A damaged tokenizer may make nothing of a text, which is the text's line's error.
        if str(path) not in message and not (kind == "tokenizer" and ".jsonl:" in message):
            return f"the file is not named: {message}"
        if kind == "jsonl" and not re.search(re.escape(str(path)) + r"(:\d+: |' has no text)", message):
            return f"the line is not named: {message}"
    return None


def main(kind, file, first_seed, num_seeds, *arguments):
    contents = pathlib.Path(file).read_bytes()
    folder = pathlib.Path(file).parent / "mutated"
    if kind == "tokenizer":
        shutil.copytree(pathlib.Path(file).parent, folder)
    folder.mkdir(exist_ok=True)
    path = folder / pathlib.Path(file).name
    arguments = [a.replace("{}", str(folder if kind == "tokenizer" else path)) for a in arguments]
    refused = 0
    for seed in range(int(first_seed) - 1, int(first_seed) + int(num_seeds)):
        rng = random.Random(seed)
        sane = seed < int(first_seed)
        if kind == "tokenizer" and not sane and rng.random() < 0.6:
            damaged = value_changed(contents, rng)
        else:
            damaged = contents if sane else mutated(contents, kind, rng)
        path.write_bytes(damaged)
        shutil.rmtree(folder / "out", ignore_errors=True)
        # Where the process dies, this is the last that is heard of it.
        print(f"seed {seed}", flush=True)
        signal.alarm(MOST_SECONDS)
        code, output = run(arguments)
        problem = problem_with(code, output, path, kind)
        if problem is not None or (sane and code != 0):
            print(f"seed {seed}: {problem or output}")
            return 1
        refused += code != 0
        if sane:
            # Libraries are loaded and threads started now.
            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
            limit = pages * os.sysconf("SC_PAGESIZE") + MORE_MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(f"{refused} of {num_seeds} copies refused")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
