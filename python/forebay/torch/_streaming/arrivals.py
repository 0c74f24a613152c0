"""Which gradients are still to come: a unit is handed over when it has all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint

from forebay.torch._under_way import BACKWARD


class Arrivals:
    """The gradients of backward passes under way, one of which may compute another (reentrant checkpointing).

    units: the trained parameters of each.
    """

    def __init__(self, units: Sequence[Sequence[torch.Tensor]]) -> None:
        self._units = units
        self._nodes: dict[torch.Tensor, Any] = {}  # of autograd, which add gradients up
        self._to_come: dict[int, list[int]] = {}  # by torch's number of the pass: the gradients of each unit
        self._to_compute_again = [0] * len(units)

    def end_all(self) -> None:
        """No backward pass is under way. A graph may wait for one."""
        self._to_come.clear()

    def forget(self) -> None:
        """No graph and no pass is left."""
        self.end_all()
        self._to_compute_again = [0] * len(self._units)

    def begin(self, backward: int) -> bool:
        """Looks at what a backward pass will compute. False: it has begun before. Requires: it is under way."""
        if backward in self._to_come:
            return False
        execute = torch._C._will_engine_execute_node
        self._to_come[backward] = [sum(execute(self._node_of(each)) for each in unit if each.requires_grad)
                                   for unit in self._units]
        return True

    def arrived(self, backward: int, unit: int) -> None:
        """A gradient of a parameter of the unit is in p.grad."""
        self._to_come[backward][unit] -= 1

    def end(self, backward: int) -> None:
        """The pass is complete."""
        self._to_come.pop(backward, None)

    def is_complete(self, unit: int) -> bool:
        """Whether no gradient of the unit is to come."""
        return self._to_compute_again[unit] == 0 and all(units[unit] <= 0 for units in self._to_come.values())

    def use(self, unit: int) -> bool:
        """A forward pass uses the unit. One without a graph, inside of one with a graph, is computed again in backward,
        by a pass of its own that nobody knows of before. Returns whether this is such a computation."""
        frame = sys._getframe(1)
        is_again = torch._C._current_graph_task_id() >= 0
        if is_again:
            if _is_for_the_same_pass(frame):
                return False
            self._to_compute_again[unit] = max(0, self._to_compute_again[unit] - 1)
        if not torch.is_grad_enabled():
            self._to_compute_again[unit] += _is_in_function(frame)
        return is_again and torch.is_grad_enabled()

    def _node_of(self, parameter: torch.Tensor) -> Any:
        node = self._nodes.get(parameter)
        if node is None:
            # It lives as long as someone keeps it: the graph, else only this dictionary.
            with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
                function = parameter.expand_as(parameter).grad_fn
            assert function is not None
            node = self._nodes[parameter] = function.next_functions[0][0]
        return node


def _is_for_the_same_pass(frame: FrameType | None) -> bool:
    """Whether a backward pass computes something again for itself (non-reentrant checkpointing)."""
    while frame is not None and frame.f_code.co_name != BACKWARD:
        if frame.f_code.co_name == "unpack_hook" and frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return True
        frame = frame.f_back
    return False


def _is_in_function(frame: FrameType | None) -> bool:
    """Whether a function of autograd is computed: its backward may compute again what is inside of it. Otherwise the
    program itself wants no graph."""
    while frame is not None and frame.f_code.co_name != BACKWARD:
        if frame.f_code.co_name == "forward" and frame.f_code.co_varnames[:1] == ("ctx",):
            return True
        frame = frame.f_back
    return False
