"""The programs that were published with DeepSpeed's configurations of deepspeed_configs/, small, with data made here. Their
.cuda() is the identity, as on a machine without a GPU; only their imports are changed."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent
CONFIGS, PROGRAMS = FOLDER / "deepspeed_configs", FOLDER / "published"
WITHOUT_CUDA = """
import runpy, sys, torch
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def printed(program, *arguments, num_ranks=1):
    """The lines of a program that ends well, and what it has on stderr."""
    environment = {**os.environ, "PYTHONPATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                   "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_ranks))}
    launcher = [] if num_ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
                                         str(num_ranks), "--no_python", sys.executable]
    done = subprocess.run([sys.executable, *launcher, "-c", WITHOUT_CUDA, PROGRAMS / program, *arguments],
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "destroy_process_group" not in done.stderr
    return done.stdout.splitlines()


def losses_of(lines):
    return [float(found[1]) for found in (re.search(r"[Ll]oss: ?([0-9.]+)", line) for line in lines) if found]


def end_of(lines):
    return {name: float(value) for name, value in re.findall(r"(\w+):([0-9.]+)", lines[-1])}


def config_of(tmp_path, name, **changes):
    """A published configuration; changes: of its sections, as small programs need them."""
    text = (CONFIGS / name).read_text()
    # As people write it: a dict with comments, JSON with a comma too many.
    document = ast.literal_eval(re.sub(r"\bfalse\b", "False", re.sub(r"\btrue\b", "True", text)))
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    path = tmp_path / "config.json"
    path.write_text(repr(document) if name.endswith(".py") else json.dumps(document))
    return path


# So that so few steps are seen to train.
FASTER = {"params": {"total_num_steps": 300, "warmup_min_lr": 0, "warmup_max_lr": 3e-3, "warmup_num_steps": 10}}


@pytest.mark.parametrize(("name", "how"), [
    ("02_gpt2_zero1.json", "--deepspeed_config"), ("03_gpt2_zero1_dict.py", "--by_dict"),
    ("06_gpt2_zero1_activation_checkpointing.json", "--deepspeed_config"),
    ("07_gpt2_zero3_offload_cpu.json", "--cpu_adam"), ("21_gpt2_zero3_infinity_nvme.json", "--cpu_adam")])
def test_gpt2_from_a_scale_of_2_to_the_32(tmp_path, name, how):
    place = {"device": "nvme", "nvme_path": str(tmp_path), "pin_memory": True}
    config = config_of(tmp_path, name, scheduler=FASTER, zero_optimization={
        "offload_param": place, "offload_optimizer": place} if "nvme" in name else {})
    arguments = ["--cpu_adam", "--deepspeed_config"] if how == "--cpu_adam" else [how]
    lines = printed("gpt2.py", *arguments, config, "--steps", "60")
    end, losses = end_of(lines), losses_of(lines)
    # One overflow is free; each of the others halves the scale. The rest of the steps trains.
    overflows = [line for line in lines if "OVERFLOW" in line]
    assert len(overflows) == end["skipped"] and "but hysteresis is 2. Reducing hysteresis to 1" in overflows[0]
    assert 12 <= end["skipped"] <= 30 and end["scale"] == 2.0**(32 - end["skipped"] + 1)
    assert end["steps"] == 61 and end["applied"] == 61 - end["skipped"]
    assert len(losses) == 7 and losses[-1] < losses[0]


def test_gpt2_at_stage_3_ends_where_the_scale_is_at_its_least(tmp_path):
    """Weights that are not finite make every step overflow, until the exception of the minimum."""
    program = (PROGRAMS / "gpt2.py").read_text().replace("tokenizer = Tokenizer()",
                                                         "tokenizer = Tokenizer(); model.lm_head.weight.data[0] = 1e9")
    (tmp_path / "gpt2.py").write_text(program)
    with pytest.raises(AssertionError, match="Current loss scale already at minimum - cannot decrease scale anymore"):
        printed(tmp_path / "gpt2.py", "--by_dict", CONFIGS / "04_gpt2_zero3.py", "--steps", "40")


def test_gpt2_at_stage_3_with_accumulation_and_clipping(tmp_path):
    config = config_of(tmp_path, "05_gpt2_zero3_accumulate_clip.py", scheduler=FASTER)
    lines = printed("gpt2.py", "--by_dict", config, "--steps", "63")
    end, losses = end_of(lines), losses_of(lines)
    assert end == {"scale": 256.0, "skipped": 0.0, "steps": 8.0, "applied": 8.0} and losses[-1] < losses[0]


def test_the_convnet_under_deepspeed():
    losses = losses_of(printed("convnet.py", "--way", "deepspeed", "--deepspeed", "--deepspeed_config",
                               CONFIGS / "08_cifar_zero2.json"))
    assert len(losses) == 32 and sum(losses[-4:]) < 0.5 * sum(losses[:4])


@pytest.mark.parametrize(("way", "num_ranks"), [("data_parallel", 1), ("ddp", 2)])
def test_the_convnet_under_data_parallel_and_ddp_has_pytorch_s_losses(way, num_ranks):
    ours, theirs = [losses_of(printed("convnet.py", "--way", way, *more, num_ranks=num_ranks))
                    for more in ((), ("--by_torch",))]
    assert len(ours) == 16 and ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("name", ["17_as_logged_stage0_msamp_O2.json", "18_as_logged_stage2_msamp_O3.json"])
def test_lenet_without_fp8(tmp_path, name):
    config = config_of(tmp_path, name, msamp={"enabled": False}, scheduler={"params": {
        "warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10}})
    lines = printed("lenet.py", "--deepspeed", "--deepspeed_config", config)
    assert len(losses_of(lines)) == 2 and int(re.search(r"(\d+) %", lines[-1])[1]) > 50


def test_the_cnn_of_mnist():
    lines = printed("mnist.py")
    assert len(losses_of(lines)) == 2 and float(re.search(r"([0-9.]+) %", lines[-1])[1]) > 80


def test_the_vision_transformer(tmp_path):
    config = config_of(tmp_path, "19_as_logged_stage2_msamp_O3_te.json", msamp={"enabled": False}, scheduler={"params": {
        "warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10}})
    losses = losses_of(printed("vit.py", "--deepspeed", "--deepspeed_config", config))
    assert len(losses) == 3 and losses[-1] < losses[0]


def test_two_linear_layers_by_hand():
    losses = losses_of(printed("by_hand.py"))
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2]
