"""The weights of a module in a store: each unit comes when its forward or backward begins."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from forebay._library import Group
from forebay.errors import DoesNotFitError, NotSupportedError, NumericalError, UsageError
from forebay.inventory import Inventory
from forebay.layers import Layers
from forebay.torch._in_store import InStore, Path, StoreOptions, remove_store
from forebay.torch._loading import FromState, Source
from forebay.torch._placeholder import Placeholder
from forebay.torch._run_state import RunState
from forebay.torch._tensors import DTYPES, gradient_of, memory_of
from forebay.torch._units import Unit, units_of
from forebay.torch._window import Saved, Window

if TYPE_CHECKING:
    from forebay.torch._optimizer import Optimizer

_NUM_OPEN_LAYERS = 2
# One that is computed with, one around it, one that was left last, and one that arrives.
_NUM_WINDOW_LAYERS = 4


class Streamed(InStore):
    """InStore whose layers are the units of a module, and whose weights are nowhere else."""

    def __init__(self, optimizer: Optimizer, options: StoreOptions, module: torch.nn.Module) -> None:
        super().__init__(optimizer, options)
        self._module = module
        self.run_state = RunState(module)
        self._units = units_of(module)
        self._window: Window | None = None
        self._placeholder: Placeholder | None = None
        self._open: dict[int, None] = {}  # layers whose gradients are being summed, least recent first
        self._depth = 0  # of forward passes of the whole module
        self.accumulation_steps = 1  # passes of a step
        self.source: Callable[[], Source] | None = None  # of the weights of a new store; None: the module has them
        self._num_passes = 0  # of the step in progress
        self._saving = contextlib.ExitStack()
        self._check()

    def _check(self) -> None:
        parameters = [parameter for unit in self._units for parameter in unit.parameters.values()]
        if not parameters:
            raise UsageError("forebay: the module has no parameters, so there is nothing to stream.")
        dtypes = sorted({str(parameter.dtype) for parameter in parameters})
        if len(dtypes) > 1 or parameters[0].dtype not in DTYPES:
            raise UsageError(f"forebay: the parameters are {', '.join(dtypes)}. Give all of them one type before: "
                             "model.to(torch.bfloat16), or float32, or float16.")
        devices = sorted({parameter.device.type for parameter in parameters})
        if devices != ["cpu"]:
            raise NotSupportedError(f"forebay: there are parameters on {', '.join(devices)}. Load the model on the "
                                    "CPU; modules on a GPU are not streamed yet.")

    # ---- The store

    def _plan(self, optimizer: Optimizer) -> Layers:
        if self._layers is not None:
            return self._layers
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
        self._has_frozen = any(optimizer.group_number_of(parameter) is None for parameter in self._place)
        return self._make_layers(optimizer, inventory, DTYPES[self._layout[0][0].dtype], pass_="forward_backward",
                                 num_open_layers=_NUM_OPEN_LAYERS, num_window_layers=_NUM_WINDOW_LAYERS)

    def _settings(self, optimizer: Optimizer) -> list[Group]:
        settings = [optimizer.settings_of(group) for group in optimizer.param_groups]
        return [*settings, Group(beta1=0.9, beta2=0.9, eps=1e-8, frozen=1)] if self._has_frozen else settings

    def _fill(self, layers: Layers) -> None:
        if self.source is None:
            super()._fill(layers)
            return
        source = self.source()
        source.check()
        source.fill_buffers()
        for unit in self._units:
            values = source(unit.parameters)
            for parameter in unit.parameters.values():
                layers.fill(self._place[parameter][1], DTYPES[parameter.dtype], memory_of(values[parameter]))

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
        if self._layers.step > 0:
            raise UsageError(f"forebay: the store has made {self._layers.step} steps, and takes other weights only "
                             "before the first. Load them before stream(), with another folder; to go on with a store, "
                             "call stream(..., resume=True).")
        source.check()
        self._between_steps()
        self._layers.close()
        for folder in self._options.folders:
            remove_store(folder)
        self._layers, self._is_open = None, False
        self.source = lambda: source
        self._window.rebind(self._use(optimizer))

    def _copy_weights(self, layers: Layers) -> None:
        """They are read when they are needed."""
        self._steps_to_copy = False

    def move(self, folders: list[Path]) -> None:
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
        self._placeholder = Placeholder(largest)
        self._window = Window(self._layers, [list(unit.parameters.values()) for unit in self._units],
                              [[self._place[parameter][1] for parameter in unit.parameters.values()]
                               for unit in self._units], self._placeholder)
        for layer, unit in enumerate(self._units):
            self._hook_unit(layer, unit)
        self._hook_module(weakref.ref(optimizer))

    # ---- Hooks

    def _hook_unit(self, layer: int, unit: Unit) -> None:
        window = self._window
        assert window is not None
        saving = contextlib.ExitStack()

        def before(*_: Any) -> None:
            window.pin(layer)
            # A forward that reentrant checkpointing computes again in backward: nobody looks at what is saved.
            if self._depth == 0 and torch.is_grad_enabled() and _no_hooks_are_active():
                saving.enter_context(self.saving())

        def after(*_: Any) -> None:
            saving.close()
            window.unpin(layer)

        unit.module.register_forward_pre_hook(before)
        unit.module.register_forward_hook(after, always_call=True)

    def _hook_module(self, optimizer: weakref.ref[Optimizer]) -> None:
        module = self._module

        def before(*_: Any) -> None:
            to = optimizer()
            if to is not None:
                self._before_forward(to)

        module.register_forward_pre_hook(before, prepend=True)
        module.register_forward_hook(lambda _module, _arguments, output: self._after_forward(output is not None),
                                     always_call=True)
        # torch marks the hook, which a method does not let it do.
        module.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda *arguments: self._fill_state_dict(*arguments))
        module.register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]

        def load(state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
            to = optimizer()
            assert to is not None
            source = FromState(module, state_dict, strict)
            self.refill(to, source)
            return torch.nn.modules.module._IncompatibleKeys(source.missing, source.unexpected)

        module.load_state_dict = load  # type: ignore[method-assign, assignment]
        module._apply = _checked_apply(module, self._layout[0][0].dtype)  # type: ignore[method-assign]
        for part in module.modules():
            part._parameters = _Fetching(part._parameters, self._fetch)

    def _before_forward(self, optimizer: Optimizer) -> None:
        window = self._window
        assert window is not None and self._layers is not None
        if self._depth == 0 and not self._in_step and torch.is_grad_enabled():
            self.commit_if_due(optimizer, before_batch=False)
        self._depth += 1
        if self._depth > 1:
            return
        if not self._in_step:
            window.release()
            window.order.end()
            if torch.is_grad_enabled():
                self._begin(optimizer, self._layers, 1.0)
            window.order.begin("step" if torch.is_grad_enabled() else "pass")
        if torch.is_grad_enabled():
            self._num_passes += 1
            self._saving.enter_context(self.saving())

    def _after_forward(self, is_whole: bool) -> None:
        assert self._window is not None and self._layers is not None
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self._saving.close()
        self._window.release()
        if is_whole and self._in_step:
            self._layers.settle()

    def saving(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, autograd keeps no weights."""
        assert self._window is not None
        return torch.autograd.graph.saved_tensors_hooks(self._window.save, self._window.restore)

    def _fetch(self, parameter: torch.nn.Parameter) -> None:
        """A parameter is used outside its unit's forward: by a tied layer, or in a forward that is computed again."""
        assert self._window is not None and self._placeholder is not None
        if parameter in self._place and parameter.numel() > 0 and self._placeholder.has(parameter):
            self._window.fetch(self._place[parameter][0])

    # ---- A step

    def take_gradient(self, optimizer: Optimizer, parameter: torch.Tensor) -> None:
        if self._layers is None or self._window is None:
            return
        # Before the last pass of a step gradients add up in p.grad.
        if self.accumulation_steps > 1 and self._num_passes < self.accumulation_steps:
            return
        self._add(optimizer, self._layers, parameter)

    def _add(self, optimizer: Optimizer, layers: Layers, parameter: torch.Tensor) -> None:
        layer, index = self._place[parameter]
        if self._is_handed[layer]:
            raise UsageError(
                f"forebay: {optimizer.name_of(parameter)} got a gradient after its layer was handed over. Call step() "
                "after each backward(), and put all but the last backward() of a step into `with "
                "optimizer.accumulate():`. The step cannot go on: call optimizer.zero_grad().")
        if not self._in_step:
            self._begin(optimizer, layers, 1.0)
        if layer not in self._open and len(self._open) == _NUM_OPEN_LAYERS:
            self._close(layers, next(iter(self._open)))
        gradient = gradient_of(parameter, optimizer.name_of(parameter))
        layers.add_gradient(index, DTYPES[gradient.dtype], memory_of(gradient))
        parameter.grad = None
        self._open.pop(layer, None)
        self._open[layer] = None

    def _close(self, layers: Layers, layer: int) -> None:
        layers.close_layer(layer)
        del self._open[layer]
        self._is_handed[layer] = True

    def step(self, optimizer: Optimizer, loss_scale: float) -> None:
        layers, window, placeholder = self._layers, self._window, self._placeholder
        if layers is None or window is None or placeholder is None or not self._in_step:
            raise UsageError("forebay: step() without a forward and backward pass of the streamed module before it.")
        before = layers.step
        try:
            for parameter in self._place:
                # Gradients that added up are handed over now; those of parameters of no group are left alone.
                if parameter.grad is not None and optimizer.group_number_of(parameter) is not None:
                    self._add(optimizer, layers, parameter)
            window.release()
            window.order.cancel()
            if not placeholder.is_intact():
                placeholder.renew()
                raise UsageError("forebay: a parameter was written to while its weights were not there. Change weights "
                                 "before stream(), or load them into another store. The step was abandoned.")
            layers.set_step(self._settings(optimizer), clip=self._options.clip, loss_scale=loss_scale)
            found = layers.finish_backward()
            if found.nonfinite_layer is not None:
                raise NumericalError(f"forebay: a gradient of {self._units[found.nonfinite_layer].name} is not finite. "
                                     "The weights are what they were. Skip this step, or lower the rate.")
            layers.update(optimizer.words(None))
        except BaseException:
            if layers.step > before:
                self._forget_step()
            else:
                self._abandon(layers)
            raise
        self._forget_step()
        self._note_step()
        optimizer.grad_norm = found.norm

    def _forget_step(self) -> None:
        super()._forget_step()
        self._open.clear()
        self._num_passes = 0

    def forget_gradients(self) -> None:
        """zero_grad(): may come between forward and backward, when there is nothing to forget."""
        if self._layers is None or self._window is None:
            return
        if self._open or any(self._is_handed):
            self._abandon(self._layers)
        self._num_passes = 0

    def _abandon(self, layers: Layers) -> None:
        assert self._window is not None
        for parameter in self._place:
            parameter.grad = None
        self._forget_step()
        self._window.release()
        self._window.order.cancel()
        layers.abandon()

    def commit(self, optimizer: Optimizer, user: dict[str, Any] | None) -> None:
        self._between_steps()
        super().commit(optimizer, user)

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
        if self._in_step and not self._open and not any(self._is_handed):
            self._abandon(self._layers)

    # ---- The module's own interface

    def copies_of(self, parameters: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
        """The weights of those that are in the store."""
        assert self._window is not None
        copies = {}
        for parameter in parameters:
            if parameter in self._place:
                layer = self._place[parameter][0]
                number = next(i for i, other in enumerate(self._layout[layer]) if other is parameter)
                copies[parameter] = self._window.fetch(layer)[number].detach().clone()
        self._window.release()
        return copies

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

    def weights(self) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
        """All weights, unit by unit. They are here until the next unit comes, or while they are kept."""
        assert self._window is not None
        if not self._in_step:
            self._window.release()
            self._window.order.end()
            self._window.order.begin("weights")
        for layer, unit in enumerate(self._units):
            yield dict(zip(unit.parameters.values(), self._window.fetch(layer)))
        self._window.release()

    def _fill_state_dict(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        """The values of placeholders: the whole model in RAM."""
        assert self._window is not None
        self._check_fits()
        names: dict[int, list[tuple[str, int]]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if prefix + name in state and parameter in self._place:
                layer = self._place[parameter][0]
                number = next(i for i, other in enumerate(self._layout[layer]) if other is parameter)
                names.setdefault(layer, []).append((prefix + name, number))
        for layer, wanted in sorted(names.items()):
            weights = self._window.fetch(layer)
            copies: dict[int, torch.Tensor] = {}
            for name, number in wanted:
                state[name] = copies.setdefault(number, weights[number].detach().clone())
        self._window.release()


    def _check_fits(self) -> None:
        """Whether all weights may be in RAM at one time."""
        assert self._layers is not None
        needed = sum(parameter.numel() * parameter.element_size() for parameter in self._place)
        room = self._layers.plan()["ram_budget_bytes"]
        if needed > room:
            raise DoesNotFitError(f"forebay: state_dict() needs {needed} bytes for all weights, and there are {room} "
                                  "(ram=, or 80 % of what was available). Write them unit by unit: "
                                  "engine.save_pretrained(FOLDER); or read them so: engine.named_weights().")


class _Fetching(dict[str, Any]):
    """The parameters of a module: who takes one gets its weights."""

    def __init__(self, parameters: dict[str, Any], fetch: Callable[[torch.nn.Parameter], None]) -> None:
        super().__init__(parameters)
        self._fetch = fetch

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None and not torch.compiler.is_compiling():
            self._fetch(parameter)
        return parameter

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        raise NotSupportedError("forebay: a streamed module cannot be copied: its weights are in the store. Copy it "
                                "before stream(), or save state_dict() and load that into another module.")

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise NotSupportedError("forebay: a streamed module cannot be pickled: its weights are in the store. Save "
                                "module.state_dict(), or commit().")


def _no_hooks_are_active() -> bool:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is None


def _refuse_load(*_: Any) -> NoReturn:
    raise NotSupportedError("forebay: a streamed module takes a state dict only by its own load_state_dict(), and this "
                            "was that of a module around it. Call it with the part that is its own.")


def _checked_apply(module: torch.nn.Module, dtype: torch.dtype) -> Callable[..., torch.nn.Module]:
    """to(), cuda(), half() and their like: fine where they change nothing."""
    def apply(function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
        changed = function(torch.empty(0, dtype=dtype))
        if changed.dtype == dtype and changed.device.type == "cpu":
            return module
        raise NotSupportedError(f"forebay: a streamed module stays {dtype} on the CPU, and was to become "
                                f"{changed.dtype} on {changed.device.type}. Change it before stream().")

    return apply


__all__ = ["Saved", "Streamed"]
