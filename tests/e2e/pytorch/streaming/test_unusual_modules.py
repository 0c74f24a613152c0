"""Modules that use their weights in unusual ways have the bits of RAM, each plain and under both kinds of checkpointing."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils as U
from test_torch_stream import assert_same
from torch import nn
from torch.utils.checkpoint import checkpoint

import forebay
import forebay.torch

DIM = 16


def linear():
    return nn.Linear(DIM, DIM)


def random(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.2)


class Block(nn.Module):
    """parts: by their names, what makes each. compute: its forward pass."""

    def __init__(self, compute, parts):
        super().__init__()
        self.compute = compute
        for name, make in parts.items():
            setattr(self, name, make())

    def forward(self, x):
        return self.compute(self, x)


class Stack(nn.Module):
    """reentrant: of the checkpoint of each block; None: there is none."""

    def __init__(self, compute, parts, reentrant):
        super().__init__()
        self.layers = nn.ModuleList([Block(compute, parts) for _ in range(3)])
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
            x = x[0] if isinstance(x, tuple) else x
        return x


def gradients_of(x, weight, gradient):
    return gradient @ weight, gradient.flatten(0, -2).T @ x.flatten(0, -2)


class KeepsWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.x, ctx.weight = x, weight
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        return gradients_of(ctx.x, ctx.weight, gradient)


class SavesWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        return gradients_of(*ctx.saved_tensors, gradient)


def cell_over_time(block, x):
    state, outputs = x[:, 0], []
    for time in range(x.shape[1]):
        state = block.a(x[:, time], state)
        outputs.append(state)
    return torch.stack(outputs, 1)


def gradient_of_an_energy(block, x):
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        energy = block.b(torch.tanh(block.a(at))).sum()
        gradient, = torch.autograd.grad(energy, at, create_graph=True)
    return x + 0.1 * gradient + 0 * block.b(x)


def in_place(block, x):
    y = block.a(x)
    y.mul_(0.5)
    y[:, 0] += 1
    return torch.relu_(y) + x


def experts(block, x):
    flat = x.reshape(-1, DIM)
    gates = block.gate(flat).softmax(-1)
    chosen, sums = gates.argmax(-1), torch.zeros_like(flat)
    for number, expert in enumerate(block.experts):
        rows = (chosen == number).nonzero()[:, 0]
        if len(rows) > 0:  # else this one gets no gradient
            sums = sums.index_add(0, rows, expert(flat[rows]) * gates[rows, number:number + 1])
    return x + sums.view_as(x)


def recursive(block, x, depth=3):
    return x if depth == 0 else torch.tanh(block.a(recursive(block, x, depth - 1)))


def in_both_checkpoints(block, x):
    def inner(y):
        return torch.tanh(block.b(block.a(y) @ block.w))

    return checkpoint(inner, x, use_reentrant=True) + checkpoint(inner, x, use_reentrant=False)


def nested_checkpoints(reentrant):
    def compute(block, x):
        return checkpoint(lambda y: torch.tanh(block.b(checkpoint(block.a, y, use_reentrant=reentrant))), x,
                          use_reentrant=reentrant)

    return compute


def partly_without_graph(block, x):
    with torch.no_grad():
        target = block.a(x)
    return block.a(x) * target + block.b(x)


def of_two_weights(block, x):
    y = F.linear(x, torch.cat([block.a.weight, block.b.weight]), torch.cat([block.a.bias, block.b.bias]))
    return y[..., :DIM] * y[..., DIM:].sigmoid()


def hooked():
    module = linear()
    module.register_forward_hook(lambda module, _, output: output + module.weight.norm())
    module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.weight.mean(),))
    module.register_full_backward_hook(lambda _, inputs, outputs: tuple(g if g is None else g * 0.5 for g in inputs))
    return module


def frozen():
    return linear().requires_grad_(False)


def class_of_its_own(module):
    """A list of such modules is no list of blocks: each is a unit."""
    module.__class__ = type("Own", (type(module),), {})
    return module


def tanh_of(name):
    return lambda block, x: torch.tanh(getattr(block, name)(x))


A, AB = {"a": linear}, {"a": linear, "b": linear}
MODULES = {
    "weight norm": (tanh_of("a"), {"a": lambda: U.parametrizations.weight_norm(linear())}),
    "spectral norm": (tanh_of("a"), {"a": lambda: U.parametrizations.spectral_norm(linear())}),
    "orthogonal": (tanh_of("a"), {"a": lambda: U.parametrizations.orthogonal(linear())}),
    "weight norm by hooks": (tanh_of("a"), {"a": lambda: U.weight_norm(linear())}),
    "spectral norm by hooks": (tanh_of("a"), {"a": lambda: U.spectral_norm(linear())}),
    "batch norm": (lambda b, x: b.n(b.a(x).flatten(0, 1)).view_as(x), {**A, "n": lambda: nn.BatchNorm1d(DIM)}),
    "lstm": (lambda b, x: b.a(x)[0], {"a": lambda: nn.LSTM(DIM, DIM, 2, batch_first=True)}),
    "gru of two directions": (lambda b, x: b.a(x)[0],
                              {"a": lambda: nn.GRU(DIM, DIM // 2, 1, batch_first=True, bidirectional=True)}),
    "cell": (cell_over_time, {"a": lambda: nn.GRUCell(DIM, DIM)}),
    "attention": (lambda b, x: x + b.a(x, x, x)[0], {"a": lambda: nn.MultiheadAttention(DIM, 4, batch_first=True)}),
    "parameter list": (lambda b, x: sum(torch.tanh(x @ w) for w in b.p),
                       {"p": lambda: nn.ParameterList([random(DIM, DIM) for _ in range(3)])}),
    "parameter dictionary": (lambda b, x: sum(torch.tanh(x @ b.p[key]) for key in "cab"),
                             {"p": lambda: nn.ParameterDict({key: random(DIM, DIM) for key in "abc"})}),
    "tuple": (lambda b, x: (torch.tanh(b.a(x)), None, [x]), A),
    "scalar and empty": (lambda b, x: b.a(x) * b.scale + b.empty.sum(),
                         {**A, "scale": lambda: random(()), "empty": lambda: random(0, 4)}),
    "functional call": (lambda b, x: torch.func.functional_call(
        b.a, {name: p * 1.5 for name, p in b.a.named_parameters()}, (x,)), A),
    "vmap": (lambda b, x: torch.vmap(lambda w: x @ w)(torch.stack(list(b.p))).sum(0),
             {"p": lambda: nn.ParameterList([random(DIM, DIM) for _ in range(3)])}),
    "energy": (gradient_of_an_energy, AB),
    "in place": (in_place, A),
    "experts": (experts, {"gate": lambda: nn.Linear(DIM, 6),
                          "experts": lambda: nn.ModuleList([linear() for _ in range(6)])}),
    "recursive": (recursive, A),
    "embedding with padding": (lambda b, x: b.a(x) + b.e(x.argmax(-1) % 8),
                               {**A, "e": lambda: nn.Embedding(8, DIM, padding_idx=0)}),
    "bilinear": (lambda b, x: b.a(x, x), {"a": lambda: nn.Bilinear(DIM, DIM, DIM)}),
    "saves a weight": (lambda b, x: SavesWeight.apply(x, b.a.weight), A),
    "keeps a weight": (lambda b, x: KeepsWeight.apply(x, b.a.weight), A),
    "rows": (lambda b, x: x + b.a.weight[x.argmax(-1)] + b.a.weight.T[0] + b.a.weight.chunk(2)[1].sum(0), A),
    "both checkpoints": (in_both_checkpoints, {**AB, "w": lambda: random(DIM, DIM)}),
    "checkpoint in checkpoint": (nested_checkpoints(False), AB),
    "reentrant in reentrant": (nested_checkpoints(True), AB),
    "not contiguous": (lambda b, x: torch.tanh(x @ b.w),
                       {"w": lambda: nn.Parameter(torch.randn(DIM, 2 * DIM)[:, ::2].T * 0.2)}),
    "weights from weights": (lambda b, x: F.linear(x, b.h(x.mean((0, 1))).view(DIM, DIM) + b.a.weight, b.a.bias),
                             {**A, "h": lambda: nn.Linear(DIM, DIM * DIM)}),
    "partly frozen": (lambda b, x: torch.tanh(b.b(b.a(x))), {"a": frozen, "b": linear}),
    "hooks": (lambda b, x: b.b(torch.tanh(b.a(x))), {"a": hooked, "b": hooked}),
    "TorchScript": (lambda b, x: b.b(b.a(x)),
                    {"a": lambda: torch.jit.script(nn.Sequential(linear(), nn.Tanh())), "b": linear}),
    "fx": (lambda b, x: b.a(x), {"a": lambda: torch.fx.symbolic_trace(nn.Sequential(linear(), nn.Tanh(), linear()))}),
    "dropout": (lambda b, x: b.d(torch.tanh(b.a(x))), {**A, "d": lambda: nn.Dropout(0.3)}),
    "detached": (lambda b, x: b.a(x) + (b.b(x) - b.a(x).detach()).pow(2) + F.linear(x, b.a.weight.detach()), AB),
    "partly without a graph": (partly_without_graph, AB),
    "two weights": (of_two_weights, AB),
    "number of a weight": (lambda b, x: b.a(x) / b.a.weight.detach().abs().max().item(), A),
}


def make(kind, reentrant, are_units):
    torch.manual_seed(1)
    module = Stack(*MODULES[kind], reentrant)
    if are_units:
        for layer in module.layers:
            class_of_its_own(layer)
    return module


def train(module, backward, optimizer):
    losses = []
    for step in range(3):
        torch.manual_seed(100 + step)
        loss = module(torch.randn(2, 5, DIM).requires_grad_()).pow(2).mean()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# TorchScript computes a function otherwise after it has seen it twice, and cannot keep what it saves elsewhere.
CASES = [(kind, reentrant) for kind in MODULES for reentrant in (None, True, False)
         if (kind, reentrant) != ("TorchScript", False)]


@pytest.mark.parametrize("kind, reentrant", CASES)
def test_unusual_modules_have_the_bits_of_ram(tmp_path, kind, reentrant):
    for are_units in (False, True):
        in_ram = make(kind, reentrant, are_units)
        with torch.jit.optimized_execution(False):
            expected = train(in_ram, torch.Tensor.backward, forebay.torch.AdamW(in_ram.parameters(), lr=1e-2))
            module = make(kind, reentrant, are_units)
            engine = forebay.torch.stream(module, nvme=tmp_path / str(are_units), lr=1e-2, update_in_backward=are_units)
            assert train(module, engine.backward, engine) == expected
        assert_same(engine.state_dict(), in_ram.state_dict())


REFUSED = {
    "renormed embedding": (lambda b, x: b.a(x) + b.e(x.argmax(-1) % 8),
                           {**A, "e": lambda: nn.Embedding(8, DIM, max_norm=1.0)}, "weights of layers.0.* were written to"),
    "transform": (lambda b, x: x + torch.func.grad(lambda y: b.a(y).pow(2).sum())(x), A, "torch.func's transforms"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_modules_that_cannot_stream_are_refused(tmp_path, kind):
    compute, parts, message = REFUSED[kind]
    module = Stack(compute, parts, None)
    engine = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2)
    with pytest.raises(forebay.ForebayError, match=message):
        train(module, engine.backward, engine)


def test_gradients_inside_of_checkpoints_are_clipped(tmp_path):
    """The backward pass itself gets no gradient, only those inside of it."""
    norms = []
    in_ram = make("partly without a graph", True, False)
    module = copy.deepcopy(in_ram)
    plain = forebay.torch.AdamW(in_ram.parameters(), lr=1e-2)
    engine = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2)
    for trained, backward, optimizer in ((in_ram, torch.Tensor.backward, plain), (module, engine.backward, engine)):
        torch.manual_seed(100)
        backward(trained(torch.randn(2, 5, DIM).requires_grad_()).pow(2).mean())
        norms.append(float(nn.utils.clip_grad_norm_(trained.parameters(), 0.01)))
        optimizer.step()
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    for expected, actual in zip(in_ram.state_dict().values(), engine.state_dict().values()):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
