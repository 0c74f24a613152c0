"""DeepSpeed's `cpu_adam`, `cpu_adagrad` and `cpu_lion` operations on the update kernels.

All arithmetic is fp32. Weights and moments of 16 bits are rounded to the nearest, ties to even, once in an update.
"""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable
from typing import Any

import torch

from forebay._library import Group
from forebay.errors import NotSupportedError, NumericalError, UsageError
from forebay.kernels import Kernels, Run

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
# A step at which beta to its power is 0, so that nothing is corrected.
_NO_CORRECTION = 1 << 60

_kernels: dict[tuple[int, int], Kernels] = {}
_decoupled: dict[int, bool] = {}  # of each Adam that was created: AdamW or L2


def _kernels_of_this_process() -> Kernels:
    key = os.getpid(), torch.get_num_threads()
    if key not in _kernels:
        _kernels[key] = Kernels(key[1])
    return _kernels[key]


def _check(what: str, params: torch.Tensor, grads: torch.Tensor, moments: dict[str, torch.Tensor]) -> None:
    state = next(iter(moments.values())).dtype
    if params.dtype not in _NAMES or state not in (torch.float32, params.dtype) or \
            any(moment.dtype != state for moment in moments.values()):
        raise NotSupportedError(f"forebay: {what} optimizer with param type {params.dtype} and state type {state} is "
                                "not supported. States are of the parameters' type or float32; these are float32, "
                                "bfloat16 or float16.")
    if grads.dtype not in _NAMES:
        raise NotSupportedError(f"forebay: {what} optimizer with gradients of {grads.dtype}. Give float32, bfloat16 or "
                                "float16.")
    for name, tensor in {"params": params, "grads": grads, **moments}.items():
        if tensor.device.type != "cpu":
            raise UsageError(f"forebay: {what} optimizer: {name} is on {tensor.device}. Its update runs on the CPU: "
                             "move it there, or use torch.optim.")
        if tensor.numel() != params.numel():
            raise UsageError(f"forebay: {what} optimizer: {name} has {tensor.numel()} elements, and params "
                             f"{params.numel()}.")


def _memory(tensor: torch.Tensor) -> tuple[int, int, object]:
    return tensor.data_ptr(), tensor.nbytes, tensor


def _update(optimizer: str, what: str, step: int, group: Group, params: torch.Tensor, grads: torch.Tensor,
            **moments: torch.Tensor) -> int:
    _check(what, params, grads, moments)
    if params.numel() == 0:
        return 0
    # A tensor that does not lie in one piece is updated in a copy.
    changed = {name: (tensor, tensor.detach().contiguous()) for name, tensor in {"params": params, **moments}.items()}
    gradient = grads.detach().contiguous()
    held = {name: copy for name, (_, copy) in changed.items()}
    run = Run(optimizer, group, weight_dtype=_NAMES[params.dtype], weights=_memory(held["params"]),
              gradient_dtype=_NAMES[gradient.dtype], gradient=_memory(gradient), step=step,
              m=_memory(held["m"]) if "m" in held else None, v=_memory(held["v"]) if "v" in held else None,
              round_weights=True, moment_dtype=_NAMES[next(iter(moments.values())).dtype])
    _kernels_of_this_process().update([run])
    with torch.no_grad():
        for tensor, copy in changed.values():
            if copy.data_ptr() != tensor.data_ptr():
                tensor.copy_(copy)
    return 0


def _group(lr: float, weight_decay: float, beta1: float = 0.0, beta2: float = 0.0, eps: float = 0.0) -> Group:
    return Group(lr=lr, weight_decay=max(weight_decay, 0.0), beta1=beta1, beta2=beta2, eps=eps)


# ---- Adam

def create_adam(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999, eps: float = 1e-8,
                weight_decay: float = 0.0, adamw_mode: bool = True, should_log: bool = True) -> int:
    """Makes an optimizer, of whose settings `adam_update` takes adamw_mode alone, as it is given the others; 0."""
    del alpha, betta1, betta2, eps, weight_decay, should_log
    _decoupled[optimizer_id] = bool(adamw_mode)
    return 0


def destroy_adam(optimizer_id: int) -> int:
    _decoupled.pop(optimizer_id, None)
    return 0


def _is_decoupled(optimizer_id: int) -> bool:
    if optimizer_id not in _decoupled:
        raise UsageError(f"forebay: there is no Adam with the number {optimizer_id}. Call create_adam first.")
    return _decoupled[optimizer_id]


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                weight_decay: float, bias_correction: bool, params: torch.Tensor, grads: torch.Tensor,
                exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """One step, from 1, of all elements; 0. params: f16, bf16 or f32; exp_avg, exp_avg_sq: f32 or the type of params;
    grads: any of the three. NotSupportedError, UsageError: nothing was changed."""
    optimizer = "adamw" if _is_decoupled(optimizer_id) else "adam"
    return _update(optimizer, "Adam", step if bias_correction else _NO_CORRECTION,
                   _group(lr, weight_decay, beta1, beta2, epsilon), params, grads, m=exp_avg, v=exp_avg_sq)


@torch.no_grad()
def adam_rollback(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                  weight_decay: float, bias_correction: bool, params: torch.Tensor, grads: torch.Tensor,
                  exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """Takes back the update of `step` with the same arguments, up to the rounding of each type; 0. Types: those of
    `adam_update`. NumericalError, and nothing was changed: the values before would not be finite."""
    _check("Adam", params, grads, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq})
    decoupled = _is_decoupled(optimizer_id)
    weight_decay = max(weight_decay, 0.0)
    correction1 = 1 - beta1**step if bias_correction else 1.0
    correction2 = 1 - beta2**step if bias_correction else 1.0
    m, v, gradient = exp_avg.float(), exp_avg_sq.float(), grads.float()
    denominator = (v.sqrt() / math.sqrt(correction2)).add_(epsilon)
    before = params.float().addcdiv(m, denominator, value=lr / correction1)
    if decoupled:
        before.div_(1 - lr * weight_decay)
    else:
        gradient = gradient.add(before, alpha=weight_decay)
    first = m.sub(gradient, alpha=1 - beta1).div_(beta1)
    second = v.addcmul(gradient, gradient, value=-(1 - beta2)).div_(beta2).clamp_(min=0)
    for name, value in {"params": before, "exp_avg": first, "exp_avg_sq": second}.items():
        if not bool(value.isfinite().all()):
            raise NumericalError(f"forebay: adam_rollback of step {step} would make {name} infinite or NaN (lr {lr}, "
                                 f"weight_decay {weight_decay}, betas {beta1} and {beta2}). Nothing was changed: go "
                                 "back to a copy of the tensors.")
    params.copy_(before)
    exp_avg.copy_(first)
    exp_avg_sq.copy_(second)
    return 0


# ---- Adagrad and Lion, which keep nothing of their own

def create_adagrad(optimizer_id: int, alpha: float = 1e-2, eps: float = 1e-8, weight_decay: float = 0.0,
                   should_log: bool = True) -> int:
    del optimizer_id, alpha, eps, weight_decay, should_log
    return 0


def adagrad_update(optimizer_id: int, step: int, lr: float, epsilon: float, weight_decay: float, params: torch.Tensor,
                   grads: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """One step by the formula of torch.optim.Adagrad, whose types are those of `adam_update`; 0. grads are not
    changed."""
    del optimizer_id
    return _update("adagrad", "Adagrad", step, _group(lr, weight_decay, eps=epsilon), params, grads, v=exp_avg_sq)


def create_lion(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999,
                weight_decay: float = 0.0, should_log: bool = True) -> int:
    del optimizer_id, alpha, betta1, betta2, weight_decay, should_log
    return 0


def lion_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, weight_decay: float,
                params: torch.Tensor, grads: torch.Tensor, exp_avg: torch.Tensor) -> int:
    """One step, whose types are those of `adam_update`; 0."""
    del optimizer_id
    return _update("lion", "Lion", step, _group(lr, weight_decay, beta1, beta2), params, grads, m=exp_avg)


def _destroy(optimizer_id: int) -> int:
    del optimizer_id
    return 0


def _module(name: str, **functions: Callable[..., Any]) -> types.ModuleType:
    made = types.ModuleType(f"forebay_{name}", __doc__)
    vars(made).update(functions)
    return made


def modules() -> dict[str, types.ModuleType]:
    """The modules that the builders of these operations are to give, by the operation's name."""
    return {
        "cpu_adam": _module("cpu_adam", create_adam=create_adam, destroy_adam=destroy_adam, adam_update=adam_update,
                            adam_rollback=adam_rollback),
        "cpu_adagrad": _module("cpu_adagrad", create_adagrad=create_adagrad, destroy_adagrad=_destroy,
                               adagrad_update=adagrad_update),
        "cpu_lion": _module("cpu_lion", create_lion=create_lion, destroy_lion=_destroy, lion_update=lion_update),
    }
