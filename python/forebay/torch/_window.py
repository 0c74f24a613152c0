"""The units whose weights are here, and the order in which they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from forebay.layers import Layers
from forebay.torch._placeholder import Placeholder


class Saved(NamedTuple):
    """A view of a weight, as autograd's graph keeps it: without the weight."""

    unit: int
    number: int  # of the parameter in its unit
    offset: int  # elements
    size: torch.Size
    stride: tuple[int, ...]


class Order:
    """Announces units as the last pass of the same kind used them. What comes otherwise is read when it is used."""

    def __init__(self, layers: Layers) -> None:
        self.num_deviations = 0
        self._layers = layers
        self._kind = ""
        self._last: dict[str, list[int]] = {}
        self._now: list[int] = []
        self._ahead: deque[int] = deque()

    def end(self) -> None:
        """Keeps the order of the pass that is over, and takes back what was announced."""
        if self._now:
            self._last[self._kind] = self._now
        self._now = []
        self.cancel()

    def begin(self, kind: str) -> None:
        """Announces a step, or a pass without one, as the last of its kind was. Nothing is leased, nor announced."""
        self._kind = kind
        self._announce(self._last.get(kind, []))

    def cancel(self) -> None:
        if self._ahead:
            self._layers.cancel_expected()
            self._ahead.clear()

    def _announce(self, units: Sequence[int]) -> None:
        if units:
            self._layers.expect(units)
            self._ahead.extend(units)

    def next(self, unit: int) -> None:
        """Has `unit` be the next that comes."""
        if not self._ahead or self._ahead[0] != unit:
            last = self._last.get(self._kind)
            if last is not None:
                self.num_deviations += 1
            rest = list(self._ahead)
            self.cancel()
            # Units that were to come behind it still are.
            self._announce([unit, *(rest[rest.index(unit) + 1:] if unit in rest else [])])
        self._ahead.popleft()
        self._now.append(unit)


class Window:
    """Parameters have their weights while their unit is here, and else the placeholder.

    A pinned unit stays until it is unpinned. Of those that are not, one stays: until the next comes, or `release`.
    """

    def __init__(self, layers: Layers, units: Sequence[Sequence[torch.nn.Parameter]], numbers: Sequence[Sequence[int]],
                 placeholder: Placeholder) -> None:
        self.order = Order(layers)
        self._layers = layers
        self._units = units
        self._numbers = numbers  # in the inventory
        self._placeholder = placeholder
        self._here: dict[int, list[torch.Tensor]] = {}
        self._pins = [0] * len(units)
        for unit in range(len(units)):
            self._take_away(unit)

    def rebind(self, layers: Layers) -> None:
        """Another store of the same units takes the place of this one. Nothing is here."""
        self._layers = layers
        self.order = Order(layers)

    def _take_away(self, unit: int) -> None:
        for parameter in self._units[unit]:
            parameter.data = self._placeholder.view(parameter.shape, parameter.dtype)

    def fetch(self, unit: int) -> list[torch.Tensor]:
        """The weights of a unit: they are here until the next unit is fetched, or while one of them is kept."""
        if unit not in self._here:
            self.release()
            self.order.next(unit)
            with self._layers.acquire(unit) as lease:
                tensors = [torch.from_dlpack(lease.tensor(number)).view(parameter.shape)  # type: ignore[attr-defined]
                           for parameter, number in zip(self._units[unit], self._numbers[unit])]
            self._here[unit] = tensors
            for parameter, tensor in zip(self._units[unit], tensors):
                parameter.data = tensor
        return self._here[unit]

    def pin(self, unit: int) -> None:
        self.fetch(unit)
        self._pins[unit] += 1

    def unpin(self, unit: int) -> None:
        """Also of one that could not be pinned."""
        if self._pins[unit] > 0:
            self._pins[unit] -= 1
        if self._pins[unit] == 0 and unit in self._here:
            self._drop(unit)

    def release(self) -> None:
        """Takes away what is not pinned."""
        for unit in [unit for unit in self._here if self._pins[unit] == 0]:
            self._drop(unit)

    def show(self, unit: int) -> None:
        """Parameters that were pointed elsewhere have again what is here of them."""
        if unit not in self._here:
            self._take_away(unit)
        for parameter, tensor in zip(self._units[unit], self._here.get(unit, ())):
            parameter.data = tensor

    def use(self, layers: Layers) -> None:
        """Goes on with another store of the same units. Nothing is pinned."""
        self.release()
        self._layers, self.order = layers, Order(layers)

    def _drop(self, unit: int) -> None:
        self._take_away(unit)
        del self._here[unit]

    def save(self, tensor: torch.Tensor) -> torch.Tensor | Saved:
        """Gives what autograd keeps of a tensor."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor
        address = tensor.data_ptr()
        for unit, weights in self._here.items():
            for number, weight in enumerate(weights):
                begin = weight.data_ptr()
                size = weight.element_size()
                if begin <= address < begin + weight.numel() * size and tensor.dtype == weight.dtype:
                    return Saved(unit, number, (address - begin) // size, tensor.size(), tensor.stride())
        return tensor

    def restore(self, saved: torch.Tensor | Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        weight = self.fetch(saved.unit)[saved.number]
        return weight.as_strided(saved.size, saved.stride, weight.storage_offset() + saved.offset)
