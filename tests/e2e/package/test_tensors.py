"""Tensors that are leased one by one, and snapshots of layers."""

import signal
import time

import forebay
import numpy as np
import pytest


def inventory_of():
    inventory = forebay.Inventory()
    inventory.begin_layer("layer")
    inventory.add("weight", (100, 50))
    inventory.add("bias", (100,))
    inventory.begin_raw_layer("buffers")
    inventory.add_raw("count", 8)
    return inventory


@pytest.fixture
def tensors(tmp_path):
    with forebay.Tensors(tmp_path / "store", inventory_of(), ram_bytes=4 << 20, tile_elems=4096) as made:
        yield made


def test_what_is_released_and_committed_comes_back(tmp_path, tensors):
    weight, m = tensors.acquire((0, "master", "write"), (0, "m", "overwrite"))
    np.frombuffer(weight.memory(), np.float32)[:] = 1.5
    np.frombuffer(m.memory(), np.float32)[:] = 2
    weight.release()
    m.release()
    (count,) = tensors.acquire((2, "raw", "write"))
    count.memory()[:] = b"8 bytes."
    count.release()
    assert tensors.committed_step is None
    tensors.commit(3, {"rows": 7})
    with tensors.acquire((0, "master", "write"))[0] as dropped:
        dropped.memory()[:4] = b"\0\0\0\0"
    tensors.close()
    with forebay.Tensors(tmp_path / "store", ram_bytes=4 << 20) as opened:
        assert [(t.name, t.shape, t.is_raw) for t in opened.tensors] == [
            ("weight", (100, 50), False), ("bias", (100,), False), ("count", (8,), True)]
        assert opened.committed_step == 3 and opened.user == {"rows": 7}
        values, raw = np.zeros((100, 50), np.float32), bytearray(8)
        opened.read(0, "master", values)
        opened.read(2, "raw", raw)
        assert (values == 1.5).all() and raw == b"8 bytes."
        (read,) = opened.acquire((0, "m", "read"))
        kept = np.from_dlpack(read)
        read.release()
        assert kept.shape == (100, 50) and (kept == 2).all()
        with pytest.raises(forebay.UsageError, match="was released"):
            read.memory()


def test_abort_goes_back(tensors):
    tensors.commit(1)
    (bias,) = tensors.acquire((1, "v", "write"))
    np.frombuffer(bias.memory(), np.float32)[:] = 9
    bias.release()
    tensors.abort()
    (bias,) = tensors.acquire((1, "v", "read"))
    assert not np.frombuffer(bias.memory(), np.float32).any()
    assert tensors.stats()["commits"] == 1


def test_a_written_lease_ends_behind_its_tensors(tensors):
    (bias,) = tensors.acquire((1, "v", "write"))
    made = np.from_dlpack(bias)
    with pytest.raises(forebay.UsageError, match="still used"):
        bias.release()
    with pytest.raises(forebay.UsageError, match="1 is out|1 are out"):
        tensors.commit(1)
    del made
    bias.release()
    tensors.commit(1)


def test_a_lease_that_outlives_its_tensors_can_only_be_dropped(tensors):
    (lease,) = tensors.acquire((0, "master", "write"))
    memory = lease.memory()
    tensors.close()
    for _ in range(2):
        with pytest.raises(forebay.UsageError, match="were destroyed|were closed"):
            lease.release()
        memory[:4] = b"\1\0\0\0"
    lease.close()


def test_mistakes(tmp_path, tensors):
    for request, text in (((0, "w", "read"), "plane='w'"), ((0, "m", "change"), "access='change'"),
                          ((9, "m", "read"), "there is no tensor 9"), ((2, "m", "read"), "count")):
        with pytest.raises(forebay.UsageError, match=text):
            tensors.acquire(request)
    with pytest.raises(forebay.BadInputError, match="holds no store"):
        forebay.Tensors(tmp_path / "none")


@pytest.fixture
def no_room(tmp_path):
    """Tensors, a lease that takes all room, and a function that waits for more until Ctrl-C comes."""
    def interrupt(*_):
        raise KeyboardInterrupt

    def wait():
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            tensors.acquire((0, "m", "write"))

    before = signal.signal(signal.SIGALRM, interrupt)
    tensors = forebay.Tensors(tmp_path / "store", inventory_of(), ram_bytes=4 << 20, lease_bytes=30_000,
                              tile_elems=4096)
    yield tensors, tensors.acquire((0, "master", "write"))[0], wait
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    tensors.close()


def test_a_lease_is_released_behind_an_interrupted_wait_for_its_room(no_room):
    tensors, lease, wait = no_room
    wait()
    begin = time.monotonic()
    np.frombuffer(lease.memory(), np.float32)[:] = 3
    lease.release()
    tensors.commit(1)  # what the interrupted call has leased for writing is given back before
    assert time.monotonic() - begin < 100  # and not the 300 s that acquire waits for room
    values = np.zeros((100, 50), np.float32)
    tensors.read(0, "master", values)
    assert (values == 3).all() and tensors.stats()["leased_bytes"] == 0
    (m,) = tensors.acquire((0, "m", "write"))
    m.release()


def test_close_does_not_wait_for_an_interrupted_call_that_waits_for_room(tmp_path, no_room):
    tensors, lease, wait = no_room
    wait()
    begin = time.monotonic()
    tensors.close()
    assert time.monotonic() - begin < 100
    with pytest.raises(forebay.UsageError, match="are closed"):
        tensors.commit(1)
    lease.close()
    while True:  # the store is free once the call has ended
        try:
            with forebay.Tensors(tmp_path / "store") as opened:
                assert opened.committed_step is None
            return
        except forebay.EnvironmentProblem:
            assert time.monotonic() - begin < 100
            time.sleep(0.01)


def test_a_snapshot_is_read_beside_the_next_step(tmp_path):
    inventory = inventory_of()
    with forebay.Layers(inventory, tmp_path / "store", ram_bytes=64 << 20, durability="step", commit_every=-1,
                        gradient_dtype="f32", weights_tier="nvme", state_tier="nvme", pass_="update_only",
                        tile_elems=4096) as layers:
        layers.create()
        layers.start()
        group = forebay.Group(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
        with layers.snapshot() as snapshot:
            layers.begin_step([group])
            layers.add_gradient(0, "f32", np.ones((100, 50), np.float32))
            layers.finish_backward()
            layers.update()
            layers.commit()
            assert (snapshot.step, layers.committed_step) == (0, 1)
            old, new = np.ones((100, 50), np.float32), np.zeros((100, 50), np.float32)
            snapshot.read(0, "master", old)
            layers.read(0, "master", new)
            assert not old.any() and new.all()
        with pytest.raises(forebay.UsageError, match="closed"):
            snapshot.read(0, "master", old)
