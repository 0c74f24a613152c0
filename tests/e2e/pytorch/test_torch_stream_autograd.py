"""Streamed modules under what PyTorch programs do around autograd: autocast, GradScaler, clipping, writes to weights,
compilation, double backward, interrupts, tensors that are kept."""

import contextlib
import gc
import signal

import pytest
import torch
import torch.nn.functional as F
from test_torch_stream import assert_same, in_ram, loss_of, make, tokens_of, train
from torch import nn

import forebay
import forebay.torch
from forebay.torch._streaming import window as window_module


def stream(folder, kind="tied", dtype=torch.float32, **settings):
    return forebay.torch.stream(make(kind, dtype), nvme=folder / "store", lr=1e-2, **settings)


def leased(engine):
    gc.collect()
    return engine.optimizer.layers.stats()["leased_layers"]


# ---- Autocast


def loss_under_autocast(model, step, dtype):
    torch.manual_seed(step)
    tokens = tokens_of(step)
    with torch.autocast("cpu", dtype):
        return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


@pytest.mark.parametrize("kind", ["tied", "checkpoint", "used twice", "recurrent", "convolutions"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_has_the_bits_of_ram(tmp_path, kind, weights):
    def run(model, optimizer):
        losses = []
        for step in range(1, 4):
            loss = loss_under_autocast(model, step, torch.bfloat16)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, model.state_dict()

    model = make(kind, weights)
    try:
        losses, state = run(model, forebay.torch.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2))
    except RuntimeError as error:
        if kind == "recurrent" and "primitive descriptor" in str(error):
            pytest.skip(f"PyTorch in RAM cannot do that on this CPU: {error}")
        raise
    engine = stream(tmp_path, kind, weights)
    ours, our_state = run(engine.module, engine)
    assert ours == losses and leased(engine) == []
    assert_same(our_state, state)


class Wide(nn.Module):
    """Eight blocks with weights of 1 MiB as bfloat16, and hidden states that are much smaller."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 512)))
                                      for _ in range(8)])

    def forward(self, hidden):
        return self.blocks(hidden)


def test_autograd_keeps_no_copies_that_autocast_made_of_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.torch._streaming.streamed._MOST_CAST_BYTES", 0)
    engine = forebay.torch.stream(Wide(), nvme=tmp_path / "store")
    kept = []
    save = window_module.Window.save

    def save_and_note(window, tensor):
        saved = save(window, tensor)
        if window is engine.optimizer._backend._window:  # others may not have been collected yet
            kept.append(tensor.untyped_storage().nbytes() if saved is None else 0)
        return saved

    monkeypatch.setattr(window_module.Window, "save", save_and_note)
    clears = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: clears.append(1))
    with torch.autocast("cpu", torch.bfloat16):
        loss = engine(torch.randn(2, 512)).square().mean()
    assert max(kept) < 2**14 and kept.count(0) >= 15 and len(clears) >= 8
    loss.backward()
    engine.step()


# ---- Gradients that were handed over


def train_scaled(model, optimizer, *, unscales, most_norm=0):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=2)
    seen = []
    for step in range(1, 9):
        scaler.scale(loss_under_autocast(model, step, torch.float16)).backward()
        if unscales:
            scaler.unscale_(optimizer)
        if most_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append(scaler.get_scale())
    return seen, model.state_dict()


@pytest.mark.parametrize("unscales, most_norm", [(False, 0), (True, 0), (True, 0.5)])
def test_a_grad_scaler_scales_skips_and_clips_as_in_ram(tmp_path, unscales, most_norm):
    model = make("tied")
    kind = forebay.torch.SGD if most_norm else forebay.torch.AdamW  # updates of AdamW hardly depend on the norm
    optimizer = kind(model.parameters(), lr=1e-2, clip=most_norm)
    seen, state = train_scaled(model, optimizer, unscales=unscales)
    engine = stream(tmp_path, optimizer=kind)
    ours, our_state = train_scaled(engine.module, engine.optimizer, unscales=unscales, most_norm=most_norm)
    assert 0 < engine.optimizer.layers.step < 8  # some steps were left out, and some made
    assert ours == seen
    for name, weight in our_state.items():
        torch.testing.assert_close(weight, state[name], rtol=1e-4 if most_norm else 0, atol=1e-5 if most_norm else 0)


def test_a_grad_scaler_with_weights_in_fp16(tmp_path):
    def run(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=2)
        for step in range(1, 7):
            scaler.scale(loss_of(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return scaler.get_scale(), model.state_dict()

    model = make("tied", torch.float16)
    scale, state = run(model, forebay.torch.AdamW(model.parameters(), lr=1e-2))
    engine = stream(tmp_path, dtype=torch.float16)
    our_scale, our_state = run(engine.module, engine.optimizer)
    assert our_scale == scale < 2.0**22
    assert_same(our_state, state)


def test_clip_grad_norm_clips_all_gradients(tmp_path):
    def run(model, optimizer, clip):
        norms = []
        for step in range(1, 5):
            loss_of(model, step).backward()
            norms.append(float(clip(model.parameters())))
            optimizer.step()
            optimizer.zero_grad()
        return norms, model.state_dict()

    model = make("tied")
    norms, state = run(model, forebay.torch.SGD(model.parameters(), lr=1e-2, clip=0.5), lambda parameters:
                       torch.nn.utils.get_total_norm([each.grad for each in parameters]))
    engine = stream(tmp_path, optimizer=forebay.torch.SGD)
    our_norms, our_state = run(engine.module, engine, lambda parameters:
                               torch.nn.utils.clip_grad_norm_(parameters, 0.5))
    assert our_norms == pytest.approx(norms, rel=1e-5) and max(norms) > 0.5
    assert engine.grad_norm <= 0.5
    for name, weight in our_state.items():
        torch.testing.assert_close(weight, state[name], rtol=1e-5, atol=1e-6)


def test_whoever_asks_for_elements_of_gradients_is_told(tmp_path):
    engine = stream(tmp_path)
    loss_of(engine.module, 1).backward()
    found = [parameter.grad for parameter in engine.module.parameters() if parameter.grad is not None]
    assert len(found) == 1
    for call in (lambda: torch.nn.utils.clip_grad_value_(engine.module.parameters(), 1.0), lambda: found[0].abs(),
                 lambda: torch.nn.utils.clip_grad_norm_(engine.module.parameters(), 1.0, norm_type=float("inf")),
                 lambda: found[0] + 1, lambda: found[0].tolist()):
        with pytest.raises((forebay.NotSupportedError, RuntimeError)):
            call()
    norm = found[0].norm().item()
    found[0].mul_(2).div_(4)
    assert found[0].detach().norm(2).item() == pytest.approx(norm / 2)
    engine.step()
    assert engine.grad_norm == pytest.approx(norm / 2)
    assert all(parameter.grad is None for parameter in engine.module.parameters())


def test_zero_grad_of_the_module_forgets_what_was_handed_over(tmp_path):
    losses, state = in_ram("tied")
    engine = stream(tmp_path)
    for step in range(1, 5):
        loss_of(engine.module, 77).backward()
        engine.module.zero_grad()
        assert train(engine.module, engine, 1, first=step) == [losses[step - 1]]
    assert_same(engine.state_dict(), state)
    loss_of(engine.module, 5).backward()
    engine.module.zero_grad()
    with pytest.raises(forebay.UsageError, match="behind zero_grad"):
        engine.step()


# ---- Writes


@pytest.mark.parametrize("write", [lambda weight: weight.mul_(0.5), lambda weight: weight.data.mul_(0.5),
                                   lambda weight: weight.detach().clamp_(-1e-3, 1e-3),
                                   lambda weight: weight[3].fill_(0)])
def test_a_write_to_a_weight_is_found_and_ends_the_engine(tmp_path, write):
    engine = stream(tmp_path)
    losses = train(engine.module, engine, 2)
    engine.commit({"step": 2})
    block = engine.module.blocks[1]

    def write_to(module, _):
        with torch.no_grad():
            write(module.weight)

    handle = block.linear1.register_forward_pre_hook(write_to)
    with pytest.raises(forebay.UsageError, match="weights of blocks.1 were written to"):
        loss_of(engine.module, 3)
    handle.remove()
    for call in (lambda: loss_of(engine.module, 3), engine.commit, engine.state_dict):
        with pytest.raises(forebay.UsageError, match="weights of blocks.1 were written to"):
            call()
    engine.close()
    engine = stream(tmp_path, resume=True)
    assert losses + train(engine.module, engine, 2, first=3) == in_ram("tied")[0]


@pytest.mark.parametrize("write", [
    lambda p: p.mul_(0.5), lambda p: p.zero_(), lambda p: p.__setitem__(0, 0), lambda p: nn.init.normal_(p),
    lambda p: torch.add(p, 1, out=p), lambda p: torch._foreach_mul_([torch.ones(1), p], 0.5), lambda p: p.__imul__(2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_write_to_a_parameter_outside_of_a_pass_is_refused(tmp_path, dtype, write):
    engine = stream(tmp_path, dtype=dtype)
    for name, parameter in engine.module.named_parameters():
        with torch.no_grad(), pytest.raises(forebay.UsageError, match=f"writes to a parameter of .*{name.split('.')[0]}|module"):
            write(parameter)
    assert train(engine.module, engine, 2) == in_ram("tied", dtype)[0][:2]


@pytest.mark.parametrize("write", [lambda p: p.data.mul_(0.5), lambda p: p.data.view(-1)[0].add_(1),
                                   lambda p: p.detach().zero_()])
def test_a_write_to_what_a_parameter_gives_is_found(tmp_path, write):
    engine = stream(tmp_path)
    write(engine.module.blocks[1].linear1.weight)
    with pytest.raises(forebay.UsageError, match="weights of blocks.1 were written to"):
        loss_of(engine.module, 1)


def test_a_write_by_other_code_to_a_placeholder_is_found_and_changes_nothing(tmp_path):
    """By C++ code that is no operation of PyTorch."""
    engine = stream(tmp_path)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        engine.module.blocks[1].linear1.weight.mul_(0.5)
    with pytest.raises(forebay.UsageError, match="was written to while its weights were not there"):
        for _ in range(len(engine.optimizer._backend._units) + 1):
            loss_of(engine.module, 1)
    for _ in range(20):  # each unit says so once
        with contextlib.suppress(forebay.UsageError):
            loss_of(engine.module, 1)
    assert train(engine.module, engine, 2) == in_ram("tied")[0][:2]


def test_an_activation_that_was_written_to_is_torchs_error(tmp_path):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, hidden):
            hidden = torch.sigmoid(self.linear(hidden))
            hidden.mul_(2)
            return hidden

    engine = forebay.torch.stream(Wrong(), nvme=tmp_path / "store")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine(torch.randn(2, 4)).sum().backward()


# ---- Leases


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_nothing_stays_leased_behind_an_exception(tmp_path, error):
    def fail(*_):
        raise error

    losses, state = in_ram("tied")
    engine = stream(tmp_path)
    block = engine.module.blocks[1]
    for step, register in enumerate([block.linear1.register_forward_hook, block.linear1.register_forward_pre_hook,
                                     engine.module.register_forward_hook, block.linear1.weight.register_hook], 1):
        handle = register(fail)
        with pytest.raises(error):
            engine.backward(loss_of(engine.module, step))
        handle.remove()
        assert leased(engine) == []
        engine.zero_grad()
        assert train(engine.module, engine, 1, first=step) == [losses[step - 1]]
    assert_same(engine.state_dict(), state)


def test_interrupts_at_any_moment(tmp_path):
    engine = stream(tmp_path)
    losses, state = in_ram("tied", steps=12)
    before = signal.signal(signal.SIGALRM, interrupt)
    num_interrupts = 0
    try:
        for step in range(1, 13):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 * step)
                engine.backward(loss_of(engine.module, step))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                num_interrupts += 1
            engine.zero_grad()
            assert leased(engine) == []
            assert train(engine.module, engine, 1, first=step) == [losses[step - 1]]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert num_interrupts > 0
    assert_same(engine.state_dict(), state)


def test_a_kept_weight_is_named_when_room_runs_out(tmp_path):
    engine = stream(tmp_path)
    losses = train(engine.module, engine, 1)
    kept = [engine.module.blocks[0].linear1.weight.detach()]
    copy = kept[0].clone()
    with torch.no_grad():
        loss_of(engine.module, 1)  # there is room
    assert torch.equal(kept[0], copy)
    with pytest.raises(forebay.UsageError, match=r"views of weights of blocks.0 are kept. Keep weight.clone\(\)"):
        engine.commit()
    with pytest.raises(forebay.UsageError, match="of blocks.0 are kept"):
        loss_of(engine.module, 1)
    with pytest.raises(forebay.OutOfMemoryError, match=r"no room for [\w. ]+: tensors .* of embedding, blocks.0, "):
        for block in engine.module.blocks:
            kept += [part.weight.detach() for part in (block.linear1, engine.module.embedding)]
        with torch.no_grad():
            loss_of(engine.module, 1)
    kept.clear()
    assert losses + train(engine.module, engine, 3, first=2) == in_ram("tied")[0]


# ---- Transformations


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(5)])

    def forward(self, hidden):
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden


def blocks(folder):
    torch.manual_seed(3)
    model = Blocks()
    torch.manual_seed(3)
    engine = forebay.torch.stream(Blocks(), nvme=folder / "store", lr=1e-2)
    return model, forebay.torch.AdamW(model.parameters(), lr=1e-2), engine


def test_double_backward(tmp_path):
    model, optimizer, engine = blocks(tmp_path)
    for _ in range(2):
        for each, around, to in ((model, optimizer.saving, optimizer),
                                 (engine.module, engine.optimizer.saving, engine)):
            hidden = torch.ones(2, 16, requires_grad=True)
            with around():
                gradient, = torch.autograd.grad(each(hidden).square().sum(), hidden, create_graph=True)
                gradient.square().sum().backward()
            to.step()
            to.zero_grad()
    assert_same(engine.state_dict(), model.state_dict())
    hidden = torch.ones(2, 16, requires_grad=True)
    with pytest.raises(forebay.OutOfMemoryError, match=r"create_graph=True belongs into `with engine.optimizer.saving"):
        torch.autograd.grad(engine(hidden).square().sum(), hidden, create_graph=True)


def test_compiled_blocks(tmp_path):
    model, optimizer, engine = blocks(tmp_path)
    for each in (*model.blocks, *engine.module.blocks):
        each.compile()
    for step in range(3):
        hidden = torch.randn(2, 16, generator=torch.Generator().manual_seed(step))
        for each, to in ((model, optimizer), (engine.module, engine)):
            each(hidden).square().mean().backward()
            to.step()
            to.zero_grad()
    assert_same(engine.state_dict(), model.state_dict())


def test_what_is_refused(tmp_path):
    engine = stream(tmp_path, "recurrent")
    values = engine.state_dict()
    with pytest.raises(forebay.NotSupportedError, match=r"torch.func's transforms"):
        torch.func.grad(lambda each: torch.func.functional_call(engine.module, each, tokens_of(1)).sum())(values)
    assert nn.DataParallel(engine.module)(tokens_of(1)).shape == (3, 7, 40)  # without a device it does nothing
    with pytest.raises(forebay.NotSupportedError, match="DataParallel copies"):
        engine.module.lstm._replicate_for_data_parallel()


def test_a_model_in_data_parallel_trains_where_that_does_nothing(tmp_path):
    """Without a device it calls its module, whose weights then are those that stream without it."""
    torch.manual_seed(3)
    values = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).state_dict()
    states = []
    for name, wrap in (("plain", lambda module: module), ("wrapped", nn.DataParallel)):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model.load_state_dict(values)
        engine = forebay.torch.stream(wrap(model), nvme=tmp_path / name, lr=1e-2)
        for step in range(3):
            inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
            engine.backward(engine(inputs).square().mean())
            engine.step()
        states.append({key.removeprefix("module."): value for key, value in engine.state_dict().items()})
    assert_same(*states)
