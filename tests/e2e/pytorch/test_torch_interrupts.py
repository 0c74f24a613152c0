"""Ctrl-C while a call waits for the disk, and between any two calls of a step, a commit or a read: it is a
KeyboardInterrupt at once, nothing stays leased, and what follows has the bits of a run that nobody interrupted."""

import gc
import os
import pathlib
import random
import signal
import sys
import threading
import time

import forebay
import forebay.torch
import pytest
import torch
from forebay._library import lib
from test_stream_architectures import make as make_transformer
from test_torch_stream import assert_same, in_ram, loss_of, make, train

STEPS = 60
PACKAGE = f"{pathlib.Path(forebay.__file__).parent}{os.sep}"


@pytest.fixture(scope="module")
def expected():
    """The losses of a run without a stop."""
    torch.set_num_threads(1)
    return in_ram("tied", steps=STEPS)[0]


def stream(folder, **settings):
    return forebay.torch.stream(make("tied"), nvme=folder / "store", lr=1e-2, **settings)


def assert_goes_on(engine, expected, where=""):
    """Nothing is leased, and the step that comes next has the bits that it should have."""
    engine.zero_grad()
    gc.collect()
    assert engine.optimizer.layers.stats()["leased_layers"] == [], where
    steps = engine.steps
    assert train(engine.module, engine, 1, first=steps + 1) == [expected[steps]]
    assert engine.steps == steps + 1


# ---- While a call waits


class Held:
    """A function of the library whose first call sends Ctrl-C, and goes on when the caller is through with that, or has
    called stop()."""

    def __init__(self, function):
        self.function = function
        self.is_first = True
        self.may_end = threading.Event()
        self.failure = ""

    def __call__(self, *arguments):
        if self.is_first:
            self.is_first = False
            if threading.current_thread() is threading.main_thread():
                self.failure = "the wait is on the main thread, where no signal ends it"
            time.sleep(0.01)  # until the caller waits
            os.kill(os.getpid(), signal.SIGINT)
            if not self.may_end.wait(10):
                self.failure = self.failure or "the interrupted call waited for its end"
        return self.function(*arguments)


@pytest.fixture
def interrupted(monkeypatch):
    """A function that makes a call, and holds and interrupts it in a function of the library."""
    def interrupted(name, call):
        held = Held(getattr(lib, name))
        monkeypatch.setattr(lib, name, held)
        stop = lib.forebay_layers_stop
        monkeypatch.setattr(lib, "forebay_layers_stop", lambda layers: (held.may_end.set(), stop(layers)))
        try:
            with pytest.raises(KeyboardInterrupt):
                call()
        finally:
            held.may_end.set()
            monkeypatch.setattr(lib, name, held.function)
            monkeypatch.setattr(lib, "forebay_layers_stop", stop)
        assert not held.is_first and not held.failure, held.failure

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield interrupted
    signal.signal(signal.SIGINT, before)


def read_all(engine):
    return [weight.clone() for _, weight in engine.named_weights()]


@pytest.mark.parametrize(("name", "call"), [
    ("acquire", lambda engine, folder: engine.state_dict()),
    ("acquire", lambda engine, folder: read_all(engine)),
    ("acquire", lambda engine, folder: engine.save_pretrained(folder / "saved")),
    ("acquire", lambda engine, folder: loss_of(engine.module, 2)),
    ("begin_step", lambda engine, folder: loss_of(engine.module, 2)),
    ("settle", lambda engine, folder: loss_of(engine.module, 2)),
    ("add_gradient", lambda engine, folder: engine.backward(loss_of(engine.module, 2))),
    ("close_layer", lambda engine, folder: engine.backward(loss_of(engine.module, 2))),
    ("finish_backward", lambda engine, folder: train(engine.module, engine, 1, first=2)),
    ("commit", lambda engine, folder: engine.commit()),
    ("commit", lambda engine, folder: engine.optimizer.state_dict()),
    ("read", lambda engine, folder: engine.optimizer.full_state_dict()),
    ("abandon", lambda engine, folder: (loss_of(engine.module, 2), engine.commit())),
])
def test_a_wait_of_a_streamed_module_ends(tmp_path, interrupted, expected, name, call):
    engine = stream(tmp_path)
    assert train(engine.module, engine, 1) == expected[:1]
    interrupted(f"forebay_layers_{name}", lambda: call(engine, tmp_path))
    assert not (tmp_path / "saved").exists() or not list((tmp_path / "saved").iterdir())
    assert_goes_on(engine, expected)
    engine.commit()
    engine.close()
    engine = stream(tmp_path, resume=True)
    assert_goes_on(engine, expected)


@pytest.mark.parametrize("name", ["create", "fill"])
def test_stream_ends_and_makes_the_store_anew(tmp_path, interrupted, expected, name):
    interrupted(f"forebay_layers_{name}", lambda: stream(tmp_path))
    gc.collect()
    assert_goes_on(stream(tmp_path), expected)


def test_resuming_ends_and_can_be_called_again(tmp_path, interrupted, expected):
    engine = stream(tmp_path)
    train(engine.module, engine, 2)
    engine.commit()
    engine.close()
    interrupted("forebay_layers_open", lambda: stream(tmp_path, resume=True))
    gc.collect()
    assert_goes_on(stream(tmp_path, resume=True), expected)


def test_generate_ends(tmp_path, interrupted):
    prompt = torch.arange(1, 7)[None]
    model = make_transformer("llama").eval()
    kwargs = {"max_new_tokens": 5, "do_sample": False}
    tokens = model.generate(prompt, **kwargs)
    engine = forebay.torch.stream(model, nvme=tmp_path / "store")
    interrupted("forebay_layers_acquire", lambda: model.generate(prompt, **kwargs))
    gc.collect()
    assert engine.optimizer.layers.stats()["leased_layers"] == []
    assert torch.equal(model.generate(prompt, **kwargs), tokens)


@pytest.mark.parametrize(("name", "call"), [
    ("update", lambda optimizer: optimizer.step()), ("acquire", lambda optimizer: optimizer.step()),
    ("commit", lambda optimizer: optimizer.commit()), ("read", lambda optimizer: optimizer.full_state_dict())])
def test_a_wait_of_an_optimizer_ends_and_its_step_is_made(tmp_path, interrupted, name, call):
    def run(interrupts, **where):
        model = make("tied")
        optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-2, **where)
        for step in range(1, 4):
            loss_of(model, step).backward()
            if interrupts and step == 2:
                if name in ("commit", "read"):
                    optimizer.step()
                interrupted(f"forebay_layers_{name}", lambda: call(optimizer))
                optimizer.commit()  # as docs/pytorch.md says: it has the step
                assert optimizer.layers.committed_step == 2
            else:
                optimizer.step()
            optimizer.zero_grad()
        return model.state_dict()

    assert_same(run(True, nvme=tmp_path / "store"), run(False))


# ---- Between any two calls


class Interrupt:
    """Ctrl-C at the nth place within the package where Python looks for signals: behind a call into C, and as a
    function begins. `was_at`: the place; None: the end came first."""

    def __init__(self, number):
        self.left = number
        self.was_at = None

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def _see(self, frame, event, _argument):
        code = frame.f_code
        if event in ("call", "c_return") and code.co_filename.startswith(PACKAGE) and code.co_name != "__del__":
            self.left -= 1
            if self.left == 0:
                self.was_at = f"{code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
                raise KeyboardInterrupt

    def __exit__(self, *_):
        sys.setprofile(None)


def places(seed, num_places, most_between):
    rng = random.Random(seed)
    place = 0
    for _ in range(num_places):
        place += rng.randrange(1, most_between)
        yield place


def interrupt_at(place, call):
    """Returns where it came."""
    with Interrupt(place) as interrupt:
        try:
            call()
        except KeyboardInterrupt:
            assert interrupt.was_at is not None
        else:
            assert interrupt.was_at is None, f"Ctrl-C at {interrupt.was_at} was lost"
    return interrupt.was_at


@pytest.mark.parametrize("options", [{}, {"commit_every": 1}, {"update_in_backward": True}], ids=str)
def test_ctrl_c_anywhere_in_a_step(tmp_path, expected, options):
    engine = stream(tmp_path, **options)
    train(engine.module, engine, 1)
    for place in places(seed=5, num_places=26, most_between=550):
        before = engine.steps
        where = interrupt_at(place, lambda: train(engine.module, engine, 1, first=engine.steps + 1))
        if where is None:
            break
        assert engine.steps in (before, before + 1), where
        assert_goes_on(engine, expected, where)
    assert place > 5000


@pytest.mark.parametrize("call", [
    lambda engine, folder: engine.state_dict(), lambda engine, folder: read_all(engine),
    lambda engine, folder: engine.save_pretrained(folder / "saved"),
    lambda engine, folder: engine.commit({"text": "a"}), lambda engine, folder: engine.optimizer.full_state_dict()],
    ids=["state_dict", "named_weights", "save_pretrained", "commit", "full_state_dict"])
def test_ctrl_c_anywhere_in_a_read_or_commit(tmp_path, expected, call):
    engine = stream(tmp_path)
    train(engine.module, engine, 1)
    for place in places(seed=6, num_places=12, most_between=100):
        where = interrupt_at(place, lambda: call(engine, tmp_path))
        if where is None:
            break
        assert not list(tmp_path.glob("saved/*.unfinished")), where
        assert_goes_on(engine, expected, where)
    call(engine, tmp_path)
    engine.optimizer.state_dict()  # commits
    engine.close()
    assert_goes_on(stream(tmp_path, resume=True), expected)
