"""A training run that goes on wherever it was killed. test_torch_crash.py starts it, and kills it."""

import json
import random
import time

import forebay.torch
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EPOCHS = 2


class Model(nn.Module):
    """Dropout draws random numbers, and the norms have buffers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.2),
                                                   nn.Sequential(nn.Linear(16, 16))) for _ in range(2)])
        self.head = nn.Linear(16, 40)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


class Average:
    """The losses: state of a loop's own."""

    def __init__(self):
        self.value = np.float64(0)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Buffers:
    """The state of a model that is not streamed."""

    def __init__(self, model):
        self.model = model

    def state_dict(self):
        return dict(self.model.named_buffers())

    def load_state_dict(self, state):
        for name, value in state.items():
            self.model.get_buffer(name).copy_(value)


def collate(samples):
    """Draws from all three generators, as augmentation does."""
    tokens = torch.tensor(samples)
    return (tokens + random.randrange(40) + np.random.randint(40) + torch.randint(40, tokens.shape)) % 40


def without_chance(samples):
    return torch.tensor(samples) % 40


def exact(value):
    return value.hex() if isinstance(value, float) else value


def write(file, line):
    file.write(json.dumps([exact(value) for value in line]) + "\n")
    file.flush()
    time.sleep(0.004)  # who counts the lines sees this one before many more follow


def finish(folder, state):
    torch.save(state, folder / "weights.new")
    (folder / "weights.new").rename(folder / "weights")


def begin():
    torch.set_num_threads(1)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    return Model()


def run_by_steps(folder, update_in_backward=False):
    """A loop without a loader, which draws its data: the next pass makes the commit."""
    engine = forebay.torch.stream(begin(), nvme=folder / "store", lr=1e-2, commit_every=1, resume=True,
                                  update_in_backward=update_in_backward)
    scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 5, 0.5)
    engine.track(scheduler=scheduler)
    with open(folder / "losses", "a") as file:
        for step in range(engine.steps, 24):
            tokens = collate([step, step + 1, step + 2])
            loss = F.cross_entropy(engine(tokens), tokens)
            engine.backward(loss)
            engine.step()
            scheduler.step()
            write(file, [engine.steps, loss.item(), engine.optimizer.param_groups[0]["lr"]])
    engine.commit()
    finish(folder, engine.state_dict())


def run(folder, num_workers=0, streamed=True, update_in_backward=False, skips=False):
    """Writes a line for each step: its number, loss, rate, the average and the scale; at the end, the weights.
    skips: in fp16, with scales that are often too high."""
    model = begin()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18 if skips else 4.0, growth_interval=2 if skips else 3,
                                  enabled=skips or not streamed)
    settings = {"nvme": folder / "store", "lr": 1e-2}
    if streamed:
        engine = forebay.torch.stream(model, commit_every=1, resume=True, update_in_backward=update_in_backward,
                                      **settings)
        optimizer = engine.optimizer
    else:
        engine = optimizer = forebay.torch.AdamW(model.parameters(), **settings)
        optimizer.resume()
        engine.track(buffers=Buffers(model), scaler=scaler)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=25)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    average = Average()
    loader = forebay.torch.ResumableLoader(list(range(48)), 4, shuffle=True, seed=3, num_workers=num_workers,
                                           collate_fn=without_chance if num_workers else collate,
                                           multiprocessing_context="fork" if num_workers else None)
    engine.track(scheduler=scheduler, average=average, loader=loader, plateau=plateau)
    if skips:
        engine.track(scaler=scaler)
    with open(folder / "losses", "a") as file:
        for epoch in range(loader.epoch, EPOCHS):
            for tokens in loader:
                with torch.autocast("cpu", torch.float16, enabled=skips):
                    loss = F.cross_entropy(model(tokens), tokens)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                engine.zero_grad()
                scheduler.step()
                average.value = 0.9 * average.value + 0.1 * np.float64(loss.item())
                rate = optimizer.param_groups[0]["lr"]
                line = [optimizer.layers.step, epoch, loss.item(), rate, float(average.value), scaler.get_scale()]
                write(file, line)
                if not streamed:
                    optimizer.commit()
            plateau.step(average.value)
    finish(folder, model.state_dict())
