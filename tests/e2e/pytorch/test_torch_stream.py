"""Streamed modules: the bits of the same optimizer with everything in RAM, over modules of every kind."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import forebay
import forebay.torch
from forebay.torch._streaming.absent import Absent


class Tied(nn.Module):
    """A decoder whose output layer is its embedding, with a parameter that no other module has."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
                                     for _ in range(3)])
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.checkpointing = None

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            if self.checkpointing is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.checkpointing)
        return self.head(hidden * self.scale)


class UsedTwice(nn.Module):
    """A block that is used twice, one that is left out every second time, a frozen one, and a weight used outside its module."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.shared = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.outside = nn.Linear(16, 40)
        self.count = 0

    def forward(self, tokens):
        hidden = self.shared(torch.tanh(self.shared(self.embedding(tokens))))
        self.count += 1
        if self.count % 2:
            hidden = hidden + self.sometimes(hidden)
        return self.frozen(hidden) @ self.outside.weight.t() + self.outside.bias


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.head = nn.Linear(24, 40)

    def forward(self, tokens):
        hidden = self.lstm(self.embedding(tokens))[0]
        return self.head(hidden + self.attention(hidden, hidden, hidden)[0])


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(),
                                    nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 40, 3, padding=1)))

    def forward(self, tokens):
        return self.layers(tokens.to(self.layers[0].bias.dtype).unsqueeze(1) / 40).transpose(1, 2)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight):
        ctx.save_for_backward(hidden, weight)
        return hidden * weight

    @staticmethod
    def backward(ctx, gradient):
        hidden, weight = ctx.saved_tensors
        return gradient * weight, (gradient * hidden).sum((0, 1))


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.weight = nn.Parameter(torch.ones(16))
        self.head = nn.Linear(16, 40)

    def forward(self, tokens):
        return self.head(Double.apply(self.embedding(tokens), self.weight))


def checkpointed(reentrant):
    model = Tied()
    model.checkpointing = reentrant
    return model


MODULES = {"tied": Tied, "checkpoint": lambda: checkpointed(False), "reentrant": lambda: checkpointed(True),
           "used twice": UsedTwice, "recurrent": Recurrent, "convolutions": Convolutions, "custom function": Custom,
           "one layer": lambda: nn.Sequential(nn.Embedding(40, 40))}


def make(kind, dtype=torch.float32):
    torch.manual_seed(5)
    return MODULES[kind]().to(dtype)


def tokens_of(step):
    return torch.randint(0, 40, (3, 7), generator=torch.Generator().manual_seed(step))


def loss_of(model, step):
    torch.manual_seed(step)  # of dropout
    tokens = tokens_of(step)
    return F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def train(model, optimizer, steps, first=1):
    losses = []
    for step in range(first, first + steps):
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def in_ram(kind, dtype=torch.float32, steps=4):
    model = make(kind, dtype)
    optimizer = forebay.torch.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return train(model, optimizer, steps), model.state_dict()


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def assert_nothing_is_here(engine):
    """No lease is out."""
    gc.collect()
    window = engine.optimizer._backend._window
    assert not window._here and not any(window._pins)
    for name, parameter in engine.module.named_parameters():
        assert parameter.numel() == 0 or isinstance(parameter, Absent), name


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_streamed_has_the_bits_of_ram(tmp_path, kind, dtype):
    losses, state = in_ram(kind, dtype)
    engine = forebay.torch.stream(make(kind, dtype), nvme=tmp_path / "store", lr=1e-2)
    assert_nothing_is_here(engine)
    ours = []
    for step in range(1, 5):
        ours += train(engine.module, engine, 1, first=step)
        assert_nothing_is_here(engine)
    assert ours == losses
    # From the second step on the order is known, where it is always the same.
    if kind != "used twice":
        assert engine.num_deviations == 0
    assert_same(engine.state_dict(), state)


@pytest.mark.parametrize("update_in_backward", [False, True])
@pytest.mark.parametrize(("kind", "settings"), [
    (forebay.torch.Adam, {"lr": 1e-2}), (forebay.torch.Adagrad, {"lr": 1e-2}), (forebay.torch.Lion, {"lr": 1e-3}),
    (forebay.torch.SGD, {"lr": 1e-1, "momentum": 0.9})], ids=lambda value: getattr(value, "__name__", ""))
def test_every_optimizer_streams_with_the_bits_of_ram(tmp_path, kind, settings, update_in_backward):
    plain = make("tied", torch.bfloat16)
    expected = train(plain, kind([p for p in plain.parameters() if p.requires_grad], **settings), 4)
    engine = forebay.torch.stream(make("tied", torch.bfloat16), nvme=tmp_path / "store", optimizer=kind,
                                  update_in_backward=update_in_backward, **settings)
    assert train(engine.module, engine, 4) == expected
    assert_same(engine.state_dict(), plain.state_dict())


class DrawnOrder(nn.Module):
    """Uses its blocks in an order of the caller's, each once."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4))
        self.order = [0, 1, 2, 3]

    def forward(self, x):
        for block in self.order:
            x = self.blocks[block](x)
        return x


def test_a_step_that_differs_is_right_and_counted(tmp_path):
    orders = [[0, 1, 2, 3], [0, 1, 2, 3], [2, 0, 3, 1], [2, 0, 3, 1], [0, 1, 2, 3]]

    def losses(module, optimizer, counted):
        found = []
        for step, order in enumerate(orders):
            module.order = order
            torch.manual_seed(step)
            loss = module(torch.randn(5, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            counted()
        return found

    torch.manual_seed(5)
    plain = DrawnOrder()
    streamed = copy.deepcopy(plain)
    expected = losses(plain, forebay.torch.AdamW(plain.parameters(), lr=1e-2), lambda: None)
    engine = forebay.torch.stream(streamed, nvme=tmp_path / "store", lr=1e-2)
    counts = []
    assert losses(engine.module, engine, lambda: counts.append(engine.num_deviations)) == expected
    # The first step is learnt from. Each that differs from the one before is counted, one that repeats it is not.
    assert counts[0] == counts[1] == 0 < counts[2] == counts[3] < counts[4], counts
    assert_same(engine.state_dict(), plain.state_dict())


@pytest.mark.parametrize("kind", ["tied", "recurrent"])
def test_weights_that_stay_in_ram_have_the_same_bits(tmp_path, kind):
    engine = forebay.torch.stream(make(kind), nvme=tmp_path / "store", ram="256MiB", lr=1e-2)
    losses, state = in_ram(kind)
    assert train(engine.module, engine, 4) == losses
    assert_same(engine.state_dict(), state)


def test_evaluation_between_steps_and_within_them(tmp_path):
    losses, _ = in_ram("tied")
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    ours = []
    for step in range(1, 5):
        engine.eval()
        with torch.no_grad():
            first = loss_of(engine.module, 100).item()
            assert loss_of(engine.module, 100).item() == first
        with torch.inference_mode():
            assert loss_of(engine.module, 100).item() == first
        engine.train()
        loss = loss_of(engine.module, step)
        if step == 2:
            with torch.no_grad():
                loss_of(engine.module, 100)
        engine.backward(loss)
        engine.step()
        ours.append(loss.item())
    assert ours == losses
    assert_nothing_is_here(engine)


def test_gradients_of_several_passes_add_up(tmp_path):
    def run(model, optimizer, accumulate):
        for step in range(1, 4):
            with accumulate():
                loss_of(model, step).backward()
                loss_of(model, step + 20).backward()
            loss_of(model, step + 10).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict()

    model = make("tied")
    plain = forebay.torch.AdamW(model.parameters(), lr=1e-2)
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    assert_same(run(engine.module, engine, engine.optimizer.accumulate), run(model, plain, plain.accumulate))


def test_zero_grad_between_forward_and_backward(tmp_path):
    """As many loops have it. There is nothing to forget then."""
    def run(model, optimizer):
        losses = []
        for step in range(1, 5):
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses, state = in_ram("tied")
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    assert run(engine.module, engine) == losses
    assert_same(engine.state_dict(), state)
    model = make("tied")
    optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-2, nvme=tmp_path / "other", backward_update=True)
    assert run(model, optimizer) == losses
    # And behind a backward pass: those gradients are gone.
    loss_of(engine.module, 9).backward()
    engine.zero_grad()
    assert_same(engine.state_dict(), state)
    loss_of(engine.module, 5).backward()
    engine.step()
    assert engine.grad_norm > 0


def test_parameters_of_no_group_are_frozen(tmp_path):
    """Also where they get gradients, as in torch."""
    def run(model, optimizer):
        losses = train(model, optimizer, 3)
        return losses, model.state_dict()

    model = make("tied")
    expected = run(model, forebay.torch.AdamW(model.blocks.parameters(), lr=1e-2))
    streamed = make("tied")
    engine = forebay.torch.stream(streamed, nvme=tmp_path / "store", params=streamed.blocks.parameters(), lr=1e-2)
    losses, state = run(streamed, engine)
    assert losses == expected[0]
    assert_same(state, expected[1])


def test_clipping_schedules_and_groups(tmp_path):
    def run(model, optimizer, scheduled):
        scheduler = torch.optim.lr_scheduler.LambdaLR(scheduled, lambda step: 1 / (1 + step))
        norms = []
        for step in range(1, 6):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            norms.append(optimizer.grad_norm)
            scheduler.step()
        return norms, model.state_dict()

    def groups_of(model):
        return [{"params": list(model.blocks.parameters()), "weight_decay": 0.2},
                {"params": [model.embedding.weight, model.scale], "lr": 3e-2}]

    model = make("tied")
    plain = forebay.torch.AdamW(groups_of(model), lr=1e-2, clip=0.5)
    norms, state = run(model, plain, plain)
    streamed = make("tied")
    engine = forebay.torch.stream(streamed, nvme=tmp_path / "store", params=groups_of(streamed), lr=1e-2, clip=0.5)
    our_norms, our_state = run(streamed, engine, engine.optimizer)
    assert max(norms) > 0.5
    assert our_norms == pytest.approx(norms, rel=1e-6)
    for name, weight in our_state.items():
        torch.testing.assert_close(weight, state[name], rtol=1e-5, atol=1e-6)


def test_commit_and_resume(tmp_path):
    losses, state = in_ram("tied", steps=6)
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    assert engine.resumed is None
    ours = train(engine.module, engine, 3)
    engine.commit({"step": 3})
    train(engine.module, engine, 1, first=4)  # is lost
    engine.close()
    with pytest.raises(forebay.UsageError, match="there is a store"):
        forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2, resume=True)
    assert engine.resumed == {"step": 3}
    assert ours + train(engine.module, engine, 3, first=4) == losses
    assert_same(engine.state_dict(), state)


def test_an_exception_in_forward_or_backward_leaves_nothing_leased(tmp_path):
    losses, state = in_ram("tied")
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    block = engine.module.blocks[1]
    for step in range(1, 5):
        handle = block.linear1.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(engine.module, step)
        handle.remove()
        assert_nothing_is_here(engine)
        loss = loss_of(engine.module, step)
        handle = engine.module.blocks[0].linear1.weight.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        handle.remove()
        del loss
        engine.zero_grad()
        assert_nothing_is_here(engine)
        assert train(engine.module, engine, 1, first=step) == [losses[step - 1]]
    assert_same(engine.state_dict(), state)


def test_what_a_streamed_module_cannot_do_says_so(tmp_path):
    model = make("tied")
    state = model.state_dict()
    engine = forebay.torch.stream(model, nvme=tmp_path / "store", lr=1e-2)
    assert model.to(torch.float32) is model and model.cpu() is model
    for call, text in ((lambda: model.to(torch.bfloat16), "stays torch.float32"),
                       (lambda: copy.deepcopy(model), "cannot be copied"),
                       (lambda: pickle.dumps(model), "cannot be pickled"),
                       (lambda: nn.Sequential(model).load_state_dict({f"0.{k}": v for k, v in state.items()}),
                        "its own load_state_dict")):
        with pytest.raises(forebay.NotSupportedError, match=text):
            call()
    with pytest.raises(forebay.UsageError, match="without a forward and backward"):
        engine.step()
    with pytest.raises(forebay.UsageError, match="no others to take from its parameters"):
        engine.optimizer.reload_model_params()
    with torch.no_grad(), pytest.raises(forebay.UsageError, match=r"fill_\(\) writes to a parameter of blocks.0"):
        dict(model.named_parameters())["blocks.0.linear1.bias"].fill_(1.0)
    mixed = make("tied")
    mixed.blocks[0].to(torch.bfloat16)
    with pytest.raises(forebay.UsageError, match="torch.bfloat16, torch.float32"):
        forebay.torch.stream(mixed, nvme=tmp_path / "mixed")
    with pytest.raises(forebay.UsageError, match="no parameters"):
        forebay.torch.stream(nn.ReLU(), nvme=tmp_path / "none")


def test_a_parameter_has_its_weights_wherever_it_is_read(tmp_path):
    model = make("tied")
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    forebay.torch.stream(model, nvme=tmp_path / "store", lr=1e-2)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, Absent) and isinstance(parameter, nn.Parameter)
        assert torch.equal(parameter, weights[name]) and torch.equal(weights[name], parameter.data)
        assert torch.linalg.vector_norm(parameter) == weights[name].norm() and not parameter.isnan().any()
        assert np.array_equal(parameter.detach().numpy(), weights[name].numpy())
        assert repr(parameter.detach()) == repr(weights[name]) and isinstance(parameter, Absent)
    assert torch.equal(model.blocks[1].linear1.weight, weights["blocks.1.linear1.weight"])
