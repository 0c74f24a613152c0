"""`forebay train --ds_config` refuses what forebay.deepspeed refuses, in the same words."""

import json
import os
import pathlib
import subprocess

import pytest

import forebay
from forebay.deepspeed._config import Config

PROGRAM = pathlib.Path(os.environ.get("FOREBAY_BIN", pathlib.Path(__file__).resolve().parents[4] / "build" / "bin")
                       ) / "forebay"
GOOD = {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
NVME = {"device": "nvme", "nvme_path": "/x"}
BAD = [
    {"gradient_cliping": 1}, {"zz": 1}, {"zero_optimization": {"stage": 4}}, {"zero_optimization": {"stage": 1.5}},
    {"zero_optimization": {"stage": 1, "offload_param": NVME}},
    {"fp16": {"enabled": "treu"}, "gradient_cliping": 1, "zero_optimization": {"stage": 7, "zenflow": {"a": 1}}},
    {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
    {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "disk"}}},
    {"zero_optimization": {"stage": 1, "stages": 1}}, {"zero_optimization": 3}, {"train_batch_size": 0},
    {"train_micro_batch_size_per_gpu": 3}, {"gradient_accumulation_steps": 3}, {"gradient_clipping": -1},
    {"gradient_clipping": True}, {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
    {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, {"msamp": {"enabled": True}},
    {"amp": {"enabled": True}}, {"amp": {"enabled": 1}}, {"sequence_parallel_size": True}, {"tensor_parallel": {"autotp_size": 2}}, {"sequence_parallel_size": 4},
    {"optimizer": {"type": "Lamb"}}, {"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}},
    {"optimizer": {"type": "AdamW", "params": {"bias_correction": False}}}, {"scheduler": {"type": "Linear"}},
]


def refused_by_python(path):
    with pytest.raises(forebay.UsageError) as refused:
        Config.read(path)
    first, *others = str(refused.value).splitlines()
    return [other.strip() for other in others] or [first.removeprefix(f"forebay: {path}: ")]


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}")
@pytest.mark.parametrize("change", BAD, ids=json.dumps)
def test_both_refuse_in_the_same_words(tmp_path, change):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**GOOD, **change}))
    done = subprocess.run([PROGRAM, "train", "--ds_config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for problem in refused_by_python(path):
        assert f"{path}: {problem}" in [line.strip().removeprefix("forebay: error: ") for line in done.stderr.splitlines()]
