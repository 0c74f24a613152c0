"""DeepSpeed's learning-rate schedules. step() follows each update. Source: deepspeed/runtime/lr_schedules.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from forebay.deepspeed._table import TABLE, Values, names_of, shown
from forebay.errors import UsageError


class Schedule:
    """Sets "lr" (and "betas") of all groups. `rate(i)`: after i + 1 calls of step(); -1: before the first."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: Callable[[int], float],
                 betas: Callable[[int], tuple[float, float] | None]) -> None:
        self.optimizer = optimizer
        self.last_batch_iteration = -1
        self._rate = rate
        self._betas = betas
        self._set()

    def step(self, last_batch_iteration: int | None = None) -> None:
        self.last_batch_iteration = (self.last_batch_iteration + 1 if last_batch_iteration is None
                                     else last_batch_iteration)
        self._set()

    def _set(self) -> None:
        rate, betas = self._rate(self.last_batch_iteration), self._betas(self.last_batch_iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            if betas is not None and "betas" in group:
                group["betas"] = betas

    def get_lr(self) -> list[float]:
        return [self._rate(self.last_batch_iteration)] * len(self.optimizer.param_groups)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]
        self._set()


_PARAMS = "scheduler.params."


def take(values: Values) -> dict[str, Any]:
    """All arguments of the schedule of a configuration; its problems are noted."""
    kind, params = values.get("scheduler.type"), values.get("scheduler.params")
    if kind is None:
        return {}
    if kind not in TABLE["schedules"]:
        values.problems.append(f"scheduler.type is {shown(kind)}, and has to be one of: "
                               f"{', '.join(TABLE['schedules'])}.")
        return {}
    keys = TABLE["schedules"][kind]["keys"]
    values.take(params or {}, keys, _PARAMS, _PARAMS)
    given = values.under(_PARAMS, keys)
    for key in names_of(keys):
        if keys[key].get("required") and key not in given:
            values.problems.append(f'{_PARAMS}{key} is "auto", which says nothing, and {kind} needs it.'
                                   if _PARAMS + key in values.autos else f"{_PARAMS}{key} is missing: {kind} needs it.")
    return {key: given.get(key) for key in names_of(keys)}


def make(kind: str, params: dict[str, Any], optimizer: torch.optim.Optimizer) -> Schedule:
    """params: those of take(), or any of them. UsageError: there is no schedule of that name, or it needs others."""
    values = Values()
    values.take({"scheduler": {"type": kind, "params": params}})
    arguments = take(values)
    if values.problems:
        raise UsageError(f"forebay: {' '.join(values.problems)}")
    rate = float(optimizer.param_groups[0]["lr"])

    def no_betas(_: int) -> None:
        return None

    if kind in ("WarmupLR", "WarmupDecayLR"):
        return Schedule(optimizer, _warmup(kind == "WarmupDecayLR", arguments, rate), no_betas)
    if kind == "WarmupCosineLR":
        return Schedule(optimizer, _cosine(arguments, rate), no_betas)
    if kind == "LRRangeTest":
        return Schedule(optimizer, _range_test(arguments), no_betas)
    return Schedule(optimizer, _one_cycle(arguments), _one_cycle_betas(arguments))


def _progress(arguments: dict[str, Any]) -> tuple[int, Callable[[int], float]]:
    """W, and the share of the warm-up that is done, as step i < W has it."""
    if arguments["warmup_num_steps"] == 0:
        raise UsageError("forebay: scheduler.params.warmup_num_steps is 0, and has to be 1 or more, as in DeepSpeed.")
    steps = max(2, int(arguments["warmup_num_steps"]))
    if arguments["warmup_type"] == "log":
        return steps, lambda i: math.log(i + 1) / math.log(steps)
    return steps, lambda i: i / steps


def _warmup(decays: bool, arguments: dict[str, Any], rate: float) -> Callable[[int], float]:
    low = float(arguments["warmup_min_lr"])
    high = rate if arguments["warmup_max_lr"] is None else float(arguments["warmup_max_lr"])
    steps, progress = _progress(arguments)
    total = int(arguments.get("total_num_steps") or 0)

    def at(i: int) -> float:
        if i < 0:
            return low
        if i < steps:
            share = progress(i)
        else:
            share = max(0.0, (total - i) / max(1.0, total - steps)) if decays else 1.0
        return low + (high - low) * share

    return at


def _cosine(arguments: dict[str, Any], rate: float) -> Callable[[int], float]:
    steps, progress = _progress(arguments)
    low, floor = float(arguments["warmup_min_ratio"]), float(arguments["cos_min_ratio"])
    total = int(arguments["total_num_steps"])

    def at(i: int) -> float:
        if i < 0:
            return 0.0
        if i < steps:
            return rate * (low + (1 - low) * progress(i))
        share = min(1.0, (i - steps + 1) / max(1, total - steps))
        return rate * (floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2)

    return at


def _range_test(arguments: dict[str, Any]) -> Callable[[int], float]:
    least, size = float(arguments["lr_range_test_min_lr"]), int(arguments["lr_range_test_step_size"])
    slope = float(arguments["lr_range_test_step_rate"])

    def at(i: int) -> float:
        passed = (i + 1) / size
        return least * (1 + slope * (math.floor(passed) if arguments["lr_range_test_staircase"] else passed))

    return at


def _cycle(arguments: dict[str, Any]) -> tuple[int, Callable[[int], float]]:
    """The length of the cycle, and how far up it step i is."""
    first = int(arguments["cycle_first_step_size"])
    second = first if arguments["cycle_second_step_size"] is None else int(arguments["cycle_second_step_size"])
    total, turn = first + second, first / (first + second)
    first_stairs = int(arguments["cycle_first_stair_count"])
    second_stairs = arguments["cycle_second_stair_count"]

    def height(i: int) -> float:
        x = 1 + (i + 1) / total - math.floor(1 + (i + 1) / total)
        rises = x <= turn
        stairs = first_stairs if rises or second_stairs is None else int(second_stairs)
        if stairs <= 0:
            return x / turn if rises else (x - 1) / (turn - 1)
        passed = (i + 1) % total
        return math.floor(passed * stairs / first if passed <= first else (total - passed) * stairs / second) / stairs

    return total, height


def _one_cycle(arguments: dict[str, Any]) -> Callable[[int], float]:
    low, high = float(arguments["cycle_min_lr"]), float(arguments["cycle_max_lr"])
    total, height = _cycle(arguments)
    size, slope = int(arguments["decay_step_size"]), float(arguments["decay_lr_rate"])

    def at(i: int) -> float:
        if i < 0:
            return low
        if i < total:
            return low + (high - low) * height(i)
        return low if size == 0 or slope == 0 else low / (1 + slope * ((i - total + 1) / size))

    return at


def _one_cycle_betas(arguments: dict[str, Any]) -> Callable[[int], tuple[float, float] | None]:
    low, high = float(arguments["cycle_min_mom"]), float(arguments["cycle_max_mom"])
    total, height = _cycle(arguments)
    size, slope = int(arguments["decay_step_size"]), float(arguments["decay_mom_rate"])

    def at(i: int) -> tuple[float, float] | None:
        if not arguments["cycle_momentum"]:
            return None
        if i < 0:  # it starts with the least, where the cycle itself has the most
            return low, 0.99
        if i < total:
            return high - (high - low) * height(i), 0.99
        return (high if size == 0 or slope == 0 else high * (1 + slope * ((i - total + 1) / size))), 0.99

    return at
