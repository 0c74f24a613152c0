"""Mistakes of ranks that train one module, in their options, their folders or their steps: an error on each of them
that says so, and no rank that waits for ever."""

import os
import re
import shutil
import signal
import sys
import threading
import time

import forebay
import forebay.torch
import pytest
import torch
import torch_ranks_run as run
from forebay._worker import Worker
from forked_ranks import LATE_S, ends_of, errors_of, on_ranks, start_ranks

SOON_S = 80  # after the error of one rank the others have theirs, on a machine that has much else to do


def assert_each(errors, names, *patterns):
    """All ranks have an error of this name (or of these), whose message has all patterns."""
    names = [names] * len(errors) if isinstance(names, str) else names
    for number, ((error, message), name) in enumerate(zip(errors, names, strict=True)):
        assert error == name, (number, error, message)
        for pattern in patterns:
            assert re.search(pattern, message), (number, pattern, message)


def make_store(folder, num_ranks=2, **options):
    on_ranks(num_ranks, run.train, folder, "decoder", 2, **options)


def resume(folder, **options):
    """In a process of its own, or on a rank."""
    with run.streamed(folder, resume=True, **options) as (engine, _):
        return engine.steps


# ---- Ranks that do not agree

def train_with(folder, of_rank_1, **options):
    """of_rank_1: options of the second rank alone."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    mine = {**options, **(of_rank_1 if ranks.rank == 1 else {})}
    kind = mine.pop("kind", "decoder")
    with run.streamed(folder, kind, ranks=ranks, **mine) as (engine, _):
        run.step_of(engine, kind, 0, ranks, 1)


@pytest.mark.parametrize("of_rank_1, says", [
    ({"zero_stage": 1}, "zero_stage is 3 on rank 0"), ({"zero_stage": 0}, "zero_stage is 3 on rank 0"),
    ({"kind": "mixture"}, "the model"), ({"dtype": torch.bfloat16}, "the model|weights"),
    ({"update_in_backward": True}, "update_in_backward"), ({"durability": "none"}, "durability")], ids=str)
def test_ranks_that_do_not_agree_make_no_store(tmp_path, of_rank_1, says):
    folder = tmp_path / "store"
    assert_each(errors_of(2, train_with, folder, of_rank_1, zero_stage=3), "UsageError", "do not agree", says)
    # Nothing is left that would be in the way.
    assert not list(folder.rglob("commit.fbs"))
    make_store(folder, zero_stage=3)


@pytest.mark.parametrize("of_rank_1", [{"zero_stage": 1}, {"kind": "mixture"}, {"dtype": torch.bfloat16}], ids=str)
def test_ranks_that_do_not_agree_open_no_store(tmp_path, of_rank_1):
    make_store(tmp_path / "store", zero_stage=3)
    errors = errors_of(2, train_with, tmp_path / "store", of_rank_1, zero_stage=3, resume=True)
    assert_each(errors, "UsageError", "do not agree")
    assert on_ranks(2, resume, tmp_path / "store", zero_stage=3) == [2, 2]


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("of_rank_1", [{"clip": 1e-3}, {"lr": 1e-3}, {"weight_decay": 0.2}], ids=str)
def test_ranks_with_other_settings_make_no_step(tmp_path, stage, of_rank_1):
    errors = errors_of(2, train_with, tmp_path / "store", of_rank_1, zero_stage=stage)
    assert_each(errors, "UsageError", "rank 1 .*another rate, clip")


def one_step_apart(folder, **options):
    """A rate that one rank has changed for a while: the step never was, and the next one goes on."""
    with run.streamed(folder, **options) as (engine, ranks):
        for rates in ((1e-2, 1e-2), (1e-2, 2e-2), (1e-2, 1e-2)):
            engine.optimizer.param_groups[0]["lr"] = rates[ranks.rank]
            try:
                run.step_of(engine, "decoder", engine.steps, ranks, 1)
            except forebay.UsageError:
                assert rates[0] != rates[1]
        assert engine.steps == 2
        return run.digest_of(engine.state_dict())


@pytest.mark.parametrize("options", [{"zero_stage": 0}, {"zero_stage": 3},
                                     {"zero_stage": 3, "update_in_backward": True}], ids=str)
def test_a_step_that_was_refused_never_was(tmp_path, options):
    ends = on_ranks(2, one_step_apart, tmp_path / "store", **options)
    assert {*ends} == {end["digest"] for end in on_ranks(2, run.train, tmp_path / "other", "decoder", 2, **options)}


# ---- Stores

def test_a_store_of_another_number_of_ranks(tmp_path):
    make_store(tmp_path / "two", zero_stage=1)
    assert_each(errors_of(3, resume, tmp_path / "two", zero_stage=1), "UsageError", "made by 2 ranks.*this run has 3")
    for folder, says in [("two", "made by 2 ranks.*this run has 1"), ("two/rank-0-of-2", "part of one rank")]:
        assert_each(errors_of(1, resume, tmp_path / folder), "UsageError", says)
    make_store(tmp_path / "one", num_ranks=1)
    assert_each(errors_of(2, resume, tmp_path / "one"), "UsageError", "made by 1 process.*this run has 2")
    # The same for one who would make a store.
    assert_each(errors_of(1, run.train, tmp_path / "two", "decoder", 1), "UsageError", "made by 2 ranks")
    # There it is still.
    assert on_ranks(2, resume, tmp_path / "two", zero_stage=1) == [2, 2]


@pytest.mark.parametrize("made_with, opened_with, says", [
    (0, 3, "made with zero_stage 0, and 3"), (0, 1, "made with zero_stage 0, and 1"),
    (3, 0, "zero_stage|another model"), (1, 0, "zero_stage|another model")])
def test_a_store_of_another_stage(tmp_path, made_with, opened_with, says):
    make_store(tmp_path / "store", zero_stage=made_with)
    assert_each(errors_of(2, resume, tmp_path / "store", zero_stage=opened_with), "UsageError", says)
    assert on_ranks(2, resume, tmp_path / "store", zero_stage=made_with) == [2, 2]


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_that_divide_the_state_alike_go_on_with_one_another(tmp_path, stage):
    digests = {end["digest"] for end in on_ranks(2, run.train, tmp_path / "store", "decoder", 2, zero_stage=3)}
    ends = on_ranks(2, run.train, tmp_path / "store", "decoder", 2, zero_stage=stage, resume=True)
    assert {end["digest"] for end in ends} == digests


@pytest.mark.parametrize("rank", [0, 1])
def test_the_folder_of_one_rank_is_missing(tmp_path, rank):
    make_store(tmp_path / "store", zero_stage=3)
    (tmp_path / "store" / f"rank-{rank}-of-2").rename(tmp_path / "away")
    for options in ({"resume": True}, {}):
        errors = errors_of(2, run.train, tmp_path / "store", "decoder", 3, zero_stage=3, **options)
        assert_each(errors, "CorruptError", f"store of rank {1 - rank} has made 2 steps, and rank {rank} .*has none")
    # The other was left alone.
    shutil.rmtree(tmp_path / "store" / f"rank-{rank}-of-2", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "store" / f"rank-{rank}-of-2")
    assert on_ranks(2, resume, tmp_path / "store", zero_stage=3) == [2, 2]


def test_stores_that_do_not_belong_together(tmp_path):
    for name in "ab":
        make_store(tmp_path / name, zero_stage=3)
    shutil.rmtree(tmp_path / "a" / "rank-1-of-2")
    shutil.copytree(tmp_path / "b" / "rank-1-of-2", tmp_path / "a" / "rank-1-of-2")
    assert_each(errors_of(2, resume, tmp_path / "a", zero_stage=3), "UsageError", "do not belong together")


@pytest.mark.parametrize("stage", [0, 3])
def test_a_store_of_one_rank_from_another_time(tmp_path, stage):
    make_store(tmp_path / "store", zero_stage=stage)
    shutil.copytree(tmp_path / "store" / "rank-1-of-2", tmp_path / "before")
    on_ranks(2, run.train, tmp_path / "store", "decoder", 5, zero_stage=stage, resume=True)
    shutil.rmtree(tmp_path / "store" / "rank-1-of-2")
    shutil.copytree(tmp_path / "before", tmp_path / "store" / "rank-1-of-2")
    errors = errors_of(2, resume, tmp_path / "store", zero_stage=stage)
    assert_each(errors, "CorruptError", "rank 1", "step")


def test_there_is_a_store_and_resume_is_not_said(tmp_path):
    make_store(tmp_path / "store", zero_stage=3)
    assert_each(errors_of(2, run.train, tmp_path / "store", "decoder", 3), "UsageError", "there is a store in")


def test_a_damaged_store_of_one_rank_is_the_error_of_all(tmp_path):
    make_store(tmp_path / "store", zero_stage=3)
    manifest = tmp_path / "store" / "rank-1-of-2" / "manifest.json"
    for path in (manifest, manifest.parent / "copy" / manifest.name):
        path.write_bytes(path.read_bytes()[:50])
    assert_each(errors_of(2, resume, tmp_path / "store", zero_stage=3), "CorruptError", "manifest")


def test_folders_that_another_run_uses(tmp_path):
    make_store(tmp_path / "store", zero_stage=3)
    holds = start_ranks(2, hold, tmp_path / "store", tmp_path / "held", tmp_path / "go on")
    wait_for(tmp_path / "held")
    errors = errors_of(2, resume, tmp_path / "store", zero_stage=3)
    (tmp_path / "go on").touch()
    assert_each(errors, "EnvironmentProblem", "another process|in use|uses")
    assert all(end.error is None for end in ends_of(holds))


def hold(folder, held, go_on):
    with run.streamed(folder, resume=True):
        held.touch()
        wait_for(go_on)


# ---- Ranks that do not come, or go

def connect(timeout_s):
    forebay.Ranks(timeout_s=timeout_s)


def test_a_rank_that_does_not_come(tmp_path):
    first, second = start_ranks(2, connect, 2)
    second.kill()
    begin = time.monotonic()
    end, _ = ends_of([first, second])
    assert end.error == "EnvironmentProblem" and "did not come to rank 0" in end.message and "): 1. " in end.message
    assert "timeout_s" in end.message
    assert time.monotonic() - begin < 10


def leaves(folder, ended, how, when):
    """The second rank goes."""
    ranks = forebay.Ranks(timeout_s=10 if how == "is silent" else LATE_S)
    try:
        leaves_in(folder, ended, how, when, ranks)
    finally:
        if ranks.rank == 0:
            ended.touch()


def leaves_in(folder, ended, how, when, ranks):
    with run.streamed(folder, ranks=ranks, zero_stage=3) as (engine, _):
        run.step_of(engine, "decoder", 0, ranks, 1)
        if ranks.rank == 1 and when == "between":
            leave(engine, ended, how)
        if ranks.rank == 1 and when == "in forward":
            def fail(*_):
                leave(engine, ended, how)
            engine.module.blocks[1].register_forward_pre_hook(fail)
        for step in range(1, 4):
            run.step_of(engine, "decoder", step, ranks, 1)


def leave(engine, ended, how):
    if how == "closes":
        engine.close()
        raise RuntimeError("of this rank")
    if how == "raises":
        raise RuntimeError("of this rank")
    if how == "is silent":
        wait_for(ended)


@pytest.mark.parametrize("how, when", [("raises", "between"), ("closes", "between"), ("is silent", "between"),
                                       ("raises", "in forward"), ("is silent", "in forward")])
def test_a_rank_that_goes(tmp_path, how, when):
    first, second = ends_of(start_ranks(2, leaves, tmp_path / "store", tmp_path / "ended", how, when))
    assert first.error == "EnvironmentProblem" and "rank 1" in first.message, first
    if how == "is silent":
        assert second.error == "EnvironmentProblem", second
        assert "timeout_s" in first.message
    else:
        assert (second.error, second.message) == ("RuntimeError", "of this rank")
    assert first.seconds < SOON_S
    assert on_ranks(2, resume, tmp_path / "store", zero_stage=3) == [0, 0]


def call_of_main_thread():
    """The frame of the call that the main thread waits for, or None."""
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code is not Worker.run.__code__:
        frame = frame.f_back
    return frame


def interrupt_when_it_waits(away):
    """Ctrl-C, when the other rank is away and the main thread has been in one call for long: before that, nobody would
    tell the other rank why."""
    def watch():
        wait_for(away)
        call, since_s = None, 0.0
        while call is None or time.monotonic() - since_s < 2:
            now = call_of_main_thread()
            if now is not call:
                call, since_s = now, time.monotonic()
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, daemon=True).start()


def interrupted(folder, away, go_on, what):
    """The first rank, while it waits for the second, which comes later: it does not wait for it to end."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    if what == "barrier" and ranks.rank == 0:
        interrupt_when_it_waits(away)
        with pytest.raises(KeyboardInterrupt):
            ranks.barrier()
        ranks.close()
        return go_on.touch()
    if what == "barrier":
        away.touch()
        wait_for(go_on)
        return ranks.barrier()
    with run.streamed(folder, ranks=ranks, zero_stage=3) as (engine, _):
        run.step_of(engine, "decoder", 0, ranks, 1)
        if ranks.rank == 1:
            away.touch()
            wait_for(go_on)
            return run.step_of(engine, "decoder", 1, ranks, 1)
        interrupt_when_it_waits(away)
        with pytest.raises(KeyboardInterrupt):
            run.step_of(engine, "decoder", 1, ranks, 1)
        engine.close()
        return go_on.touch()


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["barrier", "step"])
def test_an_interrupt_ends_the_wait_for_another_rank(tmp_path, what):
    first, second = ends_of(start_ranks(2, interrupted, tmp_path / "store", tmp_path / "away", tmp_path / "go on", what))
    assert first.error is None and first.seconds < SOON_S, first
    assert second.error == "StoppedError" and "rank 0" in second.message, second


def aborts():
    ranks = forebay.Ranks(timeout_s=LATE_S)
    ranks.barrier()
    if ranks.rank == 0:
        ranks.abort()
    ranks.barrier()


def test_a_rank_that_aborts():
    assert_each(errors_of(3, aborts), "StoppedError", "told to stop")


# ---- Gradients that are not finite

def one_not_finite(folder, at, **options):
    """The gradient of the second rank is not, in the step `at`; the step is made anew."""
    with run.streamed(folder, **options) as (engine, ranks):
        for step in range(3):
            if step == at:
                before = run.digest_of(engine.state_dict())
                loss = run.loss_of(engine, run.data_of("decoder", step, 2, 1)[0, ranks.rank], 1)
                with pytest.raises(forebay.NumericalError, match="not finite"):
                    engine.backward(loss * (float("inf") if ranks.rank == 1 else 1.0))
                    engine.step()
                assert run.digest_of(engine.state_dict()) == before and engine.steps == step
            run.step_of(engine, "decoder", step, ranks, 1)
        return run.digest_of(engine.state_dict())


@pytest.mark.parametrize("options", [{"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 3},
                                     {"zero_stage": 3, "update_in_backward": True}], ids=str)
@pytest.mark.parametrize("at", [0, 2])
def test_a_gradient_of_one_rank_that_is_not_finite(tmp_path, options, at):
    digests = on_ranks(2, one_not_finite, tmp_path / "store", at, **options)
    assert {*digests} == {end["digest"] for end in on_ranks(2, run.train, tmp_path / "other", "decoder", 3, **options)}


def scaled(folder, **options):
    """Scales of fp16 that are too high for the second rank alone, whose loss is the largest."""
    with run.streamed(folder, dtype=torch.float16, **options) as (engine, ranks):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        scales, steps = [], []
        for step in range(14):
            loss = run.loss_of(engine, run.data_of("decoder", step, 2, 1)[0, ranks.rank], 1)
            scaler.scale(loss * (8.0 if ranks.rank == 1 else 1.0)).backward()
            scaler.step(engine.optimizer)
            scaler.update()
            engine.zero_grad()
            scales.append(scaler.get_scale())
            steps.append(engine.steps)
        return scales, steps, run.digest_of(engine.state_dict())


@pytest.mark.parametrize("options", [{"zero_stage": 0}, {"zero_stage": 3}], ids=str)
def test_a_grad_scaler_skips_the_same_steps_on_all_ranks(tmp_path, options):
    first, second = on_ranks(2, scaled, tmp_path / "store", **options)
    assert first == second
    scales, steps, _ = first
    assert scales[0] < 2.0**12 and 3 < steps[-1] < 14


# ---- What ranks cannot have

def make_optimizer(**options):
    model = torch.nn.Linear(4, 4)
    optimizer = forebay.torch.AdamW(model.parameters(), ranks=forebay.Ranks(timeout_s=LATE_S), **options)
    model(torch.ones(2, 4)).sum().backward()
    return model, optimizer


def step_with_a_scaler(**options):
    model, optimizer = make_optimizer(**options)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)


def test_what_is_not_there_for_ranks(tmp_path):
    assert_each(errors_of(2, make_optimizer, backward_update=True), "UsageError", "backward_update=True.*Leave it out")
    assert_each(errors_of(2, step_with_a_scaler), "UsageError", "GradScaler.*step_scaled")
    for stage in (-1, 4):
        assert_each(errors_of(2, run.train, tmp_path, "decoder", 1, zero_stage=stage), "UsageError",
                    f"zero_stage is {stage}, and has to be a whole number from 0 to 3")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options, says", [
    ({"size": 2, "rank": 2, "master_address": "127.0.0.1", "master_port": 1}, "rank is 2 and size 2"),
    ({"size": -1}, "size -1"), ({"rank": 1}, "Set all of them"), ({"size": 2}, "master_address"),
    ({"size": 2, "master_address": "127.0.0.1"}, "master_port is 0"), ({"timeout_s": -1.0}, "timeout_s is -1"),
    ({"size": 2, "master_address": "127.0.0.1", "master_port": 65535}, "master_port is 65535")], ids=str)
def test_ranks_that_cannot_be(options, says):
    with pytest.raises(forebay.UsageError, match=says):
        forebay.Ranks(**options)


def test_ranks_that_are_closed(tmp_path):
    ranks = forebay.Ranks(size=1)
    ranks.close()
    with pytest.raises(forebay.UsageError, match="these Ranks are closed"):
        ranks.barrier()


# ---- One rank

def test_without_a_launcher_there_is_one_rank(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    ranks = forebay.Ranks()
    assert (ranks.rank, ranks.size, ranks.local_rank) == (0, 1, 0)
    ranks.barrier()
    assert ranks.folder_in("folder") == "folder"
    values = torch.tensor([1.5, -2.0])
    ranks.sum(values.numpy())
    assert values.tolist() == [1.5, -2.0]
    engine = forebay.torch.stream(run.make(), nvme=tmp_path / "alone", **run.SETTINGS)
    with run.streamed(tmp_path / "with", ranks=ranks) as (with_ranks, _):
        for step in range(3):
            assert run.step_of(engine, "decoder", step, ranks, 1) == run.step_of(with_ranks, "decoder", step, ranks, 1)
        assert run.digest_of(engine.state_dict()) == run.digest_of(with_ranks.state_dict())
        assert with_ranks.optimizer.layers.stats()["sent_to_ranks_bytes"] == 0
        with_ranks.commit()
    # It is a store as any other.
    assert forebay.torch.stream(run.make(), nvme=tmp_path / "with", resume=True, **run.SETTINGS).steps == 3
