"""Several ranks have the losses and gradient norms of PyTorch DDP and of DeepSpeed's ZeRO over gloo."""

import functools
import importlib.util
import json
import os
import pathlib
import sys

import numpy as np
import pytest
import tiny_models
from conftest import packed_file, read_metrics, write_rows
from rank_processes import ends_of, start_each, train_ranks

SETTINGS = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1, "clip": 0.5, "warmup": 3, "steps": 10}
NUM_ROWS, SEQ, NUM_RANKS = 4, 48, 2
STAGE_OF_PEER = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
PEERS = {"llama_tied": list(STAGE_OF_PEER), "gpt2": ["ddp"]}
if os.environ.get("FOREBAY_FULL"):
    PEERS = {family: list(STAGE_OF_PEER) for family in tiny_models.FAMILIES}


def rows_of_one_length(vocab):
    """One segment each, so that all ranks of ZeRO-3 call the model equally often; not all train equally many tokens."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, min(vocab, 256), (NUM_ROWS, SEQ)).astype(np.uint32)
    flags = np.full((NUM_ROWS, SEQ), packed_file.TRAINED, np.uint8)
    flags[:, 0] = packed_file.SEGMENT_START
    for row in range(NUM_ROWS):
        flags[row, 1 : 2 + 5 * row] = 0
    return tokens, flags


def make_task(family, folder):
    """The folder of a model, and data of which every step takes all rows."""
    folder.mkdir()
    vocab = tiny_models.make(family, str(folder / "model"))
    tokens, flags = rows_of_one_length(vocab)
    write_rows(folder / "data.fbd", tokens, flags, vocab)
    np.savez(folder / "rows.npz", tokens=tokens, flags=flags)
    return folder


def train_with_torch(task, peers):
    """What each of `peers` printed, which train one after another: starting PyTorch takes longer than a run."""
    program = pathlib.Path(__file__).parent / "torch_ranks.py"
    command = [sys.executable, program, ",".join(peers), task / "model", task / "rows.npz", json.dumps(SETTINGS)]
    ends = ends_of(start_each(command, NUM_RANKS))
    assert [code for code, _, _ in ends] == [0] * NUM_RANKS, ends
    return json.loads(ends[0][1].splitlines()[-1])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The task of a family, and the history of each of its peers: made when it is first asked for."""
    @functools.cache
    def of(family):
        task = make_task(family, tmp_path_factory.mktemp(family) / "task")
        has_deepspeed = importlib.util.find_spec("deepspeed") is not None
        return task, train_with_torch(task, [peer for peer in PEERS[family] if peer == "ddp" or has_deepspeed])

    return of


@pytest.mark.parametrize("family, peer", [(family, peer) for family, peers in PEERS.items() for peer in peers])
def test_losses_are_those_of(forebay, compared, tmp_path, family, peer):
    if peer != "ddp":
        pytest.importorskip("deepspeed")
    task, histories = compared(family)
    theirs = histories[peer]
    train_ranks(forebay, NUM_RANKS, model=task / "model", data=task / "data.fbd", out=tmp_path / "run", ram="1GiB",
                precision="fp32", zero_stage=STAGE_OF_PEER[peer], batch=NUM_ROWS, seq=SEQ, threads=1, schedule="cosine",
                export="none", **dict(SETTINGS, betas="0.9,0.95"))
    ours = read_metrics(tmp_path / "run")
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-5)
    assert [line["grad_norm"] for line in ours] == pytest.approx([line["grad_norm"] for line in theirs], rel=1e-3)
    assert ours[-1]["loss"] < 0.9 * ours[0]["loss"]
