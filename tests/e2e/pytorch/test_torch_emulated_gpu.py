"""Modules that stream to the emulated GPU: the bits of the same optimizer with everything in RAM, and orders and leases
that a mistake leaves out."""

import array
import threading

import pytest
import torch
from torch import nn

import forebay
import forebay.torch
from emulated_gpu import IS_THERE, TO_HOST, EmulatedGpu, copy_async, new_stream, wait
from test_torch_stream import assert_nothing_is_here, assert_same, in_ram, loss_of, make, train

pytestmark = pytest.mark.skipif(not IS_THERE, reason="the library that FOREBAY_LIBRARY names has no emulated GPU")


@pytest.fixture
def stream_to(tmp_path, monkeypatch):
    """A function that streams a module to a GPU."""
    engines = []

    def stream_to(gpu, module, name="store", **options):
        monkeypatch.setattr(forebay.torch._stream, "device_of", lambda *_: gpu)
        engines.append(forebay.torch.stream(module, nvme=tmp_path / name, lr=1e-2, **options))
        return engines[-1]

    yield stream_to
    for engine in engines:
        engine.close()


def leased(engine):
    return engine.optimizer.layers.stats()["leased_layers"]


@pytest.mark.parametrize(("kind", "dtype"), [
    ("tied", torch.float32), ("tied", torch.bfloat16), ("reentrant", torch.float32), ("used twice", torch.float32),
    ("convolutions", torch.bfloat16)])
def test_the_bits_are_those_of_ram(stream_to, kind, dtype):
    losses, state = in_ram(kind, dtype)
    gpu = EmulatedGpu()
    engine = stream_to(gpu, make(kind, dtype))
    assert "CUDA device 0" in engine.optimizer.layers.stats()["device"]
    ours = []
    for step in range(1, 5):
        ours += train(engine.module, engine, 1, first=step)
        assert_nothing_is_here(engine)
        assert leased(engine) == []
        assert gpu.last_uses_saw_the_weights()
    assert ours == losses
    assert_same(engine.state_dict(), state)


def test_updates_in_backward_commits_and_resuming(stream_to):
    losses, state = in_ram("tied", steps=6)
    engine = stream_to(EmulatedGpu(), make("tied"), update_in_backward=True)
    ours = train(engine.module, engine, 3)
    engine.commit({"step": 3})
    engine.close()
    engine = stream_to(EmulatedGpu(), make("tied"), update_in_backward=True, resume=True)
    assert engine.resumed == {"step": 3}
    assert ours + train(engine.module, engine, 3, first=4) == losses
    assert_same(engine.state_dict(), state)


def test_backward_on_a_thread_of_its_own(stream_to):
    """As PyTorch computes it on a GPU."""
    losses, state = in_ram("tied")
    engine = stream_to(EmulatedGpu(), make("tied"))
    ours = []
    for step in range(1, 5):
        loss = loss_of(engine.module, step)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        engine.step()
        ours.append(loss.item())
        del loss, thread
        assert_nothing_is_here(engine)
        assert leased(engine) == []
    assert ours == losses
    assert_same(engine.state_dict(), state)


def test_exceptions_leave_nothing_leased(stream_to):
    losses, _ = in_ram("tied", steps=2)
    engine = stream_to(EmulatedGpu(), make("tied"))
    block = engine.module.blocks[1]
    for step in (1, 2):
        handle = block.linear1.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(engine.module, step)
        handle.remove()
        assert_nothing_is_here(engine)
        assert leased(engine) == []
        loss = loss_of(engine.module, step)
        handle = engine.module.blocks[0].linear1.weight.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        handle.remove()
        del loss
        engine.zero_grad()
        assert_nothing_is_here(engine)
        assert leased(engine) == []
        assert train(engine.module, engine, 1, first=step) == [losses[step - 1]]


class ForgetsTheWeights(EmulatedGpu):
    """Does not have its stream wait for them."""

    def use(self, lease):
        pass


class ForgetsTheGradients(EmulatedGpu):
    """Names another stream than that which computes them."""

    def __init__(self):
        super().__init__()
        self.gradients = new_stream()


@pytest.mark.parametrize("gpu", [ForgetsTheWeights, ForgetsTheGradients, EmulatedGpu])
def test_an_order_that_is_missing_is_seen(stream_to, gpu):
    losses, _ = in_ram("tied", steps=2)
    engine = stream_to(gpu(), make("tied"))
    try:
        same = train(engine.module, engine, 2) == losses
    except forebay.NumericalError:
        same = False
    assert same == (gpu is EmulatedGpu)


def test_a_weight_that_is_kept_is_named(stream_to):
    engine = stream_to(EmulatedGpu(), make("tied"))
    loss_of(engine.module, 1).backward()
    kept = engine.module.blocks[1].linear1.weight.detach()
    engine.optimizer.streamed().release()
    before = kept.clone()
    engine.step()
    assert len(leased(engine)) == 1
    with pytest.raises(forebay.OutOfMemoryError, match=r"views of weights of blocks\.1 are kept"):
        loss_of(engine.module, 2)
    assert torch.equal(kept, before)
    del kept
    assert leased(engine) == []
    train(engine.module, engine, 1, first=2)
    assert not torch.equal(engine.module.blocks[1].linear1.weight, before)


def test_writes_are_found(stream_to):
    engine = stream_to(EmulatedGpu(), make("tied"))
    train(engine.module, engine, 1)
    parameter = dict(engine.module.named_parameters())["blocks.0.linear1.weight"]
    with torch.no_grad(), pytest.raises(forebay.UsageError, match=r"mul_\(\) writes to a parameter of blocks.0"):
        parameter.mul_(0.9)
    with torch._C.DisableTorchFunctionSubclass():
        parameter.data.zero_()
    with pytest.raises(forebay.UsageError, match="a parameter was written to while its weights were not there"):
        loss_of(engine.module, 2)
    assert not parameter.isnan().any()

    def write(block, *_):
        block.linear1.weight.data.mul_(0.9)

    handle = engine.module.blocks[2].register_forward_hook(write)
    loss_of(engine.module, 2).backward()
    handle.remove()
    with pytest.raises(forebay.UsageError, match=r"weights of blocks\.2 were written to while they were here"):
        engine.step()


def test_gpu_mem_holds_the_window(stream_to):
    def make_blocks():
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64, bias=False)) for _ in range(6)])

    unit = 4 * 64 * 64
    for gpu_bytes, places in ((None, 4), (100 * unit, 4), (4 * unit - 1, 3), (3 * unit, 3)):
        engine = stream_to(EmulatedGpu(gpu_bytes), make_blocks(), name=f"store{gpu_bytes}")
        assert engine.optimizer.layers.plan()["device_bytes"] == places * unit
        engine.module(torch.ones(2, 64)).sum().backward()
        engine.step()
    with pytest.raises(forebay.DoesNotFitError, match=f"needs 3 times the largest unit, {3 * unit} bytes"):
        stream_to(EmulatedGpu(3 * unit - 1), make_blocks(), name="too small")


def test_leases_say_where_they_lie(tmp_path):
    inventory = forebay.Inventory()
    inventory.begin_layer("layer")
    weight = inventory.add("weight", [1000])
    values = array.array("f", range(1000))
    with forebay.Layers(inventory, tmp_path / "store", ram_bytes=64 << 20, weight_dtype="f32",
                        device="cuda:0") as layers:
        layers.create()
        layers.fill(weight, "f32", values)
        layers.start()
        layers.expect([0, 0])
        with layers.acquire(0) as lease:
            assert lease.cuda_index == 0
            assert lease.tensor(weight).__dlpack_device__() == (2, 0)
            with pytest.raises(forebay.UsageError, match="on cuda:0, where Python reads no bytes"):
                lease.memory(weight)
            with pytest.raises(forebay.UsageError, match="Name a stream of your own"):
                lease.tensor(weight).__dlpack__(stream=2)
        with layers.acquire(0) as lease:
            stream, read = new_stream(), array.array("f", bytes(4000))
            capsule = lease.tensor(weight).__dlpack__(stream=stream)  # has the stream wait for the weights
            copy_async(read.buffer_info()[0], lease.address(weight), 4000, TO_HOST, stream)
            wait(stream)
            assert read == values
            del capsule
    with pytest.raises(forebay.EnvironmentProblem, match="no CUDA device 9"):
        forebay.Layers(inventory, tmp_path / "other", device="cuda:9")


def test_a_program_that_changes_its_stream_is_waited_for(stream_to):
    gpu = EmulatedGpu()
    engine = stream_to(gpu, make("tied"))
    streamed = engine.optimizer.streamed()
    first = gpu.stream
    for unit in (1, 2, 1):
        gpu.stream = first
        streamed._window.fetch(unit)
        gpu.stream = new_stream()
        streamed._window.fetch(unit)  # as for a tensor that backward asks for
        streamed.release()  # behind which the last use is work of that stream
        with torch.no_grad():
            gpu.stream = first
            loss_of(engine.module, 1)  # all other units come into their places
    assert gpu.last_uses_saw_the_weights()
