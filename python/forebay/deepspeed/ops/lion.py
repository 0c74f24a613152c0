"""deepspeed.ops.lion."""

from __future__ import annotations

from typing import Any

from forebay.errors import UsageError
from forebay.torch import Lion


class DeepSpeedCPULion(Lion):
    """forebay.torch.Lion, with the arguments of DeepSpeed's. UsageError: states that are not fp32."""

    def __init__(self, model_params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 weight_decay: float = 0.0, fp32_optimizer_states: bool = True) -> None:
        if not fp32_optimizer_states:
            raise UsageError("forebay: fp32_optimizer_states=False is not there. Leave it out.")
        super().__init__(model_params, lr, betas, weight_decay)


class FusedLion(DeepSpeedCPULion):
    """The same, with the arguments in its own order."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 weight_decay: float = 0.0, set_grad_none: bool = True) -> None:
        super().__init__(params, lr, betas, weight_decay)


__all__ = ["DeepSpeedCPULion", "FusedLion"]
