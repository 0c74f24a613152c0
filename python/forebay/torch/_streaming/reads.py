"""Copies of the weights of a streamed module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from forebay.errors import DoesNotFitError
from forebay.torch._streaming.window import Window


class Reads:
    """The weights of parameters, through the window. place: a parameter's unit comes first."""

    def __init__(self, window: Window, layout: Sequence[Sequence[torch.Tensor]],
                 place: Mapping[torch.Tensor, tuple[int, int]]) -> None:
        self._window = window
        self._layout = layout
        self._place = place

    def _number_of(self, parameter: torch.Tensor) -> int:
        """In its unit."""
        return [other is parameter for other in self._layout[self._place[parameter][0]]].index(True)

    def copies_of(self, parameters: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
        """The weights of those that are in the store."""
        copies: dict[torch.Tensor, torch.Tensor] = {}
        with self._window.releasing():
            for parameter in parameters:
                if parameter in self._place:
                    weights = self._window.fetch(self._place[parameter][0])
                    copies[parameter] = weights[self._number_of(parameter)].detach().clone()
        return copies

    def fill_state_dict(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, room: int) -> None:
        """The values of placeholders: the whole model in RAM, of which there are `room` bytes."""
        self._check_fits(room)
        names: dict[int, list[tuple[str, int]]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if prefix + name in state and parameter in self._place:
                names.setdefault(self._place[parameter][0], []).append((prefix + name, self._number_of(parameter)))
        with self._window.releasing():
            for unit, wanted in sorted(names.items()):
                weights = self._window.fetch(unit)
                copies: dict[int, torch.Tensor] = {}
                for name, number in wanted:
                    if number not in copies:
                        copies[number] = weights[number].detach().to("cpu", copy=True)
                    state[name] = copies[number]

    def _check_fits(self, room: int) -> None:
        needed = sum(parameter.numel() * parameter.element_size() for parameter in self._place)
        if needed > room:
            raise DoesNotFitError(f"forebay: state_dict() needs {needed} bytes for all weights, and there are {room} "
                                  "(ram=, or 80 % of what was available). Write them unit by unit: "
                                  "engine.save_pretrained(FOLDER); or read them so: engine.named_weights().")
