"""Which of forebay's optimizers a configuration, or an optimizer that was given, stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.deepspeed._table import TABLE, Values, shown
from forebay.errors import UsageError
from forebay.torch import SGD, Adagrad, Adam, AdamW, Lion, Optimizer

_BY_CLASS: dict[type, type[Optimizer]] = {torch.optim.AdamW: AdamW, torch.optim.Adam: Adam, torch.optim.SGD: SGD,
                                          torch.optim.Adagrad: Adagrad}
_PARAMS, _DECAY, _DECAY_OF_TORCH = "optimizer.params.", "weight_decay", 0.01
_SHOWN = ("Adam", "AdamW", "Lion", "Adagrad", "SGD")
_BY_KIND: dict[str, type[Optimizer]] = {kind.kind: kind for kind in (AdamW, Adam, Adagrad, Lion, SGD)}


def take(values: Values) -> dict[str, Any]:
    """"kind", and the arguments of that class, for the optimizer of a configuration; its problems are noted."""
    name, params = values.get("optimizer.type"), values.get("optimizer.params")
    if name is None:
        return {}
    found = _table_of(name)
    if found is None:
        values.problems.append(f"optimizer.type is {shown(name)}, and has to be one of: {', '.join(_SHOWN)}.")
        return {}
    keys = TABLE["optimizers"][found]["keys"]
    values.take(params or {}, keys, _PARAMS, _PARAMS)
    settings = values.under(_PARAMS, keys)
    # An Adam is AdamW unless it says that it is not; an AdamW has no say.
    adam_w = name.lower() != "adam" or settings.get("adam_w_mode", True)
    # torch_adam is torch.optim.AdamW, with its default.
    if settings.get("torch_adam") and adam_w and not values.is_said(_PARAMS + _DECAY):
        settings[_DECAY] = _DECAY_OF_TORCH
    return {"kind": found if adam_w else "adam",
            **{key: value for key, value in settings.items() if not keys[key].get("mode")}}


def _table_of(name: str) -> str | None:
    return next((each for each, entry in TABLE["optimizers"].items() if name.lower() in entry["names"]), None)


def configured(name: str, params: dict[str, Any]) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class and its arguments. UsageError: there is no such, or it has no such argument."""
    values = Values()
    values.take({"optimizer": {"type": name, "params": params}})
    settings = take(values)
    if values.problems:
        raise UsageError(f"forebay: {' '.join(values.problems)}")
    kind = _BY_KIND[settings.pop("kind")]
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


__all__ = ["becoming", "configured", "mapped", "take"]
