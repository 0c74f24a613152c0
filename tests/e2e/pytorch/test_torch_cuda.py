"""Modules that stream to a GPU, with a PyTorch that computes there; and what is said where there is none."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import forebay
import forebay.torch
from forebay.torch._streaming.device import Cuda, DeviceSamples, Host, device_of
from forebay.torch._streaming.placeholder import NanElement
from test_torch_stream import assert_nothing_is_here, assert_same

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU (torch.cuda.is_available())")


class Blocks(nn.Module):
    """Operations that have the same bits in every run on a GPU."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Sequential())
                                     for _ in range(4)])
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 8)
        self.reentrant = None

    def forward(self, hidden):
        for block in self.blocks:
            if self.reentrant is None:
                hidden = hidden + block(hidden)
            else:
                hidden = hidden + checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.head(self.norm(hidden))


def make(reentrant=None, dtype=torch.float32):
    torch.manual_seed(3)
    module = Blocks().to(dtype)
    module.reentrant = reentrant
    return module


def loss_of(model, step, device):
    generator = torch.Generator().manual_seed(step)
    hidden = torch.randn(16, 64, generator=generator).to(device, next(model.parameters()).dtype).requires_grad_()
    return model(hidden).float().square().mean()


def train(model, optimizer, steps, device="cuda"):
    losses = []
    for step in range(1, 1 + steps):
        loss = loss_of(model, step, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def on_the_gpu_alone(reentrant=None, dtype=torch.float32):
    model = make(reentrant, dtype).cuda()
    losses = train(model, forebay.torch.AdamW(model.parameters(), lr=1e-2), 5)
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@on_gpu
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bits_are_those_of_a_model_on_the_gpu(tmp_path, reentrant, dtype):
    losses, state = on_the_gpu_alone(reentrant, dtype)
    for name, options, module in (("from the host", {"device": "cuda"}, make(reentrant, dtype)),
                                  ("from the gpu", {}, make(reentrant, dtype).cuda())):
        engine = forebay.torch.stream(module, nvme=tmp_path / name, lr=1e-2, **options)
        assert train(engine.module, engine, 5) == losses
        assert_nothing_is_here(engine)
        assert engine.optimizer.layers.stats()["leased_layers"] == []
        ours = engine.state_dict()
        assert_same({key: value.cpu() for key, value in ours.items()}, state)
        assert ours["head.weight"].device.type == "cpu" and ours["norm.running_mean"].device.type == "cuda"


@on_gpu
def test_a_program_with_a_stream_of_its_own(tmp_path):
    losses, _ = on_the_gpu_alone()
    engine = forebay.torch.stream(make().cuda(), nvme=tmp_path / "store", lr=1e-2)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert train(engine.module, engine, 5) == losses


@on_gpu
def test_mixed_precision_scaling_clipping_and_offloaded_activations(tmp_path):
    def run(model, optimizer, around):
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        losses = []
        for step in range(1, 5):
            with torch.autocast("cuda", torch.float16), around:
                loss = loss_of(model, step, "cuda")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    model = make().cuda()
    expected = run(model, forebay.torch.AdamW(model.parameters(), lr=1e-2), torch.enable_grad())
    engine = forebay.torch.stream(make().cuda(), nvme=tmp_path / "store", lr=1e-2)
    offload = forebay.torch.offload_activations(nvme=tmp_path / "activations", ram="1MiB", least_bytes=256)
    assert run(engine.module, engine.optimizer, offload) == pytest.approx(expected, rel=1e-4)


@on_gpu
def test_writes_are_found_and_exceptions_leave_nothing_leased(tmp_path):
    engine = forebay.torch.stream(make().cuda(), nvme=tmp_path / "store", lr=1e-2)
    handle = engine.module.blocks[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(engine.module, 1, "cuda")
    handle.remove()
    assert_nothing_is_here(engine)
    train(engine.module, engine, 1)
    parameter = dict(engine.module.named_parameters())["head.weight"]
    parameter.data.zero_()
    with pytest.raises(forebay.UsageError, match="a parameter was written to while its weights were not there"):
        loss_of(engine.module, 2, "cuda")

    def write(block, *_):
        block[1].weight.data.mul_(0.9)

    engine.module.blocks[2].register_forward_hook(write)
    loss_of(engine.module, 2, "cuda").backward()
    with pytest.raises(forebay.UsageError, match=r"weights of blocks\.2 were written to while they were here"):
        engine.step()


@on_gpu
@pytest.mark.parametrize("nvme", [True, False])
def test_optimizers_of_parameters_on_a_gpu(tmp_path, nvme):
    host = make()
    expected = train(host, forebay.torch.AdamW(host.parameters(), lr=1e-2), 5, "cpu")
    model = make().cuda()
    optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-2, nvme=tmp_path / "store" if nvme else None)
    assert train(model, optimizer, 5) == pytest.approx(expected, rel=1e-3)


# ---- Without a GPU

def test_without_a_gpu_that_is_said(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, and the test is about one without")
    with pytest.raises(forebay.EnvironmentProblem, match="PyTorch finds no GPU"):
        forebay.torch.stream(make(), nvme=tmp_path / "store", device="cuda")


def test_where_a_module_streams_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    here, there = torch.ones(2), torch.ones(2, device="meta")
    assert type(device_of([here, there], None, None)) is Host
    assert type(device_of([there], None, None)) is Host
    cuda = device_of([here, there], "cuda:1", "2GiB")
    assert isinstance(cuda, Cuda) and cuda.name == "cuda:1" and cuda.torch_device == torch.device("cuda:1")
    assert device_of([here], "cuda", None).name == "cuda:2"
    for arguments, error, text in (((None, "2GiB"), forebay.UsageError, "gpu_mem='2GiB' is about a GPU"),
                                   (("cuda:0", "much"), forebay.UsageError, "gpu_mem='much' is no size"),
                                   (("mps", None), forebay.NotSupportedError, "weights are not lent on mps")):
        with pytest.raises(error, match=text):
            device_of([here], *arguments)
    with pytest.raises(forebay.UsageError, match=r"device='tpu' is not known"):
        forebay.Layers(forebay.Inventory(), "nowhere", device="tpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_placeholder_of_one_element(dtype):
    placeholder = NanElement(torch.device("cpu"), dtype)
    for shape in ((3, 5), (1,), (), (2, 1, 4)):
        view = placeholder.view(torch.Size(shape), dtype)
        assert view.shape == torch.Size(shape) and view.dtype == dtype and view.isnan().all()
        assert placeholder.has(view) and view.untyped_storage().nbytes() == dtype.itemsize
    assert placeholder.view(torch.Size((0, 3)), dtype).shape == (0, 3)
    assert placeholder.is_intact()
    for write in (lambda: placeholder.view(torch.Size((4,)), dtype).zero_(),
                  lambda: placeholder.view(torch.Size((1,)), dtype).mul_(0.9)):
        write()
        assert not placeholder.is_intact()
        placeholder.renew()
        assert placeholder.is_intact()


def test_samples_of_the_device_find_writes():
    gpu = _OnHost()
    samples = DeviceSamples(gpu, 3)
    weights = [torch.randn(40, 40), torch.full((3,), float("nan")), torch.tensor(2.0)]
    for changed in (None, (0, 0), (0, 800), (0, 1599), (1, 2), (2, 0)):
        samples.take(1, None, weights)
        if changed is not None:
            weights[changed[0]].view(-1)[changed[1]] = 7.0
        assert not samples.have_changed(1, weights)
        assert samples.changed_unit() == (None if changed is None else 1)
        assert samples.changed_unit() is None
    assert not samples.have_changed(2, weights)  # nothing was taken


class _OnHost(Cuda):
    def __init__(self):
        super().__init__(torch.device("cpu"), None)

    def use(self, lease):
        pass

    def aside(self):
        return torch.no_grad()


def test_which_backward_pass_is_the_outermost_on_a_thread_of_autograds(tmp_path, monkeypatch):
    """PyTorch computes the backward pass of a GPU on a thread of its own, where no call of backward() is to be seen but
    those that a backward function makes there (reentrant checkpointing)."""
    engine = forebay.torch.stream(make(), nvme=tmp_path / "store", lr=1e-2)
    streamed = engine.optimizer.streamed()
    seen = []

    def look():
        seen.append(streamed._is_outermost_backward())

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            look()
            return gradient

    def backward():
        Looks.apply(torch.ones(1, requires_grad=True)).backward()

    def elsewhere(call):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    with torch.no_grad():
        loss_of(engine.module, 1, "cpu")  # this is the thread that calls the module
    backward()
    elsewhere(backward)
    monkeypatch.setattr(streamed._device, "has_backward_thread", True)
    elsewhere(look)
    elsewhere(backward)
    backward()
    assert seen == [True, True, True, False, True]
