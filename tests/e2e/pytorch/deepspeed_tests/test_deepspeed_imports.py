"""What scripts import from below deepspeed: utils and accelerator, beside DeepSpeed's own where it is installed."""

import logging
import os
import subprocess
import sys
import types

import pytest
import torch
from test_deepspeed import of_deepspeed

from forebay import deepspeed
from forebay.deepspeed import comm
from forebay.deepspeed.accelerator import Accelerator, get_accelerator
from forebay.deepspeed.utils import RepeatingLoader, log_dist, logger

SCRIPT = """
from forebay import deepspeed
from forebay.deepspeed import get_accelerator, log_dist
from forebay.deepspeed.accelerator import get_accelerator as again
from forebay.deepspeed.runtime.dataloader import RepeatingLoader
from forebay.deepspeed.utils.logging import logger
log_dist("before", ranks=[3])
deepspeed.init_distributed()
log_dist("first", ranks=[0])
log_dist("second", ranks=[1])
log_dist("all", ranks=[-1])
logger.debug("details")
logger.warning("careful")
print(get_accelerator() is again(), deepspeed.accelerator.get_accelerator().device_name(), RepeatingLoader.__name__)
"""


def test_lines_of_the_ranks_that_are_named_are_printed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rsplit("] ", 1)[1] for line in lines[:-1]] == ["before", "first", "all", "careful"]
    assert "[Rank -1] before" in lines[0] and "[INFO] [<string>:9:<module>] [Rank 0] first" in lines[1]
    assert lines[-1] == "True cpu RepeatingLoader"


@pytest.mark.parametrize("ranks", [None, [], [0], [1], [2, 1], [-1], [-1, 5], [0, -1]])
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_a_line_is_logged_where_deepspeed_logs_it(monkeypatch, capsys, rank, ranks):
    monkeypatch.setattr(comm, "_connected", None if rank is None else types.SimpleNamespace(rank=rank))
    log_dist("hello", ranks, logging.WARNING)
    ours = capsys.readouterr().out
    theirs = types.SimpleNamespace(is_initialized=lambda: rank is not None, get_rank=lambda: rank)
    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(comm=theirs))
    message, = of_deepspeed("utils/logging.py", ["get_dist_msg"])
    expected = message("hello", ranks)
    assert ours.endswith(f"] {expected}\n") if expected is not None else not ours


def test_the_logger_is_not_that_of_deepspeed():
    assert deepspeed.logger is logger and not logger.propagate
    assert logger is not logging.getLogger("DeepSpeed")


@pytest.mark.parametrize("of", [list, iter])
def test_a_repeating_loader_begins_anew(of):
    def batches(kind):
        loader = kind(of([1, 2, 3]))
        assert iter(loader) is loader
        found = []
        try:
            found.extend(next(loader) for _ in range(7))
        except RuntimeError:  # of an iterator, which cannot begin anew
            found.append("end")
        return found

    theirs, = of_deepspeed("runtime/dataloader.py", ["RepeatingLoader"])
    assert batches(RepeatingLoader) == batches(theirs) and len(batches(RepeatingLoader)) >= 3


def test_a_repeating_loader_of_nothing_ends():
    with pytest.raises(StopIteration):
        next(RepeatingLoader([]))


def test_the_processor_answers_as_in_deepspeed(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    ours = Accelerator()
    assert (ours.current_device(), ours.device_count(), ours.device(0), ours.set_device(0)) == (1, 2, None, None)
    ours.synchronize()
    ours.empty_cache()
    ours.reset_peak_memory_stats()
    assert 0 < ours.memory_allocated() <= 2 * ours.max_memory_allocated()
    assert ours.on_accelerator(torch.ones(1)) and not ours.on_accelerator(torch.ones(1, device="meta"))
    kind, = of_deepspeed("accelerator/cpu_accelerator.py", ["CPU_Accelerator"], DeepSpeedAccelerator=object,
                         oneccl_imported_p=False, os=os, torch=torch)
    theirs = kind()
    for name in ("device_name", "current_device_name", "communication_backend_name", "is_available", "device_count",
                 "is_bf16_supported", "device"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    assert ours.is_fp16_supported() == bool(theirs.is_fp16_supported())  # it may say None
    assert ours.device_name(3) == theirs.device_name(3) == "cpu"


@pytest.mark.parametrize("seed", ["manual_seed", "manual_seed_all"])
def test_a_seed_repeats_numbers(seed):
    drawn = []
    for _ in range(2):
        getattr(get_accelerator(), seed)(7)
        drawn.append(torch.rand(3, device=get_accelerator().device_name()).tolist())
    assert drawn[0] == drawn[1]


def test_a_gpu_is_named_with_its_index(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    chosen = []
    for name, answer in {"is_available": lambda: True, "current_device": lambda: 2, "device_count": lambda: 4,
                         "set_device": chosen.append}.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    gpu = Accelerator()
    gpu.set_device(2)
    assert (gpu.device_name(), gpu.device_name(1), gpu.current_device_name()) == ("cuda", "cuda:1", "cuda:2")
    assert (gpu.communication_backend_name(), gpu.device_count(), chosen) == ("nccl", 4, [2])


def test_what_an_accelerator_lacks_says_what_to_use():
    assert not hasattr(get_accelerator(), "Stream")
    with pytest.raises(AttributeError, match="no 'Stream'.*docs/pytorch.md.*torch.cuda"):
        get_accelerator().Stream  # noqa: B018
