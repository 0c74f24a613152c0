"""stream(): training of a module whose weights are not in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from forebay._given import Path, bytes_of, whole
from forebay._given import folder as folder_of
from forebay.errors import NotSupportedError, UsageError
from forebay.ranks import Ranks
from forebay.torch._files.adapters import has_adapters, names_in
from forebay.torch._files.loading import FromFolder, Weights, is_hollow, make_buffers, make_placeholders, source_of
from forebay.torch._files.saving import names_of, save_pretrained
from forebay.torch._groups import User
from forebay.torch._optimizer import Optimizer
from forebay.torch._optimizers import AdamW
from forebay.torch._run.state import persistent_buffers
from forebay.torch._streaming.device import device_of


class Engine:
    """A module and its optimizer over one store. `engine(...)` is the module's forward pass.

    module: the module that was given, which can be used as before. optimizer: a `torch.optim.Optimizer`, for schedulers
    and settings; its methods are those of `forebay.torch.Optimizer`.
    """

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer) -> None:
        self.module = module
        self.optimizer = optimizer
        if has_adapters(module):
            module.save_pretrained = self._save_adapters  # type: ignore[assignment]
        elif hasattr(module, "save_pretrained"):
            module.save_pretrained = self._save_as_transformers  # type: ignore[assignment]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.module(*arguments, **keywords)

    def backward(self, loss: torch.Tensor) -> None:
        """loss.backward() of a scalar, also right where `forward` of a block is computed again without its hooks."""
        with self.optimizer.saving():
            loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """The update of the gradients since the last one. It is applied to each unit as the next pass reads it."""
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Forgets the gradients of the step in progress."""
        self.optimizer.zero_grad()

    def train(self, mode: bool = True) -> Engine:
        """As torch.nn.Module has it."""
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        """As torch.nn.Module has it."""
        return self.train(False)

    def commit(self, user: User | None = None) -> None:
        """Makes the last step durable. user: what resume() gives back; at most some 2 KiB as JSON."""
        self.optimizer.commit(user)

    def track(self, **objects: Any) -> None:
        """Every commit has the state of these objects (schedulers, scalers, a `ResumableLoader`: what has state_dict
        and load_state_dict), beside weights, moments, buffers and random number generators. Where the engine went on
        with a store, they get theirs. Once, before the first step."""
        self.optimizer.track(**objects)

    def state_dict(self) -> dict[str, Any]:
        """The state dict of the module: all weights, in RAM. DoesNotFitError: they are more than `ram`, or than 80 % of
        what was available."""
        return self.module.state_dict()

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights in their shapes, one after another, those of a unit in memory at a time. Copy what you keep."""
        names = names_of(self.module)
        for unit in self._weights():
            for parameter, weight in unit.items():
                yield names[parameter], weight

    def save_pretrained(self, folder: Path, max_shard_size: int | str = "50GB") -> None:
        """Writes the weights of the last step and the buffers as safetensors, in shards where they are larger than
        `max_shard_size`, with the configuration where transformers made the module: from_pretrained() reads them. Never
        more than a unit is in RAM. With ranks all call it, and the first writes. Of a module that PEFT made it writes
        only the adapters, as PEFT does.

        StorageError: the disk is full, for example; the folder has what it had. UsageError: there can be no folder.
        """
        if has_adapters(self.module):
            self._save_adapters(folder, is_main_process=self.optimizer.ranks is None or self.optimizer.ranks.rank == 0)
            return
        names = names_of(self.module)
        weights = ({names[parameter]: weight for parameter, weight in unit.items()} for unit in self._weights())

        def save() -> None:
            self._write(folder, max_shard_size, weights)

        if self.optimizer.ranks is None:
            save()
        else:
            _save_on_first(self.optimizer.ranks, save, weights)

    def _units(self) -> list[list[str]]:
        """The names of the parameters of each."""
        names = names_of(self.module)
        return [[names[parameter] for parameter in unit] for unit in self.optimizer.streamed().layout]

    def _write(self, folder: Path, max_shard_size: int | str, weights: Iterable[dict[str, torch.Tensor]]) -> None:
        save_pretrained(self.module, folder_of(folder, "folder"), self._units(), weights,
                        bytes_of(max_shard_size, "max_shard_size"))

    def load_pretrained(self, folder: Path) -> None:
        """Takes the weights of a folder of safetensors into a new store, unit by unit: before the first step.
        module.load_state_dict() does it with a state dict.

        UsageError: steps were made, or there are no such files. BadInputError: they are of another module.
        """
        self.optimizer.streamed().refill(self.optimizer, FromFolder(self.module, folder_of(folder, "folder")))

    def _save_adapters(self, save_directory: Path, *arguments: Any, selected_adapters: list[str] | None = None,
                       state_dict: dict[str, torch.Tensor] | None = None, **others: Any) -> None:
        """Calls PEFT's own save_pretrained with the weights of the adapters. With ranks all call it."""
        if state_dict is None:
            named = {**dict(self.module.named_parameters(remove_duplicate=False)), **persistent_buffers(self.module)}
            wanted = {name: named[name] for name in names_in(self.module, selected_adapters)}
            copies = self.optimizer.streamed().copies_of(wanted.values())
            state_dict = {name: copies[tensor] if tensor in copies else tensor.detach()
                          for name, tensor in wanted.items()}
        kind: Any = type(self.module)
        kind.save_pretrained(self.module, folder_of(save_directory, "save_directory"), *arguments,
                             selected_adapters=selected_adapters, state_dict=state_dict, **others)

    def _save_as_transformers(self, save_directory: Path, is_main_process: bool = True, state_dict: Any = None,
                              push_to_hub: bool = False, max_shard_size: int | str = "50GB", **others: Any) -> None:
        """The module's own save_pretrained, which would have all weights in RAM."""
        others = {name: value for name, value in others.items() if value not in (None, True)}
        if push_to_hub or others:
            raise NotSupportedError("forebay: save_pretrained of a streamed module takes a folder and max_shard_size, "
                                    f"and got {', '.join(others) or 'push_to_hub'}. Save to a folder, and do the rest "
                                    "with that.")
        if self.optimizer.ranks is not None and state_dict is not None:
            # Its caller has gathered it with all ranks, and has one of them write it.
            if is_main_process:
                self._write(save_directory, max_shard_size, ({name: state_dict[name] for name in unit}
                                                             for unit in self._units()))
        elif is_main_process or self.optimizer.ranks is not None:
            self.save_pretrained(save_directory, max_shard_size)

    def _weights(self) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
        return self.optimizer.streamed().weights()

    @property
    def resumed(self) -> User | None:
        """The `user` of the commit that stream() went on from; None: it made a new store."""
        return self.optimizer.resumed

    @property
    def steps(self) -> int:
        """The steps that were made, those before resuming too."""
        return self.optimizer.streamed().num_steps

    @property
    def num_deviations(self) -> int:
        """How often a unit came that the order of the pass before did not announce: its weights were read when they
        were used, and the step waited for the disk. Counts from the second pass of each kind on."""
        return self.optimizer.streamed().num_deviations

    @property
    def grad_norm(self) -> float | None:
        """The norm of the last step, before clipping."""
        return self.optimizer.grad_norm

    def close(self) -> None:
        """Ends threads and files. With update_in_backward the commit that waits for the next pass is made, and raises
        what it fails with. Other steps that are not committed are lost."""
        self.optimizer.close()


def _save_on_first(ranks: Ranks, save: Callable[[], None], weights: Iterator[Any]) -> None:
    """All ranks return, or fail, when the first has saved `weights`, of which it needs the parts of all."""
    def work() -> None:
        try:
            if ranks.rank == 0:
                save()
        finally:
            deque(weights, maxlen=0)  # reads all of them, or what is left

    ranks.together(work, "saving the weights, which the first rank writes,")


def stream(module: torch.nn.Module, *, nvme: Path | Sequence[Path], ram: None | int | str = None,
           optimizer: type[Optimizer] = AdamW, params: Any = None, resume: bool | Literal["must"] = False,
           start_from: None | Path | Sequence[Path] = None, accumulation_steps: int = 1, commit_every: int = 0,
           weights: Weights | None = None, update_in_backward: bool = False,
           device: None | str | torch.device = None, gpu_mem: None | int | str = None, ranks: Ranks | None = None,
           zero_stage: int = 3, **settings: Any) -> Engine:
    """Moves the weights of `module` into a store, and reads each unit (a block, or a module with parameters of its own)
    when its forward or backward pass begins. In between, parameters take no memory; an operation on one reads its unit.

    nvme: the store's folder, or one for each disk. ram: memory for it, as bytes or "8GiB". optimizer: the class, and
    `settings` its arguments. params: its parameters or groups; None: all that require a gradient; the others are
    frozen. resume: goes on with the store that is in the folder, if there is one, instead of the module's weights;
    "must": and refuses to start if there is none, which is right for every start but the first: a disk that is not
    mounted looks like a first start.
    start_from: a folder (or several) with the store of another run. Where there is none in `nvme`, one is made with
    that state, at its step; where there is one, it goes on. The other run may have any number of ranks, and any
    zero_stage, and stays as it is.
    accumulation_steps: the forward and backward passes of a step, whose gradients add up. commit_every: so many steps
    share a commit, which is made when the next pass begins, or a tracked `ResumableLoader` is asked for the next batch:
    at 1 a crash takes no more than that. 0: commit() alone commits.
    weights: of a new store, in place of the module's own: a folder of safetensors, or a function that sets the
    parameters of the module that it is called with, as for Module.apply(). They are read unit by unit, and the module
    may be on the meta device: then it is never in RAM as a whole.

    update_in_backward: a unit is updated as soon as the backward pass has its gradients, and not when the next pass
    reads it. The disk then works through both passes: faster where it is what a step waits for. Every step is
    committed (commit_every is 1), when the first unit, whose gradient comes last, is updated too: in the forward pass
    that follows, at the end of an epoch, by commit() or by close(). Nothing clips or scales gradients behind the
    backward pass.

    ranks: `forebay.Ranks`, the processes that train together, each with data of its own. A new store has the weights of
    the first. zero_stage: as ZeRO has it: 0: each rank has the whole state; 1 to 3: its part of it. With 3 weights are
    gathered unit by unit, so every rank has to use the same units in the same order, in evaluations too; with 1 and 2
    once in a step, and `ram` has room for all of them.

    device: "cuda:0", say: where the module computes, with its buffers. Weights then come into a window of units there,
    copied beside what it computes, and gradients go to the store from there. None: where the parameters are. gpu_mem:
    the most that the window may take: four times the largest unit where there is room for it, else three times.

    UsageError: the parameters are of several types, or on several devices; there is a store and `resume` is not said.
    BadInputError: resume="must", and there is no store.
    EnvironmentProblem: there is no such GPU, or the library or PyTorch was built without CUDA. DoesNotFitError: its
    memory, or gpu_mem, is too small.
    """
    where = device_of(module.parameters(), device, gpu_mem)
    if is_hollow(module):
        if weights is None:
            raise UsageError("forebay: the module is on the meta device and has no weights. Say where they are: "
                             "weights=FOLDER, with safetensors; or a function that sets them.")
        make_placeholders(module)
        make_buffers(module)
    if params is None:
        params = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    whole(accumulation_steps, "accumulation_steps (passes of a step)", 1, 2**31 - 1)
    whole(commit_every, "commit_every (steps that share a commit; 0: commit() alone commits)", 0, 2**62)
    if update_in_backward:
        if settings.get("clip"):
            raise UsageError(f"forebay: clip={settings['clip']} needs the norm of all gradients before the first "
                             "update, and update_in_backward makes updates before it is known. Leave one of them out.")
        if commit_every > 1:
            raise UsageError(f"forebay: update_in_backward commits every step, and commit_every is {commit_every}. "
                             "Leave one of them out.")
        commit_every = 1
    if commit_every > 0 and settings.setdefault("durability", "step") in ("auto", "none"):
        raise UsageError(f"forebay: commit_every={commit_every} keeps commits through a crash, and "
                         f"durability={settings['durability']!r} does not. Leave durability out.")
    made = optimizer(params, nvme=nvme, ram=ram, backward_update=True, module=module, device=where,
                     update_in_backward=update_in_backward, ranks=ranks, zero_stage=zero_stage, **settings)
    try:
        source = None if weights is None else lambda: source_of(module, weights)
        made.start(resume, start_from, accumulation_steps, commit_every, source)
    except BaseException:
        made.close()
        raise
    return Engine(module, made)
