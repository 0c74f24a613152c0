"""The memory of a process that trains a streamed module: flat over steps, and inside its budget."""

import os
import pathlib
import subprocess
import sys

STEPS = """
import sys, torch, forebay.torch

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def block():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())

model = torch.nn.Sequential(block(), block())
engine = forebay.torch.stream(model, nvme=sys.argv[1] + "/store", threads=1)
offload = forebay.torch.offload_activations(nvme=sys.argv[1], ram=0, least_bytes=1)
for step in range(1, 2001):
    with offload:
        loss = forebay.torch.checkpoint(engine, torch.randn(2, 16, requires_grad=True) * 1).square().mean()
    loss.backward()
    del loss
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    engine.step()
    engine.zero_grad()
    if step == 200:
        first = rss()
print(rss() - first)
"""

BUDGET = """
import ctypes, gc, sys, torch, forebay.torch

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1024, 1024)

    def forward(self, hidden):
        return hidden + torch.tanh(self.linear(hidden))

# The need of torch itself, and any optimizer of its own.
linear = torch.nn.Linear(8, 8)
linear(torch.randn(4, 8)).sum().backward()
torch.optim.SGD(linear.parameters()).step()
before = status("VmRSS")
engine = forebay.torch.stream(torch.nn.Sequential(*[Block() for _ in range(40)]), nvme=sys.argv[1] + "/store",
                              ram=int(sys.argv[2]), threads=2)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")  # VmHWM anew
for step in range(3):
    engine.backward(engine(torch.randn(16, 1024)).square().mean())
    engine.step()
print(status("VmHWM") - before)
"""


def run(program, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, capture_output=True,
                          text=True, env=environment)
    return int(done.stdout)


def test_memory_is_flat_over_steps(tmp_path: pathlib.Path):
    assert run(STEPS, tmp_path) < 2 << 20


def test_memory_is_what_the_budget_says(tmp_path: pathlib.Path):
    """Weights and state are 640 MB."""
    ram = 96 << 20
    assert run(BUDGET, tmp_path, ram) < ram + (48 << 20)
