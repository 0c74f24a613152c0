"""The loop of docs/pytorch.md, interrupted at any line: a commit in the handler has the state between two steps, and the
run that goes on from it has the bits of one that nobody interrupted."""

import pathlib
import random
import sys
import warnings

import pytest
import torch
from torch import nn

import forebay
import forebay.torch

DATA = torch.randint(0, 50, (36, 8), generator=torch.Generator().manual_seed(2))
LOOP = pathlib.Path(__file__).resolve()
# The program's own code: its loop, and the scheduler that it calls.
FILES = {str(LOOP), torch.optim.lr_scheduler.__file__}


class Model(nn.Module):
    """With random numbers, and buffers that a pass changes."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(50, 16), nn.Dropout(0.1)
        self.norm, self.out = nn.BatchNorm1d(16), nn.Linear(16, 50)

    def forward(self, tokens):
        return self.out(self.norm(self.dropout(self.embedding(tokens)).flatten(0, 1)))


class Count:
    """An object of the program's own, which counts steps."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def begin(folder, **settings):
    torch.manual_seed(5)
    engine = forebay.torch.stream(Model(), nvme=folder, lr=1e-2, resume=True, **settings)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(engine.optimizer, T_max=16)
    loader = forebay.torch.ResumableLoader(DATA, batch_size=4, shuffle=True, seed=1)
    count = Count()
    engine.track(scheduler=scheduler, loader=loader, count=count)
    return engine, scheduler, loader, count


def loop(engine, scheduler, loader, count, losses):
    for _ in range(loader.epoch, 2):
        for tokens in loader:
            loss = torch.nn.functional.cross_entropy(engine(tokens), tokens.flatten())
            engine.backward(loss)
            engine.step()
            scheduler.step()
            count.steps += 1
            losses[engine.steps] = loss.item()


def end_of(engine, losses):
    state = {name: value.clone() for name, value in engine.state_dict().items()}
    engine.close()
    return losses, {name: value.tolist() for name, value in state.items()}, torch.rand(1).item()


def uninterrupted(folder, **settings):
    everything, losses = begin(folder, **settings), {}
    loop(*everything, losses)
    return end_of(everything[0], losses)


class Interrupts:
    """KeyboardInterrupt at the nth line that is run in FILES."""

    def __init__(self, number):
        self.left = number

    def __enter__(self):
        sys.settrace(self._trace)

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, _event, _argument):
        return self._line if frame.f_code.co_filename in FILES else None

    def _line(self, _frame, event, _argument):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return uninterrupted(tmp_path_factory.mktemp("loop") / "store")


@pytest.mark.parametrize("settings", [{}, {"commit_every": 3}, {"commit_every": 1}, {"update_in_backward": True}],
                         ids=str)
@pytest.mark.parametrize("seed", range(9))
def test_interrupts_at_random_lines_of_the_documented_loop(tmp_path, expected, seed, settings):
    where, losses, num_interrupts = random.Random(seed), {}, 0
    while True:
        everything = begin(tmp_path / "store", **settings)
        engine, _, _, count = everything
        assert count.steps == engine.steps
        try:
            with Interrupts(where.randint(1, 250) if num_interrupts < 12 else 0):
                loop(*everything, losses)
            break
        except KeyboardInterrupt:
            num_interrupts += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                engine.commit()
            engine.close()
    assert num_interrupts > 3
    found = end_of(engine, losses)
    assert found[0] == expected[0] and found[1] == expected[1]
