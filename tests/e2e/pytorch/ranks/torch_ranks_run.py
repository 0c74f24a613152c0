"""Training runs of one rank, and the same in one process. test_torch_ranks.py starts them."""

import contextlib

import forebay
import forebay.torch
import torch
import torch.nn.functional as F
from forked_ranks import LATE_S, digest_of
from torch import nn
from torch.utils.checkpoint import checkpoint

ROWS = 2  # of each rank, in each pass
SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.1}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 3 * size)
        self.down = nn.Linear(3 * size, size)
        self.frozen = nn.Linear(size, size).requires_grad_(False)

    def forward(self, hidden):
        return hidden + self.down(F.gelu(self.up(self.norm(hidden)))) + self.frozen(hidden)


class Decoder(nn.Module):
    """A tied head, frozen parameters, one that lies in no block, and a buffer."""

    def __init__(self, size=24, num_blocks=3):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.embedding = nn.Embedding(40, size)
        self.blocks = nn.ModuleList([Block(size) for _ in range(num_blocks)])
        self.head = nn.Linear(size, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.linspace(-1, 1, size))

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.shift
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden * self.scale)


class Checkpointed(Decoder):
    """Blocks go forward again in backward: one of them within that pass of its own."""

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            hidden = checkpoint(block, hidden, use_reentrant=number == 1)
        return self.head(hidden * self.scale)


class Adapted(Decoder):
    """A block and the embedding are frozen as a whole, the others but for a norm."""

    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        for number in (0, 2):
            self.blocks[number].norm.requires_grad_(True)
        self.scale.requires_grad_(True)


class Experts(nn.Module):
    """Each token goes to the expert of its number."""

    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.experts = nn.ModuleList([nn.Linear(size, size) for _ in range(5)])

    def forward(self, hidden, tokens):
        normed, out = self.norm(hidden), hidden.clone()
        for number, expert in enumerate(self.experts):
            its = tokens % len(self.experts) == number
            if its.any():
                out[its] = out[its] + torch.tanh(expert(normed[its]))
        return out


class Mixture(nn.Module):
    def __init__(self, size=24):
        super().__init__()
        self.embedding = nn.Embedding(40, size)
        self.blocks = nn.ModuleList([Experts(size) for _ in range(6)])
        self.head = nn.Linear(size, 40)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, tokens)
        return self.head(hidden)


class Branches(nn.Module):
    """Rows of even tokens take the second block, those of odd ones the third, which is of the same shapes; the last
    block is left out."""

    def __init__(self, size=24):
        super().__init__()
        self.embedding = nn.Embedding(40, size)
        self.blocks = nn.ModuleList([Block(size) for _ in range(5)])
        self.head = nn.Linear(size, 40)

    def forward(self, tokens):
        hidden = self.blocks[0](self.embedding(tokens))
        is_even = tokens[:, 0] % 2 == 0
        out = hidden.clone()
        for number, its in ((1, is_even), (2, ~is_even)):
            if its.any():
                out[its] = self.blocks[number](hidden[its])
        return self.head(self.blocks[3](out))


class Ladder(nn.Module):
    """Its passes use the blocks in turns."""

    def __init__(self, size=24):
        super().__init__()
        self.embedding = nn.Embedding(40, size)
        self.blocks = nn.ModuleList([Block(size) for _ in range(9)])
        self.head = nn.Linear(size, 40)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for number in (0, 6, 7) if tokens[0, 0] % 2 == 0 else (0, 1, 2, 3, 4, 5, 8):
            hidden = self.blocks[number](hidden)
        return self.head(hidden)


MODELS = {"adapted": Adapted, "branches": Branches, "checkpointed": Checkpointed, "decoder": Decoder, "ladder": Ladder,
          "mixture": Mixture}


def make(kind="decoder", dtype=torch.float32, seed=5):
    torch.manual_seed(seed)
    return MODELS[kind]().to(dtype)


def data_of(kind, step, num_ranks, num_passes):
    """Tokens: [pass, rank, row, token]. Of the mixture and of branches each rank has some of its own."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, 8, (num_passes, num_ranks, ROWS, 6), generator=generator)
    own = torch.arange(num_ranks).view(1, num_ranks, 1, 1)
    if kind == "mixture":
        # Two experts have the tokens of the second rank. The last one has none in steps of odd numbers.
        return tokens * 5 + torch.where(own == 1, 2 + tokens % 2, tokens % (5 - step % 2))
    if kind == "branches":
        return tokens * 2 + own % 2
    if kind == "ladder":
        return tokens * 2 + (torch.arange(num_passes).view(-1, 1, 1, 1) + step) % 2
    return tokens * 5 + step % 5


def loss_of(model, tokens, num_passes):
    logits = model(tokens)[:, :-1].float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)) / num_passes


def reference(kind, num_ranks, num_steps, num_passes=1, clip=0.0):
    """The weights that torch's optimizer comes to with the rows of all ranks."""
    model = make(kind)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **SETTINGS)
    for step in range(num_steps):
        optimizer.zero_grad()
        for tokens in data_of(kind, step, num_ranks, num_passes):
            loss_of(model, tokens.flatten(0, 1), num_passes).backward()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def step_of(engine, kind, step, ranks, num_passes):
    """One step; returns this rank's loss."""
    total = 0.0
    for tokens in data_of(kind, step, ranks.size, num_passes):
        loss = loss_of(engine, tokens[ranks.rank], num_passes)
        engine.backward(loss)
        total += loss.item()
    engine.step()
    return total


@contextlib.contextmanager
def streamed(folder, kind="decoder", *, dtype=torch.float32, seed=5, ranks=None, **options):
    ranks = forebay.Ranks(timeout_s=LATE_S) if ranks is None else ranks
    engine = forebay.torch.stream(make(kind, dtype, seed), nvme=folder, ram="256MiB", ranks=ranks,
                                  **{**SETTINGS, **options})
    try:
        yield engine, ranks
    finally:
        engine.close()


def train(folder, kind, num_steps, *, num_passes=1, **options):
    """Returns all that a test may ask about a run of a rank: numbers, and the weights as NumPy has them."""
    options.setdefault("accumulation_steps", num_passes)
    with streamed(folder, kind, **options) as (engine, ranks):
        losses, norms, leased = [], [], []
        for step in range(engine.steps, num_steps):
            losses.append(step_of(engine, kind, step, ranks, num_passes))
            norms.append(engine.grad_norm)
            leased += engine.optimizer.layers.stats()["leased_layers"]
        deviations = engine.num_deviations
        state = engine.state_dict()
        leased += engine.optimizer.layers.stats()["leased_layers"]
        engine.commit()
        return {"digest": digest_of(state), "losses": losses, "norms": norms, "leased": leased,
                "weights": {name: value.float().numpy() for name, value in state.items()},
                "deviations": deviations, "steps": engine.steps}
