"""transformers.Trainer whose model and optimizer state lie in a store."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import transformers
from transformers.trainer_utils import rotate_checkpoints

from forebay._given import Path, folder, folders
from forebay.errors import BadInputError, NotSupportedError, UsageError
from forebay.torch import SGD, Adagrad, AdamW, Engine, Lion, Optimizer, stream
from forebay.torch._files.loading import Weights, is_hollow

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adamw_torch": AdamW, "adamw_torch_fused": AdamW, "adagrad": Adagrad, "sgd": SGD, "lion_32bit": Lion}


class Trainer(transformers.Trainer):
    """A `transformers.Trainer` that streams its model: `forebay.torch.stream` says what nvme, ram and weights are.

    The optimizer is that of `args.optim` (AdamW, Adagrad, SGD, Lion), with the settings of `args`, and clips to
    `args.max_grad_norm`. A checkpoint is a folder as transformers makes it, without a copy of the optimizer state: that
    stays in the store, which commits with each checkpoint. So the last checkpoint can be gone on with, and the others
    are models to load. `train(resume_from_checkpoint=True)` is right for the first start too: that is one without
    checkpoints in `output_dir`. With some, and without the store that they belong to, it is an error.

    engine: the `forebay.torch.Engine`, from the first training on; of a model on the meta device from the first use on.

    UsageError, NotSupportedError: args ask for what a store cannot do.
    """

    def __init__(self, *arguments: Any, nvme: Path | Sequence[Path], ram: None | int | str = None,
                 weights: Weights | None = None, **keywords: Any) -> None:
        self.engine: Engine | None = None
        self._stream_options: dict[str, Any] = {
            "nvme": folders(nvme, "nvme"), "ram": ram,
            "weights": weights if weights is None or callable(weights) else folder(weights, "weights")}
        super().__init__(*arguments, **keywords)
        for is_asked, what, way in (
                (self.args.load_best_model_at_end, "load_best_model_at_end",
                 "Load trainer.state.best_model_checkpoint with from_pretrained() after training."),
                (self.args.fp16, "fp16", "Train in bf16."),
                (self.model_init is not None, "model_init", "Give a model."),
                (self.optimizer is not None, "optimizers", "Choose one by args.optim.")):
            if is_asked:
                raise NotSupportedError(f"forebay: forebay.hf.Trainer does not take {what}. {way}")
        if self.args.optim not in _OPTIMIZERS:
            raise UsageError(f"forebay: optim={str(self.args.optim)!r} is not known to forebay.hf.Trainer. Use one of: "
                             f"{', '.join(_OPTIMIZERS)}.")
        self._wrap_backward()

    # ---- The engine

    def _move_model_to_device(self, model: torch.nn.Module, device: torch.device) -> None:
        if not is_hollow(model):
            super()._move_model_to_device(model, device)

    def _wrap_backward(self) -> None:
        """As Engine.backward does it."""
        backward = self.accelerator.backward

        def inside(loss: torch.Tensor, **keywords: Any) -> None:
            with contextlib.nullcontext() if self.engine is None else self.engine.optimizer.saving():
                backward(loss, **keywords)

        self.accelerator.backward = inside

    def _stream(self, resume: bool | Literal["must"]) -> Engine:
        if self.engine is None:
            assert self.model is not None
            decayed = set(self.get_decay_parameter_names(self.model))
            named = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
            groups = [{"params": [pair for pair in named if (pair[0] in decayed) == is_decayed],
                       "weight_decay": self.args.weight_decay if is_decayed else 0.0} for is_decayed in (True, False)]
            self.engine = stream(
                self.model, params=[group for group in groups if group["params"]], resume=resume,
                optimizer=_OPTIMIZERS[self.args.optim], accumulation_steps=self.args.gradient_accumulation_steps,
                clip=self.args.max_grad_norm or 0.0, **self._settings(), **self._stream_options)
        return self.engine

    def _settings(self) -> dict[str, Any]:
        args = self.args
        settings: dict[str, Any] = {"lr": args.learning_rate}
        if _OPTIMIZERS[args.optim] in (AdamW, Lion):
            settings["betas"] = (args.adam_beta1, args.adam_beta2)
        if _OPTIMIZERS[args.optim] is AdamW:
            settings["eps"] = args.adam_epsilon
        return settings

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = self._stream(resume=False).optimizer
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        assert self.engine is not None
        self.engine.track(scheduler=scheduler)
        return scheduler

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        if self.model is not None and is_hollow(self.model):
            self._stream(resume=False)
        return super().evaluation_loop(*arguments, **keywords)

    # ---- Clipping: in the update

    def _clip_grad_norm(self, model: torch.nn.Module) -> None:
        return None

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> None:
        return None

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *arguments: Any, **keywords: Any) -> None:
        assert self.engine is not None
        super()._maybe_log_save_evaluate(tr_loss, self.engine.grad_norm, *arguments, **keywords)

    # ---- Checkpoints: the files, then the commit that names them

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **keywords: Any) -> Any:
        checkpoint = self._resume(resume_from_checkpoint) if resume_from_checkpoint else None
        return super().train(checkpoint, *arguments, **keywords)

    def _resume(self, wanted: str | bool) -> str | None:
        """The checkpoint that the store goes on from; None: from the beginning."""
        checkpoints = self._checkpoints()
        try:
            engine = self._stream(resume="must" if checkpoints or isinstance(wanted, str) else True)
        except BadInputError as error:
            raise BadInputError(f"{error} {wanted if isinstance(wanted, str) else checkpoints[-1]} is of a run whose "
                                "store is gone; nothing was begun. To begin anew, remove the checkpoints or train "
                                "without resume_from_checkpoint, into another output_dir.") from error
        name = (engine.resumed or {}).get("checkpoint")
        if isinstance(wanted, str) and os.path.basename(os.path.normpath(wanted)) != name:
            raise UsageError(f"forebay: the store {self._stream_options['nvme']} is at {name or 'its beginning'}, and "
                             f"is to go on from {wanted}: it keeps the state of its last checkpoint alone. Resume with "
                             "True; or load the weights of that checkpoint, and begin another store.")
        if name is None:
            return None
        checkpoint = os.path.join(self.args.output_dir or "", name)
        if not os.path.isfile(os.path.join(checkpoint, "trainer_state.json")):
            raise UsageError(f"forebay: the store {self._stream_options['nvme']} is at {name}, and there is none in "
                             f"{self.args.output_dir}. Give the output_dir that the run began with.")
        return checkpoint

    def _checkpoints(self) -> list[str]:
        """The folders of checkpoints in output_dir, the newest last."""
        folder = self.args.output_dir or ""
        names = os.listdir(folder) if os.path.isdir(folder) else []
        found = [(int(name.rpartition("-")[2]), name) for name in names if _CHECKPOINT.fullmatch(name)]
        return [os.path.join(folder, name) for _, name in sorted(found)]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """The store has the weights."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The store has them, and create_scheduler has taken the schedule."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """They go into the commit."""

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        assert self.engine is not None
        # An older checkpoint goes when the store does not need it any more.
        with self._keeping_checkpoints() as limit:
            super()._save_checkpoint(model, trial)
            folder = f"checkpoint-{self.state.global_step}"
            run = self._get_output_dir(trial=trial)
            _flush(os.path.join(run, folder))
            self.engine.commit({"checkpoint": folder})
        rotate_checkpoints(output_dir=run, save_total_limit=limit, use_mtime=True,
                           best_model_checkpoint=self.state.best_model_checkpoint)

    @contextlib.contextmanager
    def _keeping_checkpoints(self) -> Iterator[int | None]:
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield limit
        finally:
            self.args.save_total_limit = limit


def _flush(folder: str) -> None:
    """Has the files outlast a power cut."""
    for name in (*os.listdir(folder), "."):
        path = os.path.join(folder, name)
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
