"""The units whose weights are here, and the order in which they come."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch

from forebay.errors import ForebayError, NotSupportedError, OutOfMemoryError, UsageError
from forebay.layers import Layers
from forebay.lease import Lease
from forebay.torch._saved import Saved
from forebay.torch._streaming.absent import Absent, class_for
from forebay.torch._streaming.device import Device
from forebay.torch._streaming.kept_graphs import detach_graphs
from forebay.torch._streaming.placeholder import NanElement, Placeholder
from forebay.torch._streaming.units import Unit
from forebay.torch._under_way import is_within, refusal, whole


class View(NamedTuple):
    """offset: elements, from the weight's first."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class SavedWeight(Saved):
    """A view of a weight, as autograd's graph keeps it: without the weight. dtype: autocast has cast the weight to it;
    None: it has not."""

    __slots__ = ("_dtype", "_number", "_unit", "_view", "_window")

    def __init__(self, window: Window, unit: int, number: int, view: View, dtype: torch.dtype | None) -> None:
        self._window = window
        self._unit = unit
        self._number = number  # of the parameter in its unit
        self._view = view
        self._dtype = dtype

    def restore(self) -> torch.Tensor:
        weight = self._window.fetch(self._unit)[self._number]
        if self._dtype is not None:
            weight = weight.to(self._dtype)
        return weight.as_strided(self._view.size, self._view.stride, weight.storage_offset() + self._view.offset)


class Order:
    """Announces units as the last pass of the same kind used them. What comes otherwise is read when it is used."""

    def __init__(self, layers: Layers) -> None:
        self.num_deviations = 0
        self._layers = layers
        self._kind = ""
        self._last: dict[str, list[int]] = {}
        self._now: list[int] = []
        self._ahead: deque[int] = deque()

    @whole
    def end(self) -> None:
        """Keeps the order of the pass that is over, and takes back what was announced."""
        if self._now:
            self._last[self._kind] = self._now
        self._now = []
        self.cancel()

    @whole
    def begin(self, kind: str) -> None:
        """Announces a step, or a pass without one, as the last of its kind was. Nothing is leased, nor announced."""
        self._kind = kind
        self._announce(self._last.get(kind, []))

    @whole
    def cancel(self) -> None:
        """Takes back what is announced, also where an interrupted call has left open whether it is."""
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

    A pinned unit stays until it is unpinned. One that a forward pass has read by attribute stays until that ends, if
    there is room. Of the others one stays: until the next comes, or `release`. Parameters are of the class Absent
    unless a forward pass has their unit. Writes are found when the unit comes or goes: `UsageError`.
    """

    def __init__(self, module: torch.nn.Module, layers: Layers, units: Sequence[Unit], numbers: Sequence[Sequence[int]],
                 device: Device, placeholder: Placeholder | NanElement) -> None:
        self.module = ref(module)
        self.order = Order(layers)
        self.before_fetch: Callable[[], None] = lambda: None  # before weights come
        self._device = device
        self._layers = layers
        self._names = [unit.name for unit in units]
        self._units = [list(unit.parameters.values()) for unit in units]
        self._numbers = numbers  # in the inventory
        self._placeholder = placeholder
        self._here: dict[int, list[torch.Tensor]] = {}
        self._leases: dict[int, Lease] = {}  # of what is here
        self._pins = [0] * len(units)
        self._unit_of: dict[torch.Tensor, int] = {
            parameter: number for number, unit in enumerate(self._units) for parameter in unit}
        # The class of each parameter, and what it is while the parameter is absent.
        self._classes: dict[type[torch.nn.Parameter], type[Absent]] = {}
        self._has_warned_of_graphs = False
        self._scopes: list[list[int]] = []  # of the forward passes under way, the units that each has read
        self._moving: int | None = None  # a unit that comes or goes: an interrupt may leave it between
        self._written: str | None = None
        # To know writes by: the versions of parameters and weights, and some of each weight.
        self._versions = [[parameter._version for parameter in unit] for unit in self._units]
        self._compiled = [_num_compiled()] * len(units)
        self._lent_versions: dict[int, list[int]] = {}
        self._samples = device.samples(len(units))
        for unit in range(len(units)):
            self._take_away(unit)

    def rebind(self, layers: Layers) -> None:
        """Another store of the same units takes the place of this one. Nothing is here."""
        self._layers = layers
        self.order = Order(layers)

    def _take_away(self, unit: int) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            for parameter in self._units[unit]:
                parameter.data = self._placeholder.view(parameter.shape, parameter.dtype)
        self._make_absent(unit)

    def _make_absent(self, unit: int) -> None:
        for parameter in self._units[unit]:
            if not isinstance(parameter, Absent) and parameter.numel() > 0:
                kind = type(parameter)
                if kind not in self._classes:
                    self._classes[kind] = class_for(self, kind)
                parameter.__class__ = self._classes[kind]

    def _make_present(self, unit: int) -> None:
        for parameter in self._units[unit]:
            _make_present(parameter)

    def name_of(self, parameter: torch.Tensor) -> str:
        return f"a parameter of {self._names[self._unit_of[parameter]]}"

    # ---- What is here

    @whole
    def fetch(self, unit: int) -> list[torch.Tensor]:
        """The weights of a unit: they are here until the next unit is fetched, or while one of them is kept.

        OutOfMemoryError: too many are kept; it names their units."""
        self._layers.check_process()
        _refuse_transforms()
        if unit in self._here:
            self._device.use(self._leases[unit])
        else:
            if is_within(sys._getframe(), _MOVES):
                raise refusal("a use of weights")
            self.before_fetch()
            self._release_others()
            self.check()
            self._check_placeholders(unit)
            self._moving = unit
            # Weights are no inference tensors, which a later training step could not use.
            with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                self._here[unit] = tensors = self._read(unit)
                for parameter, tensor in zip(self._units[unit], tensors):
                    parameter.data = tensor
                self._lent_versions[unit] = [tensor._version for tensor in tensors]
                self._samples.take(unit, self._leases[unit], tensors)
            self._moving = None
        return self._here[unit]

    def _read(self, unit: int) -> list[torch.Tensor]:
        self.order.next(unit)
        self._leases[unit] = lease = self.needing_leases_to_end(
            self._acquire, unit, kind=OutOfMemoryError, doing=f"there is no room for {self._names[unit]}")
        return [tensor.view(parameter.shape)
                for parameter, tensor in zip(self._units[unit], self._device.weights_of(lease, self._numbers[unit]))]

    def _acquire(self, unit: int) -> Lease:
        """Makes room, if there is none, by what a forward pass has read first."""
        while True:
            try:
                return self._layers.acquire(unit)
            except UsageError:
                others = [each for each in self._here if self._pins[each] == 0]
                if not others:
                    raise
                self._moving = None
                self._drop(others[0])
                self._moving = unit

    def _kept(self) -> str:
        """Advice about weights that are kept beside those that are here, or are all needed at a time; "": neither."""
        kept = sorted(set(self._layers.stats()["leased_layers"]) - self._here.keys())
        if not kept and len(pinned := [name for name, pins in zip(self._names, self._pins) if pins > 0]) > 1:
            return (f"the weights of {', '.join(pinned)} are needed at one time, and the window has no room for more. "
                    "Use fewer of them in one expression, or in one call of a module.")
        return "" if not kept else (
            f"tensors that are views of weights of {', '.join(self._names[each] for each in kept)} are kept. Keep "
            "weight.clone() instead, and del losses and outputs that are not needed. A backward pass with "
            "create_graph=True belongs into `with engine.optimizer.saving():`.")

    def needing_leases_to_end(self, call: Callable[..., Any], *arguments: Any,
                              doing: str = "a step cannot begin or end, nor be committed",
                              kind: type[ForebayError] = UsageError) -> Any:
        """The call; its error names the units of weights that are kept."""
        try:
            return call(*arguments)
        except UsageError:
            if not self._kept():
                raise
        gc.collect()  # what torch.compile and tracebacks leave are circles
        self._detach_graphs()
        try:
            return call(*arguments)
        except UsageError as error:
            kept = self._kept()
            if not kept:
                raise
            raise kind(f"forebay: {doing}: {kept}") from error

    def _detach_graphs(self) -> None:
        module = self.module()
        # In a forward pass its graph is still needed. In backward it is one that was computed again.
        if module is None or not self._kept() or self._scopes:
            return
        names = detach_graphs(module)
        if names and not self._has_warned_of_graphs:
            self._has_warned_of_graphs = True
            warnings.warn(f"forebay: {', '.join(names[:4])}{', ...' * (len(names) > 4)} kept the graph of a pass that "
                          "is over, and with it weights. It is detached now and in later steps. Detach it in the "
                          "module to be rid of this line.", stacklevel=2)
        if names:
            gc.collect()

    @whole
    def pin(self, unit: int) -> None:
        self.fetch(unit)
        self._pins[unit] += 1
        self._make_present(unit)

    @contextlib.contextmanager
    def using(self, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
        """Around an operation on parameters, whose units are here. OutOfMemoryError: they are too many."""
        pinned: list[int] = []
        try:
            for unit in dict.fromkeys(self._unit_of[each] for each in parameters if each in self._unit_of):
                self.fetch(unit)
                self._pins[unit] += 1
                pinned.append(unit)
            yield
        finally:
            for unit in pinned:
                self._pins[unit] = max(0, self._pins[unit] - 1)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Around a forward pass of a module."""
        _refuse_transforms()
        read: list[int] = []
        self._scopes.append(read)
        try:
            yield
        except RuntimeError as error:
            if "saved tensor hooks" in str(error):  # torch's, of a transform that the module makes
                raise _transforms_error() from error
            raise
        finally:
            self._scopes = [each for each in self._scopes if each is not read]
            for unit in read:
                if self._pins[unit] == 0 and not self._is_read(unit):
                    self._make_absent(unit)

    def _is_read(self, unit: int) -> bool:
        return any(unit in scope for scope in self._scopes)

    @property
    def is_in_forward(self) -> bool:
        """Whether a forward pass is under way, of any module."""
        return bool(self._scopes)

    def is_pinned(self, parameter: torch.Tensor) -> bool:
        unit = self._unit_of.get(parameter)
        return unit is not None and self._pins[unit] > 0

    @whole
    def read(self, parameter: torch.Tensor) -> None:
        """A parameter was taken from its module, by the forward pass of another one."""
        if isinstance(parameter, Absent):
            unit = self._unit_of[parameter]
            self.fetch(unit)
            if self._scopes:
                self._scopes[-1].append(unit)
            self._make_present(unit)

    @whole
    def unpin(self, unit: int) -> None:
        """Also of one that could not be pinned."""
        if self._pins[unit] > 0:
            self._pins[unit] -= 1
        if self._pins[unit] == 0 and unit in self._here:
            self._drop(unit)

    @whole
    def release(self) -> None:
        """Takes away what is not pinned."""
        try:
            self._release()
        except BaseException:
            self._release()  # an interrupt may come here too
            raise

    def _release(self) -> None:
        self._recover()
        for unit in [unit for unit in self._here if self._pins[unit] == 0]:
            self._drop(unit)

    def _release_others(self) -> None:
        """Takes away what is neither pinned nor read by a forward pass under way."""
        self._recover()
        for unit in [unit for unit in self._here if self._pins[unit] == 0 and not self._is_read(unit)]:
            self._drop(unit)

    @contextlib.contextmanager
    def releasing(self) -> Iterator[None]:
        """Around reads: behind them, and where they are broken off, what is not pinned is gone."""
        try:
            yield
        finally:
            self.release()

    @whole
    def unpin_all(self) -> None:
        """Takes away everything: no forward pass is under way."""
        self._pins = [0] * len(self._pins)
        self._scopes = []
        self.release()

    @staticmethod
    def lend(copies: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Points parameters at copies of their weights, until `show`."""
        for parameter, copy in copies.items():
            _make_present(parameter)
            parameter.data = copy

    @whole
    def show(self, unit: int) -> None:
        """Parameters that were pointed elsewhere have again what is here of them."""
        if unit not in self._here:
            self._take_away(unit)
        with torch._C.DisableTorchFunctionSubclass():
            for parameter, tensor in zip(self._units[unit], self._here.get(unit, ())):
                parameter.data = tensor
        if self._pins[unit] == 0 and not self._is_read(unit):
            self._make_absent(unit)
        self._versions_have_changed(unit)  # while they were elsewhere they could be written to

    def use(self, layers: Layers) -> None:
        """Goes on with another store of the same units. Nothing is pinned."""
        self.release()
        self._written = None
        self._layers, self.order = layers, Order(layers)
        for unit in range(len(self._units)):
            self._versions_have_changed(unit)

    def _recover(self) -> None:
        """Completes what an interrupt has left half done."""
        if self._moving is not None:
            unit = self._moving
            self._here.pop(unit, None)
            self._leases.pop(unit, None)
            self._pins[unit] = 0
            self._take_away(unit)
            self.order.cancel()
            self._moving = None

    @whole
    def _drop(self, unit: int) -> None:
        self._recover()
        if unit not in self._here:
            return
        self._moving = unit
        tensors = self._here.pop(unit)
        versions = self._lent_versions.pop(unit, ())
        is_written = any(tensor._version != version for tensor, version in zip(tensors, versions))
        is_written |= self._versions_have_changed(unit) | self._samples.have_changed(unit, tensors)
        with torch._C.DisableTorchFunctionSubclass():
            is_written |= any(parameter.data_ptr() != tensor.data_ptr()
                              for parameter, tensor in zip(self._units[unit], tensors))
        del tensors
        self._take_away(unit)
        self._leases.pop(unit).release()
        self._moving = None
        if is_written:
            self._written = self._names[unit]
            self.check()

    # ---- Writes

    @property
    def was_written_to(self) -> bool:
        return self._written is not None

    def check(self) -> None:
        """UsageError: weights were written to, so that what is lent may be wrong from then on."""
        if self._written is not None:
            raise UsageError(
                f"forebay: weights of {self._written} were written to while they were here. The weights of a streamed "
                "module change by step() alone. The store still has its last commit: close this engine, and go on from "
                "there with stream(..., resume=True). Change weights before stream().")

    def check_placeholders(self) -> None:
        """UsageError: a parameter was written to while its weights were not here. That is forgotten: the placeholder is
        NaN again. Or weights were, which the device has found meanwhile. Once in a step: it may wait for the device."""
        changed = self._samples.changed_unit()
        if changed is not None:
            self._written = self._names[changed]
            self.check()
        for unit in range(len(self._units)):
            if unit not in self._here:
                self._check_placeholders(unit)
        if not self._placeholder.is_intact():
            self._refuse_write("a parameter")

    def _check_placeholders(self, unit: int) -> None:
        if self._versions_have_changed(unit):
            self._refuse_write(f"a parameter of {self._names[unit]}")

    def _refuse_write(self, what: str) -> None:
        self._placeholder.renew()
        raise UsageError(f"forebay: {what} was written to while its weights were not there, which changes nothing. "
                         "The weights of a streamed module change by step() alone: change them before stream().")

    def _versions_have_changed(self, unit: int) -> bool:
        """Whether torch has counted a write since it was last asked."""
        with torch._C.DisableTorchFunctionSubclass():
            before, self._versions[unit] = self._versions[unit], [each._version for each in self._units[unit]]
        compiled, self._compiled[unit] = self._compiled[unit], _num_compiled()
        # torch.compile counts one where it has written nothing.
        return self._versions[unit] != before and self._compiled[unit] == compiled

    # ---- Autograd

    def save(self, tensor: torch.Tensor) -> SavedWeight | None:
        """Gives the stand-in that autograd keeps of a view of a weight that is here, or of autocast's copy of one."""
        if not self._here or tensor.device != self._device.torch_device or tensor.layout != torch.strided:
            return None
        address = tensor.data_ptr()
        for unit, weights in self._here.items():
            for number, weight in enumerate(weights):
                begin = weight.data_ptr()
                size = weight.element_size()
                if begin <= address < begin + weight.numel() * size and tensor.dtype == weight.dtype:
                    view = View(tensor.size(), tensor.stride(), (address - begin) // size)
                    return SavedWeight(self, unit, number, view, None)
                if tensor.dtype != weight.dtype and _is_cast_of(tensor, weight):
                    view = View(tensor.size(), tensor.stride(), int(tensor.storage_offset()))
                    return SavedWeight(self, unit, number, view, tensor.dtype)
        return None


def _make_present(parameter: torch.Tensor) -> None:
    if isinstance(parameter, Absent):
        parameter.__class__ = type(parameter).present  # type: ignore[assignment]


def _refuse_transforms() -> None:
    if torch._C._functorch.maybe_current_level() is not None:
        raise _transforms_error()


def _transforms_error() -> NotSupportedError:
    return NotSupportedError("forebay: torch.func's transforms (grad, vmap, jacrev and others) do not go together with "
                             "weights that come and go. Use loss.backward() or torch.autograd.grad, or transform a "
                             "copy that is not streamed.")


def _num_compiled() -> int:
    """The frames that torch.compile has looked at in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])


def _is_cast_of(tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether it is a view of all of `weight`, cast to its type. That is looked at: no one says."""
    if (not tensor.is_floating_point() or
            tensor.untyped_storage().nbytes() != weight.numel() * tensor.element_size()):
        return False
    all_of_it = tensor.detach().as_strided((weight.numel(),), (1,), 0)
    flat = weight.detach().view(-1)
    # The first elements alone tell nearly all others.
    return all(torch.equal(all_of_it[:count], flat[:count].to(tensor.dtype)) for count in (16, weight.numel()))


_MOVES = frozenset({Window.fetch.__code__, Window._drop.__code__})
