"""deepspeed.ops.adam. Each is an optimizer of its own, with its state in RAM; initialize() makes of it what the
configuration says."""

from __future__ import annotations

from typing import Any

from forebay.errors import UsageError
from forebay.torch import AdamW

Betas = tuple[float, float]


class DeepSpeedCPUAdam(AdamW):
    """adamw_mode: weight decay is decoupled; else it is added to the gradient."""

    def __init__(self, model_params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, adamw_mode: bool = True,
                 fp32_optimizer_states: bool = True) -> None:
        if not bias_correction or amsgrad or not fp32_optimizer_states:
            raise UsageError("forebay: bias_correction=False, amsgrad=True and fp32_optimizer_states=False are not "
                             "there. Leave them out.")
        if not adamw_mode:
            self.__dict__["kind"] = "adam"  # of this one, in place of the class's
        super().__init__(model_params, lr, betas, eps, weight_decay)


class FusedAdam(DeepSpeedCPUAdam):
    """The same, with the arguments in its own order."""

    def __init__(self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Betas = (0.9, 0.999),
                 eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False,
                 set_grad_none: bool = True) -> None:
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)


__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]
