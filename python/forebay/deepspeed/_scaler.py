"""DeepSpeed's loss scalers: that of ZeRO stages 1 to 3 (loss_scaler.py), and that of stage 0 (fused_optimizer.py)."""

from __future__ import annotations

from typing import Any

from forebay.deepspeed._config import Fp16
from forebay.errors import NumericalError


class LossScaler:
    def __init__(self, options: Fp16, stage: int) -> None:
        self._options = options
        self._has_hysteresis = stage > 0
        self.is_dynamic = options.static_scale == 0
        self.cur_scale = 2.0**options.initial_scale_power if self.is_dynamic else options.static_scale
        self._iteration = 0
        self._last_overflow = -1
        self._hysteresis = options.hysteresis

    def update(self, overflowed: bool) -> None:
        """Moves the scale after a step. NumericalError: the scale would fall below its least."""
        if not self.is_dynamic:
            return
        if overflowed:
            self._shrink()
            self._last_overflow = self._iteration
        else:
            if self._options.consecutive_hysteresis:
                self._hysteresis = self._options.hysteresis
            good = self._iteration - self._last_overflow - 1
            if good > 0 and good % self._options.window == 0:
                if not self._options.consecutive_hysteresis:
                    self._hysteresis = self._options.hysteresis
                self.cur_scale *= 2
        self._iteration += 1

    def _shrink(self) -> None:
        if self._has_hysteresis and self._options.hysteresis > 1 and self._hysteresis > 1:
            self._hysteresis -= 1
            return
        if self._has_hysteresis and self.cur_scale == self._options.min_scale:
            raise NumericalError("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
        self.cur_scale = max(self.cur_scale / 2, self._options.min_scale)

    def state_dict(self) -> dict[str, Any]:
        return {"cur_scale": self.cur_scale, "iteration": self._iteration, "last_overflow": self._last_overflow,
                "hysteresis": self._hysteresis}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cur_scale, self._iteration = state["cur_scale"], state["iteration"]
        self._last_overflow, self._hysteresis = state["last_overflow"], state["hysteresis"]
