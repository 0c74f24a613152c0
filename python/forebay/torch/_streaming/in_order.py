"""Gradients that are applied as they come, or added up by ranks, have to be handed over unit by unit, from the last to
the first."""

from __future__ import annotations

from collections.abc import Callable

import torch


class InOrder:
    """Hands the gradient of a parameter over when its unit may be open, which two units may at a time: the next to be
    closed, and the one that follows. Until then it stays in p.grad. A unit is closed when all its gradients are there,
    and a later one has some.

    Where ranks gather weights between gradients, all have to close units at the same places, and some may have fewer
    gradients: then a unit is closed when later ones that have some are as large as the largest unit."""

    def __init__(self, units: list[list[torch.Tensor]], add: Callable[[torch.Tensor], None],
                 close: Callable[[int], None], is_complete: Callable[[int], bool], *,
                 at_same_places: bool = False) -> None:
        """units: their parameters that require a gradient. add: hands a gradient over, and p.grad is None. is_complete:
        no gradient of the unit is to come."""
        self._unit_bytes = [sum(p.numel() * p.element_size() for p in unit) for unit in units]
        self._is_complete = is_complete
        self.at_same_places = at_same_places
        self._add = add
        self._close = close
        self.begin()

    def begin(self) -> None:
        """A step begins. No gradient is there."""
        self.next = len(self._unit_bytes) - 1  # units behind it are closed
        self._num_arrived = [0] * len(self._unit_bytes)
        self._waiting: dict[int, list[torch.Tensor]] = {}

    def has_gradients(self) -> bool:
        """Whether some have arrived in this step."""
        return any(self._num_arrived)

    def waiting(self) -> set[torch.Tensor]:
        return {parameter for unit in self._waiting.values() for parameter in unit}

    def take(self, unit: int, parameter: torch.Tensor) -> None:
        """Its gradient has arrived. Requires: the unit is not closed."""
        self._num_arrived[unit] += 1
        if unit >= self.next - 1:
            self._add(parameter)
            return
        self._waiting.setdefault(unit, []).append(parameter)
        while unit < self.next - 1 and self._next_may_close():
            self._close_next()

    def finish(self) -> None:
        """No more gradients come."""
        while self._waiting:
            self._close_next()

    def _next_may_close(self) -> bool:
        if self.at_same_places:
            begun = sum(size for size, count in zip(self._unit_bytes[:self.next - 1], self._num_arrived) if count > 0)
            return begun >= max(self._unit_bytes)
        return self._is_complete(self.next)

    def _close_next(self) -> None:
        self._close(self.next)
        self.next -= 1
        for parameter in self._waiting.pop(self.next - 1, []) if self.next > 0 else []:
            if parameter.grad is not None:  # else several were added up
                self._add(parameter)


def advice_about_order(sums: object) -> str:
    """What else to do if gradients came in another order; "": nothing depends on that."""
    if not isinstance(sums, InOrder) or not sums.at_same_places:
        return ""
    return " Or train with one process: ranks need gradients roughly in the order from the last unit to the first."
