"""The programs of each rank of test_torch_ranks_copy.py."""

import hashlib
import os
import signal

import forebay
import forebay.torch
import torch
from forked_ranks import LATE_S

LR, ROWS = 1e-2, 12


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(width, 3 * width), torch.nn.Linear(3 * width, width)
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


def make_model():
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(10, 40), torch.nn.Sequential(Block(40), Block(40)), torch.nn.Linear(40, 3))


def loss_of(model, rows):
    generator = torch.Generator().manual_seed(9)
    inputs, targets = torch.randn(64, 10, generator=generator), torch.randn(64, 3, generator=generator)
    return (model(inputs[rows]) - targets[rows]).square().mean()


def state_of(engine):
    """Digest of all masters and moments, which all ranks read."""
    layers, hashed = engine.optimizer.layers, hashlib.sha256()
    streamed = engine.optimizer.streamed()
    for unit in streamed.layout:
        for parameter in unit:
            for plane in ("master", "m", "v"):
                values = torch.empty(parameter.shape)
                layers.read(streamed._place[parameter][1], plane, values.numpy())
                hashed.update(values.numpy().tobytes())
    return hashed.hexdigest()


def begin(nvme, zero_stage, start_from=None, resume=False):
    ranks = forebay.Ranks(timeout_s=LATE_S)
    engine = forebay.torch.stream(make_model(), nvme=nvme, ranks=ranks, zero_stage=zero_stage, lr=LR, start_from=start_from,
                                  resume=resume, commit_every=1, ram="256MiB")
    loader = forebay.torch.ResumableLoader(torch.arange(48), ROWS // ranks.size, shuffle=True, seed=2, ranks=ranks)
    engine.track(loader=loader)
    return ranks, engine, loader


def run(nvme, zero_stage, num_steps, start_from=None, resume=False):
    """Returns the state and step at the beginning, the user's words, a buffer, and the state and loss at the end."""
    ranks, engine, loader = begin(nvme, zero_stage, start_from, resume)
    first = state_of(engine) if engine.steps > 0 else None, engine.steps, engine.resumed
    buffer = engine.module[1][0].norm.running_mean.sum().item()
    seen, loss = [], None
    while len(seen) < num_steps:
        for rows in loader:
            seen.append(rows.tolist())
            loss = loss_of(engine, rows)
            engine.backward(loss)
            engine.step()
            if len(seen) == num_steps:
                break
    engine.commit()
    last = state_of(engine)
    weights = {name: weight.numpy().copy() for name, weight in engine.named_weights()}
    engine.close()
    ranks.close()
    return first, buffer, seen, last, weights, None if loss is None else loss.item()


def killed_while_copying(nvme, zero_stage, start_from, killed_rank, after_s):
    """The rank is killed so many seconds after it began, or when it has made its store."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    if ranks.rank == killed_rank:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process at once
        signal.setitimer(signal.ITIMER_REAL, after_s)
    forebay.torch.stream(make_model(), nvme=nvme, ranks=ranks, zero_stage=zero_stage, lr=LR, start_from=start_from,
                         ram="256MiB")
    if ranks.rank == killed_rank:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.barrier()
