"""The operations that an unchanged DeepSpeed loads after forebay.deepspeed_ops.install(): files, memory, optimizers."""

import functools
import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

os.environ["DS_ACCELERATOR"] = "cpu"

import cpuinfo
import deepspeed
import forebay
import forebay.deepspeed_ops
import forebay.io

forebay.deepspeed_ops.install()
torch.set_num_threads(1)  # its threads wait for one another where a core is busy
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder, PinMemoryBuilder

FILE_BYTES = 4096
HANDLE = {"block_size": 1024, "queue_depth": 2, "intra_op_parallelism": 2}
FLAGS = pytest.mark.parametrize(("single_submit", "overlap_events"),
                                [(a, b) for a in (False, True) for b in (False, True)])


@pytest.fixture(scope="module")
def aio():
    return AsyncIOBuilder().load()


def make_handle(aio, single_submit=False, overlap_events=False, **changes):
    return aio.aio_handle(**{**HANDLE, **changes}, single_submit=single_submit, overlap_events=overlap_events)


def make_file(path, num_bytes=FILE_BYTES, seed=1):
    data = torch.randint(0, 256, (num_bytes,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    path.write_bytes(data.numpy().tobytes())
    return data


def content(path):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def buffer_of(handle, num_bytes, is_locked):
    example = torch.empty(0, dtype=torch.uint8)
    return handle.new_cpu_locked_tensor(num_bytes, example) if is_locked else torch.zeros(num_bytes, dtype=torch.uint8)


# ---- One file

READERS = {
    "read": lambda h, t, f: h.read(t, f, False),
    "read, validated": lambda h, t, f: h.read(buffer=t, filename=f, validate=True, file_offset=0),
    "sync_pread": lambda h, t, f: h.sync_pread(t, f) - 1,
    "sync_pread, named": lambda h, t, f: h.sync_pread(buffer=t, filename=f, file_offset=0) - 1,
    "pread": lambda h, t, f: h.pread(t, f, True, False) - 1,
    "pread, async": lambda h, t, f: h.pread(t, f, False, True) + h.wait() - 1,
    "async_pread": lambda h, t, f: h.async_pread(buffer=t, filename=f, file_offset=0) + h.wait() - 1,
}
WRITERS = {
    "write": lambda h, t, f: h.write(t, f, True),
    "sync_pwrite": lambda h, t, f: h.sync_pwrite(buffer=t, filename=f, file_offset=0) - 1,
    "pwrite": lambda h, t, f: h.pwrite(t, f, True, False, 0) - 1,
    "pwrite, named": lambda h, t, f: h.pwrite(buffer=t, filename=f, validate=False, **{"async": True}) + h.wait() - 1,
    "async_pwrite": lambda h, t, f: h.async_pwrite(t, f, 0) + h.wait() - 1,
}


@FLAGS
@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize("how", READERS)
def test_reads_a_file(aio, tmp_path, how, is_locked, single_submit, overlap_events):
    data = make_file(tmp_path / "f")
    handle = make_handle(aio, single_submit, overlap_events)
    buffer = buffer_of(handle, FILE_BYTES, is_locked)
    assert READERS[how](handle, buffer, str(tmp_path / "f")) == 0
    assert torch.equal(buffer, data)
    assert handle.get_single_submit() == single_submit and handle.get_overlap_events() == overlap_events
    assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_intra_op_parallelism(),
            handle.get_alignment()) == (1024, 2, 2, 1024)
    assert handle.free_cpu_locked_tensor(buffer) == is_locked


@FLAGS
@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize("how", WRITERS)
def test_writes_a_file(aio, tmp_path, how, is_locked, single_submit, overlap_events):
    handle = make_handle(aio, single_submit, overlap_events)
    buffer = buffer_of(handle, FILE_BYTES, is_locked)
    buffer.copy_(make_file(tmp_path / "reference"))
    assert WRITERS[how](handle, buffer, str(tmp_path / "f")) == 0
    assert torch.equal(content(tmp_path / "f"), buffer)
    handle.free_cpu_locked_tensor(buffer)


def test_functions_and_defaults(aio, tmp_path):
    data = make_file(tmp_path / "f")
    buffer = torch.zeros_like(data)
    assert aio.aio_read(buffer, str(tmp_path / "f"), 1024, 2, False, True, False) == 0
    assert torch.equal(buffer, data)
    assert aio.aio_write(buffer, str(tmp_path / "g"), 1024, 2, True, False, True) == 0
    assert torch.equal(content(tmp_path / "g"), data)
    copy = torch.zeros(100)
    assert aio.deepspeed_memcpy(copy, torch.arange(100.0)) == 0 and torch.equal(copy, torch.arange(100.0))
    handle = aio.aio_handle()
    assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(), handle.get_overlap_events(),
            handle.get_intra_op_parallelism(), handle.get_alignment()) == (1 << 20, 128, False, False, 1, 512)


# ---- Several at one time

@FLAGS
@pytest.mark.parametrize("depth", [2, 3, 16, 64])
def test_a_queue_of_files(aio, tmp_path, depth, single_submit, overlap_events):
    handle = make_handle(aio, single_submit, overlap_events)
    data = [make_file(tmp_path / f"in{i}", seed=i) for i in range(depth)]
    buffers = [handle.new_cpu_locked_tensor(FILE_BYTES, torch.empty(0, dtype=torch.uint8)) for _ in range(depth)]
    for i, buffer in enumerate(buffers):
        assert handle.async_pread(buffer, str(tmp_path / f"in{i}"), 0) == 0
    assert handle.wait() == depth
    assert all(torch.equal(buffer, each) for buffer, each in zip(buffers, data))
    for i, buffer in enumerate(buffers):
        assert handle.async_pwrite(buffer, str(tmp_path / f"out{i}"), 0) == 0
    assert handle.wait() == depth
    assert all(torch.equal(content(tmp_path / f"out{i}"), each) for i, each in enumerate(data))
    assert handle.wait() == 0


def test_a_call_that_waits_counts_what_is_pending(aio, tmp_path):
    handle = make_handle(aio)
    make_file(tmp_path / "f")
    buffers = [torch.zeros(FILE_BYTES, dtype=torch.uint8) for _ in range(3)]
    assert handle.async_pread(buffers[0], str(tmp_path / "f")) == 0
    assert handle.async_pread(buffers[1], str(tmp_path / "f")) == 0
    assert handle.sync_pread(buffers[2], str(tmp_path / "f")) == 3


def test_threads_share_a_handle(aio, tmp_path):
    handle = aio.aio_handle()
    failures = []

    def work(name):
        try:
            for i in range(20):
                data = make_file(tmp_path / f"{name}_{i}", 10_000 + i, seed=i)
                buffer = torch.zeros_like(data)
                handle.read(buffer, str(tmp_path / f"{name}_{i}"), False)
                assert torch.equal(buffer, data)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- Offsets, descriptors, any alignment

@pytest.mark.parametrize("piece", [512, 1024])
@pytest.mark.parametrize("name", ["filename", "fd"])
@pytest.mark.parametrize("is_direct", [True, False])
def test_pieces_at_offsets(aio, tmp_path, piece, name, is_direct):
    handle = make_handle(aio)
    path = tmp_path / "f"
    buffer = handle.new_cpu_locked_tensor(FILE_BYTES, torch.empty(0, dtype=torch.uint8))
    buffer.copy_(make_file(tmp_path / "reference"))
    flags = os.O_CREAT | os.O_WRONLY
    try:
        fd = os.open(path, flags | (os.O_DIRECT if is_direct else 0), 0o600)
    except OSError:
        pytest.skip("the file system has no O_DIRECT")
    for i, first in enumerate(range(0, FILE_BYTES, piece)):
        part = torch.narrow(buffer, 0, first, piece)
        if i % 2:
            file = fd if name == "fd" else str(path)
            assert handle.async_pwrite(part, file, first) == 0
        else:
            file = {"fd": fd} if name == "fd" else {"filename": str(path)}
            assert handle.async_pwrite(buffer=part, file_offset=first, **file) == 0
    assert handle.wait() == FILE_BYTES // piece
    os.close(fd)  # it is the caller's
    assert torch.equal(content(path), buffer)
    back = torch.zeros_like(buffer)
    for first in range(0, FILE_BYTES, piece):
        assert handle.sync_pread(back[first:first + piece], str(path), file_offset=first) == 1
    assert torch.equal(back, buffer)


@pytest.mark.parametrize("folder", ["disk", "/dev/shm"])
def test_any_alignment_is_right(aio, tmp_path, folder):
    path = pathlib.Path(folder, f"forebay{os.getpid()}") if folder != "disk" else tmp_path / "f"
    handle = aio.aio_handle()
    memory = handle.new_cpu_locked_tensor(300_000, torch.empty(0, dtype=torch.uint8))
    data = make_file(tmp_path / "reference", 300_000)
    expected = bytearray(300_000)
    try:
        for offset, skip, size in [(0, 0, 300_000), (0, 1, 77), (3, 3, 5000), (512, 1, 99_999), (4095, 0, 8193),
                                   (1, 512, 4095), (0, 0, 0)]:
            memory.copy_(data)
            assert handle.sync_pwrite(memory[skip:skip + size], str(path), offset) == 1
            expected[offset:offset + size] = data[skip:skip + size].numpy().tobytes()
            expected = expected[:max(300_000, offset + size)]
            assert path.read_bytes() == bytes(expected)
            back = memory[skip:skip + size].zero_()
            assert handle.sync_pread(back, str(path), offset) == 1
            assert torch.equal(back, data[skip:skip + size])
    finally:
        path.unlink(missing_ok=True)
        handle.free_cpu_locked_tensor(memory)


def test_tensors_that_do_not_lie_in_one_piece(aio, tmp_path):
    handle = aio.aio_handle()
    values = torch.arange(64.0).view(8, 8)
    assert handle.sync_pwrite(values.t(), str(tmp_path / "f")) == 1
    assert torch.equal(torch.frombuffer(bytearray((tmp_path / "f").read_bytes()), dtype=torch.float32),
                       values.t().flatten())
    back = torch.zeros(8, 8)
    assert handle.sync_pread(back.t(), str(tmp_path / "f"), 0) == 1
    assert torch.equal(back, values)


# ---- What DeepSpeed's own reports as done, or ends the process for

def test_a_disk_that_takes_no_more_is_an_error(aio, tmp_path):
    handle = aio.aio_handle()
    buffer = torch.zeros(1 << 20, dtype=torch.uint8)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, old[1]))
    try:
        with pytest.raises(forebay.StorageError, match="EFBIG"):
            handle.sync_pwrite(buffer, str(tmp_path / "f"))
        assert handle.async_pwrite(buffer, str(tmp_path / "f"), 0) == 0
        assert handle.async_pwrite(buffer[:4096], str(tmp_path / "g"), 0) == 0
        with pytest.raises(forebay.StorageError, match="EFBIG"):
            handle.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert (tmp_path / "g").stat().st_size == 4096
    assert handle.wait() == 0
    assert handle.sync_pwrite(buffer, str(tmp_path / "f")) == 1


def test_files_that_cannot_be_read_are_errors(aio, tmp_path):
    handle = aio.aio_handle()
    buffer = torch.full((FILE_BYTES,), 7, dtype=torch.uint8)
    with pytest.raises(forebay.BadInputError, match="does not exist"):
        handle.async_pread(buffer, str(tmp_path / "none"), 0)
    (tmp_path / "short").write_bytes(b"x" * 1000)
    with pytest.raises(forebay.BadInputError, match="has 1000 bytes"):
        handle.async_pread(buffer, str(tmp_path / "short"), 0)
    with pytest.raises(forebay.UsageError, match="no regular file"):
        handle.read(buffer, str(tmp_path), False)
    with pytest.raises(forebay.StorageError):
        handle.async_pwrite(buffer, str(tmp_path / "none" / "f"), 0)
    with pytest.raises(TypeError):
        handle.async_pwrite(buffer)
    with pytest.raises(TypeError):
        handle.pread(buffer, str(tmp_path / "short"), False)
    assert handle.wait() == 0 and bool((buffer == 7).all())


def test_a_file_with_other_bytes_is_not_valid(aio, tmp_path, monkeypatch):
    make_file(tmp_path / "f")
    handle = aio.aio_handle()
    waits = handle._engine.wait

    def wait_and_change(*tickets):
        waits(*tickets)
        make_file(tmp_path / "f", seed=2)

    monkeypatch.setattr(handle._engine, "wait", wait_and_change)
    with pytest.raises(forebay.StorageError, match="other bytes than were read"):
        handle.read(torch.zeros(FILE_BYTES, dtype=torch.uint8), str(tmp_path / "f"), True)


def test_ctrl_c_ends_a_wait(tmp_path, monkeypatch):
    engine = forebay.io.DiskEngine()
    calls = forebay.io.call
    may_end, ended = threading.Event(), []

    def slow_call(function, *arguments):
        if function is forebay.io.lib.forebay_io_wait:
            os.kill(os.getpid(), signal.SIGINT)
            ended.append(may_end.wait(60))
        calls(function, *arguments)

    monkeypatch.setattr(forebay.io, "call", slow_call)
    ticket = engine.write(tmp_path / "f", b"abc")
    with pytest.raises(KeyboardInterrupt):
        engine.wait(ticket)
    assert not ended  # the call goes on, and was not waited for
    may_end.set()
    monkeypatch.setattr(forebay.io, "call", calls)
    assert engine.wait_all() == 0  # behind the wait that goes on
    assert (tmp_path / "f").read_bytes() == b"abc" and engine._kept == {}
    engine.close()


# ---- Memory

def test_locked_tensors_and_views_of_them(aio):
    handle, other, pins = aio.aio_handle(), aio.aio_handle(), PinMemoryBuilder().load().pin_handle()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool):
        tensor = handle.new_cpu_locked_tensor(num_elem=1000, example_tenosr=torch.empty(2, 3, dtype=dtype))
        assert (tensor.shape, tensor.dtype, tensor.device.type) == ((1000,), dtype, "cpu")
        assert tensor.data_ptr() % 4096 == 0 and not tensor._is_view() and not bool(tensor.any())
        for each in (handle, other, pins):
            assert each.is_pinned(tensor) and each.is_pinned(tensor.narrow(0, 10, 900)) and each.is_pinned(tensor[5:])
            assert not each.is_pinned(torch.zeros(10))
        assert not handle.free_cpu_locked_tensor(tensor[1:])
        assert other.free_cpu_locked_tensor(tensor)
        assert not handle.is_pinned(tensor) and not handle.free_cpu_locked_tensor(tensor)
    first = pins.new_cpu_locked_tensor(num_elem=1024, example_tensor=torch.empty(0))
    beyond = torch.empty(0).set_(torch.UntypedStorage(0))
    assert handle.is_pinned(first) and not handle.is_pinned(beyond)
    longer = (type("Tensor", (), {"device": first.device, "data_ptr": lambda _: first.data_ptr(), "nbytes": 4097,
                                  "is_pinned": lambda _: False}))()
    assert not pins.is_pinned(longer)  # its end lies outside
    assert pins.free_cpu_locked_tensor_by_ptr(first.data_ptr()) and not pins.free_cpu_locked_tensor_by_ptr(12345)
    assert pins.new_cpu_locked_tensor(0, torch.empty(0)).numel() == 0
    with pytest.raises(forebay.UsageError):
        handle.new_cpu_locked_tensor(-1, torch.empty(0))


def test_deepspeeds_pinned_memory(monkeypatch):
    monkeypatch.setenv("DS_PIN_MEMORY_BACKEND", "native")
    accelerator = deepspeed.accelerator.get_accelerator()
    values = torch.arange(24.0).view(2, 3, 4)
    pinned = accelerator.pin_memory(values)
    address = pinned.data_ptr()
    assert torch.equal(pinned, values) and accelerator.is_pinned(pinned)
    handle = PinMemoryBuilder().load().pin_handle()
    view = pinned[1]
    del pinned
    gc.collect()
    assert handle.is_pinned(view) and torch.equal(view, values[1])
    del view
    gc.collect()
    assert not handle.free_cpu_locked_tensor_by_ptr(address)


def test_deepspeeds_pinned_memory_is_given_back(monkeypatch):
    monkeypatch.setenv("DS_PIN_MEMORY_BACKEND", "native")
    accelerator, handle = deepspeed.accelerator.get_accelerator(), PinMemoryBuilder().load().pin_handle()
    values = torch.arange(24, dtype=torch.float32).view(2, 12)
    made = {"a copy": accelerator.pin_memory(values), "a flat copy": accelerator.pin_memory(values, match_shape=False),
            "a shape": accelerator.pin_memory(values, make_copy=False),
            "empty": accelerator.pin_empty(3, 5, dtype=torch.bfloat16), "like": accelerator.pin_empty_like(values)}
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == {
        "a copy": (2, 12), "a flat copy": (24,), "a shape": (2, 12), "empty": (3, 5), "like": (2, 12)}
    assert torch.equal(made["a copy"], values) and torch.equal(made["a flat copy"], values.flatten())
    for name, tensor in made.items():
        address, view = tensor.data_ptr(), tensor[1:]
        assert address % 4096 == 0 and accelerator.is_pinned(tensor) and accelerator.is_pinned(view), name
        assert handle.is_pinned(tensor) and not handle.is_pinned(torch.empty(8))
        assert accelerator.unpin_memory(tensor) is True
        assert accelerator.unpin_memory(tensor) is False  # again, there is nothing
        assert not handle.free_cpu_locked_tensor_by_ptr(address)
    # A tensor whose data were exchanged gives back what it was made with.
    tensor = accelerator.pin_memory(values)
    address, tensor.data = tensor.data_ptr(), torch.zeros(2, 12)
    assert accelerator.unpin_memory(tensor) is True and not handle.free_cpu_locked_tensor_by_ptr(address)


# ---- Adam, Adagrad, Lion

# DeepSpeed's optimizers ask for the CPU's maker, which takes programs and a second.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
PAIRS = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.float32),
         (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)]
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}


def rounded(tensor, dtype):
    return tensor.to(dtype).float()


@pytest.mark.parametrize(("dtype", "state"), PAIRS)
@pytest.mark.parametrize("num_elems", [1, 1023, 65_537])
@pytest.mark.parametrize("adamw", [True, False])
def test_an_adam_step_is_torchs_rounded_once(dtype, state, num_elems, adamw):
    torch.manual_seed(num_elems)
    parameter = torch.nn.Parameter(torch.randn(num_elems).to(dtype))
    optimizer = DeepSpeedCPUAdam([parameter], **SETTINGS, adamw_mode=adamw, fp32_optimizer_states=state != dtype)
    twin = torch.nn.Parameter(torch.zeros(num_elems))
    torchs = (torch.optim.AdamW if adamw else torch.optim.Adam)([twin], **SETTINGS)
    for step in range(3):
        twin.data = parameter.detach().float().clone()
        if step > 0:
            for moment in ("exp_avg", "exp_avg_sq"):
                torchs.state[twin][moment].copy_(optimizer.state[parameter][moment])
        gradient = torch.randn(num_elems).to(dtype)
        parameter.grad, twin.grad = gradient, gradient.float()
        optimizer.step()
        torchs.step()
        pairs = [(parameter.detach(), twin.detach(), SETTINGS["lr"])]
        for moment in ("exp_avg", "exp_avg_sq"):
            pairs.append((optimizer.state[parameter][moment], torchs.state[twin][moment], 1.0))
        for ours, theirs, size in pairs:
            assert ours.dtype == (dtype if ours is pairs[0][0] else state)
            expected = theirs.to(ours.dtype)
            unit = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[ours.dtype]  # an ulp at most
            assert torch.allclose(ours.float(), expected.float(), unit, 1e-6 * size)
            if ours.dtype is not torch.float32:  # torch's own fp32 differs in a last bit now and then
                assert (ours != expected).sum() <= 1 + 0.002 * num_elems


def test_adam_rounds_ties_to_even():
    adam = CPUAdamBuilder().load()
    adam.create_adam(900, 1.0, 0.9, 0.999, 1e-8, 0.0, True, False)
    # A step of lr in the direction of the gradient: 1 + 2^-8 is a tie between 1 and 1 + 2^-7.
    for dtype, tie in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        weights = torch.tensor([1.0, 1.0 + 2 * tie, -1.0 - 2 * tie]).to(dtype)
        m, v = torch.zeros(3), torch.zeros(3)
        gradient = torch.tensor([-1.0, -1.0, 1.0]).to(dtype)
        assert adam.adam_update(900, 1, tie, 0.0, 0.0, 1e-30, 0.0, True, weights, gradient, m, v) == 0
        assert weights.tolist() == [1.0, 1.0 + 4 * tie, -1.0 - 4 * tie]
    assert adam.destroy_adam(900) == 0


def test_adam_without_bias_correction():
    parameter = torch.nn.Parameter(torch.ones(10))
    optimizer = DeepSpeedCPUAdam([parameter], lr=0.1, bias_correction=False)
    parameter.grad = torch.full((10,), 0.5)
    optimizer.step()
    m, v = 0.1 * 0.5, 0.001 * 0.25
    assert torch.allclose(parameter.detach(), torch.full((10,), 1 - 0.1 * m / (v**0.5 + 1e-8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_rollback_takes_a_step_back(dtype, adamw, bias_correction):
    torch.manual_seed(3)
    parameter = torch.nn.Parameter(torch.randn(1000).to(dtype))
    optimizer = DeepSpeedCPUAdam([parameter], **SETTINGS, adamw_mode=adamw, bias_correction=bias_correction)
    held = []
    for step in range(3):
        parameter.grad = torch.randn(1000).to(dtype)
        if step > 0:
            moments = (optimizer.state[0][name].clone() for name in ("exp_avg", "exp_avg_sq"))
            held.append((parameter.detach().clone(), *moments))
        optimizer.step_subgroup(0)
    optimizer.rollback_subgroup(0)
    assert optimizer.state[0]["step"] == 2
    found = (parameter.detach(), optimizer.state[0]["exp_avg"], optimizer.state[0]["exp_avg_sq"])
    relative = {torch.float32: 1e-4, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]  # two roundings, of weights
    assert torch.allclose(found[0], held[-1][0], relative, 1e-4)
    if adamw or dtype is torch.float32:
        assert all(torch.allclose(a, b, 1e-4, 1e-6) for a, b in zip(found[1:], held[-1][1:]))


def test_what_rollback_cannot_do_is_an_error():
    adam = CPUAdamBuilder().load()
    adam.create_adam(901, 0.1, 0.9, 0.999, 1e-8, 0.0, True, False)
    tensors = [torch.ones(4) for _ in range(4)]
    with pytest.raises(forebay.NotSupportedError, match="param type torch.float64"):
        adam.adam_rollback(901, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, tensors[0].double(), *tensors[1:])
    with pytest.raises(forebay.NumericalError):
        adam.adam_rollback(901, 1, 1.0, 0.9, 0.999, 1e-8, 1.0, True, *tensors)
    assert all(torch.equal(tensor, torch.ones(4)) for tensor in tensors)


def test_gradients_of_another_type_and_tensors_in_pieces():
    adam = CPUAdamBuilder().load()
    adam.create_adam(902, 0.1, 0.9, 0.999, 1e-8, 0.0, True, False)
    torch.manual_seed(4)
    start, gradient = torch.randn(6, 5), torch.randn(6, 5)
    results = []
    for change in (lambda t: t.clone(), lambda t: t.t().contiguous().t()):
        weights, m, v = change(start), torch.zeros(6, 5), torch.zeros(6, 5)
        adam.adam_update(902, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, weights, change(gradient.bfloat16()), m, v)
        results.append(weights)
    assert torch.equal(*results) and not torch.equal(results[0], start)


def test_what_adam_does_not_know_is_an_error():
    adam = CPUAdamBuilder().load()
    adam.create_adam(903, 0.1, 0.9, 0.999, 1e-8, 0.0, True, False)

    def update(*tensors, number=903):
        adam.adam_update(number, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, *tensors)

    ones = torch.ones(4)
    with pytest.raises(RuntimeError, match="param type torch.float32 and state type torch.bfloat16"):
        update(ones, ones, ones.bfloat16(), ones.bfloat16())
    with pytest.raises(RuntimeError, match="param type torch.float64"):
        update(ones.double(), ones.double(), ones.double(), ones.double())
    with pytest.raises(forebay.UsageError, match="grads has 3 elements"):
        update(ones, ones[:3], ones.clone(), ones.clone())
    with pytest.raises(forebay.UsageError, match="no Adam with the number 77"):
        update(ones, ones, ones, ones, number=77)
    assert torch.equal(ones, torch.ones(4))


def test_adagrad_and_lion():
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.lion import DeepSpeedCPULion

    torch.manual_seed(5)
    start = torch.randn(3000)
    ours, twin = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = DeepSpeedCPUAdagrad([ours], lr=0.1, eps=1e-8, weight_decay=0.1)
    torchs = torch.optim.Adagrad([twin], lr=0.1, eps=1e-8, weight_decay=0.1)
    lion = torch.nn.Parameter(start.bfloat16())
    lions = DeepSpeedCPULion([lion], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    by_hand, m = start.bfloat16().float(), torch.zeros(3000)
    for _ in range(4):
        gradient = torch.randn(3000)
        ours.grad, twin.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        torchs.step()
        assert torch.equal(ours.grad, gradient)
        lion.grad = gradient.bfloat16()
        lions.step()
        g = lion.grad.float()
        by_hand = rounded(by_hand * (1 - 0.01 * 0.1) - 0.01 * (0.9 * m + (1 - 0.9) * g).sign(), torch.bfloat16)
        m = 0.99 * m + (1 - 0.99) * g
    assert torch.allclose(ours, twin, 1e-5, 1e-6)
    assert (lion.detach().float() != by_hand).float().mean() < 0.01


# ---- Installing

def test_install_marks_the_operations_and_asks_no_compiler(monkeypatch):
    ops = sys.modules["deepspeed.ops"]
    monkeypatch.setenv("PATH", "/nonexistent")
    vars(ops).pop("__compatible_ops__", None)
    forebay.deepspeed_ops.install()
    assert all(ops.__compatible_ops__[name] is True for name in ("async_io", "pin_memory", "cpu_adam"))
    ops.__compatible_ops__["async_io"] = False
    first = AsyncIOBuilder().load()
    forebay.deepspeed_ops.install()
    assert ops.__compatible_ops__["async_io"] is True and AsyncIOBuilder().load() is first
    assert "forebay" in AsyncIOBuilder().load().__name__


def test_an_unknown_layout_is_an_error_and_changes_nothing(monkeypatch):
    from deepspeed.ops.op_builder.builder import OpBuilder

    monkeypatch.setattr(OpBuilder, "_loaded_ops", None)
    with pytest.raises(forebay.EnvironmentProblem, match="keeps its operations elsewhere"):
        forebay.deepspeed_ops.install()
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder.builder", None)
    with pytest.raises(forebay.EnvironmentProblem, match="pip install"):
        forebay.deepspeed_ops.install()


def test_sitecustomize_installs_in_processes_that_are_started(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import forebay.deepspeed_ops\nforebay.deepspeed_ops.install()\n")
    roots = [str(tmp_path), os.environ["PYTHONPATH"], str(pathlib.Path(deepspeed.__file__).parents[1])]
    program = "from deepspeed.ops.op_builder import AsyncIOBuilder; print(AsyncIOBuilder().load().__name__)"
    found = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
                           capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == "forebay_async_io"
