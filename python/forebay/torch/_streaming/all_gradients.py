"""`p.grad` of one parameter, behind the backward pass of a streamed module: all its gradients, which the store
has. Their norm can be asked for and they can be multiplied, so `clip_grad_norm_` and GradScaler do what they always do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from forebay.errors import NotSupportedError

_aten = torch.ops.aten


class AllGradients(torch.Tensor):
    """A tensor of a parameter's shape without elements of its own.

    factor: what all gradients were multiplied by. is_zero: they were set to 0, as zero_grad() does it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    norm_of_all: Callable[[], float]  # not finite: so is a gradient
    factor: float
    is_zero: bool

    @staticmethod
    def __new__(cls, parameter: torch.Tensor, norm: Callable[[], float]) -> AllGradients:
        self: AllGradients = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, dtype=parameter.dtype, device=parameter.device)
        self.norm_of_all = norm
        self.factor = 1.0
        self.is_zero = False
        return self

    def __init__(self, parameter: torch.Tensor, norm: Callable[[], float]) -> None:
        """norm: gives the norm of all gradients, as they were handed over."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"AllGradients(norm={self._norm()})"

    def _norm(self) -> float:
        return 0.0 if self.is_zero else abs(self.factor) * self.norm_of_all()

    def _norm_as_tensor(self) -> torch.Tensor:
        return torch.tensor(self._norm(), device=self.device)

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any,  # type: ignore[override]
                           arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Any:
        packet, keywords = function.overloadpacket, keywords or {}
        first, *rest = arguments
        if packet is _aten.detach or packet is _aten.alias:
            return first
        if packet is _aten.linalg_vector_norm and _is_of_all(rest, keywords):
            return first._norm_as_tensor()
        if packet is _aten._foreach_norm and _is_of_all(rest, keywords):
            return [each._norm_as_tensor() if isinstance(each, cls) else torch.linalg.vector_norm(each)
                    for each in first]
        if packet is _aten.mul_ or packet is _aten.div_:
            first._multiply(packet is _aten.div_, rest[0])
            return first
        if packet is _aten._foreach_mul_ or packet is _aten._foreach_div_:
            factors = rest[0] if isinstance(rest[0], (list, tuple)) else [rest[0]] * len(first)
            for each, factor in zip(first, factors):
                if isinstance(each, cls):
                    each._multiply(packet is _aten._foreach_div_, factor)
                else:
                    each.mul_(factor) if packet is _aten._foreach_mul_ else each.div_(factor)
            return None
        if packet is _aten.zero_ or packet is _aten._foreach_zero_:
            for each in [first] if packet is _aten.zero_ else first:
                if isinstance(each, cls):
                    each.is_zero = True
                else:
                    each.zero_()
            return first if packet is _aten.zero_ else None
        if packet is _aten._amp_foreach_non_finite_check_and_unscale_:
            _unscale(first, *rest)
            return None
        raise NotSupportedError(
            f"forebay: {packet} asks for the elements of gradients, which a streamed module has handed over. p.grad of "
            "one parameter stands for all of them: its norm is that of all, and it can be multiplied by a number "
            "(clip_grad_norm_, GradScaler). Look at single gradients in a hook: "
            "parameter.register_hook(lambda gradient: ...).")

    def _multiply(self, divides: bool, by: Any) -> None:
        factor = float(by)
        self.factor = self.factor * (1 / factor if divides and factor != 0 else math.inf if divides else factor)


def _is_of_all(rest: list[Any], keywords: dict[str, Any]) -> bool:
    """Whether a norm is that of all elements, and of order 2."""
    order = rest[0] if rest else keywords.get("ord", 2)
    return float(order) == 2 and all(each is None or each is False for each in rest[1:]) and keywords.get("dim") is None


def _unscale(gradients: Iterable[torch.Tensor], found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    """torch._amp_foreach_non_finite_check_and_unscale_."""
    others = [each for each in gradients if not isinstance(each, AllGradients)]
    if others:
        torch._amp_foreach_non_finite_check_and_unscale_(others, found_inf, inverse_scale)
    for each in gradients:
        if isinstance(each, AllGradients):
            if not math.isfinite(each._norm()):
                found_inf.fill_(1.0)
            each._multiply(False, inverse_scale)
