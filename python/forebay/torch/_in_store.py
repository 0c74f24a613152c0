"""Optimizer state in a store on disk: forebay's Layers, of which torch's parameters are a copy."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from forebay._given import Path, folders
from forebay._library import DTYPE_BYTES, Group
from forebay._worker import Worker
from forebay.errors import BadInputError, ForebayError, NotSupportedError, NumericalError, UsageError
from forebay.inventory import Inventory
from forebay.kernels import Kernels
from forebay.layers import Layers
from forebay.ranks import Ranks
from forebay.torch._groups import Groups
from forebay.torch._run.state import RunState, Snapshot
from forebay.torch._tensors import DTYPES, gradient_of, memory_of, on_host
from forebay.torch._under_way import whole

if TYPE_CHECKING:
    from forebay.lease import Lease

# A layer of the store has at most so many elements, unless a single tensor has more.
MAX_LAYER_ELEMS = 16 << 20
# Commits are made by commit() alone, so that resume() finds what the caller had made durable, and no later step.
_ON_DEMAND = -1
_TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class StoreOptions(NamedTuple):
    folders: list[str]  # from the root on
    ram_bytes: int | None
    clip: float
    durability: str
    backward_update: bool
    update_in_backward: bool  # of a streamed module
    threads: int
    ranks: Ranks | None  # None: this process is alone
    zero_stage: int
    reduce_bucket: int | None  # bytes; None: as Layers has it
    reduce_dtype: str


class InStore:
    """Each call is made as a whole on a thread of its own, which signals leave alone: a step whose wait was interrupted
    is made all the same, and the next call waits for it."""

    def __init__(self, optimizer: Groups, options: StoreOptions) -> None:
        self._options = options
        self._worker = Worker("an optimizer")
        self._layers: Layers | None = None
        self._is_open = False
        self._layout: list[list[torch.Tensor]] = []  # parameters of each layer
        self._place: dict[torch.Tensor, tuple[int, int]] = {}  # a parameter's layer and its number in the inventory
        self._num_groups = 0
        self._steps_to_copy = False  # whether the weights of a real step are not yet in the parameters
        self._kernels: Kernels | None = None
        self.run_state = RunState()
        self.start_from: list[str] | None = None  # where resume() finds the state of a new store
        self.must_resume = False  # resume() refuses a start without a store
        self._keeps_generators = False  # as the last step left them, for commits that come later
        self.commit_every = 0  # steps; 0: commit() alone commits
        self._steps_since_commit = 0
        self._committed = 0  # the last step whose commit was made, or will be once its update is applied
        # The step in progress.
        self._in_step = False
        self._num_arrived: list[int] = []  # gradients, by layer
        self._is_handed: list[bool] = []  # by layer

    def _run(self, method: Callable[..., Any], *arguments: Any) -> Any:
        def stop() -> None:
            if self._layers is not None:
                self._layers.stop()

        return self._worker.run(torch.no_grad()(method), *arguments, on_interrupt=stop)

    def open_layers(self) -> Layers | None:
        layers: Layers | None = self._worker.quick(lambda: self._layers if self._is_open else None)
        return layers

    # ---- The store

    def _plan(self, optimizer: Groups) -> Layers:
        """The Layers of these parameters, which touch no disk yet."""
        if self._layers is not None:
            return self._layers
        inventory, num_elems = Inventory(), 0
        self._layout, self._place, self._num_groups = [], {}, 0
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if not parameter.requires_grad or parameter.numel() == 0:
                    continue
                if not self._layout or num_elems + parameter.numel() > MAX_LAYER_ELEMS:
                    inventory.begin_layer(f"layer.{len(self._layout)}")
                    self._layout.append([])
                    num_elems = 0
                num_elems += parameter.numel()
                index = inventory.add(optimizer.name_of(parameter), parameter.shape or [1], number)
                self._place[parameter] = len(self._layout) - 1, index
                self._layout[-1].append(parameter)
                self._num_groups = number + 1
        if not self._place:
            raise UsageError("forebay: no parameter requires a gradient, so there is nothing to optimize.")
        dtypes = {parameter.dtype for parameter in self._place}
        dtype = DTYPES[dtypes.pop()] if len(dtypes) == 1 else "f32"
        return self._make_layers(optimizer, inventory, dtype, pass_="update_only", num_open_layers=1)

    def _make_layers(self, optimizer: Groups, inventory: Inventory, dtype: str, **more: Any) -> Layers:
        options, groups = self._options, optimizer.param_groups
        self.run_state.add_to(inventory)
        tier = "nvme" if options.ram_bytes is None else "auto"
        self._layers = Layers(
            inventory, options.folders, ram_bytes=options.ram_bytes or 0, weight_dtype=dtype, gradient_dtype=dtype,
            optimizer=optimizer.kind, nesterov=any(group.get("nesterov") for group in groups),
            momentum=max(float(group.get("momentum", 0)) for group in groups), weights_tier=tier, state_tier=tier,
            durability=options.durability, commit_every=_ON_DEMAND, num_threads=options.threads, ranks=options.ranks,
            zero_stage=options.zero_stage, reduce_bucket_bytes=options.reduce_bucket or 0,
            reduce_dtype=options.reduce_dtype, _worker=self._worker, **more)
        self._forget_step()
        self._committed = 0
        return self._layers

    def _use(self, optimizer: Groups, user: dict[str, Any] | None = None) -> Layers:
        """The Layers, open: a new store where there was none, with `user` in its first commit."""
        layers = self._plan(optimizer)
        if not self._is_open:
            if layers.exists():
                raise UsageError(f"forebay: there is a store in {self._where()} already. Call optimizer.resume() "
                                 "before the first step to go on with it, or remove the folder.")
            with self._dropping_what_fails():
                layers.create()
                self._fill(layers)
                self.run_state.fill(layers)
                layers.start(optimizer.words(user))
                self._is_open = True
        if self._steps_to_copy:
            self._copy_weights(layers)
        return layers

    def _fill(self, layers: Layers) -> None:
        for parameter, (_, index) in self._place.items():
            layers.fill(index, DTYPES[parameter.dtype], memory_of(on_host(parameter)))

    @contextlib.contextmanager
    def _dropping_what_fails(self) -> Iterator[None]:
        """A store that could not be made, or opened, is tried anew by the next call."""
        try:
            yield
        except BaseException:
            layers, self._layers, self._is_open, self._steps_to_copy = self._layers, None, False, False
            if layers is not None:
                layers.close()
            raise

    def _where(self) -> str:
        return ", ".join(self._options.folders)

    def _copy_weights(self, layers: Layers) -> None:
        """The weights of the last real step, into the parameters."""
        self._steps_to_copy = True
        layers.cancel_expected()
        layers.expect(range(len(self._layout)))
        for number, parameters in enumerate(self._layout):
            with layers.acquire(number) as lease:
                for parameter in parameters:
                    self._copy(lease, parameter)
        self._steps_to_copy = False

    def _copy(self, lease: Lease, parameter: torch.Tensor) -> None:
        num_bytes = parameter.numel() * DTYPE_BYTES[lease.dtype]
        memory = (ctypes.c_char * num_bytes).from_address(lease.address(self._place[parameter][1]))
        weights = torch.frombuffer(memory, dtype=_TORCH_DTYPES[lease.dtype]).view(parameter.shape)
        if parameter.dtype == torch.bfloat16 and lease.dtype == "f32":
            weights = self._split(weights)[0]
        parameter.data.copy_(weights)

    def _split(self, master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 masters as bfloat16 weights and remainders, rounded as the kernels round them (ties: torch differs)."""
        if self._kernels is None:
            self._kernels = Kernels(self._options.threads)
        weights, remainder = torch.empty_like(master, dtype=torch.bfloat16), torch.empty_like(master, dtype=torch.int16)
        self._kernels.split(memory_of(master), memory_of(weights), memory_of(remainder))
        return weights, remainder

    # ---- A step

    @whole
    def take_gradient(self, optimizer: Groups, parameter: torch.Tensor) -> None:
        """Called in backward, when a gradient is complete: hands over the layers that have all of theirs."""
        self._run(self._take_gradient, optimizer, parameter)

    def _take_gradient(self, optimizer: Groups, parameter: torch.Tensor) -> None:
        layers = self._use(optimizer)
        layer = self._layer_of(optimizer, parameter)
        if self._is_handed[layer]:
            raise UsageError(
                f"forebay: {optimizer.name_of(parameter)} got a gradient after its layer was handed over. Call step() "
                "after each backward(), and put all but the last backward() of a step into `with "
                "optimizer.accumulate():`. A parameter that gets several gradients in one backward() needs "
                "backward_update=False.")
        self._num_arrived[layer] += 1
        if not self._is_complete(layer):
            return
        try:
            if not self._in_step:
                self._begin(optimizer, layers, 1.0)
            self._hand_over(layers, layer, {p: gradient_of(p, optimizer.name_of(p)) for p in self._layout[layer]
                                            if p.grad is not None})
        except BaseException:
            self._abandon(layers)
            raise

    def _is_complete(self, layer: int) -> bool:
        return self._num_arrived[layer] >= sum(parameter.requires_grad for parameter in self._layout[layer])

    def _layer_of(self, optimizer: Groups, parameter: torch.Tensor) -> int:
        if parameter not in self._place:
            raise UsageError(f"forebay: {optimizer.name_of(parameter)} has a gradient, and did not require one when "
                             "the store was made, so it is not in it. Set requires_grad before that; a gradient of "
                             "None leaves a parameter alone.")
        return self._place[parameter][0]

    def _begin(self, optimizer: Groups, layers: Layers, loss_scale: float) -> None:
        self._in_step = True
        layers.begin_step(self._settings(optimizer), clip=self._options.clip, loss_scale=loss_scale)

    def _settings(self, optimizer: Groups) -> list[Group]:
        """Settings of the groups that have tensors in the store, and of those between."""
        return [optimizer.settings_of(group) for group in optimizer.param_groups[: self._num_groups]]

    def _hand_over(self, layers: Layers, layer: int, gradients: dict[torch.Tensor, torch.Tensor]) -> None:
        has_gradient = False
        for parameter in self._layout[layer]:
            gradient = gradients.get(parameter)
            if gradient is None:
                continue
            has_gradient = True
            layers.add_gradient(self._place[parameter][1], DTYPES[gradient.dtype], memory_of(gradient))
            if self._options.backward_update:
                parameter.grad = None
        if has_gradient:
            layers.close_layer(layer)
        self._is_handed[layer] = True

    def step(self, optimizer: Groups, loss_scale: float) -> None:
        # As they are now: after an interrupted wait the caller may take them from the parameters.
        gradients = {p: gradient_of(p, optimizer.name_of(p)) for group in optimizer.param_groups
                     for p in group["params"] if p.grad is not None and p.numel() > 0}
        self._run(self._step, optimizer, loss_scale, gradients)

    def _step(self, optimizer: Groups, loss_scale: float, gradients: dict[torch.Tensor, torch.Tensor]) -> None:
        layers = self._use(optimizer)
        if not gradients and not self._in_step and self._options.ranks is None:
            return
        for parameter in gradients:
            self._layer_of(optimizer, parameter)
        try:
            if self._in_step:  # since backward: a schedule may have moved the settings
                layers.set_step(self._settings(optimizer), clip=self._options.clip, loss_scale=loss_scale)
            else:
                self._begin(optimizer, layers, loss_scale)
            for layer in reversed(range(len(self._layout))):
                if not self._is_handed[layer]:
                    self._hand_over(layers, layer, gradients)
            found = layers.finish_backward()
            if found.nonfinite_layer is not None:
                names = [optimizer.name_of(p) for p in self._layout[found.nonfinite_layer]]
                raise NumericalError(f"forebay: a gradient among {', '.join(names[:3])}{', ...' * (len(names) > 3)} is "
                                     "not finite. The weights are what they were. Skip this step, or scale the loss "
                                     "(torch.amp.GradScaler).")
            layers.update(optimizer.words(None))
        except BaseException:
            self._abandon(layers)
            raise
        self._forget_step()
        self._note_step()
        optimizer.grad_norm = found.norm
        self._copy_weights(layers)

    def _forget_step(self) -> None:
        self._in_step = False
        self._num_arrived = [0] * len(self._layout)
        self._is_handed = [False] * len(self._layout)

    def _abandon(self, layers: Layers) -> None:
        """The step never was. Where part of its gradients was taken, the rest is of no use."""
        self._forget_step()
        if self._options.backward_update:
            for parameter in self._place:
                parameter.grad = None
        layers.abandon()

    def is_under_way(self) -> bool:
        """Whether a step has gradients, and is not made. Waits for a step() that was interrupted, which goes on."""
        return bool(self._worker.quick(self._has_unfinished_step))

    def _has_unfinished_step(self) -> bool:
        return self._in_step or any(self._num_arrived)

    def forget_gradients(self) -> None:
        """zero_grad(): those of a step in progress never were."""
        if self._layers is not None:
            self._run(self._forget_gradients, self._layers)

    def _forget_gradients(self, layers: Layers) -> None:
        if self._in_step:
            self._abandon(layers)
        self._forget_step()

    # ---- What lasts

    def commit(self, optimizer: Groups, user: dict[str, Any] | None) -> None:
        self._run(self._commit, optimizer, user, optimizer.words(user), self.run_state.pack())

    def _commit(self, optimizer: Groups, user: dict[str, Any] | None, words: dict[str, Any] | None,
                packed: bytes | Snapshot, once_applied: bool = False) -> int:
        layers = self._use(optimizer, user)
        is_new = not self._in_step and not self._is_committed(layers)
        if not is_new and layers.step > layers.committed_step:
            layers.commit()
        if user and not is_new and self.commit_every > 0 and layers.user != words:
            raise UsageError(f"forebay: step {layers.step} is committed already, by commit_every={self.commit_every}, "
                             "and cannot be again with something else. Have commits carry it by track().")
        try:
            if is_new:
                self.run_state.write(layers, packed)
            (layers.commit_once_applied if once_applied else layers.commit)(words)
        except BaseException:
            if is_new:
                layers.abandon()  # what was written for the commit belongs to no step
            raise
        self._committed, self._steps_since_commit = layers.step, 0
        return layers.step

    def _is_committed(self, layers: Layers) -> bool:
        """Whether the last step is, or will be once its update is applied."""
        return layers.step <= max(layers.committed_step, self._committed)

    def _note_step(self) -> None:
        self.run_state.note_step(keeps_generators=self._keeps_generators or self.commit_every > 0)
        self._steps_since_commit += 1

    def commit_if_due(self, optimizer: Groups, *, before_batch: bool) -> None:
        """commit_every. before_batch: a tracked loader is asked for the next one. Else a pass begins, whose batch may
        have drawn random numbers: the commit has the generators as the last step left them."""
        # A pass may also belong to the step that was made, where a loader says when the next one begins.
        waits = self.run_state.has_loader and not before_batch
        if self.commit_every > 0 and self._steps_since_commit >= self.commit_every + waits:
            self._between_steps()
            # The commit belongs to the next pass, as what is left of the update does.
            self._run(self._commit, optimizer, None, optimizer.words(None), self.run_state.pack(now=before_batch),
                      self._options.update_in_backward)

    def _between_steps(self) -> None:
        """Before a commit."""

    def track(self, optimizer: Groups, objects: dict[str, Any]) -> None:
        """Settings of groups too: to make a scheduler has changed them."""
        if self.run_state.track(objects):
            optimizer.take_words(self._run(self._use, optimizer).user)

    def resume(self, optimizer: Groups) -> dict[str, Any] | None:
        user: dict[str, Any] | None = self._run(self._resume, optimizer)
        return user

    def _resume(self, optimizer: Groups) -> dict[str, Any] | None:
        layers = self._plan(optimizer)
        if self._is_open:
            raise UsageError("forebay: the store is open already. Call resume() before the first step.")
        is_there = layers.exists()
        if not is_there and self.must_resume:
            raise BadInputError(f"forebay: there is no store in {self._where()}, and resume='must' goes on with one. "
                                "Mount the disk that it lies on, or name its folder; at the first start "
                                "leave 'must' out.")
        if not is_there and self.start_from is None:
            return None
        with self._dropping_what_fails():
            if is_there or self.start_from is None:
                layers.open()
            else:
                layers.create_from(self.start_from)
            self._is_open = True
            self.run_state.read(layers)
            self._copy_weights(layers)
        return optimizer.take_words(layers.user)

    def reference(self, optimizer: Groups) -> dict[str, Any] | None:
        step = self._run(self._commit, optimizer, None, None, self.run_state.pack())
        return {"folders": list(self._options.folders), "step": step}

    def load(self, optimizer: Groups, state_dict: dict[str, Any]) -> None:
        reference = state_dict.get("forebay")
        if reference is None:
            if state_dict["state"]:
                raise NotSupportedError("forebay: a store takes no moments from a state dict. Go on with the store "
                                        "that they come from (resume()), or load it into an optimizer without nvme=.")
            return
        if not self._is_open and self.resume(optimizer) is None:
            raise UsageError(f"forebay: the state of this state dict lies in {reference['folders']}, and there is no "
                             f"store in {self._where()}. Copy it there, or make the optimizer with these folders.")
        layers: Layers = self._run(self._use, optimizer)
        if layers.step != reference["step"]:
            raise UsageError(f"forebay: this state dict is of step {reference['step']}, and the store in "
                             f"{self._where()} is at step {layers.step}: it keeps its last commit alone. Load the "
                             "state dict of that, or copy the folder with each state dict.")

    def own_part_of(self, value: torch.Tensor) -> torch.Tensor:
        """Of a state's tensor that is loaded: a store takes none."""
        return value

    def full_state(self, optimizer: Groups) -> dict[int, dict[str, torch.Tensor]] | None:
        state: dict[int, dict[str, torch.Tensor]] = self._run(self._full_state, optimizer, self.run_state.pack())
        return state

    def _full_state(self, optimizer: Groups, packed: bytes) -> dict[int, dict[str, torch.Tensor]]:
        self._commit(optimizer, None, None, packed)
        layers = self._use(optimizer)
        everything: dict[int, dict[str, torch.Tensor]] = {}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            if parameter not in self._place:
                continue
            tensor = self._place[parameter][1]
            updates = layers.updates_of(tensor)
            if updates == 0:
                continue
            state = everything[number] = {"step": torch.tensor(float(updates))}
            for plane, name in optimizer.moments_of(optimizer.group_of(parameter)).items():
                state[name] = torch.empty(parameter.shape)
                layers.read(tensor, plane, memory_of(state[name]))
            if parameter.dtype != torch.float32:
                master = torch.empty(parameter.shape)
                layers.read(tensor, "master", memory_of(master))
                if parameter.dtype == torch.bfloat16:
                    state["remainder"] = self._split(master)[1]
                else:
                    state["master"] = master
        return everything

    def reload(self, optimizer: Groups) -> None:
        """Makes a store that has made no step anew, with the parameters as they are."""
        self._run(self._reload, optimizer)

    def _reload(self, optimizer: Groups) -> None:
        if self._layers is None or not self._is_open:
            return  # it is made of them when it is first used
        self._check_takes_weights(self._layers)
        user = self._layers.user["user"]
        self._forget_gradients(self._layers)
        self._remove(optimizer, self._layers)
        self._use(optimizer, user)

    def _check_takes_weights(self, layers: Layers) -> None:
        if layers.step > 0:
            raise UsageError(f"forebay: the store in {self._where()} has made {layers.step} steps, and takes other "
                             "weights only before the first. Load them before, with another folder; or, to go on with "
                             "the store, resume it in place of loading.")

    def _remove(self, optimizer: Groups, layers: Layers) -> None:
        """The next use makes the store anew."""
        layers.close()
        self._layers, self._is_open = None, False
        self._plan(optimizer).remove()

    def move(self, folders: list[str]) -> None:
        layers, self._layers, self._is_open, self._steps_to_copy = self._layers, None, False, False
        self._forget_step()
        if layers is not None:
            layers.close()
        self._options = self._options._replace(folders=folders)

    def check_new_group(self) -> None:
        if self._layers is not None:
            raise UsageError("forebay: the store has the parameters of the first step. Add groups before it.")

    def finish_commit(self) -> None:
        """Makes the one that waits for an update, if there is one."""
        if self._worker.quick(self._commit_waits):
            self._between_steps()
            self._make_commit()

    def _commit_waits(self) -> bool:
        layers = self._layers
        return layers is not None and self._committed > 0 and layers.committed_step < self._committed

    def _make_commit(self) -> None:
        if self._layers is not None:
            self._run(self._layers.commit)

    def _is_spoiled(self) -> bool:
        """Whether no step may be committed any more."""
        return False

    def close(self) -> None:
        self._worker.check_process()
        self._worker.end_abandoned()
        try:
            self.finish_commit()
        except UsageError:
            if not self._is_spoiled():
                raise
        finally:
            self._committed = 0
            for each in (self._layers, self._kernels):
                if each is not None:
                    each.close()


def folders_of(nvme: Path | Sequence[Path]) -> list[str]:
    """From the root on. UsageError: there are none, or the place for one is not there."""
    given = folders(nvme, "nvme")
    if not given:
        raise UsageError("forebay: nvme=[] names no folder. Give one for each disk, or None to keep all state in RAM.")
    for folder in given:
        parent = os.path.dirname(os.path.abspath(folder))
        if not os.path.isdir(parent):
            raise UsageError(f"forebay: nvme={folder!r} cannot be made: there is no folder {parent}. Make that first, "
                             "on the disk that the state is to lie on.")
    return given


__all__ = ["ForebayError", "InStore", "StoreOptions", "folders_of"]
