"""The weights of a module in a store: each unit comes when its forward or backward begins."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

from forebay._library import Group
from forebay.errors import NotSupportedError, UsageError
from forebay.inventory import Inventory
from forebay.layers import Layers
from forebay.torch import _saved
from forebay.torch._files.loading import FromState, Source, fill_from
from forebay.torch._groups import Groups
from forebay.torch._in_store import StoreOptions
from forebay.torch._run.state import RunState, Snapshot
from forebay.torch._streaming.device import Device, move_what_stays
from forebay.torch._streaming.gradients import NUM_OPEN_LAYERS, StreamedStep
from forebay.torch._streaming.hooks import (
    Fetching,
    bracket,
    leave_out_of_compilation,
    refuse_what_needs_weights,
)
from forebay.torch._streaming.reads import Reads
from forebay.torch._streaming.units import check_types, containers_of
from forebay.torch._streaming.window import Window
from forebay.torch._tensors import DTYPES
from forebay.torch._under_way import is_inside, refusal, whole

# One that is computed with, one around it, one that was left last, and one that arrives.
_NUM_WINDOW_LAYERS = 4
# Autocast keeps its copies of weights until it ends; here until there are so many bytes of them.
_MOST_CAST_BYTES = 256 << 20


class Boundary(NamedTuple):
    """The state between two steps. handled: the exception that was being handled."""

    step: int
    words: dict[str, Any]
    state: Snapshot
    handled: BaseException | None


class Streamed(StreamedStep):
    """InStore whose layers are the units of a module, and whose weights are nowhere else."""

    def __init__(self, optimizer: Groups, options: StoreOptions, module: torch.nn.Module,
                 device: Device | None) -> None:
        super().__init__(optimizer, options, module, device)
        self._module = module
        self.run_state = RunState(module)
        self._depth = 0  # of forward passes of the whole module
        self._has_graph = False  # the last one
        self.source: Callable[[], Source] | None = None  # of the weights of a new store; None: the module has them
        self._cast_bytes = 0  # of weights, since the forward pass began
        self._boundary: Boundary | None = None  # the last one between two steps
        check_types(self._units)

    # ---- The store

    def _plan(self, optimizer: Groups) -> Layers:
        if self._layers is not None:
            return self._layers
        layers = self._plan_window(optimizer, _NUM_WINDOW_LAYERS)
        num_places = self._device.places_within_limit(_NUM_WINDOW_LAYERS, layers.plan()["device_bytes"])
        if num_places < _NUM_WINDOW_LAYERS:
            layers.close()
            layers = self._plan_window(optimizer, num_places)
        return layers

    def _plan_window(self, optimizer: Groups, num_places: int) -> Layers:
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
                                 num_open_layers=NUM_OPEN_LAYERS, num_window_layers=num_places,
                                 update_in_backward=self._options.update_in_backward, device=self._device.name)

    def _settings(self, optimizer: Groups) -> list[Group]:
        settings = [optimizer.settings_of(group) for group in optimizer.param_groups]
        frozen = [Group(beta1=0.9, beta2=0.9, eps=1e-8, frozen=1)] if len(self._trained) < len(self._place) else []
        return settings + frozen

    def _fill(self, layers: Layers) -> None:
        if self.source is None:
            super()._fill(layers)
            return
        fill_from(self.source(), [unit.parameters for unit in self._units], layers, self._place)

    def start(self, optimizer: Groups, user: dict[str, Any] | None) -> None:
        """Makes the store of the module as it is, and takes its weights away."""
        self._use(optimizer, user)
        self._attach(optimizer)

    def resume(self, optimizer: Groups) -> dict[str, Any] | None:
        user = super().resume(optimizer)
        if user is not None:
            self._attach(optimizer)
        return user

    def refill(self, optimizer: Groups, source: Source) -> None:
        """Makes the store anew, with other weights. UsageError: steps were made."""
        assert self._layers is not None and self._window is not None
        self.make_update()
        self._check_takes_weights(self._layers)
        source.check()
        self._between_steps()
        self._remove(optimizer, self._layers)
        self.source = lambda: source
        self._window.rebind(self._use(optimizer))

    def reload(self, optimizer: Groups) -> None:
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
        self._made = None
        super().move(folders)

    def _attach(self, optimizer: Groups) -> None:
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
        self._window.before_fetch = self.make_update
        _saved.add_weights(self._window)
        weak = weakref.ref(optimizer)
        for layer, unit in enumerate(self._units):
            bracket(unit.module, lambda layer=layer: self._around_unit(weak(), layer))  # type: ignore[misc]
        for module in containers_of(self._module, self._units):
            bracket(module, lambda: self._around_container(weak()))
        self._take_gradients(weak)
        self._hook_module(weak)

    # ---- Hooks

    def _hook_module(self, optimizer: weakref.ref[Groups]) -> None:
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
            part._parameters = Fetching(part._parameters, lambda parameter: self._fetch(optimizer(), parameter))
        carrier = min((p for p in self._place if p.requires_grad), key=torch.Tensor.numel, default=None)
        if carrier is not None:
            # Before one more gradient of it arrives.
            carrier.register_hook(lambda _: self._withdraw_all_gradients())  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _around_unit(self, optimizer: Groups | None, layer: int) -> Iterator[None]:
        window = self._window
        assert window is not None
        self._begin_without_root(optimizer)
        window.pin(layer)
        if self._has_graph and optimizer is not None:
            self._note_use(optimizer, layer)
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
    def _around_container(self, optimizer: Groups | None) -> Iterator[None]:
        self._begin_without_root(optimizer)
        with self._saving_weights():
            yield

    def _begin_without_root(self, optimizer: Groups | None) -> None:
        """Begins a step whose program calls modules inside of the streamed one, as for a loss of its own."""
        if (self._depth == 0 and not self._in_step and torch.is_grad_enabled() and optimizer is not None
                and torch._C._current_graph_task_id() < 0):
            self._before_forward(optimizer)

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
    def _around_module(self, optimizer: Groups | None) -> Iterator[None]:
        # Two frames up: this generator, contextlib, and then the caller of the pass.
        if is_inside(sys._getframe(2), forward=True):
            raise refusal("a forward pass")
        if torch._C._get_tracing_state() is not None or torch.compiler.is_exporting():
            raise NotSupportedError("forebay: a streamed module cannot be traced or exported, since its weights come "
                                    "and go. Save it, and trace or export another one that loads the saved weights.")
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
    def _before_forward(self, optimizer: Groups) -> None:
        window = self._window
        assert window is not None and self._layers is not None and self._arrivals is not None
        self._cast_bytes = 0
        if torch._C._current_graph_task_id() < 0:  # else backward computes the module again
            self._caller = threading.get_ident()
        window.unpin_all()
        window.check_placeholders()
        if torch.is_grad_enabled() and not self._in_step and (
                self._boundary is None or self._boundary.step != self.num_steps or not self.run_state.has_loader):
            self._note_boundary(optimizer, now=False)
        self.make_update()
        if self._all is not None and self._all[0].grad is not self._all[1]:
            self._abandon(self._layers)  # zero_grad() of the module has forgotten the gradients
        if not self._in_step and torch.is_grad_enabled():
            if self.run_state.has_others and not self._is_committed(self._layers):
                optimizer.commit_what_was_put_off()
            self.commit_if_due(optimizer, before_batch=False)
        if not self._in_step:
            self._arrivals.forget()
            window.order.end()
            if torch.is_grad_enabled():
                if self._options.update_in_backward and not self._is_committed(self._layers):
                    self.commit(optimizer, None)  # a tracked loader was not asked for the batch of this pass
                window.needing_leases_to_end(self._begin, optimizer, self._layers, 1.0)
            window.order.begin("step" if torch.is_grad_enabled() else "pass")
        if torch._C._current_graph_task_id() < 0:
            self._arrivals.end_all()
            self._is_in_backward = False
            self._has_graph = torch.is_grad_enabled()
        if torch.is_grad_enabled():
            self._num_passes += 1

    def _end_pass(self) -> None:
        assert self._window is not None
        self._window.unpin_all()

    def _fetch(self, optimizer: Groups | None, parameter: torch.nn.Parameter) -> None:
        """A parameter is taken from its module: by a tied layer, or in a forward that is computed again."""
        assert self._window is not None
        is_in_pass = self._window.is_in_forward or torch._C._current_graph_task_id() >= 0
        if not is_in_pass:
            return
        if not self._window.is_pinned(parameter):
            self._window.read(parameter)
        if self._has_graph and optimizer is not None and parameter in self._place:
            self._note_use(optimizer, self._place[parameter][0])

    # ---- What lasts

    def _use(self, optimizer: Groups, user: dict[str, Any] | None = None) -> Layers:
        self.make_update()
        return super()._use(optimizer, user)

    def open_layers(self) -> Layers | None:
        self.make_update()
        return super().open_layers()

    def commit_if_due(self, optimizer: Groups, *, before_batch: bool) -> None:
        if before_batch and self._window is not None:
            self._note_boundary(optimizer, now=True)
        super().commit_if_due(optimizer, before_batch=before_batch)

    def _note_boundary(self, optimizer: Groups, *, now: bool) -> None:
        """What a commit has, if the step that begins is interrupted. now: random numbers are as they are, and not as
        the last step left them."""
        self._boundary = Boundary(self.num_steps, optimizer.words(None), self.run_state.snapshot(now=now),
                                  sys.exc_info()[1])

    def is_interrupted(self) -> bool:
        """Whether a commit comes from the handler of an exception that has ended a step, or what belongs to it."""
        error = sys.exc_info()[1]
        return error is not None and self._boundary is not None and error is not self._boundary.handled

    def commit_boundary(self, optimizer: Groups, user: dict[str, Any] | None) -> None:
        """The state between the last two steps. UsageError: the update of the step after it has begun."""
        boundary, layers = self._boundary, self._layers
        assert boundary is not None and layers is not None and self._window is not None
        if self.num_steps == boundary.step:
            self.make_update()
        elif self._take_back_step():
            warnings.warn(f"forebay: step {boundary.step + 1} was interrupted, and commit() has the state of step "
                          f"{boundary.step}: the next start makes that step again.", stacklevel=4)
        else:
            raise UsageError(f"forebay: commit() after an interrupt in step {boundary.step + 1}, whose update has "
                             "begun (weights were read after it, or there are ranks): what is tracked may belong to "
                             "the step before. Finish what the loop does after step(), and commit then.")
        self._abandon(layers)
        self._window.check()
        words = {**boundary.words, "user": user or {}}
        if layers.step > layers.committed_step:
            self._window.needing_leases_to_end(self._run, self._commit, optimizer, user, words, boundary.state)
        elif user and layers.user.get("user") != user:
            warnings.warn(f"forebay: step {layers.step} is committed already, so commit() has not saved {user}.",
                          stacklevel=4)

    def commit(self, optimizer: Groups, user: dict[str, Any] | None) -> None:
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

    def reference(self, optimizer: Groups) -> dict[str, Any] | None:
        self._between_steps()
        return super().reference(optimizer)

    def full_state(self, optimizer: Groups) -> dict[int, dict[str, torch.Tensor]] | None:
        self._between_steps()
        return super().full_state(optimizer)

    def _between_steps(self) -> None:
        """Takes back what a pass has announced, and a step that has begun and has no gradients."""
        if self._window is None or self._layers is None:
            return
        self._window.release()
        self._window.order.cancel()
        self._window.check()
        self.make_update()
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

    def lend(self, copies: dict[torch.Tensor, torch.Tensor]) -> None:
        """Points parameters at what copies_of() gave, until `show`."""
        assert self._window is not None
        self._window.lend(copies)

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
            self.make_update()
            self._window.order.begin("weights")
        with self._window.releasing():
            for layer, unit in enumerate(self._units):
                yield dict(zip(unit.parameters.values(), self._window.fetch(layer)))

    @whole
    def _fill_state_dict(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        self._refuse_inside(sys._getframe(), "state_dict()")
        assert self._layers is not None
        self._reads().fill_state_dict(module, state, prefix, self._layers.plan()["ram_budget_bytes"])


for _around in (Streamed._around_unit, Streamed._around_container, Streamed._around_module, Streamed._saving_weights):
    leave_out_of_compilation(inspect.unwrap(_around), and_what_it_calls=True)


__all__ = ["Streamed"]
