"""Which of forebay's optimizers a configuration, or an optimizer that was given, stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from forebay.errors import UsageError
from forebay.torch import SGD, Adagrad, Adam, AdamW, Lion, Optimizer

# By DeepSpeed's names: Adam is AdamW unless adam_w_mode is false.
_BY_NAME: dict[str, type[Optimizer]] = {"adam": AdamW, "adamw": AdamW, "lion": Lion, "adagrad": Adagrad, "sgd": SGD,
                                        "deepspeedcpuadam": AdamW, "fusedadam": AdamW, "deepspeedcpulion": Lion,
                                        "deepspeedcpuadagrad": Adagrad}
_BY_CLASS: dict[type, type[Optimizer]] = {torch.optim.AdamW: AdamW, torch.optim.Adam: Adam, torch.optim.SGD: SGD,
                                          torch.optim.Adagrad: Adagrad}
_BY_KIND: dict[str, type[Optimizer]] = {kind.kind: kind for kind in (AdamW, Adam, Adagrad, Lion, SGD)}


def configured(name: str, params: dict[str, Any]) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class and its arguments. UsageError: there is no such, or it has no such argument."""
    kind = _BY_NAME.get(name.lower())
    if kind is None:
        raise UsageError(f"forebay: optimizer.type is {name!r}, and has to be one of: Adam, AdamW, Lion, Adagrad, SGD.")
    # DeepSpeed's defaults, where they are others than torch's.
    settings = {"weight_decay": 0.0, **({"lr": 1e-3, "betas": (0.9, 0.999)} if kind is Lion else {}), **params}
    adam_w = settings.pop("adam_w_mode", settings.pop("adamw_mode", True))
    if name.lower() == "adam" and (not adam_w or settings.pop("torch_adam", False)):
        kind = Adam
    settings.pop("torch_adam", None)
    if settings.pop("bias_correction", True) is False:
        raise UsageError("forebay: optimizer.params.bias_correction=false is not there. Leave it out.")
    known = set(inspect.signature(kind.__init__).parameters) - {"self", "params", "options"}
    for key in settings:
        if key not in known:
            raise UsageError(f"forebay: optimizer.params.{key} is not known to {name}, which has: "
                             f"{', '.join(sorted(known))}.")
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
    return kind, settings


def mapped(optimizer: torch.optim.Optimizer) -> type[Optimizer]:
    """The class for an optimizer of torch or forebay. Its groups are used as they are: the same dictionaries, so that a
    scheduler which was made for it moves ours."""
    kind = _BY_KIND.get(optimizer.kind) if isinstance(optimizer, Optimizer) else _BY_CLASS.get(type(optimizer))
    if kind is None:
        raise UsageError(f"forebay: {type(optimizer).__name__} is no optimizer that forebay has. Give AdamW, Adam, "
                         "SGD, Adagrad (of torch or forebay) or Lion, or name one in the configuration.")
    if kind is Adam and all(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
        return AdamW
    return kind


def becoming(optimizer: torch.optim.Optimizer, kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """Makes an optimizer of `kind` of the object itself, so that the program's own name for it is that of the engine's.
    What its groups had (moments, hooks of step()) is forgotten. Takes the arguments of `kind`."""
    def make(params: Any, **settings: Any) -> Optimizer:
        has_schedule = hasattr(optimizer.step, "_wrapped_by_lr_sched")
        optimizer.__dict__.clear()
        optimizer.__class__ = kind
        kind.__init__(optimizer, params, **settings)  # type: ignore[arg-type]
        if has_schedule:
            _let_schedules_see(optimizer)
        return optimizer  # type: ignore[return-value]

    return make


def _let_schedules_see(optimizer: Any) -> None:
    """PyTorch's schedules warn if step() is not the method that they have marked."""
    method = type(optimizer).step

    def step(*arguments: Any, **keywords: Any) -> Any:
        return method(optimizer, *arguments, **keywords)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step


__all__ = ["becoming", "configured", "mapped"]
