"""Ctrl-C ends the wait of a call into the library, which goes on by itself; the next call waits for it."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from forebay._library import Pinned
from forebay._worker import Worker

PROGRAM = """
import os, signal, sys, time
import numpy as np
import forebay
inventory = forebay.Inventory()
for layer in range(32):
    inventory.begin_layer(f"layer.{layer}")
    inventory.add(f"weight.{layer}", (1 << 20,))
layers = forebay.Layers(inventory, sys.argv[1], weight_dtype="bf16")
values = np.zeros(1 << 20, np.float32)
print("filling", flush=True)
try:
    layers.create()
    for tensor in range(32):
        layers.fill(tensor, "f32", values)
    layers.start()
    while True:
        layers.expect([0])
        layers.acquire(0).release()
except KeyboardInterrupt:
    print("interrupted", flush=True)
layers.close()
print("closed", flush=True)
"""


@pytest.fixture
def timer():
    def start(delay_s):
        signal.setitimer(signal.ITIMER_REAL, delay_s)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def sleep_in_c(seconds, done):
    # As usleep may be cut short by the signal, which any thread may get.
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ctypes.CDLL(None).usleep(50_000)
    done.append(time.monotonic())


def test_a_wait_is_interrupted_and_the_next_call_waits_for_it(timer):
    worker, done, stopped, begin = Worker(), [], [], time.monotonic()
    timer(0.2)
    with pytest.raises(KeyboardInterrupt):
        worker.run(sleep_in_c, 1.0, done, on_interrupt=lambda: stopped.append(True))
    assert time.monotonic() - begin < 0.9 and not done and stopped == [True]
    assert worker.quick(lambda: list(done)) == done and len(done) == 1
    worker.close(done.append, None)
    assert done[-1] is None


def test_a_call_that_waits_for_an_abandoned_one_can_be_interrupted_and_is_not_made(timer):
    worker, done, calls = Worker(), [], []
    timer(0.1)
    with pytest.raises(KeyboardInterrupt):
        worker.run(sleep_in_c, 0.8, done)
    timer(0.1)
    with pytest.raises(KeyboardInterrupt):
        worker.quick(calls.append, "dropped")
    worker.run(calls.append, "made")
    assert len(done) == 1 and calls == ["made"]
    worker.close(int)


def test_errors_and_results_come_back_and_other_threads_call_directly():
    worker = Worker()
    assert worker.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        worker.run(divmod, 1, 0)
    names = []
    thread = threading.Thread(target=lambda: names.append(worker.run(lambda: threading.current_thread().name)),
                              name="caller")
    thread.start()
    thread.join()
    assert names == ["caller"] and worker.run(threading.get_ident) != threading.get_ident()
    worker.close(int)


def test_a_call_through_the_thread_costs_microseconds():
    worker = Worker()
    worker.run(int)
    costs = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(100):
            worker.run(int)
        costs.append((time.perf_counter() - begin) / 100)
    assert min(costs) < 100e-6, costs  # 10 to 20 us on an idle machine
    worker.close(int)


def test_what_tidies_up_behind_an_abandoned_call_is_not_waited_for(timer):
    worker, done = Worker(), []
    timer(0.1)
    with pytest.raises(KeyboardInterrupt):
        worker.run(sleep_in_c, 0.8, done)
    worker.post(done.append, "tidied up")
    assert done == []
    assert worker.quick(lambda: done[1:]) == ["tidied up"]
    worker.close(int)


def test_an_interrupt_is_not_lost_while_a_buffer_is_let_go(timer):
    """Python drops what is raised in a __del__."""
    for _ in range(100):
        with pytest.raises(KeyboardInterrupt):
            timer(0.001)
            for _ in range(1_000_000):
                Pinned(bytearray(8))


def test_a_signal_just_before_the_wait_ends_it_too():
    """The worker begins while its caller is on the way into the lock."""
    def call(worker, may_end, waited):
        os.kill(os.getpid(), signal.SIGINT)
        waited.append(not may_end.wait(20))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(5):
            worker, may_end, waited = Worker(), threading.Event(), []
            with pytest.raises(KeyboardInterrupt):
                worker.run(call, worker, may_end, waited)
            may_end.set()
            worker.close(int)
            assert waited == [False]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.5, 2.0])
def test_a_program_is_interrupted_while_it_makes_a_store_or_waits_for_weights(tmp_path, delay_s):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path / "store"], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "filling\n"
    time.sleep(delay_s)
    begin = time.monotonic()
    os.kill(program.pid, signal.SIGINT)
    assert program.communicate(timeout=60)[0] == "interrupted\nclosed\n"
    assert program.returncode == 0 and time.monotonic() - begin < 20
