"""Shared pieces of the training comparisons: where the program is, and runs of it."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(_ROOT / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # what all e2e tests share
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from forebay_data import packed_file  # noqa: E402
from option_flags import flags_of  # noqa: E402
from option_flags import flag_of


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory):
    """What the user has measured or packed before changes no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


ON_DEVICE = """#!/bin/sh
case " $* " in
  *" --device="*) ;;
  " train "* | " plan "* | " eval "* | " generate "*) exec {binary} "$@" --device={device} ;;
esac
exec {binary} "$@"
"""


def program(folder):
    """The path of the program: that of a script in `folder` which adds --device where FOREBAY_DEVICE asks for one."""
    binary = os.path.join(os.environ["FOREBAY_BIN"], "forebay")
    if "FOREBAY_DEVICE" not in os.environ:
        return binary
    script = folder / "forebay"
    script.write_text(ON_DEVICE.format(binary=binary, device=os.environ["FOREBAY_DEVICE"]))
    script.chmod(0o755)
    return str(script)


# The options that a GPU has no choice of.
CPU_OPTIONS = {"recompute", "recompute_layers", "activations_dtype"}


class Forebay:
    """The program under test, with the calls that the comparisons make."""

    def __init__(self, binary):
        self.binary = binary

    def run(self, *arguments, check=True, timeout=1200, **settings):
        command = [self.binary, *arguments, *flags_of(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        given = {word.lstrip("-").split("=")[0] for word in map(str, command)}
        if "FOREBAY_DEVICE" in os.environ and done.returncode == 2 and given & CPU_OPTIONS:
            if "are for the CPU" in done.stderr:
                pytest.skip(done.stderr)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stderr}")
        return done

    def train_until_killed(self, **settings):
        """Training that is killed when it has told of its first step."""
        command = [self.binary, "train", *flags_of(settings)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert any(line.startswith("step 1/") for line in process.stdout)
            process.kill()
        assert process.returncode == -signal.SIGKILL

    def digest(self, run_directory):
        done = self.run("inspect", str(run_directory), "--hash", "--format=json")
        return json.loads(done.stdout)["digest"]


def read_metrics(run_directory):
    """The lines of the steps."""
    with open(f"{run_directory}/metrics.jsonl", encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["step"] > 0]


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def make_model(forebay, folder, **changes):
    """A model folder with random weights and no tokenizer, made without PyTorch."""
    config = folder.parent / f"{folder.name}.config.json"
    config.write_text(json.dumps({**TINY, **changes}))
    forebay.run("init", config=config, out=folder, seed=3)
    return str(folder)


def read_safetensors(path):
    """{name: values}, flat; those of BF16 as their bits."""
    types = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int(np.frombuffer(data[:8], "<u8")[0])
    header = json.loads(data[8:begin])
    return {
        name: np.frombuffer(data[begin:][slice(*entry["data_offsets"])], types[entry["dtype"]])
        for name, entry in header.items() if name != "__metadata__"
    }


SPECIAL = {"<|end|>": 254, "<|pad|>": 255}


def write_tokenizer(folder, largest_id=255, normalizer=None):
    """One token per byte of printable ASCII, and two special ones; written out, so that no library is needed."""
    vocab = {chr(code): code for code in range(33, 127)}
    vocab |= {"\u0120": 32, "\u010a": 10}  # how byte-level tokenizers spell the blank and the end of a line
    special = {"<|end|>": SPECIAL["<|end|>"], "<|pad|>": largest_id}
    added = [
        {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for text, number in special.items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {**vocab, **special}, "merges": []},
    }
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<|end|>", "pad_token": "<|pad|>"}, file)


@pytest.fixture(scope="session")
def forebay(tmp_path_factory):
    return Forebay(program(tmp_path_factory.mktemp("program")))


def random_rows(num_rows, seq, vocab, seed):
    """Packed rows with several segments, untrained tokens and padding: (tokens, flags), both [num_rows, seq]."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, min(vocab, 256), (num_rows, seq)).astype(np.uint32)
    flags = np.full((num_rows, seq), packed_file.TRAINED, np.uint8)
    for row in range(num_rows):
        starts = np.sort(rng.choice(np.arange(4, seq - 8), 2, replace=False))
        for start in (0, *starts):
            flags[row, start] = packed_file.SEGMENT_START
        # A prompt that is not trained, and padding at the end.
        flags[row, 1:4] = 0
        padding = int(rng.integers(0, 5))
        if padding:
            flags[row, seq - padding :] = packed_file.PADDING
            tokens[row, seq - padding :] = 0
    return tokens, flags


def write_rows(path, tokens, flags, vocab):
    packed_file.write_rows(path, tokens, flags, vocab_size=vocab)
    return str(path)


def make_too_large_for_fp16(model, folder):
    """A copy of a BF16 model in `folder`, whose last weight fp16 has no number for: the name of that tensor."""
    shutil.copytree(model, folder)
    weights = pathlib.Path(folder) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = b"\x80\x47"  # 65536 as BF16: the last element of the last tensor
    weights.write_bytes(data)
    return sorted(read_safetensors(weights))[-1]


def train_through_signals(forebay, arguments, kind, pauses):
    """Trains, and sends each process `kind` after the next of `pauses` (seconds), until one ends or they are used up; then
    the rest undisturbed. Every process but the first that finds a run resumes it."""
    out = pathlib.Path(arguments["out"])
    command = [forebay.binary, "train"] + [flag_of(key, value) for key, value in arguments.items()]
    for pause in pauses:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(pause)
        process.send_signal(kind)
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            return
        ready = (out / "run.json").exists() and json.load(open(out / "run.json"))["state"] == "ready"
        # Before anything was begun a signal may simply end the program.
        assert process.returncode == (-kind if kind == signal.SIGKILL else 75) or (
            not ready and process.returncode == -kind
        ), errors
        if ready and "--resume" not in command:
            command.append("--resume")
    subprocess.run(command, check=True, capture_output=True)
