"""Updates that are made while the backward pass goes on: the bits of those that wait for step()."""

import contextlib
import copy

import forebay
import forebay.torch
import pytest
import torch
from test_torch_stream import assert_nothing_is_here, assert_same, in_ram, loss_of, make, train
from torch import nn


def stream(module, folder, **options):
    return forebay.torch.stream(module, nvme=folder, lr=1e-2, update_in_backward=True, **options)


def num_elems_of_layer(parameters):
    """Padding included. Vectors lie behind the others."""
    def up(elems, multiple):
        return -(-elems // multiple) * multiple

    kinds = [[p for p in parameters if (p.dim() > 1) == is_large] for is_large in (True, False)]
    return sum(up(sum(up(p.numel(), 64) for p in kind), 2048) for kind in kinds)


@pytest.mark.parametrize("kind", ["tied", "checkpoint", "recurrent", "convolutions", "custom function", "one layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_has_the_bits_of_ram(tmp_path, kind, dtype):
    losses, state = in_ram(kind, dtype)
    engine = stream(make(kind, dtype), tmp_path / "store")
    held = [term for term in engine.optimizer.layers.plan()["terms"] if term["name"].startswith("gradients held")]
    # The first unit alone, which is updated as the next pass reads it.
    first, *others = engine.optimizer.streamed().layout
    assert held[0]["ram_bytes"] == (num_elems_of_layer(first) * dtype.itemsize if others else 0)
    ours = []
    for step in range(1, 5):
        ours += train(engine.module, engine, 1, first=step)
        assert_nothing_is_here(engine)
    assert ours == losses
    assert_same(engine.state_dict(), state)


def test_evaluation_schedules_and_several_passes(tmp_path):
    def run(model, optimizer, step_of):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        losses = []
        for step in range(1, 5):
            for part in range(2):
                loss = loss_of(model, step + 10 * part) / 2
                loss.backward()
                losses.append(loss.item())
            step_of()
            optimizer.zero_grad()
            scheduler.step()
            with torch.no_grad():
                losses.append(loss_of(model, 100).item())
        return losses, model.state_dict()

    model = make("tied")
    plain = forebay.torch.AdamW(model.parameters(), lr=1e-2)
    losses, state = run(model, plain, plain.step)
    engine = stream(make("tied"), tmp_path / "store", accumulation_steps=2)
    ours, our_state = run(engine.module, engine.optimizer, engine.step)
    assert ours == losses
    assert_same(our_state, state)


class Ladder(nn.Module):
    """Its passes use the blocks in turns."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Sequential(nn.Linear(16, 16)))
                                           for _ in range(9)])

    def forward(self, tokens, few):
        hidden = self.embedding(tokens)
        for number in (0, 6, 7) if few else (0, 1, 2, 3, 4, 5, 8):
            hidden = hidden + torch.tanh(self.blocks[number](hidden))
        return hidden.square().mean()


@pytest.mark.parametrize("accumulation_steps", [2, 3])
def test_blocks_that_the_last_pass_does_not_use(tmp_path, accumulation_steps):
    """Their gradients are there since an earlier one. A step may also come before all passes were made."""
    def run(step_of, model, zero_grad):
        for step in range(3):
            for few in (step % 2 == 0, step % 2 == 1):
                model(torch.arange(8) + step, few).backward()
            step_of()
            zero_grad()
        return model.state_dict()

    torch.manual_seed(5)
    model = Ladder()
    engine = stream(copy.deepcopy(model), tmp_path / "store", accumulation_steps=accumulation_steps)
    plain = forebay.torch.AdamW(model.parameters(), lr=1e-2)
    assert_same(run(engine.step, engine.module, engine.zero_grad), run(plain.step, model, plain.zero_grad))


def test_a_commit_has_what_there_was_before_the_next_pass(tmp_path):
    """Buffers too, which that pass changes."""
    _, after_three = in_ram("convolutions", steps=3)
    engine = stream(make("convolutions"), tmp_path / "store")
    train(engine.module, engine, 3)
    loss_of(engine.module, 4)
    assert engine.optimizer.layers.committed_step == 3
    engine.close()
    losses, state = in_ram("convolutions", steps=6)
    engine = stream(make("convolutions"), tmp_path / "store", resume=True)
    assert engine.steps == 3
    assert_same(engine.state_dict(), after_three)
    assert train(engine.module, engine, 3, first=4) == losses[3:]
    engine.commit({"epoch": 2})
    assert_same(engine.state_dict(), state)
    engine.close()
    assert stream(make("convolutions"), tmp_path / "store", resume=True).resumed == {"epoch": 2}


def test_a_commit_comes_with_the_next_pass_or_at_the_end(tmp_path):
    def loader_of(engine):
        loader = forebay.torch.ResumableLoader(range(100, 103))
        engine.track(loader=loader)
        return loader

    engine = stream(make("tied"), tmp_path / "store")
    layers = engine.optimizer.layers
    committed = []
    for number in loader_of(engine):
        committed.append(layers.committed_step)
        train(engine.module, engine, 1, first=int(number))
        committed.append(layers.committed_step)
    assert committed == [0, 0, 0, 1, 1, 2]
    assert layers.committed_step == 3
    engine.close()

    for stop in ("close", "commit", "kill"):
        engine = stream(make("tied"), tmp_path / stop)
        batches = iter(loader_of(engine))
        train(engine.module, engine, 1, first=int(next(batches)))
        assert int(next(batches)) == 101  # which asks for the commit
        if stop == "commit":
            engine.commit()
        (engine.optimizer.layers if stop == "kill" else engine).close()
        again = stream(make("tied"), tmp_path / stop, resume=True)
        loader = loader_of(again)
        assert again.steps == (0 if stop == "kill" else 1)
        assert int(next(iter(loader))) == (100 if stop == "kill" else 101)
        again.close()


def test_close_makes_the_commit_behind_a_pass_that_failed(tmp_path):
    engine = stream(make("tied"), tmp_path / "store")
    train(engine.module, engine, 1)
    engine.optimizer.commit_if_due()

    def fail(module, _):
        error = RuntimeError("on purpose")
        error.kept = error, module.weight.view(-1)  # a circle, as tracebacks leave them
        raise error

    engine.module.blocks[0].linear1.register_forward_pre_hook(fail)
    with contextlib.suppress(RuntimeError):
        loss_of(engine.module, 2)
    engine.close()
    again = stream(make("tied"), tmp_path / "store", resume=True)
    assert again.steps == 1
    again.close()


def test_close_makes_no_commit_where_weights_were_written_to(tmp_path):
    engine = stream(make("tied"), tmp_path / "store")
    train(engine.module, engine, 1)
    engine.optimizer.commit_if_due()

    def write(module, _):
        module.weight.data.add_(1)

    engine.module.blocks[0].linear1.register_forward_pre_hook(write)
    with pytest.raises(forebay.UsageError, match="were written to"):
        loss_of(engine.module, 2)
    engine.close()
    stream(make("tied"), tmp_path / "store", resume=True).close()


def test_a_pass_that_fails_leaves_no_trace(tmp_path):
    losses, state = in_ram("tied")

    def fail(_):
        raise RuntimeError("on purpose")

    engine = stream(make("tied"), tmp_path / "store")
    ours = train(engine.module, engine, 2)
    for _ in range(2):
        hook = engine.module.blocks[0].linear1.weight.register_hook(fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            engine.backward(loss_of(engine.module, 9))
        hook.remove()
        engine.zero_grad()
    with pytest.raises(forebay.NumericalError, match="not finite"):
        engine.backward(loss_of(engine.module, 9) * float("inf"))
        engine.step()
    ours += train(engine.module, engine, 2, first=3)
    assert ours == losses
    assert_same(engine.state_dict(), state)


def test_what_needs_all_gradients_first_is_refused(tmp_path):
    for options, wanted in (({"clip": 1.0}, "clip=1.0"), ({"commit_every": 2}, "commit_every is 2")):
        with pytest.raises(forebay.UsageError, match=wanted):
            stream(make("tied"), tmp_path / "store", **options)
    losses, state = in_ram("tied")
    engine = stream(make("tied"), tmp_path / "store")
    ours = train(engine.module, engine, 1)
    engine.backward(loss_of(engine.module, 9) * 1000)
    assert float(nn.utils.clip_grad_norm_(engine.module.parameters(), 1e-3)) > 1
    with pytest.raises(forebay.UsageError, match="update_in_backward"):
        engine.step()
    ours += train(engine.module, engine, 3, first=2)
    assert ours == losses
    assert_same(engine.state_dict(), state)


class Backwards(nn.Module):
    """The unit that comes last is used first."""

    def __init__(self, depth):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(16, 16) for _ in range(depth)])
        self.head = nn.Linear(16, 40)
        self.first = nn.Embedding(40, 16)

    def forward(self, tokens):
        hidden = self.first(tokens)
        for layer in self.inner:
            hidden = layer(hidden)
        return self.head(hidden)


@pytest.mark.parametrize("num_blocks", [2, 12])
def test_gradients_in_another_order_wait(tmp_path, num_blocks):
    torch.manual_seed(5)
    model = Backwards(num_blocks)
    engine = stream(copy.deepcopy(model), tmp_path / "store")
    plain = forebay.torch.AdamW(model.parameters(), lr=1e-2)
    assert train(engine.module, engine, 3) == train(model, plain, 3)
    assert_same(engine.state_dict(), model.state_dict())
