"""Ranks that torchrun and mpirun start, and what ranks hold and send: as much as ZeRO's formulas say."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import forebay
import forebay.torch
import pytest
import torch
import torch_ranks_run as run
from forked_ranks import LATE_S, free_port, on_ranks
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1"]


def launch(command, folder, *more):
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}"}
    done = subprocess.run([*command, str(HERE / "launched_rank.py"), str(folder), *more], env=environment, text=True,
                          capture_output=True, timeout=200)
    return done.returncode, done.stdout + done.stderr, [json.loads(path.read_text()) for path in folder.glob("*.json")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    end = on_ranks(2, run.train, tmp_path_factory.mktemp("expected"), "decoder", 3, num_passes=2, clip=0.5)[0]
    return {"digest": end["digest"], "norms": end["norms"]}


def test_torchrun_starts_ranks(tmp_path, expected):
    code, output, ends = launch([*TORCHRUN, f"--master_port={free_port()}"], tmp_path / "run", "3")
    assert code == 0, output
    assert ends == [expected] * 2


def test_a_rank_that_fails_under_torchrun_ends_the_run(tmp_path):
    code, output, ends = launch([*TORCHRUN, f"--master_port={free_port()}"], tmp_path / "run", "7")
    assert code != 0 and ends == [] and "zero_stage is 7" in output


@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_starts_ranks(tmp_path, expected, program):
    mpirun, family = shutil.which(program), program.split(".")[1]
    if mpirun is None:
        pytest.skip(f"{program} is not there")
    if not (pathlib.Path(os.environ["FOREBAY_BIN"]) / f"libforebay_mpi_{family}.so").exists():
        pytest.skip(f"libforebay_mpi_{family}.so was not built")
    root = ["--allow-run-as-root", "--oversubscribe"] if family == "openmpi" else []
    code, output, ends = launch([mpirun, *root, "-np", "2", sys.executable], tmp_path / "run", "3")
    assert code == 0, output
    assert ends == [expected] * 2


# ---- What ranks hold and send

SIZE, BLOCKS = 64, 8


class Wide(nn.Module):
    """Nearly all of it is in blocks, each of which has as many elements as the others."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, SIZE)
        self.blocks = nn.ModuleList([run.Block(SIZE) for _ in range(BLOCKS)])
        self.head = nn.Linear(SIZE, 16)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def num_elems_of_layer(parameters):
    """Padding included. Vectors lie behind the others."""
    def up(elems, multiple):
        return -(-elems // multiple) * multiple

    kinds = [[p for p in parameters if (p.dim() > 1) == is_large] for is_large in (True, False)]
    return sum(up(sum(up(p.numel(), 64) for p in kind), 2048) for kind in kinds)


def measure(folder, dtype, **options):
    """The bytes of steps that are alike, and of the plan, divided by the number of elements."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    torch.manual_seed(1)
    model = Wide().requires_grad_(True).to(dtype)
    engine = forebay.torch.stream(model, nvme=folder, ranks=ranks, **run.SETTINGS, **options)
    layers = engine.optimizer.layers
    num_elems = sum(map(num_elems_of_layer, engine.optimizer.streamed().layout))

    def step(number):
        tokens = torch.randint(16, (2, 6), generator=torch.Generator().manual_seed(number))
        engine.backward(run.loss_of(engine, tokens, 1))
        engine.step()

    step(0)
    before = layers.stats()
    for number in range(1, 5):
        step(number)
    behind = layers.stats()
    plan = layers.plan()
    engine.close()
    return {"sent": (behind["sent_to_ranks_bytes"] - before["sent_to_ranks_bytes"]) / 4 / num_elems,
            "received": (behind["received_from_ranks_bytes"] - before["received_from_ranks_bytes"]) / 4 / num_elems,
            "disk": plan["disk_bytes"] / num_elems, "num_elems": num_elems,
            "terms": {term["name"]: term for term in plan["terms"]}, "ram": plan["ram_bytes"],
            "state": plan["state_in_ram_bytes"] / num_elems, "weights": plan["weights_in_ram_bytes"] / num_elems}


# Bytes of each element: gradients in fp32; weights of each gathering: once in a step, or for both passes, of which the
# last unit's backward pass has what its forward pass had.
@pytest.mark.parametrize("num_ranks, dtype", [(2, torch.float32), (2, torch.bfloat16), (4, torch.float32)], ids=str)
@pytest.mark.parametrize("stage, gradients, weights", [(0, 2, 0), (1, 1, 1), (2, 1, 1), (3, 1, 2)])
def test_ranks_send_what_the_formulas_say(tmp_path, stage, gradients, weights, num_ranks, dtype):
    ends = on_ranks(num_ranks, measure, tmp_path / "store", dtype, zero_stage=stage)
    share = (num_ranks - 1) / num_ranks
    wanted = share * (4 * gradients + dtype.itemsize * weights)
    for direction in ("sent", "received"):
        mean = sum(end[direction] for end in ends) / num_ranks
        # The last unit's weights serve both passes; votes are a constant.
        assert 0.96 * wanted < mean < 1.02 * wanted, (direction, mean, wanted)


@pytest.mark.parametrize("where", ["nvme", "ram"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_that_divide_the_state_hold_their_part_of_it(tmp_path, num_ranks, where):
    options = {"durability": "step"} if where == "nvme" else {"ram": "512MiB"}
    one = on_ranks(1, measure, tmp_path / "one", torch.float32, **options)[0]
    whole = on_ranks(num_ranks, measure, tmp_path / "whole", torch.float32, zero_stage=0, **options)
    parts = {stage: on_ranks(num_ranks, measure, tmp_path / str(stage), torch.float32, zero_stage=stage, **options)
             for stage in (1, 3)}
    assert all(abs(end["disk"] - one["disk"]) < 0.02 * one["disk"] for end in whole)
    for ends in parts.values():
        total = sum(end["disk"] for end in ends)
        assert one["disk"] * 0.98 < total < one["disk"] * 1.15, (total, one["disk"])
        for end in ends:
            assert end["disk"] < 1.25 / num_ranks * one["disk"]
            for name in ("state", "weights"):
                assert end[name] <= 1.25 / num_ranks * one[name], name
                assert (one[name] > 0) == (where == "ram"), name
    # Gathered weights are all of them at stage 1, and three layers at stage 3.
    gathered = {stage: ends[0]["terms"]["weights of all ranks"]["ram_bytes"] for stage, ends in parts.items()}
    assert gathered[1] >= 4 * one["num_elems"] > 1.5 * gathered[3] > 0, gathered
