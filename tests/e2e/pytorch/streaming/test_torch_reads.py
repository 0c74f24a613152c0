"""Weights of a streamed module that are read anywhere, and gradients that come in any order: the bits of RAM."""

import random
import types

import pytest
import torch
import torch.nn.functional as F
from test_torch_stream import assert_same
from torch import nn
from torch.utils.checkpoint import checkpoint

import forebay
import forebay.torch


class LowRank(nn.Module):
    """Weights of two modules in one expression."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)

    def forward(self, x):
        return x @ (self.b.weight @ self.a.weight).T


class TiedHead(nn.Module):
    """The weight of one module with the bias of another."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return F.linear(self.embedding(x.argmax(-1)), self.embedding.weight, self.out.bias) @ self.out.weight


class FarApart(nn.Module):
    """Its own parameters are used before and after its children."""

    def __init__(self, num_children, reentrant=None):
        super().__init__()
        self.a, self.z = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(num_children)])
        self.reentrant = reentrant

    def forward(self, x):
        x = x * self.a
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x * self.z


class Nested(nn.Module):
    """Several units lack gradients at a time, as in models of several towers."""

    def __init__(self):
        super().__init__()
        self.outer, self.inner = FarApart(2), FarApart(3)
        self.outer.layers.append(self.inner)
        self.scale, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))

    def forward(self, x):
        return self.outer(x * self.scale) + self.shift


class UsedTwice(nn.Module):
    """A module that is used twice, beside others."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)])
        self.reentrant = reentrant

    def forward(self, x):
        for number in (0, 1, 2, 0, 3, 1):
            x = (self.layers[number](x) if self.reentrant is None
                 else checkpoint(self.layers[number], x, use_reentrant=self.reentrant))
        return x


class TiedBlocks(nn.Module):
    """A weight that two blocks share."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)])
        self.layers[3][0].weight = self.layers[0][0].weight
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class ManyReads(nn.Module):
    """More modules than the window has room for, whose weights its forward pass reads itself."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({str(number): nn.Linear(16, 16) for number in range(9)})

    def forward(self, x):
        for part in self.parts.values():
            x = torch.tanh(x @ part.weight.T + part.bias)
        return x


MODULES = {
    "low rank": LowRank, "tied head": TiedHead, "many reads": ManyReads, "nested": Nested,
    **{f"far apart, {n}": lambda n=n: FarApart(n) for n in (1, 2, 3, 6)},
    **{f"{name}, {how}": lambda kind=kind, reentrant=reentrant: kind(reentrant)
       for name, kind in (("used twice", UsedTwice), ("tied blocks", TiedBlocks),
                          ("far apart", lambda reentrant: FarApart(4, reentrant)))
       for how, reentrant in (("plain", None), ("reentrant", True), ("non-reentrant", False))},
    "encoder layer": lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True), 1),
    "decoder layer": lambda: Decoder(nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True)),
}


class Decoder(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x)


def make(kind, dtype=torch.float32):
    torch.manual_seed(1)
    return MODULES[kind]().to(dtype)


def inputs_of(step, dtype=torch.float32):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(step)).to(dtype)
    return x.requires_grad_()  # for reentrant checkpointing


def penalty_of(module, kind):
    if kind == "none":
        return 0.0
    of_each = {"l1": torch.Tensor.abs, "l2": lambda p: p.pow(2), "norm": lambda p: p.norm().reshape(1)}[kind]
    return 1e-2 * sum(of_each(p).sum() for p in module.parameters())


def train(module, backward, optimizer, penalty="none", steps=3, passes=1, summed=False):
    losses = []
    for step in range(steps):
        found = [module(inputs_of(step * passes + number, next(module.parameters()).dtype)).float().pow(2).mean()
                 + penalty_of(module, penalty) for number in range(passes)]
        for loss in [sum(found)] if summed else found:  # after all forward passes
            backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item() for loss in found]
    return losses


def compare(tmp_path, kind, dtype=torch.float32, passes=1, *, summed=False, **options):
    options["summed"] = summed
    in_ram = make(kind, dtype)
    plain = forebay.torch.AdamW(in_ram.parameters(), lr=1e-2)
    expected = train(in_ram, torch.Tensor.backward, plain, passes=passes, **options)
    module = make(kind, dtype)
    engine = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2,
                                  accumulation_steps=1 if summed else passes)
    assert train(module, engine.backward, engine, passes=passes, **options) == expected
    assert_same(engine.state_dict(), in_ram.state_dict())
    return engine, in_ram


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_modules_have_the_bits_of_ram(tmp_path, kind, dtype):
    engine, in_ram = compare(tmp_path, kind, dtype)
    with torch.no_grad():
        for mode in (True, False):
            assert torch.equal(engine.train(mode)(inputs_of(9, dtype)), in_ram.train(mode)(inputs_of(9, dtype)))


@pytest.mark.parametrize("penalty", ["l1", "l2", "norm"])
@pytest.mark.parametrize("kind", ["low rank", "nested", "used twice, plain", "tied blocks, reentrant", "encoder layer"])
def test_penalties_on_all_parameters_have_the_bits_of_ram(tmp_path, kind, penalty):
    compare(tmp_path, kind, penalty=penalty)


@pytest.mark.parametrize("kind", ["low rank", "nested", *(kind for kind in MODULES if "reentrant" in kind),
                                  "tied blocks, plain"])
def test_two_forward_passes_before_two_backward_passes_have_the_bits_of_ram(tmp_path, kind):
    compare(tmp_path, kind, passes=2)


@pytest.mark.parametrize("kind", [kind for kind in MODULES if "reentrant" in kind or "plain" in kind])
def test_one_backward_pass_of_two_forward_passes_has_the_bits_of_ram(tmp_path, kind):
    compare(tmp_path, kind, passes=2, summed=True)


def test_reads_between_passes_have_the_weights(tmp_path):
    engine, in_ram = compare(tmp_path, "nested")
    of_store, of_ram = (dict(module.named_parameters()) for module in (engine.module, in_ram))
    for read in (lambda p: p.norm().item(), lambda p: p.abs().sum().item(), lambda p: float(p.detach().float().mean()),
                 lambda p: p.tolist(), lambda p: repr(p.data), lambda p: torch.stack([p, p]).tolist(),
                 lambda p: (p * 2 + 1).tolist(), lambda p: p.detach().numpy().tobytes(), lambda p: len(p)):
        assert {name: read(p) for name, p in of_store.items()} == {name: read(p) for name, p in of_ram.items()}
    average = {name: torch.zeros_like(p) for name, p in of_store.items()}
    for name, p in of_store.items():
        average[name].lerp_(p.detach(), 0.5)
        assert torch.equal(average[name], of_ram[name].detach() * 0.5)


class Named(nn.Parameter):
    """A class of parameters of the program's own."""

    @property
    def kind(self):
        return "named"


def test_parameters_of_another_class_stay_of_that_class(tmp_path):
    torch.manual_seed(1)
    module = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)])
    for part in module:
        part.weight = Named(part.weight.detach().clone())
    weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    engine = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, weights[name])
        assert not name.endswith("weight") or (isinstance(parameter, Named) and parameter.kind == "named")
    seen = []
    module[2].register_forward_hook(lambda part, *_: seen.append(type(part.weight)))
    train(module, engine.backward, engine, steps=2)
    assert seen == [Named, Named]


def test_more_weights_in_one_expression_than_the_window_holds_are_an_error_that_names_them(tmp_path):
    engine, _ = compare(tmp_path, "many reads")
    with pytest.raises(forebay.OutOfMemoryError, match=r"parts\.0, parts\.1, .*needed at one time"):
        torch._foreach_norm(list(engine.module.parameters()))
    assert train(engine.module, engine.backward, engine, steps=1)


class Random(nn.Module):
    """Blocks of random kinds, some of which share weights, are used several times, or read the weights of others."""

    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)
        self.own = nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(2)])
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(self.random.randint(2, 6))])
        if self.random.random() < 0.4:
            self.layers[-1].weight = self.layers[0].weight
        self.unused = nn.Linear(16, 16)
        number = self.random.randint(3, 8)
        self.plan = [(self.random.choice(["call", "reentrant", "non-reentrant", "read", "own", "penalty"]),
                      self.random.randrange(len(self.layers)), self.random.randrange(len(self.layers)))
                     for _ in range(number)]

    def forward(self, x):
        penalty = 0.0
        for kind, one, other in self.plan:
            layer = self.layers[one]
            if kind == "call":
                x = layer(x)
            elif kind == "read":
                x = F.linear(x, layer.weight @ self.layers[other].weight * 0.1, self.layers[other].bias)
            elif kind == "own":
                x = x * self.own[one % 2]
            elif kind == "penalty":
                penalty = penalty + layer.weight.abs().mean() + self.own[other % 2].pow(2).sum()
            else:
                x = checkpoint(layer, x, use_reentrant=kind == "reentrant")
            x = torch.tanh(x)
        return x + penalty


@pytest.mark.parametrize("seed", range(30))
def test_random_modules_have_the_bits_of_ram(tmp_path, seed):
    MODULES[seed] = lambda: Random(seed)
    compare(tmp_path, seed, penalty=random.Random(seed).choice(["none", "none", "l1", "norm"]))


def reading(module, seed, seen):
    """Registers hooks of forward passes and gradients that read random parameters. Returns such a read."""
    rng = random.Random(seed)
    parameters = dict(module.named_parameters())

    def read(*_):
        name = rng.choice(sorted(parameters))
        with torch.no_grad():
            seen.append((name, parameters[name].norm().item(), parameters[name].detach().float().sum().item()))

    for part in rng.sample(list(module.modules()), 3):
        getattr(part, rng.choice(["register_forward_hook", "register_forward_pre_hook"]))(read)
    for name in rng.sample(sorted(parameters), 3):
        if parameters[name].requires_grad:
            parameters[name].register_hook(read)
    return read


@pytest.mark.parametrize("seed", range(100, 118))
def test_reads_at_random_places_have_the_weights_and_change_nothing(tmp_path, seed):
    ends = []
    for where in ("ram", "store"):
        torch.manual_seed(1)
        module, seen = Random(seed), []
        if where == "ram":
            optimizer = forebay.torch.AdamW(module.parameters(), lr=1e-2)
            backward = torch.Tensor.backward
        else:
            optimizer = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2)
            backward = optimizer.backward
        read = reading(module, seed, seen)
        losses = []
        for step in range(3):
            loss = module(inputs_of(step)).pow(2).mean()
            read()
            backward(loss)
            read()
            optimizer.step()
            read()
            optimizer.zero_grad()
            read()
            losses.append(loss.item())
        state = module.state_dict() if where == "ram" else optimizer.state_dict()
        ends.append((losses, seen, {name: value.tolist() for name, value in state.items()}))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("replace", [lambda module: types.MethodType(TiedHead.forward, module),
                                     lambda module: lambda x, inner=module.forward: inner(x) * 1.0],
                         ids=["same", "around"])
def test_a_forward_that_a_trainer_replaces_later_is_bracketed(tmp_path, replace):
    """As TRL does it."""
    ends = []
    for where in ("ram", "store"):
        module = make("tied head")
        if where == "ram":
            optimizer, backward = forebay.torch.AdamW(module.parameters(), lr=1e-2), torch.Tensor.backward
        else:
            optimizer = forebay.torch.stream(module, nvme=tmp_path / "store", lr=1e-2)
            backward = optimizer.backward
        losses = train(module, backward, optimizer, steps=1)
        module.forward = replace(module)
        ends.append(losses + train(module, backward, optimizer))
    assert ends[0] == ends[1]
