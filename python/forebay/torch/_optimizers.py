"""The optimizers, by the names, arguments and formulas of torch.optim. Options are those of `Optimizer`."""

from __future__ import annotations

from typing import Any, ClassVar

from forebay.errors import UsageError
from forebay.torch._optimizer import Optimizer

Betas = tuple[float, float]


class AdamW(Optimizer):
    """Weight decay is decoupled. Loshchilov & Hutter 2019, Algorithm 2."""

    kind: ClassVar[str] = "adamw"
    _moments: ClassVar[dict[str, str]] = {"m": "exp_avg", "v": "exp_avg_sq"}

    def __init__(self, params: Any, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, **options: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **options)


class Adam(Optimizer):
    """Weight decay is added to the gradient. Kingma & Ba 2015."""

    kind: ClassVar[str] = "adam"
    _moments: ClassVar[dict[str, str]] = {"m": "exp_avg", "v": "exp_avg_sq"}

    def __init__(self, params: Any, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **options)


class Adagrad(Optimizer):
    """Weight decay is added to the gradient. Duchi et al. 2011."""

    kind: ClassVar[str] = "adagrad"
    _moments: ClassVar[dict[str, str]] = {"v": "sum"}

    def __init__(self, params: Any, lr: float = 1e-2, weight_decay: float = 0.0, eps: float = 1e-10,
                 **options: Any) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay, "lr_decay": 0.0}, **options)


class Lion(Optimizer):
    """Weight decay is decoupled. Chen et al. 2023, Algorithm 2."""

    kind: ClassVar[str] = "lion"
    _moments: ClassVar[dict[str, str]] = {"m": "exp_avg"}

    def __init__(self, params: Any, lr: float = 1e-4, betas: Betas = (0.9, 0.99), weight_decay: float = 0.0,
                 **options: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **options)


class SGD(Optimizer):
    """Weight decay is added to the gradient. `nesterov` is the same in all groups."""

    kind: ClassVar[str] = "sgd"
    _moments: ClassVar[dict[str, str]] = {"m": "momentum_buffer"}

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, *,
                 nesterov: bool = False, **options: Any) -> None:
        if nesterov and momentum == 0:
            raise UsageError("forebay: nesterov=True is a form of momentum. Give momentum=0.9, or leave nesterov out.")
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov,
                     "dampening": 0.0}, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self.param_groups[-1]["nesterov"] != self.param_groups[0]["nesterov"]:
            raise UsageError("forebay: nesterov differs between groups. Give all the same.")

    def moments_of(self, group: dict[str, Any]) -> dict[str, str]:
        return self._moments if group["momentum"] != 0 else {}
