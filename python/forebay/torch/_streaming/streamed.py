"""The weights of a module in a store: each unit comes when its forward or backward begins."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from forebay._library import Group
from forebay.errors import NumericalError, UsageError
from forebay.inventory import Inventory
from forebay.layers import Layers, StepGradients
from forebay.torch import _saved
from forebay.torch._files.loading import FromState, Source, fill_from
from forebay.torch._in_store import InStore, StoreOptions
from forebay.torch._run.state import RunState
from forebay.torch._streaming.all_gradients import AllGradients
from forebay.torch._streaming.arrivals import Arrivals
from forebay.torch._streaming.as_they_come import AsTheyCome
from forebay.torch._streaming.device import Device, Host, move_what_stays
from forebay.torch._streaming.hooks import (
    Fetching,
    bracket,
    leave_out_of_compilation,
    refuse_what_needs_weights,
)
from forebay.torch._streaming.in_order import InOrder, advice_about_order
from forebay.torch._streaming.placeholder import NanElement, Placeholder
from forebay.torch._streaming.reads import Reads
from forebay.torch._streaming.units import check_types, containers_of, units_of
from forebay.torch._streaming.window import Window
from forebay.torch._tensors import DTYPES, checked_gradient_of
from forebay.torch._under_way import is_inside, num_backward_passes, refusal, whole

if TYPE_CHECKING:
    from forebay.torch._optimizer import Optimizer

_NUM_OPEN_LAYERS = 2
# One that is computed with, one around it, one that was left last, and one that arrives.
_NUM_WINDOW_LAYERS = 4
# Autocast keeps its copies of weights until it ends; here until there are so many bytes of them.
_MOST_CAST_BYTES = 256 << 20


class Streamed(InStore):
    """InStore whose layers are the units of a module, and whose weights are nowhere else."""

    def __init__(self, optimizer: Optimizer, options: StoreOptions, module: torch.nn.Module,
                 device: Device | None) -> None:
        super().__init__(optimizer, options)
        self._module = module
        self._device = Host() if device is None else device
        self.run_state = RunState(module)
        self._units = units_of(module)
        self._window: Window | None = None
        self._placeholder: Placeholder | NanElement | None = None
        self._open: dict[int, None] = {}  # layers whose gradients are being summed, least recent first
        self._depth = 0  # of forward passes of the whole module
        self._has_graph = False  # the last one
        self.accumulation_steps = 1  # passes of a step
        self.source: Callable[[], Source] | None = None  # of the weights of a new store; None: the module has them
        self._num_passes = 0  # of the step in progress
        self._caller = threading.get_ident()  # the thread of the last forward pass
        self._num_backwards = 0  # those too
        self._is_in_backward = False  # in one that is counted
        self._found: StepGradients | None = None  # the norm of the step in progress, once it was asked for
        self._all: tuple[torch.Tensor, AllGradients] | None = None  # is p.grad of this parameter
        self._cast_bytes = 0  # of weights, since the forward pass began
        self._arrivals: Arrivals | None = None
        # InOrder: under update_in_backward, and with ranks.
        self._sums: InOrder | AsTheyCome | None = None
        check_types(self._units)

    # ---- The store

    def _plan(self, optimizer: Optimizer) -> Layers:
        if self._layers is not None:
            return self._layers
        layers = self._plan_window(optimizer, _NUM_WINDOW_LAYERS)
        num_places = self._device.places_within_limit(_NUM_WINDOW_LAYERS, layers.plan()["device_bytes"])
        if num_places < _NUM_WINDOW_LAYERS:
            layers.close()
            layers = self._plan_window(optimizer, num_places)
        return layers

    def _plan_window(self, optimizer: Optimizer, num_places: int) -> Layers:
        inventory = Inventory()
        self._layout, self._place = [], {}
        self._num_groups = len(optimizer.param_groups)
        for layer, unit in enumerate(self._units):
            inventory.begin_layer(unit.name)
            self._layout.append(list(unit.parameters.values()))
            for name, parameter in unit.parameters.items():
                # Parameters of no group are frozen: the last group of the store.
                group = optimizer.group_number_of(parameter)
                index = inventory.add(name, parameter.shape or [1], self._num_groups if group is None else group)
                self._place[parameter] = layer, index
        self._trained = [each for each in self._place if optimizer.group_number_of(each) is not None]
        return self._make_layers(optimizer, inventory, DTYPES[self._layout[0][0].dtype], pass_="forward_backward",
                                 num_open_layers=_NUM_OPEN_LAYERS, num_window_layers=num_places,
                                 update_in_backward=self._options.update_in_backward, device=self._device.name)

    def _settings(self, optimizer: Optimizer) -> list[Group]:
        settings = [optimizer.settings_of(group) for group in optimizer.param_groups]
        frozen = [Group(beta1=0.9, beta2=0.9, eps=1e-8, frozen=1)] if len(self._trained) < len(self._place) else []
        return settings + frozen

    def _fill(self, layers: Layers) -> None:
        if self.source is None:
            super()._fill(layers)
            return
        fill_from(self.source(), [unit.parameters for unit in self._units], layers, self._place)

    def start(self, optimizer: Optimizer, user: dict[str, Any] | None) -> None:
        """Makes the store of the module as it is, and takes its weights away."""
        self._use(optimizer, user)
        self._attach(optimizer)

    def resume(self, optimizer: Optimizer) -> dict[str, Any] | None:
        user = super().resume(optimizer)
        if user is not None:
            self._attach(optimizer)
        return user

    def refill(self, optimizer: Optimizer, source: Source) -> None:
        """Makes the store anew, with other weights. UsageError: steps were made."""
        assert self._layers is not None and self._window is not None
        self._check_takes_weights(self._layers)
        source.check()
        self._between_steps()
        self._remove(optimizer, self._layers)
        self.source = lambda: source
        self._window.rebind(self._use(optimizer))

    def reload(self, optimizer: Optimizer) -> None:
        """UsageError: the weights are in the store, and what the parameters have is none of them."""
        raise UsageError("forebay: the weights of a streamed module are in its store, so there are no others to take "
                         "from its parameters. Call module.load_state_dict(...) before the first step.")

    def _copy_weights(self, layers: Layers) -> None:
        """They are read when they are needed."""
        self._steps_to_copy = False

    @property
    def num_deviations(self) -> int:
        return self._window.order.num_deviations if self._window is not None else 0

    def move(self, folders: list[str]) -> None:
        if self._window is not None and self._layers is not None:
            self._window.release()
            self._window.order.cancel()
        super().move(folders)

    def _attach(self, optimizer: Optimizer) -> None:
        assert self._layers is not None
        if self._window is not None:  # after move()
            self._window.use(self._layers)
            return
        largest = max(parameter.numel() * parameter.element_size() for parameter in self._place)
        self._placeholder = self._device.placeholder(largest, self._layout[0][0].dtype)
        self._window = Window(self._module, self._layers, self._units,
                              [[self._place[parameter][1] for parameter in unit.parameters.values()]
                               for unit in self._units], self._device, self._placeholder)
        move_what_stays(self._module, self._device.torch_device)
        _saved.add_weights(self._window)
        for layer, unit in enumerate(self._units):
            bracket(unit.module, lambda layer=layer: self._around_unit(layer))  # type: ignore[misc]
        for module in containers_of(self._module, self._units):
            bracket(module, self._saving_weights)
        self._take_gradients(weakref.ref(optimizer))
        self._hook_module(weakref.ref(optimizer))

    def _take_gradients(self, optimizer: weakref.ref[Optimizer]) -> None:
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
            self._sums = AsTheyCome(add, close, self._open, _NUM_OPEN_LAYERS, arrivals.is_complete)

    # ---- Hooks

    def _hook_module(self, optimizer: weakref.ref[Optimizer]) -> None:
        module = self._module
        bracket(module, lambda: self._around_module(optimizer()))
        # torch marks the hook, which a method does not let it do.
        module.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda *arguments: self._fill_state_dict(*arguments))
        refuse_what_needs_weights(module, self._layout[0][0].dtype, self._device.torch_device)

        def load(state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
            to = optimizer()
            assert to is not None
            source = FromState(module, state_dict, strict)
            self.refill(to, source)
            return torch.nn.modules.module._IncompatibleKeys(source.missing, source.unexpected)

        module.load_state_dict = load  # type: ignore[method-assign, assignment]
        for part in module.modules():
            part._parameters = Fetching(part._parameters, self._fetch)
        carrier = min((p for p in self._place if p.requires_grad), key=torch.Tensor.numel, default=None)
        if carrier is not None:
            # Before one more gradient of it arrives.
            carrier.register_hook(lambda _: self._withdraw_all_gradients())  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _around_unit(self, layer: int) -> Iterator[None]:
        window = self._window
        assert window is not None and self._arrivals is not None
        window.pin(layer)
        if self._has_graph:
            self._arrivals.use(layer)
        try:
            with self._saving_weights():
                yield
        except BaseException:
            with contextlib.suppress(UsageError):  # that weights were written to: the next call says so
                window.unpin(layer)
            raise
        self._forget_casts(layer)
        window.unpin(layer)

    @contextlib.contextmanager
    def _saving_weights(self) -> Iterator[None]:
        """Around a forward pass of a module: also one that reentrant checkpointing computes again in backward."""
        assert self._window is not None
        hooks = _saved.hooks_around_weights() if torch.is_grad_enabled() else contextlib.nullcontext()
        with self._window.scope(), hooks:
            yield

    def _forget_casts(self, layer: int) -> None:
        """Autocast keeps a copy of each weight that it has cast, as long as it lasts: that may be the whole model."""
        if not (torch.is_autocast_enabled(self._device.torch_device.type) and torch.is_autocast_cache_enabled()):
            return
        self._cast_bytes += sum(parameter.numel() * 2 for parameter in self._layout[layer])
        if self._cast_bytes > _MOST_CAST_BYTES:
            self._cast_bytes = 0
            torch.clear_autocast_cache()

    @contextlib.contextmanager
    def _around_module(self, optimizer: Optimizer | None) -> Iterator[None]:
        # Two frames up: this generator, contextlib, and then the caller of the pass.
        if is_inside(sys._getframe(2), forward=True):
            raise refusal("a forward pass")
        depth = self._depth
        self._depth += 1
        try:
            if depth > 0 or optimizer is None:
                yield
                return
            self._before_forward(optimizer)
            with self._saving_weights():
                yield
            self._end_pass()
        except BaseException:
            if depth == 0:
                self._end_pass()
            raise
        finally:
            self._depth = depth
        if self._in_step and self._layers is not None:
            self._layers.settle()

    @whole
    def _before_forward(self, optimizer: Optimizer) -> None:
        window = self._window
        assert window is not None and self._layers is not None
        self._cast_bytes = 0
        if torch._C._current_graph_task_id() < 0:  # else backward computes the module again
            self._caller = threading.get_ident()
        window.unpin_all()
        window.check_placeholders()
        if self._all is not None and self._all[0].grad is not self._all[1]:
            self._abandon(self._layers)  # zero_grad() of the module has forgotten the gradients
        if not self._in_step and torch.is_grad_enabled():
            self.commit_if_due(optimizer, before_batch=False)
        if not self._in_step:
            window.order.end()
            if torch.is_grad_enabled():
                if self._options.update_in_backward and not self._is_committed(self._layers):
                    self.commit(optimizer, None)  # a tracked loader was not asked for the batch of this pass
                window.needing_leases_to_end(self._begin, optimizer, self._layers, 1.0)
            window.order.begin("step" if torch.is_grad_enabled() else "pass")
        if torch._C._current_graph_task_id() < 0:
            assert self._arrivals is not None
            self._arrivals.forget()
            self._is_in_backward = False
            self._has_graph = torch.is_grad_enabled()
        if torch.is_grad_enabled():
            self._num_passes += 1

    def _begin(self, optimizer: Optimizer, layers: Layers, loss_scale: float) -> None:
        try:
            super()._begin(optimizer, layers, loss_scale)
        except BaseException:
            self._in_step = False
            layers.abandon()  # an interrupted call may have begun it
            raise

    def _end_pass(self) -> None:
        assert self._window is not None
        self._window.unpin_all()

    def saving(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, autograd keeps no weights."""
        return _saved.hooks()

    def end_backward(self) -> None:
        """After a backward pass, also one that an exception has ended: nothing stays leased."""
        if self._window is not None:
            self._window.release()

    def _fetch(self, parameter: torch.nn.Parameter) -> None:
        """A parameter is taken from its module: by a tied layer, or in a forward that is computed again."""
        assert self._window is not None
        if self._window.is_pinned(parameter) or not self._window.is_in_forward:
            return
        self._window.read(parameter)
        if self._has_graph and self._arrivals is not None and parameter in self._place:
            self._arrivals.use(self._place[parameter][0])

    # ---- A step

    @whole
    def take_gradient(self, optimizer: Optimizer, parameter: torch.Tensor) -> None:
        if self._layers is None or self._window is None or self._arrivals is None:
            return
        backward = torch._C._current_graph_task_id()
        if self._arrivals.begin(backward):
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_backward(optimizer, backward))
            self._num_backwards += not self._is_in_backward
            self._is_in_backward = True
        self._arrivals.arrived(backward, self._place[parameter][0])
        if not self._waits_for_passes():
            self._add(optimizer, self._layers, parameter)

    def _waits_for_passes(self) -> bool:
        """Before the last pass of a step gradients add up in p.grad."""
        return self.accumulation_steps > 1 and min(self._num_passes, self._num_backwards) < self.accumulation_steps

    @torch.no_grad()
    @whole
    def _end_backward(self, optimizer: Optimizer, backward: int) -> None:
        """Gradients were taken, and the backward pass, or one inside of it, is complete."""
        assert self._arrivals is not None
        self._arrivals.end(backward)
        self.end_backward()
        if self._layers is None or not self._is_outermost_backward():
            return
        self._is_in_backward = False
        self._arrivals.forget()
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

    def _add_what_is_left(self, optimizer: Optimizer, layers: Layers) -> None:
        """Gradients that added up are handed over now; those of parameters of no group are left alone."""
        assert self._sums is not None
        waiting = self._sums.waiting()
        for parameter in reversed(self._place):
            if parameter not in waiting and self._is_left(optimizer, parameter):
                self._add(optimizer, layers, parameter)
        self._sums.finish()

    def _is_left(self, optimizer: Optimizer, parameter: torch.Tensor) -> bool:
        """Whether p.grad is a gradient of the step that was not handed over."""
        return (parameter.grad is not None and not isinstance(parameter.grad, AllGradients)
                and optimizer.group_number_of(parameter) is not None)

    def _add(self, optimizer: Optimizer, layers: Layers, parameter: torch.Tensor) -> None:
        layer = self._place[parameter][0]
        if self._is_handed[layer] or self._found is not None:
            raise UsageError(
                f"forebay: {optimizer.name_of(parameter)} got a gradient after its layer was handed over. Call step() "
                "after each backward(), and put all but the last backward() of a step into `with "
                "optimizer.accumulate():`. The step cannot go on: call optimizer.zero_grad()."
                + advice_about_order(self._sums, self._options.update_in_backward))
        if not self._in_step:
            self._begin(optimizer, layers, 1.0)
        assert self._sums is not None
        self._sums.take(layer, parameter)

    def _hand_over_gradient(self, optimizer: Optimizer, layers: Layers, parameter: torch.Tensor) -> None:
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

    def step(self, optimizer: Optimizer, loss_scale: float) -> None:
        layers, window, placeholder = self._layers, self._window, self._placeholder
        if layers is None or window is None or placeholder is None or not self._in_step:
            raise UsageError("forebay: step() without a forward and backward pass of the streamed module before it.")
        before: int | None = None  # the last step, from the update on
        try:
            factor = 1.0
            if self._all is not None:
                if self._all[0].grad is not self._all[1] or self._all[1].is_zero:
                    raise UsageError("forebay: step() behind zero_grad(), which has forgotten the gradients. Call it "
                                     "behind step().")
                factor = self._all[1].factor
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
            words = optimizer.words(None)
            before = layers.step
            window.needing_leases_to_end(layers.update, words)
        except BaseException:
            if before is not None and layers.step > before:
                self._forget_step()
            else:
                self._abandon(layers)
            raise
        self._forget_step()
        self._note_step()
        optimizer.grad_norm = norm

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
        for parameter in self._place:
            parameter.grad = None
        self._forget_step()
        self._window.release()
        self._window.order.cancel()
        layers.abandon()

    def commit(self, optimizer: Optimizer, user: dict[str, Any] | None) -> None:
        has_begun, passes = self._in_step, (self._num_passes, self._num_backwards)
        self._between_steps()
        if self._window is None or self._layers is None:
            super().commit(optimizer, user)
            return
        self._window.needing_leases_to_end(super().commit, optimizer, user)
        if has_begun and not self._in_step:  # between forward and backward: the pass goes on
            self._begin(optimizer, self._layers, 1.0)
            self._num_passes, self._num_backwards = passes

    def _make_commit(self) -> None:
        assert self._window is not None
        self._window.needing_leases_to_end(super()._make_commit)

    def _is_spoiled(self) -> bool:
        return self._window is not None and self._window.was_written_to

    def reference(self, optimizer: Optimizer) -> dict[str, Any] | None:
        self._between_steps()
        return super().reference(optimizer)

    def full_state(self, optimizer: Optimizer) -> dict[int, dict[str, torch.Tensor]] | None:
        self._between_steps()
        return super().full_state(optimizer)

    def _between_steps(self) -> None:
        """Takes back what a pass has announced, and a step that has begun and has no gradients."""
        if self._window is None or self._layers is None:
            return
        self._window.release()
        self._window.order.cancel()
        self._window.check()
        if self._in_step and not self.has_gradients():
            if self._adds_up():
                raise UsageError("forebay: gradients of a step wait for its other passes, and would be lost. Call "
                                 "step() or zero_grad() before.")
            self._abandon(self._layers)

    # ---- The module's own interface

    @whole
    def copies_of(self, parameters: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
        """The weights of those that are in the store."""
        self._refuse_inside(sys._getframe(), "a read of weights")
        return self._reads().copies_of(parameters)

    @staticmethod
    def _refuse_inside(frame: FrameType, what: str) -> None:
        if is_inside(frame):
            raise refusal(what)

    def _reads(self) -> Reads:
        assert self._window is not None
        return Reads(self._window, self._layout, self._place)

    def release(self) -> None:
        """Gives back what is here and not in use."""
        assert self._window is not None
        self._window.release()

    def show(self, parameter: torch.Tensor) -> None:
        """A parameter that was pointed elsewhere has its weights again, or the placeholder."""
        assert self._window is not None
        self._window.show(self._place[parameter][0])

    @property
    def layout(self) -> list[list[torch.Tensor]]:
        """The parameters of each unit."""
        return self._layout

    @whole
    def weights(self) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
        """All weights, unit by unit. They are here until the next unit comes, or while they are kept."""
        self._refuse_inside(sys._getframe(), "a read of weights")
        assert self._window is not None
        if not self._in_step:
            self._window.release()
            self._window.order.end()
            self._window.order.begin("weights")
        with self._window.releasing():
            for layer, unit in enumerate(self._units):
                yield dict(zip(unit.parameters.values(), self._window.fetch(layer)))

    @whole
    def _fill_state_dict(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        self._refuse_inside(sys._getframe(), "state_dict()")
        assert self._layers is not None
        self._reads().fill_state_dict(module, state, prefix, self._layers.plan()["ram_budget_bytes"])


for _around in (Streamed._around_unit, Streamed._around_module, Streamed._saving_weights):
    leave_out_of_compilation(inspect.unwrap(_around), and_what_it_calls=True)


__all__ = ["Streamed"]
