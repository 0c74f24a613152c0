"""Times as DeepSpeed prints them: wall_clock_breakdown, and the rate beside steps_per_print."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator

_NAMES = ("fwd", "bwd", "step")
_OF_MONITORS = ("forward", "backward", "step")
_WARM_UP = 2  # steps that the rate leaves out


class Timers:
    def __init__(self, prints_breakdown: bool) -> None:
        self._prints_breakdown = prints_breakdown
        self._micro = dict.fromkeys(_NAMES, 0.0)  # seconds in this micro-batch
        self._step = dict.fromkeys(_NAMES, 0.0)  # and in this step
        self.last_step: dict[str, float] = {}  # by the names that monitors have for them
        self._began: float | None = None  # the micro-batch
        self._step_seconds = self._all_seconds = 0.0
        self._num_micro_steps = self._num_steps = 0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        if self._began is None:
            self._began = begin
        try:
            yield
        finally:
            self._micro[name] += time.perf_counter() - begin

    def end_micro_step(self, is_step: bool) -> None:
        for name, seconds in self._micro.items():
            self._step[name] += seconds
        if self._prints_breakdown:
            _print(self._micro, "_microstep")
            if is_step:
                _print(self._step, "")
        self._micro = dict.fromkeys(_NAMES, 0.0)
        now = time.perf_counter()
        if self._began is not None and self._num_steps >= _WARM_UP:
            self._step_seconds += now - self._began
        self._began = None
        self._num_micro_steps += 1
        if is_step:
            self.last_step = dict(zip(_OF_MONITORS, self._step.values()))
            self._step = dict.fromkeys(_NAMES, 0.0)
            self._num_steps += 1

    def rate(self, batch_size: int) -> str | None:
        """The line of samples per second; None: there are no steps to tell it of yet. Once in each step."""
        self._all_seconds += self._step_seconds
        seconds, self._step_seconds = self._step_seconds, 0.0
        if self._num_steps <= _WARM_UP or seconds == 0:
            return None
        now, most = memory_of_process()
        average = batch_size * (self._num_steps - _WARM_UP) / self._all_seconds
        return (f"epoch=0/micro_step={self._num_micro_steps}/global_step={self._num_steps}, "
                f"RunningAvgSamplesPerSec={average}, CurrSamplesPerSec={batch_size / seconds}, "
                f"MemAllocated={round(now / 2**30, 2)}GB, MaxMemAllocated={round(most / 2**30, 2)}GB")


def memory_of_process() -> tuple[int, int]:
    """Bytes in RAM, now and at most."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return resident, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _print(seconds: dict[str, float], suffix: str) -> None:
    times = "".join(f" | {name}{suffix}: {1000 * value:.2f}" for name, value in seconds.items())
    print(f"[Rank 0] time (ms){times}")
