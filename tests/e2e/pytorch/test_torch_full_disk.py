"""Streamed runs on disks that another program fills meanwhile: a store has its space from the start, so steps and
commits need none. Where it lacks some, as a sparse copy does, the step is an error that says so, and the last commit is
gone on from."""

import pathlib
import subprocess
import sys

import forebay
import forebay.torch
import pytest
import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import confined

WIDTH = 256
STEPS = 5


def make():
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH)))
                           for _ in range(4)])


def train(model, optimizer, first, last):
    losses = []
    for step in range(first, last + 1):
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def expected():
    model = make()
    return train(model, forebay.torch.AdamW(model.parameters(), lr=1e-2), 1, STEPS)


def stream(disk, **options):
    return forebay.torch.stream(make(), nvme=disk / "store", lr=1e-2, **options)


def leased(engine):
    return engine.optimizer.layers.stats()["leased_layers"]


@pytest.mark.parametrize("options", [{}, {"commit_every": 1}, {"update_in_backward": True}, {"ram": "30MB"}], ids=str)
@pytest.mark.parametrize("file_system", ["tmpfs", "ext4"])
def test_steps_and_commits_need_no_space(tmp_path, expected, file_system, options):
    arguments = () if file_system == "tmpfs" else (tmp_path / "image",)
    with getattr(confined, file_system)(tmp_path / "disk", *arguments) as disk:
        engine = stream(disk, **options)
        losses = train(engine.module, engine, 1, 1)
        confined.fill_to_the_last_block(disk)
        assert confined.free_bytes(disk) < 4096
        losses += train(engine.module, engine, 2, 3)
        engine.commit()
        engine.close()
        with pytest.raises(forebay.DoesNotFitError, match="Free some space there"):  # for a file that is tried
            stream(disk, resume=True, **options)
        for file in disk.glob("full-*"):
            file.unlink()
        engine = stream(disk, resume=True, **options)
        assert engine.steps == 3
        assert losses + train(engine.module, engine, 4, STEPS) == expected
        engine.commit()
        engine.close()


@pytest.mark.parametrize("commit_every", [0, 1])
def test_a_write_that_finds_no_space_is_named_and_the_run_goes_on_behind_it(tmp_path, expected, commit_every):
    with confined.tmpfs(tmp_path / "disk", "size=48m") as disk:
        engine = stream(disk, commit_every=commit_every)
        train(engine.module, engine, 1, 2)
        engine.commit()
        # Holes in the half of each file that the next step writes: each commit is in the other half than the last one.
        for name in ("state.fbs", "weights.fbs"):
            file = disk / "store" / name
            half = file.stat().st_size // 2
            offset = half if commit_every == 1 else 0
            subprocess.run(["fallocate", "--punch-hole", "--offset", str(offset), "--length", str(half), file],
                           check=True)
        confined.fill_to_the_last_block(disk)
        with pytest.raises(forebay.StorageError, match="No space left on device.* free space there and resume"):
            train(engine.module, engine, 3, STEPS)
            engine.commit()
        assert leased(engine) == [] and engine.optimizer.layers.committed_step == 2
        with pytest.raises(forebay.StorageError, match="free space there and resume"):
            engine.commit()
            train(engine.module, engine, engine.steps + 1, STEPS)
        engine.close()
        for file in disk.glob("full-*"):
            file.unlink()
        engine = stream(disk, resume=True, commit_every=commit_every)
        assert engine.steps == 2
        assert train(engine.module, engine, 3, STEPS) == expected[2:]
        engine.commit()
        engine.close()


@pytest.mark.parametrize("options", [{}, {"commit_every": 1}, {"update_in_backward": True}], ids=str)
@pytest.mark.parametrize("copies", [True, False], ids=["copies", "chattr +C"])
def test_btrfs_may_be_too_full_for_a_step_unless_it_writes_in_place(tmp_path, expected, copies, options):
    with confined.btrfs(tmp_path / "disk", tmp_path / "image") as disk:
        if not copies:
            subprocess.run(["chattr", "+C", str(disk)], check=True)
        engine = stream(disk, **options)
        losses = train(engine.module, engine, 1, 2)
        engine.commit()
        confined.fill_to_the_last_block(disk)

        def go_on():
            more = train(engine.module, engine, 3, STEPS)
            engine.commit()
            return more

        if copies:
            with pytest.raises(forebay.StorageError, match=r"'.*store/.*No space left on device.* free space there"):
                go_on()
            assert leased(engine) == [] and engine.optimizer.layers.committed_step == 2
        else:
            assert losses + go_on() == expected
        engine.close()
        for file in disk.glob("full-*"):
            file.unlink()
        engine = stream(disk, resume=True, **options)
        if copies:
            assert engine.steps == 2
            assert losses + train(engine.module, engine, 3, STEPS) == expected
        else:
            assert engine.steps == STEPS
        engine.close()


def test_a_new_store_asks_for_its_space_before_it_is_made(tmp_path, expected):
    with confined.tmpfs(tmp_path / "disk", "size=48m") as disk:
        confined.fill(disk, leave_bytes=4 << 20)
        with pytest.raises(forebay.DoesNotFitError, match=r"free"):
            stream(disk, durability="step")
        (disk / "other").unlink()
        engine = stream(disk, durability="step")
        assert train(engine.module, engine, 1, STEPS) == expected
        engine.close()
