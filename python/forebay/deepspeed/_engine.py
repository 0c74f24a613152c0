"""The engine that initialize() gives: forward, backward and step with DeepSpeed's meaning, for one rank."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import torch

from forebay.deepspeed import _schedules
from forebay.deepspeed._config import Config
from forebay.deepspeed._scaler import LossScaler
from forebay.errors import BadInputError, NumericalError, UsageError
from forebay.torch import SGD, Adagrad, Adam, AdamW, Lion, Optimizer, stream

# By DeepSpeed's names: Adam is AdamW unless adam_w_mode is false.
_OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": AdamW, "adamw": AdamW, "lion": Lion, "adagrad": Adagrad, "sgd": SGD,
                                           "deepspeedcpuadam": AdamW, "fusedadam": AdamW, "deepspeedcpulion": Lion,
                                           "deepspeedcpuadagrad": Adagrad}
_FILE = "forebay.pt"


class DeepSpeedEngine(torch.nn.Module):
    """The part of deepspeed.DeepSpeedEngine that scripts use.

    optimizer: a `forebay.torch.Optimizer`, with `cur_scale` and `overflow` too. Gradients are summed in the type of the
    weights over the micro-batches of a step.
    """

    def __init__(self, model: torch.nn.Module, config: Config, optimizer: Any, parameters: Iterable[Any] | None,
                 lr_scheduler: Any) -> None:
        super().__init__()
        self._config = config
        for note in config.notes:
            print(f"forebay: {note}")
        self.dtype = torch.float16 if config.fp16 else torch.bfloat16 if config.bf16 else torch.float32
        self.module = model.to(self.dtype)
        self.module.train()
        self._scaler = LossScaler(config.fp16, config.stage) if config.fp16 else None
        self._store: str | None = None
        self.optimizer = self._make_optimizer(optimizer, parameters)
        self.lr_scheduler = self._make_scheduler(lr_scheduler)
        self.global_steps = self.skipped_steps = self.micro_steps = self.global_samples = 0
        self.was_step_skipped = False
        self._boundary: bool | None = None
        self._set_scaler_names(False)

    # ---- How it is made

    def _make_optimizer(self, optimizer: Any, parameters: Iterable[Any] | None) -> Optimizer:
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(list(parameters) if parameters is not None else list(self.module.parameters()))
        params: list[Any]
        if optimizer is not None:
            kind, settings, params = _mapped(optimizer)
        elif self._config.optimizer is not None:
            kind, settings = _configured(self._config.optimizer, self._config.optimizer_params)
            params = list(parameters) if parameters is not None else list(self.module.parameters())
        else:
            raise UsageError("forebay: there is no optimizer. Give initialize() optimizer=, or the configuration an "
                             '"optimizer".')
        params = [p for p in params if isinstance(p, (dict, tuple)) or p.requires_grad]
        config = self._config
        nvme = config.weights_nvme or config.optimizer_nvme
        if nvme is None:
            return kind(params, clip=config.clip, **settings)
        self._store = _new_folder(nvme)
        atexit.register(self._remove_store, os.getpid())
        if config.weights_nvme is not None:
            return stream(self.module, nvme=self._store, optimizer=kind, params=params, clip=config.clip,
                          **settings).optimizer
        return kind(params, nvme=self._store, clip=config.clip, **settings)

    def _make_scheduler(self, given: Any) -> Any:
        if given is not None:
            is_made = hasattr(given, "step")
            return given if is_made else given(self.optimizer)
        if self._config.scheduler is None:
            return None
        return _schedules.make(self._config.scheduler, self._config.scheduler_params, self.optimizer)

    def _set_scaler_names(self, overflow: bool) -> None:
        scale = self._scaler.cur_scale if self._scaler is not None else 1.0
        for name, value in (("cur_scale", scale), ("loss_scale", scale), ("overflow", overflow)):
            setattr(self.optimizer, name, value)

    def loader_of(self, data: Any, collate: Callable[[list[Any]], Any] | None) -> Any:
        """A loader of micro-batches over training_data."""
        if self._config.micro_batch is None:
            raise UsageError("forebay: training_data= needs train_batch_size or train_micro_batch_size_per_gpu in the "
                             "configuration.")
        return torch.utils.data.DataLoader(data, batch_size=self._config.micro_batch, shuffle=True, collate_fn=collate)

    # ---- A step

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        if self._config.fp16 is not None and self._config.fp16.auto_cast:
            arguments = tuple(self._cast(value) for value in arguments)
            keywords = {name: self._cast(value) for name, value in keywords.items()}
        return self.module(*arguments, **keywords)

    def _cast(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.dtype)
        return value

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Gradients of the loss, divided by gradient_accumulation_steps unless scale_wrt_gas is false."""
        if scale_wrt_gas:
            loss = loss / self._config.accumulation
        scaled = loss.float() * self._scaler.cur_scale if self._scaler is not None else loss
        adds_up = contextlib.nullcontext() if self.is_gradient_accumulation_boundary() else self.optimizer.accumulate()
        with adds_up, self.optimizer.saving():
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        return loss

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """At the last micro-batch of a step: clips, updates, moves the schedule unless there was an overflow."""
        if self.is_gradient_accumulation_boundary():
            self._update(lr_kwargs or {})
        self.micro_steps += 1

    def _update(self, lr_kwargs: dict[str, Any]) -> None:
        overflow = False
        try:
            self.optimizer.step_scaled(1.0 if self._scaler is None else self._scaler.cur_scale)
        except NumericalError:
            # Without a scaler a gradient that is not finite is an error, as no later step could be right.
            if self._scaler is None:
                raise
            overflow = True
        self.optimizer.zero_grad()
        if self._scaler is not None:
            self._scaler.update(overflow)
        self._set_scaler_names(overflow)
        self.was_step_skipped = overflow
        self.global_steps += 1
        self.global_samples += self.train_batch_size() or 0
        if overflow:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        every = self._config.steps_per_print
        if every and self.global_steps % every == 0:
            print(f"[Rank 0] step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, "
                  f"mom={self.get_mom()}")

    def is_gradient_accumulation_boundary(self) -> bool:
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self._config.accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self._boundary = is_boundary

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As DeepSpeed has it: gradients are forgotten by step() alone."""

    # ---- What scripts ask

    @property
    def config(self) -> dict[str, Any]:
        return self._config.document

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    local_rank = global_rank = 0
    world_size = dp_world_size = 1

    def get_global_grad_norm(self) -> float | None:
        return self.optimizer.grad_norm

    def was_step_applied(self) -> bool:
        return self.global_steps > 0 and not self.was_step_skipped

    def get_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        return [group.get("betas", group.get("momentum")) for group in self.optimizer.param_groups]

    def fp16_enabled(self) -> bool:
        return self._config.fp16 is not None

    def bfloat16_enabled(self) -> bool:
        return self._config.bf16

    def zero_optimization(self) -> bool:
        return self._config.stage > 0

    def zero_optimization_stage(self) -> int:
        return self._config.stage

    def gradient_accumulation_steps(self) -> int:
        return self._config.accumulation

    def gradient_clipping(self) -> float:
        return self._config.clip

    def train_micro_batch_size_per_gpu(self) -> int | None:
        return self._config.micro_batch

    def train_batch_size(self) -> int | None:
        return None if self._config.micro_batch is None else self._config.micro_batch * self._config.accumulation

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def destroy(self) -> None:
        """Ends threads and files."""
        self.optimizer.close()

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """The state dict of the module, with its names."""
        return self.module.state_dict(*arguments, **keywords)

    # ---- Checkpoints

    def save_checkpoint(self, save_dir: str, tag: str | None = None, client_state: dict[str, Any] | None = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False) -> bool:
        """Into save_dir/tag. With a store: its last step is committed, and is this checkpoint's until the next one."""
        tag = tag or f"global_step{self.global_steps}"
        folder = os.path.join(save_dir, tag)
        os.makedirs(folder, exist_ok=True)
        is_streamed = self._config.weights_nvme is not None
        document = {"module": None if is_streamed else self.module.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "lr_scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict(),
                    "scaler": None if self._scaler is None else self._scaler.state_dict(),
                    "counts": [self.global_steps, self.skipped_steps, self.micro_steps, self.global_samples],
                    "store": self._store, "client_state": client_state or {}}
        path = os.path.join(folder, _FILE)
        torch.save(document, path + ".new")
        os.replace(path + ".new", path)
        self._keep_store()
        if save_latest:
            with open(os.path.join(save_dir, "latest"), "w", encoding="utf-8") as file:
                file.write(tag)
        return True

    def load_checkpoint(self, load_dir: str, tag: str | None = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None) -> tuple[str | None, Any]:
        """Returns (path, client_state); (None, {}) where load_dir has no checkpoint. BadInputError: it has no such."""
        if tag is None:
            latest = os.path.join(load_dir, "latest")
            if not os.path.exists(latest):
                return None, {}
            with open(latest, encoding="utf-8") as file:
                tag = file.read().strip()
        path = os.path.join(load_dir, tag, _FILE)
        if not os.path.exists(path):
            raise BadInputError(f"forebay: there is no checkpoint at {path}.")
        document = torch.load(path, weights_only=False)
        if (document["store"] is None) != (self._store is None):
            raise UsageError("forebay: the checkpoint was made with another offload_optimizer or offload_param. Load "
                             "it with the configuration that it was made with.")
        if document["store"] is not None:
            self._take_store(document["store"])
        if document["module"] is not None:
            self.module.load_state_dict(document["module"], strict=load_module_strict)
        if load_optimizer_states and not load_module_only:
            self.optimizer.load_state_dict(document["optimizer"])
        if load_lr_scheduler_states and not load_module_only and self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(document["lr_scheduler"])
        if self._scaler is not None and document["scaler"] is not None:
            self._scaler.load_state_dict(document["scaler"])
        self.global_steps, self.skipped_steps, self.micro_steps, self.global_samples = document["counts"]
        self._set_scaler_names(False)
        return os.path.join(load_dir, tag), document["client_state"]

    def _take_store(self, folder: str) -> None:
        """Goes on with the store of a checkpoint instead of the new one."""
        if not os.path.isdir(folder):
            raise BadInputError(f"forebay: the checkpoint's state lies in {folder}, which is not there.")
        if self._config.weights_nvme is not None:
            raise UsageError(f"forebay: the weights of the checkpoint lie in {folder}. A streamed module goes on with "
                             "them from forebay.torch.stream(nvme=..., resume=True).")
        self._remove_store(os.getpid())
        self._store = folder
        self.optimizer.move_store(folder)

    def _keep_store(self) -> None:
        if self._store is not None:
            with open(self._store + ".kept", "w", encoding="utf-8") as file:
                file.write("a checkpoint needs the store of this name\n")

    def _remove_store(self, process: int) -> None:
        """A store that no checkpoint needs goes with its process."""
        if self._store is not None and process == os.getpid() and not os.path.exists(self._store + ".kept"):
            self.optimizer.close()
            shutil.rmtree(self._store, ignore_errors=True)


def _new_folder(parent: str) -> str:
    os.makedirs(parent, exist_ok=True)
    number = 0
    while os.path.exists(folder := os.path.join(os.path.abspath(parent), f"forebay-{number}")):
        number += 1
    return folder


def _configured(name: str, params: dict[str, Any]) -> tuple[type[Optimizer], dict[str, Any]]:
    kind = _OPTIMIZERS.get(name.lower())
    if kind is None:
        raise UsageError(f"forebay: optimizer.type is {name!r}, and has to be one of: Adam, AdamW, Lion, Adagrad, SGD.")
    settings = dict(params)
    adam_w = settings.pop("adam_w_mode", settings.pop("adamw_mode", True))
    if name.lower() == "adam" and (not adam_w or settings.pop("torch_adam", False)):
        kind = Adam
    settings.pop("torch_adam", None)
    if settings.pop("bias_correction", True) is False:
        raise UsageError("forebay: optimizer.params.bias_correction=false is not there. Leave it out.")
    known = set(inspect.signature(kind.__init__).parameters) - {"self", "params", "options"}
    for key in settings:
        if key not in known:
            raise UsageError(f"forebay: optimizer.params.{key} is not known to {name}, which has: "
                             f"{', '.join(sorted(known))}.")
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
    return kind, settings


def _mapped(optimizer: torch.optim.Optimizer) -> tuple[type[Optimizer], dict[str, Any], list[Any]]:
    """A torch optimizer's class, and its groups with their settings."""
    by_class: dict[type, type[Optimizer]] = {torch.optim.AdamW: AdamW, torch.optim.Adam: Adam, torch.optim.SGD: SGD,
                                             torch.optim.Adagrad: Adagrad}
    kind = by_class.get(type(optimizer))
    if kind is None and isinstance(optimizer, Optimizer):
        kind = type(optimizer)
    if kind is None:
        raise UsageError(f"forebay: {type(optimizer).__name__} is no optimizer that forebay has. Give AdamW, Adam, "
                         "SGD, Adagrad (of torch or forebay) or Lion, or name one in the configuration.")
    known = set(inspect.signature(kind.__init__).parameters) - {"self", "params", "options"}
    groups = [{key: value for key, value in group.items() if key in known or key == "params"}
              for group in optimizer.param_groups]
    return kind, {}, groups
