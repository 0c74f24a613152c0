"""Every family of models comes to the same bits in every stage of ZeRO, wherever its state lies, and in one process that
computes the parts of the ranks one after the other."""

import os

import pytest
import tiny_models
from conftest import random_rows, write_rows
from rank_processes import digest_of_ranks, train_ranks

SEQ = 32
CASES, STAGES = [("gpt2", 4)], [0, 3]
if os.environ.get("FOREBAY_FULL"):
    CASES, STAGES = [(family, num) for family in tiny_models.FAMILIES for num in (2, 4)], [0, 1, 2, 3]


@pytest.mark.parametrize("family, num_ranks", CASES)
def test_stages_come_to_the_same_bits(forebay, tmp_path, family, num_ranks):
    vocab = tiny_models.make(family, str(tmp_path / "model"))
    data = write_rows(tmp_path / "data.fbd", *random_rows(8, SEQ, min(vocab, 256), seed=4), vocab)
    task = dict(model=tmp_path / "model", data=data, batch=4, seq=SEQ, steps=3, lr=1e-3, clip=0.5, seed=3, threads=1,
                ram="1GiB", precision="bf16", export="none")
    alone = tmp_path / "parts"
    forebay.run("train", out=alone, data_parallel=num_ranks, **task)
    expected = forebay.digest(alone)
    for stage in STAGES:
        for tier in ("host", "nvme"):
            out = tmp_path / f"{stage}{tier}"
            train_ranks(forebay, num_ranks, out=out, zero_stage=stage, weights_tier=tier, state_tier=tier, **task)
            assert digest_of_ranks(forebay, out, num_ranks) == expected, (stage, tier)
