"""What benchmarks of training run: the Llama shape of SmolLM2-135M with random weights, and random tokens."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

FOREBAY = str(ROOT / "build/bin/forebay")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "initializer_range": 0.041666666666666664, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}


def run_where_packing_works():
    """Starts the benchmark again in the Python that scripts/test made, where this one lacks what packing needs."""
    if all(importlib.util.find_spec(name) for name in ("numpy", "xxhash")):
        return
    python = ROOT / "build/test-venv/bin/python"
    if not python.exists() or pathlib.Path(sys.executable) == python:
        sys.exit("This needs a Python with numpy and xxhash; scripts/test makes one, build/test-venv/bin/python.")
    os.execv(python, [str(python), *sys.argv])


def run_forebay(arguments):
    """Runs it silently; where it fails, with its own words."""
    done = subprocess.run([FOREBAY, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"forebay {arguments[0]} ended with {done.returncode}:\n{done.stderr}")


def make_model(work):
    """A Hugging Face folder inside `work`."""
    config, model = work / "config.json", work / "model"
    config.write_text(json.dumps(CONFIG))
    run_forebay(["init", f"--config={config}", f"--out={model}"])
    return model


def make_data(work, seq, rows):
    """A packed file inside `work`."""
    sys.path.insert(0, str(ROOT / "python"))
    import numpy as np
    from forebay_data import packed_file

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, CONFIG["vocab_size"], (rows, seq)).astype(np.uint32)
    flags = np.full((rows, seq), packed_file.TRAINED, np.uint8)
    flags[:, 0] = packed_file.SEGMENT_START
    data = work / "data.fbd"
    packed_file.write_rows(str(data), tokens, flags, vocab_size=CONFIG["vocab_size"])
    return data


def usual_steps(out):
    """The metrics of a run but for its first step, which has no update to apply, and its last one, which applies two."""
    with open(out / "metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file][1:-1]
