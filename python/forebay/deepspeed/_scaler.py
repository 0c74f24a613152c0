"""DeepSpeed's loss scalers: that of ZeRO stages 1 to 3 (loss_scaler.py), and that of stage 0 (fused_optimizer.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.deepspeed._config import Fp16
from forebay.errors import NumericalError

# What ZeRO prints of a step that it leaves out without a scale to move.
SKIPPED = "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated."
_SKIPS = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: "


def _say_nothing(_: str) -> None:
    pass


class LossScaler:
    """say: gets DeepSpeed's lines of what happens to the scale."""

    def __init__(self, options: Fp16, stage: int, say: Callable[[str], None] = _say_nothing) -> None:
        self._options = options
        self._say = say
        self._is_zero = stage > 0
        self.is_dynamic = options.static_scale == 0
        # A whole number until it is halved, as DeepSpeed prints it.
        self.cur_scale: float = 2**options.initial_scale_power if self.is_dynamic else options.static_scale
        self._iteration = 0
        self._last_overflow = -1
        self._hysteresis = options.hysteresis

    def update(self, overflowed: bool) -> None:
        """Moves the scale after a step. NumericalError: the scale would fall below its least."""
        if not self.is_dynamic:
            if overflowed:
                self._say_static()
        elif overflowed:
            self._shrink()
            self._last_overflow = self._iteration
        else:
            self._grow()
        self._iteration += 1

    def _say_static(self) -> None:
        if self._is_zero:
            self._say(SKIPPED)
            return
        self._say(f"Grad overflow on iteration: {self._iteration}")
        self._say(f"Using static loss scale of: {self.cur_scale}")

    def _grow(self) -> None:
        before = self.cur_scale
        if self._options.consecutive_hysteresis:
            if self._is_zero:
                self._say(f"Consecutive hysteresis is enabled. Restoring hysteresis to {self._options.hysteresis}")
            self._hysteresis = self._options.hysteresis
        good = self._iteration - self._last_overflow - 1
        if good > 0 and good % self._options.window == 0:
            if not self._options.consecutive_hysteresis:
                self._hysteresis = self._options.hysteresis
            self.cur_scale *= 2.0
            if not self._is_zero:
                self._say(f"No Grad overflow for {self._options.window} iterations")
                self._say(f"Increasing dynamic loss scale from {before} to {self.cur_scale}")

    def _shrink(self) -> None:
        before = self.cur_scale
        if self._is_zero and self._options.hysteresis > 1 and self._hysteresis > 1:
            self._say(f"{_SKIPS}{int(before)}, but hysteresis is {self._hysteresis}. Reducing hysteresis to "
                      f"{self._hysteresis - 1}")
            self._hysteresis -= 1
            return
        if self._is_zero and before == self._options.min_scale:
            raise NumericalError("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
        self.cur_scale = max(before / 2, self._options.min_scale)
        if self._is_zero:
            self._say(f"{_SKIPS}{int(before)}, reducing to {int(self.cur_scale)}")
        else:
            self._say(f"Grad overflow on iteration {self._iteration}")
            self._say(f"Reducing dynamic loss scale from {before} to {self.cur_scale}")

    def state_dict(self) -> dict[str, Any]:
        return {"cur_scale": self.cur_scale, "iteration": self._iteration, "last_overflow": self._last_overflow,
                "hysteresis": self._hysteresis}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cur_scale, self._iteration = state["cur_scale"], state["iteration"]
        self._last_overflow, self._hysteresis = state["last_overflow"], state["hysteresis"]
