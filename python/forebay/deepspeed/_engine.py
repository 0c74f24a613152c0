"""The engine that initialize() gives: forward, backward and step with DeepSpeed's meaning."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from forebay.deepspeed import _checkpoint, _optimizers, _schedules, zero
from forebay.deepspeed._answers import Answers
from forebay.deepspeed._config import Config
from forebay.deepspeed._monitors import Event, Monitors
from forebay.deepspeed._precision import DTYPES, cast, let_add_up_in
from forebay.deepspeed._scaler import SKIPPED, LossScaler
from forebay.deepspeed._scratch import Scratch
from forebay.deepspeed._timers import Timers
from forebay.deepspeed.runtime.utils import see_memory_usage
from forebay.errors import NotSupportedError, NumericalError, UsageError
from forebay.ranks import Ranks
from forebay.torch import Optimizer, stream
from forebay.torch._tensors import memory_of, on_host

_MOST_TAG_BYTES = 255


class DeepSpeedEngine(Answers):
    """The part of deepspeed.DeepSpeedEngine that scripts, transformers and accelerate use.

    optimizer: a `forebay.torch.Optimizer`, with `cur_scale` and `overflow` too; None: for evaluation alone. Gradients
    are summed in the type of the weights over the micro-batches of a step. Calls that scripts may make and that are not
    here raise NotSupportedError; other names are those of the module.
    """

    def __init__(self, model: torch.nn.Module, config: Config, optimizer: Any, parameters: Iterable[Any] | None,
                 lr_scheduler: Any, ranks: Ranks) -> None:
        super().__init__()
        self._config = config
        self.ranks = ranks
        self.global_rank, self.local_rank = ranks.rank, ranks.local_rank
        self.world_size = self.dp_world_size = ranks.size
        for note in config.notes:
            self._say(f"forebay: {note}")
        self.dtype = torch.float16 if config.fp16 else torch.bfloat16 if config.bf16 else torch.float32
        cast_away = cast(model, self.dtype, config.data_types)
        if cast_away:
            self._say(f"forebay: {cast_away}")
        self.module = model
        self.module.train()
        self._begin_alike()
        self.scaler = LossScaler(config.fp16, config.stage, self._say) if config.fp16 else None
        self.scratch: list[Scratch] = []  # where the store lies: a folder for each disk
        self.is_streamed = False
        self.optimizer = self._make_optimizer(optimizer, parameters)
        self.lr_scheduler = self._make_scheduler(lr_scheduler, optimizer)
        self._has_gradient: set[torch.Tensor] = set()  # in the step in progress; looked at if all must have one
        if self.optimizer is not None and not config.ignores_unused:
            self._note_gradients(self.optimizer)
        self.global_steps = self.skipped_steps = self.micro_steps = self.global_samples = 0
        self.was_step_skipped = False
        self._boundary: bool | None = None
        self._adds_up = False
        self._timers = Timers(config.wall_clock_breakdown)
        self._monitors = Monitors(config.monitors if self.global_rank == 0 else {})
        self._losses: list[torch.Tensor] = []  # of the step in progress, if there are monitors
        self._set_scaler_names(False)
        if self.optimizer is not None and config.steps_per_print:
            self._say_progress()

    def _say(self, line: str) -> None:
        if self.global_rank == 0:
            print(line)

    # ---- How it is made

    @torch.no_grad()
    def _begin_alike(self) -> None:
        """Parameters and buffers are those of the first rank."""
        if self.ranks.size == 1:
            return
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            host = on_host(tensor.detach()).contiguous()
            if host.numel() == 0:
                continue
            self.ranks.broadcast(memory_of(host))
            if host.data_ptr() != tensor.data_ptr():
                tensor.copy_(host)

    def _make_optimizer(self, optimizer: Any, parameters: Iterable[Any] | None) -> Optimizer | None:
        given = list(parameters) if parameters is not None else list(self.module.parameters())
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(given)
        settings: dict[str, Any] = {}
        kind: Callable[..., Optimizer]
        if optimizer is not None:
            kind, given = _optimizers.becoming(optimizer, _optimizers.mapped(optimizer)), list(optimizer.param_groups)
            if isinstance(optimizer, Optimizer):
                optimizer.close()
        elif self._config.optimizer is not None:
            kind, settings = _optimizers.configured(self._config.optimizer, self._config.optimizer_params)
        else:
            self._say("forebay: there is no optimizer: neither initialize() nor the configuration has one. The engine "
                      "evaluates, with all weights in RAM")
            return None
        params = [p for p in given if isinstance(p, (dict, tuple)) or p.requires_grad]
        made = self._place(kind, params, settings)
        if not self.is_streamed:
            let_add_up_in((each for group in made.param_groups for each in group["params"]),
                          self._config.data_types.grad_accum)
        for group in made.param_groups:
            made.settings_of(group)  # so that one which there are no kernels for is told now
        return made

    def _place(self, kind: Callable[..., Optimizer], params: list[Any], settings: dict[str, Any]) -> Optimizer:
        config = self._config
        disks = dict.fromkeys(disk for disk in (config.weights_nvme, config.optimizer_nvme) if disk is not None)
        ranks = self.ranks if self.ranks.size > 1 else None
        if not disks:
            if ranks is not None and config.stage == 3:
                self._say("forebay: zero_optimization.stage is 3, and each rank keeps all weights in RAM: they are "
                          "divided where they lie on disk (offload_param.device: nvme). The optimizer's state is")
            if ranks is not None and config.reduce_dtype not in (None, "fp32"):
                self._say(f"forebay: communication_data_type is {config.reduce_dtype}, and the gradients of states in "
                          "RAM go from rank to rank in fp32: it acts where states lie on disk "
                          "(offload_optimizer.device: nvme)")
            if ranks is not None and config.reduce_bucket is not None:
                self._say("forebay: zero_optimization.reduce_bucket_size acts where states lie on disk; of states in "
                          "RAM one parameter's gradient is exchanged at a time")
            return kind(params, clip=config.clip, ranks=ranks, zero_stage=min(config.stage, 1), **settings)
        for disk in disks:
            self.scratch.append(Scratch(disk))
            weakref.finalize(self, self.scratch[-1].remove)
        # Checkpoints are copies, so that the store itself may be lost with its process.
        settings = {"nvme": [scratch.store for scratch in self.scratch], "clip": config.clip, "durability": "none",
                    "ranks": ranks, "reduce_bucket": config.reduce_bucket,
                    "reduce_dtype": DTYPES[config.reduce_dtype or "fp32"], **settings}
        if config.weights_nvme is None:
            return kind(params, zero_stage=min(config.stage, 1), **settings)
        self.is_streamed = True
        if config.data_types.grad_accum is not None:
            self._say("forebay: data_types.grad_accum_dtype acts on weights in RAM, and those of a streamed module "
                      "have gradients in their type")
        made = stream(self.module, optimizer=kind, params=params, **settings).optimizer  # type: ignore[arg-type]
        zero.register(made)
        return made

    def _make_scheduler(self, given: Any, optimizer: Any) -> Any:
        if self.optimizer is None:
            return None
        if given is None and self._config.scheduler is not None:
            return _schedules.make(self._config.scheduler, self._config.scheduler_params, self.optimizer)
        # One that was made for the optimizer that was given moves the same groups.
        made = given if given is None or hasattr(given, "step") else given(self.optimizer)
        watched = getattr(made, "optimizer", None)
        if watched is not None:
            watched._opt_called = True  # torch's schedulers warn where step() was not called: the engine calls another
        return made

    def _set_scaler_names(self, overflow: bool) -> None:
        if self.optimizer is None:
            return
        scale = self.scaler.cur_scale if self.scaler is not None else 1.0
        for name, value in (("cur_scale", scale), ("loss_scale", scale), ("overflow", overflow)):
            setattr(self.optimizer, name, value)

    def loader_of(self, data: Any, collate: Callable[[list[Any]], Any] | None) -> Any:
        """A loader of micro-batches over training_data. UsageError: the configuration has no batch size."""
        if self._config.micro_batch is None:
            raise UsageError("forebay: training_data= needs train_batch_size or train_micro_batch_size_per_gpu in the "
                             "configuration.")
        drop_last = self._config.drop_last
        sampler: Any = None
        if self.ranks.size > 1:
            sampler = torch.utils.data.DistributedSampler(data, self.ranks.size, self.ranks.rank, drop_last=drop_last)
        return torch.utils.data.DataLoader(data, batch_size=self._config.micro_batch, shuffle=sampler is None,
                                           sampler=sampler, collate_fn=collate, drop_last=drop_last)

    # ---- A step

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        if self._config.fp16 is not None and self._config.fp16.auto_cast:
            arguments = tuple(self._cast_input(value) for value in arguments)
            keywords = {name: self._cast_input(value) for name, value in keywords.items()}
        if not self.training:
            return self.module(*arguments, **keywords)
        with self._timers.phase("fwd"):
            return self.module(*arguments, **keywords)

    def _cast_input(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.dtype)
        return value

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Gradients of the loss, a scalar, divided by gradient_accumulation_steps unless scale_wrt_gas is false.
        Returns the loss that was divided."""
        optimizer = self._trained()
        if self._monitors.is_enabled:
            self._losses.append(loss.detach())
        if scale_wrt_gas:
            loss = loss / self._config.accumulation
        scaled = loss.float() * self.scaler.cur_scale if self.scaler is not None else loss
        is_last = self.is_gradient_accumulation_boundary() and not self._adds_up
        adds_up = contextlib.nullcontext() if is_last else optimizer.accumulate()
        with self._timers.phase("bwd"), adds_up, optimizer.saving():
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """For a script that calls backward() of the loss itself: the loss, a scalar, times the loss scale."""
        return loss if self.scaler is None else loss.float() * self.scaler.cur_scale

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """At the last micro-batch of a step: clips, updates, moves the schedule unless there was an overflow.
        UsageError: inside no_sync()."""
        if self._adds_up:
            raise UsageError("forebay: step() inside no_sync(), where gradients only add up. Call it behind.")
        is_step = self.is_gradient_accumulation_boundary()
        try:
            if is_step:
                with self._timers.phase("step"):
                    self._update(self._trained(), lr_kwargs or {})
        finally:
            self.micro_steps += 1  # also after a step that is refused: the next one begins here
        self._timers.end_micro_step(is_step)
        if is_step:
            self._report()
        see_memory_usage("Engine after step", force=self._config.memory_breakdown)

    def _trained(self) -> Optimizer:
        if self.optimizer is None:
            raise UsageError("forebay: there is no optimizer, so there is nothing to train. Give initialize() "
                             'optimizer=, or the configuration an "optimizer".')
        return self.optimizer

    def _note_gradients(self, optimizer: Optimizer) -> None:
        def note(parameter: torch.Tensor) -> None:
            has_gradient.add(parameter)

        has_gradient = self._has_gradient
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(note)

    def _check_all_have_gradients(self, optimizer: Optimizer) -> None:
        if self._config.ignores_unused:
            return
        unused = [optimizer.name_of(each) for group in optimizer.param_groups for each in group["params"]
                  if each not in self._has_gradient]
        self._has_gradient.clear()
        if unused:
            optimizer.zero_grad()
            raise UsageError(f"forebay: {len(unused)} parameters got no gradient in this step: {', '.join(unused[:8])}"
                             f"{', ...' * (len(unused) > 8)}. Use them in the forward pass, freeze them "
                             "(requires_grad=False), or leave zero_optimization.ignore_unused_parameters=false out. "
                             "The step was not made.")

    def _update(self, optimizer: Optimizer, lr_kwargs: dict[str, Any]) -> None:
        self._check_all_have_gradients(optimizer)
        overflow = False
        try:
            optimizer.step_scaled(1.0 if self.scaler is None else self.scaler.cur_scale)
        except NumericalError:
            # Without a scale that could be too large such a gradient is an error, unless bf16 is to go on.
            if self.scaler is None and not self._config.skips_nonfinite:
                raise
            if self.scaler is None:
                self._say(SKIPPED)
            overflow = True
        optimizer.zero_grad()
        if self.scaler is not None:
            self.scaler.update(overflow)
        self._set_scaler_names(overflow)
        self.was_step_skipped = overflow
        self.global_steps += 1
        self.global_samples += self.train_batch_size() or 0
        if overflow:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)

    def _report(self) -> None:
        every, rate = self._config.steps_per_print, self._timers.rate(self.train_batch_size() or 1)
        if every and self.global_steps % every == 0:
            self._say_progress()
            if rate is not None:
                self._say(f"[Rank 0] {rate}")
        if self._monitors.is_enabled:
            self._monitors.write_events(self._events())
            self._losses.clear()

    def _events(self) -> list[Event]:
        values = {"train_loss": float(sum(loss.double() for loss in self._losses)) / len(self._losses)
                  } if self._losses else {}
        values["lr"] = self.get_lr()[0]
        if self.scaler is not None:
            values["loss_scale"] = float(self.scaler.cur_scale)
        if self._config.wall_clock_breakdown:
            seconds = self._timers.last_step
            values.update({f"elapsed_time_ms_{name}": 1000 * value for name, value in seconds.items()})
        return [(f"Train/Samples/{name}", value, self.global_samples) for name, value in values.items()]

    def _say_progress(self) -> None:
        self._say(f"[Rank 0] step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, "
                  f"mom={self.get_mom()}")

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro-batch in progress is the last of its step."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self._config.accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Says it from here on, in place of counting micro-batches."""
        self._boundary = is_boundary

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients add up, and step() is refused."""
        before, self._adds_up = self._adds_up, True
        try:
            yield
        finally:
            self._adds_up = before

    coalesce_grad_reduction = no_sync

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As DeepSpeed has it: gradients are forgotten by step() alone."""

    def was_step_applied(self) -> bool:
        """Whether the last step was; not one that an overflow has left out."""
        return self.global_steps > 0 and not self.was_step_skipped

    def destroy(self) -> None:
        """Ends threads and files, and removes the store. Checkpoints stay."""
        if self.optimizer is not None:
            self.optimizer.close()
        for scratch in self.scratch:
            scratch.remove()

    # ---- Checkpoints

    def save_checkpoint(self, save_dir: str, tag: str | None = None, client_state: dict[str, Any] | None = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False) -> bool:
        """Into save_dir/tag, which then needs nothing else: where the state lies on NVMe, it has a copy of it.

        StorageError: the disk has no room for it. The tags that were there are whole. UsageError:
        checkpoint.tag_validation is FAIL, and ranks have different tags. Otherwise the tag is that of rank 0.
        """
        if len(str(tag or "").encode()) > _MOST_TAG_BYTES:
            raise UsageError(f"forebay: the tag has {len(str(tag).encode())} bytes, and at most {_MOST_TAG_BYTES} fit "
                             "into the name of a folder.")
        tag = self._tag_of_all(str(tag or f"global_step{self.global_steps}"))
        _checkpoint.save(self, os.fspath(save_dir), tag, client_state or {}, save_latest, exclude_frozen_parameters)
        return True

    def _tag_of_all(self, tag: str) -> str:
        """That of the first rank. UsageError: another rank has another, and checkpoint.tag_validation is FAIL."""
        if self.ranks.size == 1:
            return tag
        padded = bytearray(tag.encode().ljust(_MOST_TAG_BYTES, b"\0"))
        self.ranks.broadcast(padded)
        of_first = padded.rstrip(b"\0").decode()

        def check() -> None:
            if of_first != tag and self._config.tag_validation == "fail":
                raise UsageError(f"forebay: rank {self.global_rank} saves under the tag {tag!r}, and rank 0 under "
                                 f"{of_first!r}. A checkpoint is that of all ranks: give one tag.")

        self.ranks.together(check, "checking that all ranks save under one tag")
        if of_first != tag and self._config.tag_validation == "warn":
            print(f"forebay: rank {self.global_rank} saves under {of_first!r}, the tag of rank 0, and not under "
                  f"{tag!r}")
        return of_first

    def load_checkpoint(self, load_dir: str, tag: str | None = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None,
                        trust_client_state: bool = False) -> tuple[str | None, Any]:
        """Returns (path, client_state); (None, {}) where load_dir has no checkpoint. The tag stays as it is.

        trust_client_state: the client_state, or the state of a scheduler, may have objects of any class, whose making
        can run any code: for checkpoints of your own. BadInputError: it has, and this is False; there is no such tag.
        UsageError: it was made with another configuration. NotSupportedError: a
        custom_load_fn.
        """
        if custom_load_fn is not None:
            raise NotSupportedError("forebay: custom_load_fn= is not there. Load into the model before initialize().")
        found = _checkpoint.tag_of(os.fspath(load_dir), tag)
        if found is None:
            return None, {}
        folder = os.path.join(load_dir, found)
        state = _checkpoint.load(self, folder, is_strict=load_module_strict,
                                 with_optimizer=load_optimizer_states and not load_module_only,
                                 with_scheduler=load_lr_scheduler_states and not load_module_only,
                                 trusts=trust_client_state)
        self._set_scaler_names(False)
        return folder, state
