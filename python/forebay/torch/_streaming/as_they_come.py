"""Gradients are handed over as backward makes them, unless their unit's are far apart."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch


class AsTheyCome:
    """Hands each gradient over at once, if its unit is open or can be opened: some units may be open at a time, and one
    that has all its gradients is closed for the next. Otherwise gradients wait in p.grad: of any unit while the open
    ones lack gradients; and from the next pass on of those alone, which would keep others waiting again."""

    def __init__(self, add: Callable[[torch.Tensor], None], close: Callable[[int], None], open_units: Collection[int],
                 most_open: int, is_complete: Callable[[int], bool]) -> None:
        """add: hands a gradient over and opens its unit; p.grad is None then. open_units: as they are, the one that got
        no gradient for the longest time first. is_complete: no gradient of the unit is to come."""
        self._add = add
        self._close = close
        self._open_units = open_units
        self._most_open = most_open
        self._is_complete = is_complete
        self._are_far_apart: set[int] = set()  # units that have kept others waiting
        self.begin()

    def begin(self) -> None:
        """A step begins. No gradient is there."""
        self._waiting: dict[int, list[torch.Tensor]] = {}

    def has_gradients(self) -> bool:
        """Whether some wait."""
        return bool(self._waiting)

    def waiting(self) -> set[torch.Tensor]:
        return {parameter for unit in self._waiting.values() for parameter in unit}

    def take(self, unit: int, parameter: torch.Tensor) -> None:
        """Its gradient has arrived. Requires: the unit is not closed."""
        self._waiting.setdefault(unit, []).append(parameter)
        for each in list(self._waiting):
            self._add_waiting(each)

    def finish(self) -> None:
        """No more gradients come. Requires: all units are complete."""
        for unit in list(self._waiting):
            self._add_waiting(unit)
        assert not self._waiting

    def _add_waiting(self, unit: int) -> None:
        if not self._may_open(unit):
            return
        for parameter in self._waiting.pop(unit):
            if parameter.grad is not None:  # else several were added up
                self._add(parameter)

    def _may_open(self, unit: int) -> bool:
        if unit in self._open_units:
            return True
        if unit in self._are_far_apart and not self._is_complete(unit):
            return False
        if len(self._open_units) < self._most_open:
            return True
        complete = next((each for each in self._open_units
                         if self._is_complete(each) and each not in self._waiting), None)
        if complete is None:
            self._are_far_apart.update(self._open_units)
            return False
        self._close(complete)
        return True
