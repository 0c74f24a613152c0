"""Every family on an emulated GPU: the same bits whatever the tiers and memory there, and through a crash."""

import json
import os

import pytest
import tiny_models
from conftest import random_rows, write_rows

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_DEVICE") != "cuda",
    reason="needs a build that emulates a GPU (FOREBAY_CUDA=EMULATED), with FOREBAY_DEVICE=cuda",
)
SETTINGS = dict(batch=1, accum=2, seq=20, steps=3, lr=1e-3, clip=0.5, ram="256MiB", seed=3)


@pytest.mark.parametrize("family", list(tiny_models.FAMILIES))
def test_a_crashed_run_with_less_of_all_memory_has_the_bits_of_one_with_plenty(forebay, tmp_path, family):
    model = str(tmp_path / "model")
    vocab = tiny_models.make(family, model)
    data = write_rows(tmp_path / "data.fbd", *random_rows(6, SETTINGS["seq"], vocab, seed=4), vocab)
    task = dict(SETTINGS, model=model, data=data)
    forebay.run("train", **task, weights_tier="host", state_tier="host", out=tmp_path / "plenty")
    expected = forebay.digest(tmp_path / "plenty")

    def plan(**more):
        settings = {key: value for key, value in {**task, **more}.items() if key != "data"}
        return json.loads(forebay.run("plan", "--format=json", **settings, device="cuda").stdout)["gpu"]

    # A byte less than what holds all activations there.
    tight = dict(gpu_mem=plan()["bytes"] - 1, activations_tier="nvme")
    assert plan(**tight)["activations_on_nvme"] == 1
    tight |= dict(weights_tier="nvme", state_tier="nvme", tile_elems=2048)
    forebay.train_until_killed(**task, **tight, out=tmp_path / "run")
    forebay.run("train", "--resume", out=tmp_path / "run")
    assert forebay.digest(tmp_path / "run") == expected
