"""forebay.deepspeed: checkpoints of its engine, through other processes, kills and full disks; weights of a streamed
module."""

import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import torch

if __name__ == "__main__":  # the run that is killed
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "python"))

import forebay
import forebay.torch
from forebay import deepspeed
from forebay.deepspeed import _checkpoint
from forebay.torch._streaming.absent import Absent

ENGINES = {"ram": (2, None, None), "state on nvme": (2, "a", None), "all on nvme": (3, "a", "a"),
           "two disks": (3, "a", "b")}


class Net(torch.nn.Module):
    """With a buffer that training changes, and a frozen part."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.GELU())
                                          for _ in range(3))
        self.norm = torch.nn.BatchNorm1d(12)
        self.head = torch.nn.Linear(12, 5)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


def make_engine(folder, kind, **more):
    stage, state, weights = ENGINES[kind]
    zero = {"stage": stage}
    for key, disk in (("offload_optimizer", state), ("offload_param", weights)):
        if disk is not None:
            zero[key] = {"device": "nvme", "nvme_path": os.path.join(folder, disk)}
    torch.manual_seed(1)
    model = Net()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_batch_size": 8, "gradient_clipping": 0.5, "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}, **more})[0]


def train(engine, first, last):
    losses = []
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 12, generator=generator), torch.randint(0, 5, (8,), generator=generator)
        loss = torch.nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ENGINES)
def test_each_tag_can_be_loaded_whatever_happens_to_the_others(tmp_path, kind):
    engine = make_engine(tmp_path, kind)
    losses = []
    for step in (2, 4):
        losses += train(engine, step - 2, step)
        assert engine.save_checkpoint(tmp_path / "out", client_state={"epoch": step})
    engine.save_checkpoint(tmp_path / "out", tag="global_step4")  # once more, over itself
    losses += train(engine, 4, 6)
    weights = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
    engine.destroy()
    assert not [path for disk in ("a", "b") if (tmp_path / disk).exists() for path in (tmp_path / disk).iterdir()]

    other = make_engine(tmp_path, kind)
    assert other.load_checkpoint(tmp_path / "none") == (None, {})
    for tag, step in (("global_step2", 2), (None, 4), ("global_step2", 2)):  # with a store that is open, too
        path, state = other.load_checkpoint(tmp_path / "out", tag)
        assert path.endswith(f"global_step{step}") and state == {"epoch": step} or tag is None and state == {}
        assert other.global_steps == step
        assert train(other, step, 6) == losses[step:]
        assert all(torch.equal(tensor, weights[name]) for name, tensor in other.state_dict().items())
    shutil.rmtree(tmp_path / "out" / "global_step2")  # as save_total_limit does it
    with pytest.raises(forebay.BadInputError, match="no checkpoint global_step2 .* can be loaded: global_step4"):
        other.load_checkpoint(tmp_path / "out", "global_step2")
    os.rename(tmp_path / "out", tmp_path / "moved")
    other.load_checkpoint(tmp_path / "moved")
    assert train(other, 4, 6) == losses[4:]
    other.destroy()


class Spy:
    """An object whose reading runs code."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return os.mkdir, (self.file,)


@pytest.mark.parametrize("kind", ["ram", "all on nvme"])
def test_code_in_a_checkpoint_is_run_only_for_who_trusts_it(tmp_path, kind):
    engine = make_engine(tmp_path, kind)
    losses = train(engine, 0, 3)
    plain = {"epoch": 1, "names": ["a", None, 1.5], "values": torch.arange(3)}
    engine.save_checkpoint(tmp_path / "out", "plain", plain)
    engine.save_checkpoint(tmp_path / "out", "spied", {"spy": Spy(tmp_path / "spied")})
    engine.save_checkpoint(tmp_path / "out", "of a class", {"path": tmp_path})
    losses += train(engine, 3, 4)
    engine.destroy()
    engine = make_engine(tmp_path, kind)
    before = train(engine, 0, 2)
    for tag in ("spied", "of a class"):
        with pytest.raises(forebay.BadInputError, match=r"client_state.*trust_client_state=True"):
            engine.load_checkpoint(tmp_path / "out", tag)
    assert not (tmp_path / "spied").exists()
    assert before + train(engine, 2, 3) == losses[:3]  # nothing has changed
    _, state = engine.load_checkpoint(tmp_path / "out", "plain")
    assert torch.equal(state.pop("values"), torch.arange(3)) and state == {"epoch": 1, "names": ["a", None, 1.5]}
    assert train(engine, 3, 4) == losses[3:]
    _, state = engine.load_checkpoint(tmp_path / "out", "of a class", trust_client_state=True)
    assert state == {"path": tmp_path}
    assert train(engine, 3, 4) == losses[3:]
    engine.load_checkpoint(tmp_path / "out", "spied", trust_client_state=True)
    assert (tmp_path / "spied").exists()
    engine.destroy()


@pytest.mark.parametrize("content", [b"", b"junk", None], ids=["empty", "junk", "another program's"])
def test_a_file_that_is_no_checkpoint_is_bad_input(tmp_path, content):
    engine = make_engine(tmp_path, "ram")
    engine.save_checkpoint(tmp_path / "out", "tag")
    file = tmp_path / "out" / "tag" / _checkpoint.FILE
    if content is None:
        torch.save({"model": 1}, file)
    else:
        file.write_bytes(content)
    for trusts in (False, True):
        with pytest.raises(forebay.BadInputError, match=_checkpoint.FILE):
            engine.load_checkpoint(tmp_path / "out", "tag", trust_client_state=trusts)
    engine.destroy()


@pytest.mark.parametrize(("kind", "moment"), [
    ("all on nvme", "between"), ("all on nvme", "copying"), ("all on nvme", "naming"), ("state on nvme", "copying"),
    ("ram", "naming")])
def test_a_kill_leaves_the_last_tag(tmp_path, kind, moment):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, __file__, tmp_path, kind, moment], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if kind != "ram":
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["forebay-scratch-0"]
    plain = make_engine(tmp_path / "plain", kind)
    expected = train(plain, 0, 5)
    plain.destroy()
    engine = make_engine(tmp_path, kind)  # in the place of what the killed one has left
    path, _ = engine.load_checkpoint(tmp_path / "out")
    assert path.endswith("global_step2")
    assert train(engine, 2, 5) == expected[2:]
    engine.save_checkpoint(tmp_path / "out", "global_step4")  # over what was half made
    assert len([name for name in os.listdir(tmp_path / "out" / "global_step4") if name.startswith("store-")]) <= 1
    engine.destroy()
    assert kind == "ram" or not list((tmp_path / "a").iterdir())


def run_and_be_killed(folder, kind, moment):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    engine = make_engine(folder, kind)
    train(engine, 0, 2)
    engine.save_checkpoint(os.path.join(folder, "out"))
    train(engine, 2, 4)
    if moment == "copying":
        os.copy_file_range = die
    if moment == "naming":
        _checkpoint._replace = die
    if moment != "between":
        engine.save_checkpoint(os.path.join(folder, "out"))
    die()


@pytest.mark.parametrize("kind", ["state on nvme", "all on nvme"])
def test_a_full_disk_costs_the_new_tag_alone(tmp_path, monkeypatch, kind):
    engine = make_engine(tmp_path, kind)
    losses = train(engine, 0, 2)
    engine.save_checkpoint(tmp_path / "out")
    losses += train(engine, 2, 3)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "copy_file_range", full)
        with pytest.raises(forebay.StorageError, match="needs a copy of the state, [0-9]+ bytes .* No space left"):
            engine.save_checkpoint(tmp_path / "out")
    losses += train(engine, 3, 5)
    assert engine.load_checkpoint(tmp_path / "out")[0].endswith("global_step2")
    assert train(engine, 2, 5) == losses[2:]
    engine.destroy()


def test_a_filesystem_that_copies_nothing_by_itself(tmp_path, monkeypatch):
    def cannot(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", cannot)
    engine = make_engine(tmp_path, "all on nvme")
    train(engine, 0, 2)
    engine.save_checkpoint(tmp_path / "out")
    losses = train(engine, 2, 4)
    engine.load_checkpoint(tmp_path / "out")
    assert train(engine, 2, 4) == losses
    engine.destroy()


def test_two_engines_share_a_disk(tmp_path):
    (tmp_path / "a" / "forebay-scratch-1" / "store").mkdir(parents=True)  # two were killed, and one comes again
    one = make_engine(tmp_path, "all on nvme")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["forebay-scratch-0"]
    two = make_engine(tmp_path, "all on nvme")
    assert train(one, 0, 2) == train(two, 0, 2)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["forebay-scratch-0", "forebay-scratch-1"]
    child = os.fork()  # as a worker of a DataLoader, which outlives a program that is killed
    if child == 0:
        signal.pause()
    one.scratch[0].give_up_lock()
    third = make_engine(tmp_path, "all on nvme")
    assert third.scratch[0].store.endswith("forebay-scratch-0/store")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    third.destroy()
    del one  # without destroy()
    two.destroy()


def test_weights_alone(tmp_path):
    for kind in ("ram", "state on nvme"):
        fp16 = {"fp16": {"enabled": True, "loss_scale": 1, "auto_cast": True}}
        engine = make_engine(tmp_path, kind, **fp16)
        train(engine, 0, 3)
        engine.save_checkpoint(tmp_path / kind)
        weights = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        fresh = make_engine(tmp_path, kind, **fp16)
        train(fresh, 7, 8)  # its store, or its masters, have other weights
        fresh.load_checkpoint(tmp_path / kind, load_module_only=True)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in fresh.state_dict().items())
        assert fresh.lr_scheduler.last_batch_iteration == 0
        for group in fresh.optimizer.param_groups:
            group["lr"] = 0.0
        train(fresh, 3, 4)  # from these weights on, not from those of its masters before
        assert all(torch.equal(parameter, weights[name]) for name, parameter in fresh.module.named_parameters())
        engine.destroy()
        fresh.destroy()
    streamed = make_engine(tmp_path, "all on nvme")
    streamed.save_checkpoint(tmp_path / "streamed")
    with pytest.raises(forebay.NotSupportedError, match="save_16bit_model"):
        streamed.load_checkpoint(tmp_path / "streamed", load_module_only=True)
    with pytest.raises(forebay.UsageError, match="another offload_optimizer"):
        streamed.load_checkpoint(tmp_path / "ram")
    shutil.rmtree(tmp_path / "streamed" / "global_step0" / "store-0")
    with pytest.raises(forebay.BadInputError, match="store-0/0, which is not there"):
        streamed.load_checkpoint(tmp_path / "streamed")
    assert streamed.save_16bit_model(tmp_path / "model")
    saved = torch.load(tmp_path / "model" / "pytorch_model.bin")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in streamed.state_dict().items())
    streamed.destroy()


def test_gathered_parameters_have_their_weights(tmp_path):
    engine = make_engine(tmp_path, "all on nvme")
    train(engine, 0, 2)
    state = engine.module_state_dict()
    assert "head.bias" in state and "head.bias" not in engine.module_state_dict(exclude_frozen_parameters=True)
    named = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values())):
        assert all(torch.equal(parameter, state[name]) for name, parameter in named.items())
    assert all(isinstance(parameter, Absent) for parameter in named.values())
    with (pytest.raises(forebay.NotSupportedError, match="1 parameters of a streamed module were written to"),
          deepspeed.zero.GatheredParameters(engine.module.head.weight, modifier_rank=0)):
        engine.module.head.weight.data.zero_()
    with deepspeed.zero.GatheredParameters(engine.module.head.weight):
        engine.module.head.weight.data.zero_()  # dropped
    engine.empty_partition_cache()
    plain = make_engine(tmp_path, "ram")
    assert train(plain, 0, 4)[2:] == train(engine, 2, 4)
    with torch.no_grad(), deepspeed.zero.GatheredParameters(engine.module.blocks[1].parameters()):
        assert torch.equal(engine.eval()(torch.ones(2, 12)), plain.eval()(torch.ones(2, 12)))
    engine.destroy()


if __name__ == "__main__":
    run_and_be_killed(*sys.argv[1:])
