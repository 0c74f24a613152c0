"""deepspeed.ops.adagrad."""

from __future__ import annotations

from typing import Any

from forebay.errors import UsageError
from forebay.torch import Adagrad


class DeepSpeedCPUAdagrad(Adagrad):
    """forebay.torch.Adagrad, with the arguments of DeepSpeed's. UsageError: amsgrad, or states that are not fp32."""

    def __init__(self, model_params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0.0,
                 amsgrad: bool = False, fp32_optimizer_states: bool = True) -> None:
        if amsgrad or not fp32_optimizer_states:
            raise UsageError("forebay: amsgrad=True and fp32_optimizer_states=False are not there. Leave them out.")
        super().__init__(model_params, lr, weight_decay, eps)


__all__ = ["DeepSpeedCPUAdagrad"]
