"""What programs do wrong: values that no setting can have, folders that are no names, a current folder that changes, calls
from forks, and calls from signal handlers."""

import gc
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import forebay
import forebay.io
import forebay.torch
import numpy as np
import pytest
import torch
from test_torch_stream import assert_same, in_ram, loss_of, make, train

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[1] / "package")]
import confined
from test_given import in_fork, refused

OPTIMIZERS = {"AdamW": ("lr", "eps", "weight_decay", "betas"), "Adam": ("lr", "eps", "weight_decay", "betas"),
              "Adagrad": ("lr", "eps", "weight_decay"), "Lion": ("lr", "weight_decay", "betas"),
              "SGD": ("lr", "momentum", "weight_decay")}
HUGE = 2**70


def model():
    torch.manual_seed(1)
    return torch.nn.Linear(8, 4)


# ---- Values


@pytest.mark.parametrize(("optimizer", "setting"), [(name, each) for name, settings in OPTIMIZERS.items()
                                                    for each in settings])
def test_settings_that_torch_refuses_are_refused(tmp_path, optimizer, setting):
    make_it = getattr(forebay.torch, optimizer)
    wrong = ([(-0.1, 0.9), (0.9, 1.0), (0.9, math.nan), (0.9,), ("0.9", 0.9)] if setting == "betas" else
             [-1, -1e-30, math.nan, "1e-3", None, True])
    for value in wrong:
        for where in ({}, {"nvme": tmp_path / "store"}):
            refused(lambda value=value, where=where: make_it(model().parameters(), **{setting: value}, **where), setting)
        # An added group with the same value is refused.
        of = make_it(model().parameters())
        refused(lambda value=value, of=of: of.add_param_group({"params": model().parameters(), setting: value}), setting)
        assert len(of.param_groups) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("option", "values"), [
    ("threads", (2**40, HUGE, -1, True, 1.0, "1", None)), ("zero_stage", (4, -1, True, 1.0, None)),
    ("ram", (HUGE, 0, -1, True, "8 parsecs", "0GiB", "", "1e3", 0.5, math.nan, [1], "nan", ".", "1..2GB", "9999999TiB")),
    ("reduce_bucket", (HUGE, 0, -1)), ("clip", (-1, math.nan, "1", True, None)), ("nvme", ("", b"", [""], [None], 1, [1]))])
def test_options_that_no_store_can_have_are_refused(tmp_path, monkeypatch, option, values):
    monkeypatch.chdir(tmp_path)
    for value in values:
        def call(value=value):
            return forebay.torch.AdamW(model().parameters(), **{"nvme": tmp_path / "store", option: value})

        refused(call, option)
        if option != "clip":
            refused(lambda value=value: forebay.torch.stream(model(), **{"nvme": tmp_path / "s", option: value}), option)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("option", "values"), [("accumulation_steps", (0, -1, True, 1.5, "1", HUGE)),
                                                ("commit_every", (-1, True, 1.5, HUGE, None))])
def test_options_of_a_stream_that_are_no_numbers_are_refused(tmp_path, option, values):
    for value in values:
        refused(lambda value=value: forebay.torch.stream(model(), nvme=tmp_path / "s", **{option: value}), option)


def test_sizes_are_what_they_say():
    from forebay._given import bytes_of
    for size, num_bytes in ((2**60 + 1, 2**60 + 1), ("8GiB", 8 << 30), ("1.5KB", 1500), (" 3 MiB ", 3 << 20), (1e9, 10**9),
                            (np.int64(7), 7), ("9007199254740993", 9007199254740993), (2**63 - 1, 2**63 - 1)):
        assert bytes_of(size, "ram") == num_bytes


def test_numpys_numbers_and_tensors_are_settings(tmp_path):
    of = forebay.torch.AdamW(model().parameters(), lr=torch.tensor(1e-2), weight_decay=np.float32(0.5), eps=np.float64(1e-8),
                             nvme=os.fsencode(tmp_path / "store"), threads=np.int64(1), ram="30MB")
    for parameter in of.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    of.step()
    of.commit()
    of.close()


@pytest.mark.parametrize("user", [{"a": "\ud800"}, {"a": math.nan}, {"a": {1}}, {1: 2}, [], 0, "a"], ids=repr)
def test_words_of_a_commit_are_json(tmp_path, user):
    of = forebay.torch.AdamW(model().parameters(), nvme=tmp_path / "store")
    engine = forebay.torch.stream(model(), nvme=tmp_path / "streamed")
    for each in (of, engine):
        refused(lambda each=each: each.commit(user), "['a']" if isinstance(user, dict) and "a" in user else "user")
    of.commit({"fine": [1]})
    of.param_groups[0]["mine"] = object()
    refused(of.commit, "param_groups[0]['mine']")
    of.close()
    engine.close()


def test_offloaded_activations_take_no_wrong_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options in ({"nvme": ""}, {"nvme": 1}, {"ram": HUGE}, {"ram": -1}, {"least_bytes": -1}, {"least_bytes": 1.5}):
        refused(lambda options=options: forebay.torch.offload_activations(**options), next(iter(options)))


# ---- A kernel that does not say which cores there are

PROGRAM = """
import os, sys
try:
    os.sched_getaffinity(0)
except PermissionError:
    print("refused")
import torch
import forebay.torch
model = torch.nn.Linear(4, 4)
optimizer = forebay.torch.AdamW(model.parameters(), nvme=sys.argv[1])
loader = forebay.torch.ResumableLoader(list(range(4)), batch_size=2, num_workers=2)
for rows in loader:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
optimizer.commit()
print(optimizer.layers.committed_step, os.sched_getaffinity(0) == set(range(os.cpu_count())))
forebay.Kernels().close()
optimizer.close()
"""


def test_where_the_kernel_does_not_tell_the_cores_all_are_taken(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "store"], capture_output=True, text=True,
                          preexec_fn=confined.forbidding(confined.sched_getaffinity()), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused", "2", "True"]


# ---- A current folder that changes


def test_relative_folders_stay_where_they_were(tmp_path, monkeypatch):
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)

    first = model()
    of = forebay.torch.AdamW(first.parameters(), nvme="store")
    os.chdir("else")
    first(torch.ones(2, 8)).sum().backward()
    of.step()
    os.chdir("/")
    of.commit({"at": 1})
    reference = of.state_dict()
    assert reference["forebay"]["folders"] == [str(tmp_path / "store")]
    of.close()
    os.chdir(tmp_path)
    second = model()
    again = forebay.torch.AdamW(second.parameters(), nvme=["store"])
    os.chdir("else")
    assert again.resume() == {"at": 1}  # and not None, which would begin anew
    assert_same(second.state_dict(), first.state_dict())
    again.close()
    os.chdir(tmp_path)
    engine = forebay.torch.stream(make("tied"), nvme="streamed", lr=1e-2)
    offload = forebay.torch.offload_activations(nvme="activations", ram="1MB")
    os.chdir("/")
    losses = train(engine.module, engine, 2)
    with offload:
        engine.module
    engine.commit()
    os.chdir(tmp_path)
    engine.save_pretrained("saved")
    engine.close()
    os.chdir("else")
    engine = forebay.torch.stream(make("tied"), nvme="../streamed", lr=1e-2, resume=True)
    os.chdir("/")
    assert losses + train(engine.module, engine, 1, first=3) == in_ram("tied", steps=3)[0]
    engine.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["activations", "else", "saved", "store", "streamed"]
    assert not list((tmp_path / "else").iterdir())


# ---- Forks


def backward_of(loss):
    loss.backward()
    return loss


def test_every_call_of_an_optimizer_in_a_fork_is_an_error_at_once(tmp_path):
    for where in ({}, {"nvme": tmp_path / "store"}, {"nvme": tmp_path / "early", "backward_update": True}):
        module = model()
        of = forebay.torch.AdamW(module.parameters(), **where)
        module(torch.ones(2, 8)).sum().backward()
        of.step()
        of.zero_grad()
        if where:
            of.commit()
        state = of.state_dict()
        module(torch.ones(2, 8)).sum().backward()
        calls = {
            "step": of.step, "zero_grad": of.zero_grad, "state_dict": of.state_dict, "full": of.full_state_dict,
            "load": lambda: of.load_state_dict(state), "commit": of.commit, "resume": of.resume,
            "track": lambda: of.track(a=of), "close": of.close, "layers": lambda: of.layers, "saving": enter(of.saving),
            "scaled": lambda: of.step_scaled(1.0), "reload": of.reload_model_params, "sharded": of.sharded_state_dict,
            "group": lambda: of.add_param_group({"params": model().parameters()}), "ready": of.step_with_ready_grads,
            "finish": of.finish_commit, "due": of.commit_if_due}
        if where.get("backward_update"):
            calls["backward"] = lambda module=module: module(torch.ones(2, 8)).sum().backward()
        assert in_fork(lambda: wrong_in(calls)) == "{}"
        of.step()  # as if there had been no fork
        of.close()


def enter(context):
    def enter_it():
        with context():
            pass
    return enter_it


def wrong_in(calls, limit_s=1):
    """The calls that are no UsageError of a fork, or take longer."""
    wrong = {}
    for name, call in calls.items():
        begin = time.monotonic()
        try:
            call()
            wrong[name] = "was made"
        except forebay.UsageError as error:
            if "a fork of it" not in str(error):
                wrong[name] = str(error)
        if time.monotonic() - begin > limit_s:
            wrong[name] = "took too long"
    gc.collect()
    return wrong


@pytest.mark.parametrize("moment", ["between steps", "in a step", "before backward"])
def test_every_call_of_a_streamed_module_in_a_fork_is_an_error_at_once(tmp_path, moment):
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    module, of = engine.module, engine.optimizer
    losses = train(module, engine, 2)
    engine.commit()
    state = engine.state_dict()
    loss = None
    if moment != "between steps":
        loss = loss_of(module, 3)
    if moment == "in a step":
        engine.backward(loss)
    calls = {
        "forward": lambda: loss_of(module, 3), "no_grad": torch.no_grad()(lambda: loss_of(module, 3)),
        "step": engine.step, "zero_grad": engine.zero_grad, "commit": engine.commit, "track": lambda: engine.track(a=of),
        "state_dict": engine.state_dict, "module": module.state_dict, "weights": lambda: next(engine.named_weights()),
        "save": lambda: engine.save_pretrained(tmp_path / "saved"), "steps": lambda: engine.steps,
        "deviations": lambda: engine.num_deviations, "close": engine.close, "of_state": of.state_dict,
        "full": of.full_state_dict, "resume": of.resume, "layers": lambda: of.layers,
        "load": lambda: module.load_state_dict(state),
        "pretrained": lambda: engine.load_pretrained(tmp_path), "parameter": lambda: first_parameter(module)}
    if loss is not None and moment != "in a step":
        calls["backward"] = lambda: engine.backward(loss)
    if moment == "in a step":
        calls["norm"] = lambda: torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    wrong = in_fork(lambda: wrong_in(calls))
    assert wrong == "{}"
    assert not list(tmp_path.glob("saved/*"))
    if moment == "before backward":
        engine.backward(loss)
    elif moment == "between steps":
        loss = loss_of(module, 3)
        engine.backward(loss)
    engine.step()
    assert [*losses, loss.item()] == in_ram("tied", steps=3)[0]
    engine.commit()
    engine.close()


def first_parameter(module):
    """A parameter as a module around it takes it, which brings its weights."""
    for part in module.modules():
        for name in part._parameters:
            if part._parameters.get(name) is not None:
                return part._parameters[name].sum()
    raise AssertionError


def test_a_fork_while_another_thread_has_the_locks_does_not_hang(tmp_path):
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    train(engine.module, engine, 1)
    offload = forebay.torch.offload_activations(nvme=tmp_path / "activations", ram="16KiB", least_bytes=1)
    with offload:
        hidden = torch.ones(4096, requires_grad=True).exp().exp()  # of so few elements torch has no threads
    stop = threading.Event()

    def keep_busy():
        layers = engine.optimizer.layers
        while not stop.is_set():
            layers.stats()

    threads = [threading.Thread(target=keep_busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    offload._lock.acquire()
    try:
        for _ in range(5):
            assert in_fork(lambda: wrong_in({
                "commit": engine.commit, "forward": lambda: loss_of(engine.module, 2), "enter": offload.__enter__,
                "backward": lambda: hidden.sum().backward(), "close": offload.close})) == "{}"
    finally:
        offload._lock.release()
        stop.set()
        for thread in threads:
            thread.join()
    hidden.sum().backward()
    engine.close()


class Rows(torch.utils.data.Dataset):
    def __init__(self, engine):
        self.engine = engine  # as a program may have it by mistake: it is not called

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((3,), index)


def test_workers_of_a_loader_are_forks_that_work(tmp_path):
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    losses = []
    loader = torch.utils.data.DataLoader(Rows(engine), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for step, rows in enumerate(loader, 1):
        assert rows.shape == (2, 3)
        losses += train(engine.module, engine, 1, first=step)
    assert losses == in_ram("tied", steps=4)[0]
    engine.commit()
    engine.close()


# ---- Signal handlers


class Handler:
    """Every `every_s` a signal, whose handler makes a call; its errors are kept."""

    def __init__(self, call, every_s):
        self.call, self.every_s = call, every_s
        self.num_calls, self.errors = 0, []

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self.every_s, self.every_s)
        return self

    def _handle(self, *_):
        self.num_calls += 1
        try:
            self.call()
        except forebay.UsageError as error:
            self.errors.append(str(error))

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


@pytest.mark.parametrize("options", [{}, {"commit_every": 1}, {"update_in_backward": True}], ids=str)
def test_commits_of_a_signal_handler_are_made_when_the_step_ends(tmp_path, options):
    steps = 30
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2, **options)
    with Handler(engine.commit, 0.003) as handler:
        losses = train(engine.module, engine, steps)
    assert handler.num_calls > steps / 10 and handler.errors == []
    engine.commit()
    engine.close()
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2, resume=True)
    assert engine.steps == steps
    assert losses + train(engine.module, engine, 1, first=steps + 1) == in_ram("tied", steps=steps + 1)[0]
    engine.close()


@pytest.mark.parametrize("where", [{}, {"backward_update": True}], ids=str)
def test_commits_of_a_signal_handler_of_an_optimizer(tmp_path, where):
    module = make("tied")
    of = forebay.torch.AdamW(module.parameters(), lr=1e-2, nvme=tmp_path / "store", **where)
    with Handler(of.commit, 0.003) as handler:
        losses = train(module, of, 30)
    assert handler.num_calls > 3 and handler.errors == []
    assert losses == in_ram("tied", steps=30)[0]
    of.close()


class At:
    """A call at the nth place within the package where Python looks for signals."""

    def __init__(self, number, call):
        self.left, self.call, self.error, self.result = number, call, None, None

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def _see(self, frame, event, _argument):
        code = frame.f_code
        if event in ("call", "c_return") and code.co_filename.startswith(PACKAGE) and code.co_name != "__del__":
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                try:
                    self.result = self.call()
                except forebay.UsageError as error:
                    self.error = str(error)

    def __exit__(self, *_):
        sys.setprofile(None)


PACKAGE = f"{pathlib.Path(forebay.__file__).parent}{os.sep}"
MADE_AT = range(3, 3000, 229)  # the first places are before the pass begins


@pytest.mark.parametrize("options", [{}, {"update_in_backward": True}], ids=str)
def test_a_commit_anywhere_in_a_step_changes_nothing(tmp_path, options):
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2, **options)
    losses = []
    for step, place in enumerate(MADE_AT, 1):
        with At(place, lambda step=step: engine.commit({"step": step})) as at:
            losses += train(engine.module, engine, 1, first=step)
        assert at.error is None, at.error
        if at.left <= 0 and not options:
            assert engine.optimizer.layers.committed_step >= step - 1
    assert losses == in_ram("tied", steps=len(MADE_AT))[0]
    engine.close()


def forward_of(engine):
    with torch.random.fork_rng(), torch.no_grad():
        return loss_of(engine.module, 1)


@pytest.mark.parametrize("call", [
    lambda engine: engine.step(), lambda engine: engine.optimizer.state_dict(), lambda engine: engine.state_dict(),
    lambda engine: engine.zero_grad(), lambda engine: engine.close(), lambda engine: engine.optimizer.resume(),
    lambda engine: engine.optimizer.full_state_dict(), lambda engine: next(engine.named_weights())[1].clone(),
    lambda engine: forward_of(engine)],
    ids=["step", "optimizer.state_dict", "state_dict", "zero_grad", "close", "resume", "full_state_dict", "weights",
         "forward"])
def test_other_calls_anywhere_in_a_step_are_refused_or_right(tmp_path, call):
    """They come between calls too, where they are what they always are."""
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    losses, num_refused = [], 0
    expected = in_ram("tied", steps=len(MADE_AT) + 1)[0]
    train(engine.module, engine, 1)
    for place in MADE_AT:
        step = engine.steps + 1
        with At(place, lambda: call(engine)) as at:
            loss = loss_of(engine.module, step)
            engine.backward(loss)
            engine.optimizer.step_scaled(1.0)
        losses.append(loss.item())
        engine.zero_grad()
        num_refused += at.error is not None
        if at.error is not None:
            assert "in the middle of" in at.error, at.error
        assert engine.steps == step
    assert losses == expected[1:]
    assert num_refused > 0
    engine.close()


def test_a_step_and_a_state_dict_within_a_step_of_an_optimizer_are_refused(tmp_path):
    for where in ({}, {"nvme": tmp_path / "store"}):
        module = make("tied")
        of = forebay.torch.AdamW(module.parameters(), lr=1e-2, **where)
        losses, refusals = [], 0
        for step, place in enumerate(range(1, 900, 67), 1):
            loss = loss_of(module, step)
            loss.backward()
            with At(place, [of.step, of.state_dict, of.zero_grad][step % 3]) as at:
                of._step_scaled(None, None)
            of.zero_grad()
            losses.append(loss.item())
            if at.error is not None:
                assert "in the middle of" in at.error
                refusals += 1
        assert refusals > 0
        assert losses == in_ram("tied", steps=len(losses))[0]
        of.close()


def test_a_commit_that_was_put_off_is_made_by_close(tmp_path):
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2)
    train(engine.module, engine, 1)
    loss = loss_of(engine.module, 2)
    engine.backward(loss)
    engine.commit({"from": "a handler"})  # the step is under way
    assert engine.optimizer.layers.committed_step == 0
    engine.close()
    engine = forebay.torch.stream(make("tied"), nvme=tmp_path / "store", lr=1e-2, resume=True)
    assert engine.steps == 1 and engine.resumed == {"from": "a handler"}
    engine.close()
