"""Activations on disk or in RAM: the bits of a run without, inside a budget, and freed with their graph."""

import gc
import resource

import pytest
import torch
from test_torch_stream import assert_same, in_ram, loss_of, make
from torch import nn

import forebay
import forebay.torch


class Net(nn.Module):
    """Dropout, views of one storage, a residual, batch norm."""

    def __init__(self, width=64):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(4)])
        self.norm = nn.BatchNorm1d(width)

    def forward(self, hidden):
        for linear in self.inner:
            left, middle, right = linear(hidden).chunk(3, dim=-1)
            hidden = hidden + nn.functional.dropout(torch.sigmoid(left) * middle, 0.1) @ right.t() @ hidden / 64
        return self.norm(hidden)


def run(around, steps=3):
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        with around:
            loss = net(torch.randn(128, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, net.state_dict()


class Nowhere:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def assert_all_is_freed(offload):
    gc.collect()
    assert offload.bytes_in_ram == 0 and offload.bytes_on_disk == 0


@pytest.mark.parametrize("options", [{"ram": "64MiB"}, {"ram": 1 << 18}, {"ram": 0}, {}], ids=str)
def test_same_bits_on_disk_and_in_ram(tmp_path, options):
    expected = run(Nowhere())
    offload = forebay.torch.offload_activations(nvme=tmp_path, least_bytes=1, **options)
    losses, state = run(offload)
    assert losses == expected[0]
    assert_same(state, expected[1])
    assert_all_is_freed(offload)
    assert list(tmp_path.iterdir()) == []


def test_the_budget_is_kept_and_the_disk_is_used(tmp_path):
    width, ram = 1024, 4 << 20
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Sigmoid()) for _ in range(24)])
    offload = forebay.torch.offload_activations(nvme=tmp_path, ram=ram)
    hidden = torch.randn(256, width)  # each block keeps 1 MiB
    with offload:
        loss = net(hidden).square().mean()
    assert offload.bytes_on_disk > 18 << 20 and offload.bytes_in_ram <= ram
    most = 0

    def note(*_):
        nonlocal most
        most = max(most, offload.bytes_in_ram)

    for block in net:
        block[0].weight.register_hook(note)
    loss.backward()
    assert 0 < most <= ram + (1 << 20)
    del loss
    assert_all_is_freed(offload)


def test_a_graph_that_is_kept_gives_the_same_twice(tmp_path):
    offload = forebay.torch.offload_activations(nvme=tmp_path, ram=1 << 16, least_bytes=1)
    torch.manual_seed(1)
    net = Net()
    with offload:
        loss = net(torch.randn(128, 64)).square().mean()
    first = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    assert all(torch.equal(left, right) for left, right in zip(first, second))
    del loss
    assert_all_is_freed(offload)


def test_weights_and_what_a_variable_has_stay_where_they_are(tmp_path):
    offload = forebay.torch.offload_activations(nvme=tmp_path, ram=0, least_bytes=1)
    net = nn.Linear(256, 256)
    hidden = torch.randn(64, 256, requires_grad=True)
    with offload:
        out = net(hidden)
    assert offload.bytes_on_disk == 0 and offload.bytes_in_ram == 0
    out.sum().backward()


def test_checkpoint(tmp_path):
    """Arguments of blocks are all that is kept; those of the last two are still in variables."""
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.2), nn.Sigmoid()) for _ in range(8)])

    def gradients(checkpoint, **keywords):
        torch.manual_seed(1)
        hidden = torch.randn(128, 64, requires_grad=True) * 1
        for block in blocks:
            hidden = checkpoint(block, hidden, **keywords)
        on_disk = offload.bytes_on_disk
        hidden.square().mean().backward()
        found = [parameter.grad for parameter in blocks.parameters()]
        blocks.zero_grad()
        return found, on_disk

    offload = forebay.torch.offload_activations(nvme=tmp_path, ram=0, least_bytes=1)
    expected, _ = gradients(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    found, on_disk = gradients(forebay.torch.checkpoint, offload=offload)
    assert all(torch.equal(left, right) for left, right in zip(found, expected))
    assert 6 * 128 * 64 * 4 <= on_disk <= 8 * 128 * 64 * 4
    assert_all_is_freed(offload)


@pytest.mark.parametrize("kind", ["tied", "checkpoint", "recurrent", "convolutions"])
def test_with_a_streamed_module(tmp_path, kind):
    """In either order: weights are never saved, activations are."""
    losses, state = in_ram(kind)
    engine = forebay.torch.stream(make(kind), nvme=tmp_path / "store", lr=1e-2)
    offload = forebay.torch.offload_activations(nvme=tmp_path / "activations", ram=0, least_bytes=1)
    ours, used = [], 0
    if kind == "tied":  # as one block would do it in its own forward pass
        inner = engine.module.blocks[1].forward

        def forward(*arguments, **keywords):
            with offload:
                return inner(*arguments, **keywords)

        engine.module.blocks[1].forward = forward
    for step in range(1, 5):
        with Nowhere() if kind == "tied" else offload:
            loss = loss_of(engine.module, step)
        used = max(used, offload.bytes_on_disk)
        engine.backward(loss)
        engine.step()
        ours.append(loss.item())
        del loss
    assert ours == losses and used > 0 and engine.optimizer.layers.stats()["leased_layers"] == []
    assert_same(engine.state_dict(), state)
    assert_all_is_freed(offload)


def test_a_tensor_that_is_written_to_is_torchs_error(tmp_path):
    offload = forebay.torch.offload_activations(nvme=tmp_path, least_bytes=1)
    hidden = torch.randn(64, 64, requires_grad=True)
    with offload:
        kept = torch.sigmoid(hidden)
        loss = (kept * kept).sum()
    kept.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_errors_name_the_way_out(tmp_path):
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Sigmoid()) for _ in range(8)])
    offload = forebay.torch.offload_activations(ram="1MiB", least_bytes=1)
    with pytest.raises(forebay.OutOfMemoryError, match="Raise it, give offload_activations a folder"), offload:
        net(torch.randn(1024, 256))
    assert_all_is_freed(offload)
    with pytest.raises(forebay.UsageError, match="Name a folder"):
        forebay.torch.offload_activations(nvme="/proc/none")
    with pytest.raises(forebay.UsageError, match="is no size"):
        forebay.torch.offload_activations(ram="much")


def test_a_full_disk_is_an_error_and_the_next_step_is_right(tmp_path):
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Sigmoid()) for _ in range(8)])
    hidden = torch.randn(1024, 256)
    expected = torch.autograd.grad(net(hidden).sum(), list(net.parameters()))
    offload = forebay.torch.offload_activations(nvme=tmp_path, ram=0, least_bytes=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, limits[1]))  # as a full disk: a write is refused
    try:
        with pytest.raises(forebay.StorageError, match="could not be moved to or from .*Free space"):
            with offload:
                loss = net(hidden).sum()
            loss.backward()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        loss = None
    assert_all_is_freed(offload)
    with offload:
        loss = net(hidden).sum()
    assert all(torch.equal(left, right) for left, right in
               zip(torch.autograd.grad(loss, list(net.parameters())), expected))
