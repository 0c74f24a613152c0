"""Modules drawn at random, trained for three steps: streamed, they have the bits of the same optimizer in RAM.

FOREBAY_RANDOM_MODULES: how many (100). FOREBAY_RANDOM_SEED: of the first (0); a failure names its own.
"""

import os
import random
import shutil

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import forebay.torch

WIDTH, VOCABULARY = 8, 12
NUM_MODULES = int(os.environ.get("FOREBAY_RANDOM_MODULES", "100"))
FIRST_SEED = int(os.environ.get("FOREBAY_RANDOM_SEED", "0"))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden):
        return self.norm(self.convolution(hidden.transpose(1, 2))).transpose(1, 2)


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, hidden):
        return self.lstm(hidden)[0]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, hidden):
        return self.attention(hidden, hidden, hidden, need_weights=False)[0]


class Scaled(nn.Module):
    """A parameter of its own beside a module, and a buffer that counts."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, hidden):
        self.count += 1
        return hidden + self.scale * self.inner(hidden)


class Checkpointed(nn.Module):
    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, hidden):
        return checkpoint(self.inner, hidden, use_reentrant=self.reentrant)


class Repeated(nn.Module):
    """The same module several times."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        return self.inner(torch.tanh(self.inner(hidden)))


class Chosen(nn.Module):
    """Runs those of its modules that the step asks for, in its order. `step` counts the forward passes."""

    def __init__(self, modules, rng):
        super().__init__()
        self.choices = nn.ModuleList(modules)
        self.plan = [rng.sample(range(len(modules)), rng.randint(1, len(modules))) for _ in range(3)]
        self.step = 0

    def forward(self, hidden):
        for number in self.plan[self.step % 3]:
            hidden = hidden + self.choices[number](hidden)
        return hidden


class Outside(nn.Module):
    """Uses the weight of a module that it does not call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden @ self.linear.weight.t() + self.linear.bias


class Model(nn.Module):
    def __init__(self, body, tied):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = body
        self.unused = nn.Linear(WIDTH, 2)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))


def draw(rng, depth, seen):
    """A module of [batch, tokens, WIDTH] to the same. seen: modules that may be used again."""
    if depth > 0 and rng.random() < 0.7:
        kind = rng.choice(("sequential", "blocks", "scaled", "checkpoint", "repeated", "chosen"))
        if kind == "sequential":
            module = nn.Sequential(*[draw(rng, depth - 1, seen) for _ in range(rng.randint(1, 3))])
        elif kind == "blocks":  # a list whose elements are units
            module = nn.Sequential(*[Scaled(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())) for _ in range(3)])
        elif kind == "scaled":
            module = Scaled(draw(rng, depth - 1, seen))
        elif kind == "checkpoint":
            module = Checkpointed(draw(rng, depth - 1, seen), rng.random() < 0.5)
        elif kind == "repeated":
            module = Repeated(draw(rng, depth - 1, seen))
        else:
            module = Chosen([draw(rng, depth - 1, seen) for _ in range(rng.randint(1, 3))], rng)
    elif seen and rng.random() < 0.2:
        return rng.choice(seen)
    else:
        module = rng.choice((lambda: nn.Linear(WIDTH, WIDTH), lambda: nn.LayerNorm(WIDTH), Convolution, Recurrence,
                             Attention, Outside, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)),
                             lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))))()
        seen.append(module)
    if rng.random() < 0.1:
        module.requires_grad_(False)
    return module


def make(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    is_tied = rng.random() < 0.5
    model = Model(draw(rng, 3, []), is_tied)
    if not is_tied and rng.random() < 0.2:
        model.embedding.weight.requires_grad_(False)
    return model.to(rng.choice((torch.float32, torch.float32, torch.bfloat16)))


def run(seed, model, optimizer):
    losses = []
    for step in range(3):
        for part in model.modules():
            if isinstance(part, Chosen):
                part.step = step
        torch.manual_seed(seed + step)  # of dropout
        tokens = torch.randint(0, VOCABULARY, (2, 4))
        loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.state_dict()


def compare(seed, folder):
    model = make(seed)
    settings = {"lr": 1e-2, "threads": 1}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses, state = run(seed, model, forebay.torch.AdamW(trained, **settings))
    engine = forebay.torch.stream(make(seed), nvme=folder, **settings)
    try:
        ours, our_state = run(seed, engine.module, engine)
        assert engine.optimizer.layers.stats()["leased_layers"] == []
    finally:
        engine.close()
    assert ours == losses
    assert our_state.keys() == state.keys()
    for name, value in our_state.items():
        assert torch.equal(value, state[name]), name


def test_random_modules_have_the_bits_of_ram(tmp_path):
    for seed in range(FIRST_SEED, FIRST_SEED + NUM_MODULES):
        try:
            compare(seed, tmp_path / "store")
        except BaseException:
            print(f"FOREBAY_RANDOM_SEED={seed} FOREBAY_RANDOM_MODULES=1 repeats this. The module:\n{make(seed)}")
            raise
        shutil.rmtree(tmp_path / "store")
