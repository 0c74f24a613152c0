"""Stopping a run from outside: what each signal promises, and that a resume gives the bits of one run."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
from conftest import make_model, random_rows, write_rows, write_tokenizer
from option_flags import flag_of

SEQ, BATCH, ACCUM, STEPS = 64, 2, 2, 8
SETTINGS = dict(batch=BATCH, accum=ACCUM, seq=SEQ, steps=STEPS, lr=1e-3, ram="1GiB", seed=3)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    tokens, flags = random_rows(24, SEQ, 256, seed=5)
    data = write_rows(folder / "data.fbd", tokens, flags, 256)
    return dict(SETTINGS, model=make_model(forebay, folder / "model"), data=data)


@pytest.fixture(scope="module")
def slow_task(forebay, tmp_path_factory):
    """One layer takes longer than two signals: 64 rows go through each before the next is begun."""
    folder = tmp_path_factory.mktemp("slow")
    tokens, flags = random_rows(64, 128, 256, seed=6)
    data = write_rows(folder / "data.fbd", tokens, flags, 256)
    model = make_model(forebay, folder / "model", hidden_size=256, intermediate_size=512)
    return dict(model=model, data=data, batch=8, accum=8, seq=128, steps=2, lr=1e-3, ram="2GiB", threads=1)


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out)


def start(forebay, out, settings, *extra, hangup=signal.SIG_DFL):
    """`hangup`: what the program is started to do about SIGHUP. These tests may themselves run under nohup."""
    command = [forebay.binary, "train", f"--out={out}", *extra] + [flag_of(k, v) for k, v in settings.items()]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
    )


def wait_for(stream, words):
    """Reads lines until one holds `words`."""
    for line in stream:
        if words in line:
            return
    raise AssertionError(f"the program ended without a line with '{words}'")


def finish(process):
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_ends_the_run_resumably(forebay, task, expected, tmp_path, kind):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    wait_for(process.stdout, "step 3/")
    process.send_signal(kind)
    code, errors = finish(process)
    assert code == 75, errors
    assert "stopped on request after step" in errors and "--resume" in errors
    forebay.run("train", "--resume", out=out, **task)
    assert forebay.digest(out) == expected


def test_a_run_started_to_ignore_hangups_ignores_them(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, task, hangup=signal.SIG_IGN)  # as nohup does
    wait_for(process.stdout, "step 3/")
    process.send_signal(signal.SIGHUP)
    assert finish(process)[0] == 0
    assert forebay.digest(out) == expected


def test_no_signal_interrupts_a_thread_that_computes(forebay, slow_task, tmp_path):
    """Matrix products may use the stack pointer for something else, and a handler's frame would overwrite what is there."""
    process = start(forebay, tmp_path / "run", dict(slow_task, threads=2))
    wait_for(process.stderr, "compute:")
    threads = {}
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
        threads[int(thread.name)] = status["Name"], int(status["SigBlk"], 16), int(status["SigCgt"], 16)
    process.kill()
    finish(process)
    stop = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    assert len(threads) > 3 and "signals" in [name for name, _, _ in threads.values()]
    for name, blocked, caught in threads.values():
        assert caught & stop == 0, (name, hex(caught))
        assert blocked & stop == stop or name == "signals", (name, hex(blocked))


def test_a_second_ctrl_c_ends_at_once_and_the_run_can_be_resumed(forebay, slow_task, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, slow_task)
    wait_for(process.stdout, "step 1/")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "once more ends at once")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    forebay.run("train", "--resume", out=out, **slow_task)
    forebay.run("train", out=tmp_path / "whole", **slow_task)
    assert forebay.digest(out) == forebay.digest(tmp_path / "whole")


def test_two_signals_that_arrive_together_end_at_once(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    wait_for(process.stdout, "step 3/")
    # Both are pending when the process goes on, so that nothing of it runs in between.
    for kind in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        process.send_signal(kind)
    code, errors = finish(process)
    assert code == 130, errors
    forebay.run("train", "--resume", out=out, **task)
    assert forebay.digest(out) == expected


@pytest.mark.parametrize("words", ["step 1/", "step 4/", "step 8/"])
def test_a_killed_run_is_resumed_with_the_bits_of_one_run(forebay, task, expected, tmp_path, words):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    wait_for(process.stdout, words)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    forebay.run("train", "--resume", out=out, **task)
    assert forebay.digest(out) == expected
    assert os.path.exists(out / "model" / "model.safetensors")


def test_a_run_killed_before_its_first_commit_is_started_again(forebay, task, expected, tmp_path):
    out = tmp_path / "run"
    process = start(forebay, out, task)
    while not os.path.exists(out / "run.json"):
        assert process.poll() is None, finish(process)
    process.kill()
    finish(process)
    settings = dict(task, out=out)
    if '"creating"' in (out / "run.json").read_text():
        refused = forebay.run("train", "--resume", check=False, **settings)
        assert refused.returncode == 2 and "Start it again without --resume" in refused.stderr
        forebay.run("train", **settings)
    else:
        forebay.run("train", "--resume", **settings)
    assert forebay.digest(out) == expected


def test_an_interrupted_evaluation_is_made_up_for(forebay, slow_task, tmp_path):
    settings = dict(slow_task, eval_data=slow_task["data"])
    out, whole = tmp_path / "run", tmp_path / "whole"
    forebay.run("train", out=whole, **settings)
    expected = [json.loads(line).get("eval_loss") for line in open(whole / "metrics.jsonl")]

    before_the_steps = start(forebay, out, settings)
    wait_for(before_the_steps.stderr, "evaluating")
    before_the_steps.send_signal(signal.SIGTERM)
    code, errors = finish(before_the_steps)
    assert code == 75 and "after step 0 of 2. All of it is saved" in errors, errors

    after_the_steps = start(forebay, out, settings, "--resume")
    wait_for(after_the_steps.stderr, "held-out loss before the first step")
    wait_for(after_the_steps.stderr, "evaluating")
    after_the_steps.send_signal(signal.SIGTERM)
    code, errors = finish(after_the_steps)
    assert code == 75 and "after step 2 of 2. All of it is saved" in errors, errors

    done = forebay.run("train", "--resume", out=out, **settings)
    assert "nothing was left to train: all 2 steps are committed" in done.stdout
    assert "nan" not in done.stdout
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert [line.get("eval_loss") for line in lines] == expected
    assert f"loss       {lines[2]['loss']:.4f} in the last step" in done.stdout


# ---- Before the first step: the Python program makes tokens, then the store is filled ----

@pytest.fixture(scope="module")
def text_task(forebay, tmp_path_factory):
    """Text whose tokens take many seconds, most of them inside one call that Python cannot interrupt."""
    folder = tmp_path_factory.mktemp("text")
    search = {"type": "Replace", "pattern": {"Regex": "[a-z]+[0-9]+"}, "content": ""}
    model = make_model(forebay, folder / "model")
    write_tokenizer(model, normalizer={"type": "Sequence", "normalizers": [search] * 60})
    data = folder / "book.txt"
    data.write_text("and it came to pass in those days\n" * 60000)
    return dict(model=model, data=data, seq=128, batch=64, steps=1, ram="1GiB")


@pytest.fixture(scope="module")
def import_task(forebay, tmp_path_factory):
    """A store of thousands of tiles, so that filling it takes seconds."""
    folder = tmp_path_factory.mktemp("import")
    tokens, flags = random_rows(2, 64, 256, seed=6)
    data = write_rows(folder / "data.fbd", tokens, flags, 256)
    model = make_model(forebay, folder / "model", hidden_size=256, intermediate_size=1024)
    return dict(model=model, data=data, batch=1, seq=64, steps=1, ram="1GiB", tile_elems=2048)


def start_group(forebay, out, settings, *extra):
    """As a shell starts it: in a process group of its own, which Ctrl-C reaches as a whole."""
    command = [forebay.binary, "train", f"--out={out}", *extra] + [flag_of(k, v) for k, v in settings.items()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def packing_child(process):
    """The PID of forebay-data, once it is there."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        for pid in children.read_text().split():
            if b"pack" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return int(pid)
    raise AssertionError(f"the program ended without packing: {finish(process)}")


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_dies_before_its_work_is_done(pid, cache):
    begin = time.monotonic()
    while is_alive(pid):
        assert time.monotonic() - begin < 60, "forebay-data is still there"
        time.sleep(0.01)
    assert list(cache.rglob("*.packed")) == []


def assert_nothing_was_begun(code, errors):
    assert code == 75, errors
    assert "stopped on request before the first step: nothing was begun. Start the same command again" in errors
    assert "Traceback" not in errors


STOPS = {
    "the process": lambda process: os.kill(process.pid, signal.SIGTERM),
    "the group": lambda process: os.killpg(process.pid, signal.SIGINT),
}


@pytest.mark.parametrize("delay_s", [0, 0.1, 1], ids=["at its start", "while it imports", "while it tokenizes"])
@pytest.mark.parametrize("whom", STOPS)
def test_a_signal_while_tokens_are_made_ends_at_once(forebay, text_task, tmp_path, monkeypatch, whom, delay_s):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process = start_group(forebay, tmp_path / "run", text_task)
    child = packing_child(process)
    time.sleep(delay_s)
    STOPS[whom](process)
    code, errors = finish(process)
    assert_nothing_was_begun(code, errors)
    assert_dies_before_its_work_is_done(child, tmp_path / "cache")
    assert not os.path.exists(tmp_path / "run")


def test_two_signals_while_tokens_are_made_leave_no_orphan(forebay, text_task, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process = start_group(forebay, tmp_path / "run", text_task)
    child = packing_child(process)
    time.sleep(1)
    for kind in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(kind)
    code, errors = finish(process)
    assert code == 130, errors
    assert_dies_before_its_work_is_done(child, tmp_path / "cache")


def test_a_kill_while_tokens_are_made_leaves_no_orphan_and_the_next_start_works(
        forebay, text_task, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process = start_group(forebay, tmp_path / "run", text_task)
    child = packing_child(process)
    process.kill()
    finish(process)
    assert_dies_before_its_work_is_done(child, tmp_path / "cache")
    forebay.run("train", out=tmp_path / "run", **text_task)


def importing(process, out):
    """Returns while the store is filled."""
    while not os.path.exists(out / "swap" / "weights.fbs"):
        assert process.poll() is None, finish(process)


@pytest.mark.parametrize("whom", STOPS)
def test_a_signal_while_the_store_is_filled_ends_at_once(forebay, import_task, tmp_path, whom):
    out = tmp_path / "run"
    process = start_group(forebay, out, import_task)
    importing(process, out)
    STOPS[whom](process)
    code, errors = finish(process)
    assert_nothing_was_begun(code, errors)
    assert not os.path.exists(out / "swap" / "weights.fbs")
    forebay.run("train", out=out, **import_task)
    forebay.run("train", out=tmp_path / "whole", **import_task)
    assert forebay.digest(out) == forebay.digest(tmp_path / "whole")


def test_two_signals_while_the_store_is_filled_end_at_once_and_the_next_start_works(forebay, import_task, tmp_path):
    out = tmp_path / "run"
    process = start_group(forebay, out, import_task)
    importing(process, out)
    for kind in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(kind)
    code, errors = finish(process)
    assert code == 130, errors
    forebay.run("train", out=out, **import_task)


def test_ctrl_c_while_generation_starts_is_quiet(forebay, text_task):
    command = [forebay.binary, "generate", f"--model={text_task['model']}", "--prompt=and it", "--ram=1GiB"]
    for delay_ms in range(0, 600, 50):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        time.sleep(delay_ms / 1000)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        code, errors = finish(process)
        assert "Traceback" not in errors, f"after {delay_ms} ms: {errors}"
        assert code in (-signal.SIGINT, 0), errors
