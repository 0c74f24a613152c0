"""What the unit tests take for the learning rates and loss scales of PyTorch, transformers and DeepSpeed is what those give."""

import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "train", "sequences"))

import peers  # noqa: E402
import scaler_sequences  # noqa: E402
import schedule_sequences  # noqa: E402


def same_schedules(whose, module=None):
    stored = [item for item in peers.read(schedule_sequences.FILE) if item["of"] in whose]
    made = schedule_sequences.all_sequences(module, whose)
    assert len(stored) == len(made) > 0
    for old, new in zip(stored, made):
        assert {key: old[key] for key in old if key != "rates"} == {key: new[key] for key in new if key != "rates"}
        for before, now in zip(old["rates"], new["rates"], strict=True):
            assert now == pytest.approx(before, rel=1e-12, abs=1e-18), old["schedule"]


def same_scales(rules, module=None):
    stored = [item for item in peers.read(scaler_sequences.FILE) if item["rules"] in rules]
    made = scaler_sequences.all_sequences(module, peers.deepspeed_folder(), rules)
    assert len(stored) > 0
    assert stored == made


def test_schedules_of_pytorch_and_transformers():
    same_schedules(("torch", "transformers"))


def test_schedules_of_deepspeed():
    module = peers.deepspeed_module("runtime/lr_schedules.py")
    if module is None:
        pytest.skip("DeepSpeed is not installed, and FOREBAY_DEEPSPEED does not name its package")
    same_schedules(("deepspeed",), module)


def test_scales_of_pytorch():
    same_scales(("torch",))


def test_scales_of_deepspeed():
    module = peers.deepspeed_module("runtime/fp16/loss_scaler.py")
    if module is None:
        pytest.skip("DeepSpeed is not installed, and FOREBAY_DEEPSPEED does not name its package")
    same_scales(("zero", "stage0"), module)
