"""The published GPT-2 in its own shape, 124 M parameters, with its configuration of DeepSpeed."""

import json
import math
import pathlib

from conftest import random_rows, write_rows
from transformers import GPT2Config, GPT2LMHeadModel

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "pytorch" / "deepspeed_tests" / "deepspeed_configs"


def test_gpt2_of_124_million_parameters(forebay, tmp_path):
    GPT2LMHeadModel(GPT2Config()).save_pretrained(tmp_path / "model")
    tokens, flags = random_rows(16, 64, 50257, seed=2)
    data = write_rows(tmp_path / "data.fbd", tokens, flags, 50257)
    document = json.loads((CONFIGS / "10_as_logged_stage1.json").read_text())
    document["fp16"]["initial_scale_power"] = 8
    document["scheduler"]["params"]["total_num_steps"] = "auto"
    (tmp_path / "ds.json").write_text(json.dumps(document))
    forebay.run("train", model=tmp_path / "model", data=data, out=tmp_path / "run", ds_config=tmp_path / "ds.json", seq=64,
                steps=2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 2 and all(abs(loss - math.log(50257)) < 1 for loss in losses)
