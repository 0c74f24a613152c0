"""The published GPT-2 in its own shape, 124 M parameters, under two ranks."""

import math

from test_published_programs import config_of, losses_of, printed


def test_gpt2_of_124_million_parameters_under_two_ranks(tmp_path):
    config = config_of(tmp_path, "02_gpt2_zero1.json", fp16={"initial_scale_power": 8})
    lines = printed("gpt2.py", "--deepspeed_config", config, "--steps", "1", "--layers", "12", "--width", "768",
                    "--words", "50257", num_ranks=2)
    losses = losses_of(line for line in lines if line.startswith("step:"))
    assert len(losses) == 1  # that of step 0, on rank 0
    assert abs(losses[0] - math.log(50257)) < 1
    ends = [line for line in lines if line.startswith("scale:")]
    assert len(ends) == 2 and len(set(ends)) == 1 and "skipped:0, steps:2" in ends[0]
