"""The step of a streamed module: gradients go to the store as backward makes them."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from typing import Any, NamedTuple

import torch

from forebay.errors import ForebayError, NumericalError, UsageError
from forebay.layers import Layers, StepGradients
from forebay.torch import _saved
from forebay.torch._groups import Groups
from forebay.torch._in_store import InStore, StoreOptions
from forebay.torch._streaming.all_gradients import AllGradients
from forebay.torch._streaming.arrivals import Arrivals
from forebay.torch._streaming.as_they_come import AsTheyCome
from forebay.torch._streaming.device import Device, Host
from forebay.torch._streaming.in_order import InOrder, advice_about_order
from forebay.torch._streaming.placeholder import NanElement, Placeholder
from forebay.torch._streaming.units import units_of
from forebay.torch._streaming.window import Window
from forebay.torch._tensors import checked_gradient_of
from forebay.torch._under_way import num_backward_passes, whole

NUM_OPEN_LAYERS = 2


class Made(NamedTuple):
    """A step whose update the store does not know of yet. words: for its commit."""

    step: int
    words: dict[str, Any]


class StreamedStep(InStore):
    """The gradients of a step, and its update: step() settles what it is, and the store makes it when the next pass, a
    commit or a read begins. Until then a commit after an interrupt can have the state before it."""

    def __init__(self, optimizer: Groups, options: StoreOptions, module: torch.nn.Module,
                 device: Device | None) -> None:
        super().__init__(optimizer, options)
        self._device = Host() if device is None else device
        self._units = units_of(module)
        self._window: Window | None = None
        self._placeholder: Placeholder | NanElement | None = None
        self._keeps_generators = True
        self._trained: list[torch.Tensor] = []
        self.accumulation_steps = 1  # passes of a step
        self._caller = threading.get_ident()  # the thread of the last forward pass
        # The step in progress:
        self._open: dict[int, None] = {}  # layers whose gradients are being summed, least recent first
        self._num_passes = 0
        self._num_backwards = 0
        self._is_in_backward = False  # in one that is counted
        self._found: StepGradients | None = None  # its norm, once it was asked for
        self._all: tuple[torch.Tensor, AllGradients] | None = None  # is p.grad of this parameter
        self._arrivals: Arrivals | None = None
        # InOrder: under update_in_backward, and with ranks.
        self._sums: InOrder | AsTheyCome | None = None
        self._made: Made | None = None

    def _take_gradients(self, optimizer: weakref.ref[Groups]) -> None:
        def add(parameter: torch.Tensor) -> None:
            to = optimizer()
            assert to is not None and self._layers is not None
            self._hand_over_gradient(to, self._layers, parameter)

        def close(layer: int) -> None:
            assert self._layers is not None
            self._close(self._layers, layer)

        def close_with_what_is_left(layer: int) -> None:
            to = optimizer()
            assert to is not None
            for parameter in self._layout[layer]:
                if self._is_left(to, parameter):  # by the passes before, where this one does not use it
                    add(parameter)
            close(layer)

        to = optimizer()
        assert to is not None
        trained = [[p for p in unit if to.group_number_of(p) is not None] for unit in self._layout]
        arrivals = self._arrivals = Arrivals(trained)
        if self._options.update_in_backward or self._options.ranks is not None:
            trained = [[p for p in unit if p.requires_grad] for unit in trained]
            self._sums = InOrder(trained, add, close_with_what_is_left, arrivals.is_complete,
                                 at_same_places=self._options.ranks is not None and self._options.zero_stage == 3)
        else:
            self._sums = AsTheyCome(add, close, self._open, NUM_OPEN_LAYERS, arrivals.is_complete)

    def _begin(self, optimizer: Groups, layers: Layers, loss_scale: float) -> None:
        self.make_update()
        try:
            super()._begin(optimizer, layers, loss_scale)
        except BaseException:
            self._in_step = False
            layers.abandon()  # an interrupted call may have begun it
            raise

    def saving(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, autograd keeps no weights."""
        return _saved.hooks()

    def end_backward(self) -> None:
        """After a backward pass, also one that an exception has ended: nothing stays leased."""
        if self._window is not None:
            self._window.release()

    # ---- A step

    @whole
    def take_gradient(self, optimizer: Groups, parameter: torch.Tensor) -> None:
        if self._layers is None or self._window is None or self._arrivals is None:
            return
        if parameter.numel() == 0:  # the store has none of it
            parameter.grad = None
            return
        self._arrivals.arrived(self._begin_backward(optimizer, self._arrivals), self._place[parameter][0])
        if not self._waits_for_passes():
            self._add(optimizer, self._layers, parameter)

    def _begin_backward(self, optimizer: Groups, arrivals: Arrivals) -> int:
        """Torch's number of the pass under way, whose end is noted."""
        backward = torch._C._current_graph_task_id()
        if arrivals.begin(backward):
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_backward(optimizer, backward))
            self._num_backwards += not self._is_in_backward
            self._is_in_backward = True
        return backward

    def _note_use(self, optimizer: Groups, unit: int) -> None:
        """A pass with a graph uses the weights of a unit."""
        assert self._arrivals is not None
        # Reentrant checkpointing may compute all gradients in passes inside this one, which gets none itself, and has
        # to end.
        if self._arrivals.use(unit) and not optimizer.accumulates:
            self._begin_backward(optimizer, self._arrivals)

    def _waits_for_passes(self) -> bool:
        """Before the last pass of a step gradients add up in p.grad."""
        return self.accumulation_steps > 1 and min(self._num_passes, self._num_backwards) < self.accumulation_steps

    @torch.no_grad()
    @whole
    def _end_backward(self, optimizer: Groups, backward: int) -> None:
        """Gradients were taken, and the backward pass, or one inside of it, is complete."""
        assert self._arrivals is not None
        self._arrivals.end(backward)
        self.end_backward()
        if self._layers is None or not self._is_outermost_backward():
            return
        self._is_in_backward = False
        self._arrivals.end_all()
        if not self._in_step or self._waits_for_passes():
            return
        self._add_what_is_left(optimizer, self._layers)
        carrier = min((p for p in self._place if p.requires_grad), key=torch.Tensor.numel)
        if carrier.grad is None:
            all_of_them = AllGradients(carrier, self._norm)
            carrier.grad = all_of_them
            self._all = carrier, all_of_them

    def _is_outermost_backward(self) -> bool:
        """Whether no other backward pass computes the one that ends (reentrant checkpointing)."""
        is_autograds = self._device.has_backward_thread and threading.get_ident() != self._caller
        return num_backward_passes() <= (0 if is_autograds else 1)

    def _withdraw_all_gradients(self) -> None:
        if self._all is not None and self._all[0].grad is self._all[1]:
            self._all[0].grad = None
        self._all = None

    @whole
    def _norm(self) -> float:
        """The norm of all gradients of the step, which are complete."""
        if self._layers is None or not self._in_step:
            raise UsageError("forebay: these gradients are of a step that is over.")
        if self._found is None:
            self._found = self._layers.finish_backward()
        if self._found.nonfinite_layer is not None and math.isfinite(self._found.norm):
            return math.inf
        return self._found.norm

    def _add_what_is_left(self, optimizer: Groups, layers: Layers) -> None:
        """Hands over gradients that added up, except those of parameters of no group."""
        assert self._sums is not None
        waiting = self._sums.waiting()
        for parameter in reversed(self._place):
            if parameter not in waiting and self._is_left(optimizer, parameter):
                self._add(optimizer, layers, parameter)
        self._sums.finish()

    def _is_left(self, optimizer: Groups, parameter: torch.Tensor) -> bool:
        """Whether p.grad is a gradient of the step that was not handed over."""
        return (parameter.grad is not None and not isinstance(parameter.grad, AllGradients)
                and optimizer.group_number_of(parameter) is not None)

    def _add(self, optimizer: Groups, layers: Layers, parameter: torch.Tensor) -> None:
        layer = self._place[parameter][0]
        if self._is_handed[layer] or self._found is not None:
            raise UsageError(
                f"forebay: {optimizer.name_of(parameter)} got a gradient after its layer was handed over. Call step() "
                "after each backward(), and put all but the last backward() of a step into `with "
                "optimizer.accumulate():`. The step cannot go on: call optimizer.zero_grad()."
                + advice_about_order(self._sums))
        if not self._in_step:  # the program has called no module, but used weights
            assert self._window is not None
            self._window.release()
            self._begin(optimizer, layers, 1.0)
        assert self._sums is not None
        self._sums.take(layer, parameter)

    def _hand_over_gradient(self, optimizer: Groups, layers: Layers, parameter: torch.Tensor) -> None:
        layer, index = self._place[parameter]
        gradient = checked_gradient_of(parameter, optimizer.name_of(parameter))
        # Before the call: one that is interrupted adds it all the same.
        self._open.pop(layer, None)
        self._open[layer] = None
        self._device.add_gradient(layers, index, gradient)
        parameter.grad = None

    def _close(self, layers: Layers, layer: int) -> None:
        if layer in self._open:  # else it got no gradient
            layers.close_layer(layer)
            del self._open[layer]
        self._is_handed[layer] = True

    def step(self, optimizer: Groups, loss_scale: float) -> None:
        layers, window, placeholder = self._layers, self._window, self._placeholder
        if layers is None or window is None or placeholder is None or not self._in_step:
            raise UsageError("forebay: step() without a forward and backward pass of the streamed module before it.")
        try:
            factor = 1.0
            if self._all is not None:
                if self._all[0].grad is not self._all[1] or self._all[1].is_zero:
                    raise UsageError("forebay: step() behind zero_grad(), which has forgotten the gradients. Call it "
                                     "behind step().")
                factor = self._all[1].factor
            if self._arrivals is not None:
                self._arrivals.forget()
            self._add_what_is_left(optimizer, layers)
            window.release()
            window.order.cancel()
            window.check()
            window.check_placeholders()
            norm = self._norm() * factor / loss_scale
            layer = self._found.nonfinite_layer if self._found is not None else None
            if layer is not None or not math.isfinite(norm) or factor <= 0:
                what = f"a gradient of {self._units[layer].name} is not finite" if layer is not None else (
                    f"the gradients were multiplied by {factor}")
                raise NumericalError(f"forebay: {what}. The weights are what they were. Skip this step, or lower the "
                                     "rate.")
            if not self._options.update_in_backward:
                layers.set_step(self._settings(optimizer), clip=self._options.clip, loss_scale=loss_scale / factor)
            elif factor != loss_scale:
                raise UsageError(f"forebay: gradients were multiplied by {factor / loss_scale:g} behind the backward "
                                 "pass, and update_in_backward has made the updates in it. Leave it out to clip or "
                                 "scale gradients.")
            self._made = Made(layers.step + 1, optimizer.words(None))
        except BaseException:
            self._abandon(layers)
            raise
        self._forget_step()
        if self._options.ranks is not None:  # in the update they compare their settings
            self.make_update()
        self._note_step()
        optimizer.grad_norm = norm

    @whole
    def make_update(self) -> None:
        """The store gets to know of the last step: of its update, which is applied as layers are read."""
        made, layers = self._made, self._layers
        if made is None or layers is None or self._window is None:
            return
        self._forget_step()  # step() does it too, if nothing interrupts it
        if layers.step < made.step:
            try:
                self._window.needing_leases_to_end(layers.update, made.words)
            except ForebayError as error:
                # Weights that are kept: it is made once they are gone.
                is_for_later = isinstance(error, UsageError) and self._options.ranks is None
                if layers.step < made.step and not is_for_later:
                    self._made = None
                    layers.abandon()
                raise
        self._made = None

    def _take_back_step(self) -> bool:
        """Whether there was a step that the store does not know of. It never was."""
        if self._made is None or self._layers is None:
            return False
        self._made = None
        self._steps_since_commit -= 1
        self._layers.abandon()
        return True

    @property
    def num_steps(self) -> int:
        assert self._layers is not None
        return max(self._layers.step, 0 if self._made is None else self._made.step)

    def _forget_step(self) -> None:
        super()._forget_step()
        self._open.clear()
        self._num_passes = self._num_backwards = 0
        self._found = None
        if self._sums is not None and self._arrivals is not None:
            self._sums.begin()
            self._arrivals.forget()
        self._withdraw_all_gradients()

    def forget_gradients(self) -> None:
        """zero_grad(): may come between forward and backward, when there is nothing to forget."""
        if self._layers is None or self._window is None:
            return
        if self.has_gradients():
            self._abandon(self._layers)
        self._window.release()  # what a backward pass that was broken off before its first gradient has left
        self._num_passes = self._num_backwards = 0

    def skip_step(self) -> None:
        """A GradScaler has found that its scale was too high."""
        if self._layers is not None and self._in_step:
            self._abandon(self._layers)

    def _has_unfinished_step(self) -> bool:
        return self.has_gradients() or self._adds_up()

    def _adds_up(self) -> bool:
        """Whether gradients of passes before the last one wait in p.grad."""
        return any(p.grad is not None and not isinstance(p.grad, AllGradients) for p in self._trained)

    def has_gradients(self) -> bool:
        return (bool(self._open) or any(self._is_handed)
                or (self._sums is not None and self._sums.has_gradients()))

    def _abandon(self, layers: Layers) -> None:
        assert self._window is not None
        if self._made is not None:  # an interrupt came when the step was made already
            self._forget_step()
            return
        for parameter in self._place:
            parameter.grad = None
        self._forget_step()
        self._window.release()
        self._window.order.cancel()
        layers.abandon()
