"""forebay.torch: the optimizers with their state in RAM and in a store, beside torch's own."""

import copy
import pathlib
import signal
import subprocess
import sys

import pytest
import torch

import forebay
import forebay.torch

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
OPTIMIZERS = {
    "adamw": lambda params, **more: forebay.torch.AdamW(params, lr=1e-2, weight_decay=0.1, **more),
    "adam": lambda params, **more: forebay.torch.Adam(params, lr=1e-2, weight_decay=0.1, **more),
    "adagrad": lambda params, **more: forebay.torch.Adagrad(params, lr=1e-2, weight_decay=0.1, **more),
    "lion": lambda params, **more: forebay.torch.Lion(params, lr=1e-3, weight_decay=0.1, **more),
    "sgd": lambda params, **more: forebay.torch.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1, **more),
    "nesterov": lambda params, **more: forebay.torch.SGD(params, lr=1e-2, momentum=0.9, nesterov=True, **more),
    "plain sgd": lambda params, **more: forebay.torch.SGD(params, lr=1e-2, **more),
}


def make_model(dtype=torch.float32):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.GELU(), torch.nn.Linear(33, 40), torch.nn.GELU(),
                                torch.nn.Linear(40, 7))
    return model.to(dtype)


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(5, 20, generator=generator).to(dtype)
    return (model(inputs).float() ** 2).mean()


def train(model, optimizer, steps, first=1):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def assert_same_state(left, right):
    """Compares two full state dicts."""
    left, right = left.full_state_dict()["state"], right.full_state_dict()["state"]
    assert left.keys() == right.keys()
    for number in left:
        assert_same(left[number], right[number])


@pytest.mark.parametrize(("kind", "dtype"), [("adamw", dtype) for dtype in DTYPES] +
                         [(kind, torch.bfloat16) for kind in OPTIMIZERS if kind != "adamw"])
def test_ram_and_store_have_the_same_bits(tmp_path, kind, dtype):
    in_ram, in_store, in_backward = (make_model(dtype) for _ in range(3))
    ram = OPTIMIZERS[kind](in_ram.parameters())
    store = OPTIMIZERS[kind](in_store.parameters(), nvme=tmp_path / "store")
    backward = OPTIMIZERS[kind](in_backward.parameters(), nvme=tmp_path / "backward", backward_update=True, ram="64MiB")
    for model, optimizer in ((in_ram, ram), (in_store, store), (in_backward, backward)):
        train(model, optimizer, 5)
    assert_same(weights_of(in_ram), weights_of(in_store))
    assert_same(weights_of(in_ram), weights_of(in_backward))
    assert_same_state(ram, store)
    assert not any(torch.equal(weight, start) for weight, start in
                   zip(weights_of(in_ram).values(), weights_of(make_model(dtype)).values()))


TORCH = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, weight_decay=0.1),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, nesterov=True),
    "plain sgd": lambda params: torch.optim.SGD(params, lr=1e-2),
}


@pytest.mark.parametrize("kind", TORCH)
def test_as_torch_has_it(kind):
    ours, theirs = make_model(), make_model()
    mine, torchs = OPTIMIZERS[kind](ours.parameters()), TORCH[kind](theirs.parameters())
    train(ours, mine, 10)
    train(theirs, torchs, 10)
    for name, weight in weights_of(ours).items():
        torch.testing.assert_close(weight, theirs.get_parameter(name).detach(), rtol=1e-5, atol=1e-7)
    # State goes from torch to us and back.
    again, back = OPTIMIZERS[kind](theirs.parameters()), TORCH[kind](ours.parameters())
    again.load_state_dict(torchs.state_dict())
    back.load_state_dict(mine.state_dict())
    train(theirs, again, 2, first=11)
    train(ours, back, 2, first=11)
    for name, weight in weights_of(ours).items():
        torch.testing.assert_close(weight, theirs.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bit_weights_have_fp32_masters(dtype):
    """torch's AdamW of the masters, given the same gradients."""
    model = make_model(dtype)
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    ours, theirs = OPTIMIZERS["adamw"](model.parameters()), TORCH["adamw"](masters)
    for step in range(1, 11):
        ours.zero_grad()
        loss_of(model, step).backward()
        for master, parameter in zip(masters, model.parameters()):
            master.grad = parameter.grad.float()
        ours.step()
        theirs.step()
    for master, parameter in zip(masters, model.parameters()):
        # One place of the 16-bit type: torch rounds halves to even.
        torch.testing.assert_close(parameter.float(), master.detach(), rtol=2**-8 if dtype == torch.bfloat16 else 2**-10,
                                   atol=1e-7)


def test_groups_schedules_clipping_and_parameters_without_gradients(tmp_path):
    """As torch has all of them at once, in RAM and in a store, with gradients taken in backward and without."""
    def run(make, clips_itself):
        model = make_model()
        model[2].bias.requires_grad_(False)
        groups = [{"params": [model[0].weight, model[2].weight, model[2].bias], "lr": 3e-2, "betas": (0.8, 0.95)},
                  {"params": [model[0].bias, model[4].weight, model[4].bias], "weight_decay": 0.0, "eps": 1e-5}]
        optimizer = make(groups)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        norms = []
        for step in range(1, 9):
            optimizer.zero_grad()
            if step % 3 == 0:
                model[4].bias.requires_grad_(False)
            loss_of(model, step).backward()
            model[4].bias.requires_grad_(True)
            if not clips_itself:
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
            optimizer.step()
            if clips_itself:
                norms.append(optimizer.grad_norm)
            scheduler.step()
        return weights_of(model), norms

    expected, norms = run(lambda groups: torch.optim.AdamW(groups, lr=1e-2), False)
    assert max(norms) > 0.05
    options = {"clipped by torch": ({}, False), "clipped": ({"clip": 0.05}, True),
               "store": ({"clip": 0.05, "nvme": tmp_path / "store"}, True),
               "backward": ({"clip": 0.05, "backward_update": True}, True),
               "store, backward": ({"clip": 0.05, "nvme": tmp_path / "backward", "backward_update": True}, True)}
    for name, (more, clips_itself) in options.items():
        weights, our_norms = run(lambda groups: forebay.torch.AdamW(groups, lr=1e-2, **more), clips_itself)
        assert our_norms == pytest.approx(norms, rel=1e-5), name
        for key, weight in weights.items():
            torch.testing.assert_close(weight, expected[key], rtol=1e-4, atol=1e-6, msg=f"{name}: {key}")


def test_gradients_in_several_backwards_add_up(tmp_path):
    def run(optimizer_of):
        model = make_model()
        optimizer = optimizer_of(model)
        for step in range(1, 4):
            optimizer.zero_grad()
            with optimizer.accumulate():
                loss_of(model, step).backward()
            loss_of(model, step + 10).backward()
            optimizer.step()
        return weights_of(model)

    expected = run(lambda model: OPTIMIZERS["adamw"](model.parameters()))
    assert_same(run(lambda model: OPTIMIZERS["adamw"](model.parameters(), backward_update=True)), expected)
    assert_same(run(lambda model: OPTIMIZERS["adamw"](model.parameters(), backward_update=True, nvme=tmp_path / "a")),
                expected)


@pytest.mark.parametrize("where", ["ram", "store"])
def test_grad_scaler(tmp_path, where):
    model, plain = make_model(), make_model()
    more = {} if where == "ram" else {"nvme": tmp_path / "store"}
    optimizer, reference = OPTIMIZERS["adamw"](model.parameters(), **more), OPTIMIZERS["adamw"](plain.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(1, 6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if step == 3:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        if step != 3:
            reference.zero_grad()
            loss_of(plain, step).backward()
            reference.step()
    assert scaler.get_scale() == 512.0
    assert_same(weights_of(model), weights_of(plain))


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from test_torch_optimizers import make_model, train, OPTIMIZERS, weights_of
import os, signal, torch
model = make_model(torch.bfloat16)
optimizer = OPTIMIZERS["adamw"](model.parameters(), nvme={store!r})
user = optimizer.resume()
step = user["step"] if user is not None else 0
while step < 12:
    train(model, optimizer, 1, first=step + 1)
    step += 1
    if step % 2 == 0:
        optimizer.commit({{"step": step}})
    if step == {dies_at}:
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(weights_of(model), {out!r})
"""


def test_a_killed_run_goes_on_from_its_last_commit(tmp_path):
    model = make_model(torch.bfloat16)
    train(model, OPTIMIZERS["adamw"](model.parameters()), 12)
    folder, store, out = str(pathlib.Path(__file__).parent), str(tmp_path / "store"), str(tmp_path / "out")
    for dies_at in (5, 8, 0):
        program = PROGRAM.format(folder=folder, store=store, out=out, dies_at=dies_at)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if dies_at else 0), done.stderr
    assert_same(torch.load(out), weights_of(model))


def test_state_dicts(tmp_path):
    model = make_model(torch.bfloat16)
    optimizer = OPTIMIZERS["adamw"](model.parameters(), nvme=tmp_path / "store")
    train(model, optimizer, 3)
    reference, everything = optimizer.state_dict(), optimizer.full_state_dict()
    assert reference["forebay"]["step"] == 3 and not reference["state"]
    weights = weights_of(model)
    train(model, optimizer, 2, first=4)
    optimizer.close()
    # All of it, in RAM.
    other = make_model(torch.bfloat16)
    other.load_state_dict(weights)
    in_ram = OPTIMIZERS["adamw"](other.parameters())
    in_ram.load_state_dict(everything)
    train(other, in_ram, 2, first=4)
    assert_same(weights_of(other), weights_of(model))
    # The store keeps its last commit, which is that of state_dict().
    again = make_model(torch.bfloat16)
    from_store = OPTIMIZERS["adamw"](again.parameters(), nvme=tmp_path / "store")
    from_store.load_state_dict(copy.deepcopy(reference))
    assert_same(weights_of(again), weights)
    train(again, from_store, 2, first=4)
    assert_same(weights_of(again), weights_of(model))


def test_mistakes_are_told_and_lose_nothing(tmp_path):
    model = make_model()
    store = tmp_path / "store"
    with pytest.raises(forebay.UsageError, match="there is no folder"):
        OPTIMIZERS["adamw"](model.parameters(), nvme=tmp_path / "a" / "b")
    with pytest.raises(forebay.UsageError, match="about a store"):
        OPTIMIZERS["adamw"](model.parameters(), ram="1GiB")
    with pytest.raises(forebay.UsageError, match="durability='replay' is not known"):
        OPTIMIZERS["adamw"](model.parameters(), nvme=store, durability="replay")
    with pytest.raises(forebay.UsageError, match="is no size"):
        OPTIMIZERS["adamw"](model.parameters(), nvme=store, ram="much")
    with pytest.raises(TypeError, match="nvm"):
        OPTIMIZERS["adamw"](model.parameters(), nvm=store)
    with pytest.raises(forebay.UsageError, match="float64"):
        OPTIMIZERS["adamw"]([torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))])
    optimizer = OPTIMIZERS["adamw"](model.parameters(), nvme=store)
    train(model, optimizer, 2)
    optimizer.commit()
    optimizer.close()
    with pytest.raises(forebay.UsageError, match="closed"):
        train(model, optimizer, 1)
    second = OPTIMIZERS["adamw"](model.parameters(), nvme=store)
    with pytest.raises(forebay.UsageError, match="resume"):
        train(model, second, 1)
    small = torch.nn.Linear(3, 4)
    with pytest.raises(forebay.UsageError, match="another model"):
        OPTIMIZERS["adamw"](small.parameters(), nvme=store).resume()
    tight = OPTIMIZERS["adamw"](model.parameters(), nvme=tmp_path / "tight", ram=4096)
    with pytest.raises(forebay.DoesNotFitError, match="least"):
        train(model, tight, 1)
    before = weights_of(model)
    assert second.resume() == {}
    assert_same(before, weights_of(model))
    model[0].weight.grad = torch.full_like(model[0].weight, float("nan"))
    with pytest.raises(forebay.NumericalError, match="not finite"):
        second.step()
    assert_same(before, weights_of(model))
    second.zero_grad()
    train(model, second, 1, first=3)
    amsgrad = OPTIMIZERS["adamw"](small.parameters())
    amsgrad.load_state_dict(torch.optim.AdamW(small.parameters(), amsgrad=True).state_dict())
    small(torch.ones(3)).sum().backward()
    with pytest.raises(forebay.UsageError, match="amsgrad=True is not known"):
        amsgrad.step()
    sparse = torch.nn.Embedding(5, 3, sparse=True)
    of_sparse = OPTIMIZERS["adamw"](sparse.parameters())
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(forebay.UsageError, match="sparse"):
        of_sparse.step()
    with pytest.raises(forebay.NotSupportedError, match="RAM"):
        of_sparse.commit()


def test_backward_update_frees_gradients(tmp_path):
    for more in ({}, {"nvme": tmp_path / "store"}):
        model = make_model()
        optimizer = OPTIMIZERS["adamw"](model.parameters(), backward_update=True, **more)
        loss_of(model, 1).backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer.step()
