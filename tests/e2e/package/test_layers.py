"""Layers from Python: a whole run, what is lent, what lasts, and mistakes."""

import os

import forebay
import numpy as np
import pytest

GROUP = forebay.Group(lr=1e-2, weight_decay=0.0, beta1=0.9, beta2=0.999, eps=1e-8)
SHAPES = [(64, 32), (32,), (48, 20)]


def inventory():
    made = forebay.Inventory()
    assert made.begin_layer("first") == 0
    assert [made.add("first.weight", SHAPES[0]), made.add("first.bias", SHAPES[1])] == [0, 1]
    assert made.begin_layer("second") == 1
    assert made.add("second.weight", SHAPES[2]) == 2
    assert made.begin_raw_layer("buffers") == 2
    assert made.add_raw("count", 8) == 3
    return made


def layers(folder, **options):
    return forebay.Layers(inventory(), folder, **{"weight_dtype": "f32", "gradient_dtype": "f32", **options})


def values():
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def make(folder, **options):
    made = layers(folder, **options)
    made.create()
    for tensor, array in enumerate(values()):
        made.fill(tensor, "f32", array)
    made.start({"epoch": 0})
    return made


def run_step(of, user=None, scale=1.0, without=()):
    of.begin_step([GROUP])
    order = [0, 1]
    of.expect(order)
    for layer in order:
        of.acquire(layer).release()
    for layer, tensors in ((1, [2]), (0, [0, 1])):
        for tensor in tensors:
            if tensor not in without:
                of.add_gradient(tensor, "f32", scale * values()[tensor])
        of.close_layer(layer)
    found = of.finish_backward()
    of.update(user)
    return found


def test_a_run_is_filled_stepped_committed_and_opened(tmp_path):
    with layers(tmp_path / "store") as none:
        assert not none.exists()
        assert none.plan()["disk_bytes"] > 0
    with make(tmp_path / "store") as run:
        assert run.exists() and (run.step, run.committed_step, run.user) == (0, 0, {"epoch": 0})
        found = run_step(run, without=[1])
        expected = np.sqrt(sum(np.sum(values()[i].astype(np.float64)**2) for i in (0, 2)))
        assert np.isclose(found.norm, expected) and found.nonfinite_layer is None
        run.commit({"epoch": 1, "text": "é"})
        assert (run.step, run.committed_step) == (1, 1)
        assert "read_bytes" in run.stats()
    with layers(tmp_path / "store") as run:
        run.open()
        assert run.user == {"epoch": 1, "text": "é"}
        assert [run.updates_of(tensor) for tensor in range(3)] == [1, 0, 1]
        master, m = np.empty(SHAPES[0], np.float32), np.empty(SHAPES[0], np.float32)
        run.read(0, "master", master)
        run.read(0, "m", m)
        assert np.allclose(m, 0.1 * values()[0], rtol=1e-6)
        assert np.allclose(master, values()[0] - 1e-2 * np.sign(values()[0]), atol=1e-5)
        part = np.empty(5, np.float32)
        run.read(0, "master", part, first=100)
        assert np.array_equal(part, master.reshape(-1)[100:105])


def test_leases_lend_memory_and_dlpack_tensors(tmp_path):
    with make(tmp_path / "store") as run:
        run.expect([0, 1])
        with run.acquire(0) as lease:
            lent = np.frombuffer(lease.memory(0), np.float32).reshape(SHAPES[0])
            assert np.array_equal(lent, values()[0])
            assert lease.address(0) % 64 == 0 and lease.num_bytes >= 4 * (64 * 32 + 32)
            assert lease.memory(1).readonly
            with pytest.raises(forebay.UsageError, match="not of layer 0"):
                lease.address(2)
            lease.tensor(0).__dlpack__()  # that nobody takes over
            kept = np.from_dlpack(lease.tensor(0))
        with pytest.raises(forebay.UsageError, match="released"):
            lease.address(0)
        assert np.array_equal(kept, values()[0])
        run.acquire(1).release()
        with pytest.raises(forebay.UsageError):
            run.commit({"epoch": 2})  # `kept` is out
        del kept
        run_step(run)
        run.commit()


def test_raw_tensors_go_with_the_steps(tmp_path):
    with make(tmp_path / "store") as run:
        run.begin_step([GROUP])
        run.raw(3)[:] = bytes(range(8))
        run.finish_backward()
        run.update(commit_now=True)
    with layers(tmp_path / "store") as run:
        run.open()
        assert bytes(run.raw(3)) == bytes(range(8))


def test_a_step_is_skipped_or_abandoned(tmp_path):
    with make(tmp_path / "store") as run:
        run.begin_step([GROUP], clip=1.0, loss_scale=8.0)
        bad = values()[2]
        bad[0, 0] = np.inf
        run.add_gradient(2, "f32", bad)
        assert run.finish_backward().nonfinite_layer == 1
        with pytest.raises(forebay.UsageError):
            run.update()
        run.abandon()
        assert run.step == 0
        run.begin_step([GROUP])
        run.finish_backward()
        run.skip(commit_now=True)
        assert (run.committed_step, run.updates_of(0)) == (1, 0)
        run.expect([0])
        with run.acquire(0) as lease:
            assert np.array_equal(np.frombuffer(lease.memory(0), np.float32), values()[0].reshape(-1))


def test_errors_have_the_codes_of_the_program(tmp_path):
    with make(tmp_path / "store") as run:
        with pytest.raises(forebay.UsageError) as caught:
            run.add_gradient(0, "f32", b"1234")
        assert caught.value.exit_code == 2
        other = layers(tmp_path / "store")
        with pytest.raises(forebay.EnvironmentProblem):
            other.open()  # this process has it open
        other.close()
    with pytest.raises(forebay.UsageError):
        layers(tmp_path / "store").create()  # there is one
    with pytest.raises(forebay.BadInputError):
        layers(tmp_path / "none").open()
    another = forebay.Inventory()
    another.begin_layer("first")
    another.add("first.weight", (64, 31))
    with pytest.raises(forebay.UsageError, match="another model"):
        forebay.Layers(another, tmp_path / "store", weight_dtype="f32", gradient_dtype="f32").open()
    with pytest.raises(forebay.DoesNotFitError) as caught:
        layers(tmp_path / "small", ram_bytes=1000)
    assert isinstance(caught.value, MemoryError) and caught.value.exit_code == 4
    with pytest.raises(forebay.UsageError, match="durability='often' is not known. Use one of: auto, none"):
        layers(tmp_path / "store", durability="often")
    with pytest.raises(forebay.UsageError, match="called 'first.weight'"):
        another.add("first.weight", (2,))
    closed = layers(tmp_path / "store")
    closed.close()
    with pytest.raises(forebay.UsageError, match="closed"):
        closed.open()


def test_stop_ends_a_creation(tmp_path):
    run = layers(tmp_path / "store")
    run.create()
    run.stop()
    with pytest.raises(forebay.StoppedError) as caught:
        for tensor, array in enumerate(values()):
            run.fill(tensor, "f32", array)
    assert caught.value.exit_code == 75
    run.close()
    assert not layers(tmp_path / "store").exists()
    make(tmp_path / "store").close()


def test_a_fork_leaves_the_object_to_its_maker(tmp_path):
    with make(tmp_path / "store") as run:
        child = os.fork()
        if child == 0:
            run.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run_step(run)
        run.commit()
