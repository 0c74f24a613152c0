"""Answers to the questions that scripts ask an engine, and its weights."""

from __future__ import annotations

import os
from typing import Any

import torch

from forebay.deepspeed import zero
from forebay.deepspeed._config import Config
from forebay.errors import NotSupportedError, UsageError
from forebay.ranks import Ranks
from forebay.torch import Optimizer

# Calls of DeepSpeed's that are not there, and the way out.
_REFUSED = {
    "train_batch": "it is of pipelines, and there are none. Call forward, backward and step",
    "eval_batch": "it is of pipelines, and there are none. Call the engine under torch.no_grad()",
    "random_ltd_initialize": "tokens are not dropped. Drop them in the model",
    "set_custom_curriculum_learning_schedule": "there is no curriculum. Order the training data",
    "register_compile_pass": "there is no DeepCompile. Give compile() a backend of torch",
}


class Answers(torch.nn.Module):
    """The part of the engine that changes nothing of a step."""

    _config: Config
    module: torch.nn.Module
    optimizer: Optimizer | None
    local_rank: int
    global_rank: int
    world_size: int
    dp_world_size: int
    mp_world_size = 1
    ranks: Ranks

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise NotSupportedError(f"forebay: {name}() of DeepSpeed's engine is not there: {_REFUSED[name]}.")
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    @property
    def config(self) -> dict[str, Any]:
        return self._config.document

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step that was made, before clipping."""
        return None if self.optimizer is None else self.optimizer.grad_norm

    def get_lr(self) -> list[float]:
        return [] if self.optimizer is None else [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [group.get("betas", group.get("momentum", 0.0)) for group in groups]

    def optimizer_name(self) -> str | None:
        return self._config.optimizer

    def scheduler_name(self) -> str | None:
        return self._config.scheduler

    def fp16_enabled(self) -> bool:
        return self._config.fp16 is not None

    def bfloat16_enabled(self) -> bool:
        return self._config.bf16

    def zero_optimization(self) -> bool:
        return self._config.stage > 0

    def zero_optimization_stage(self) -> int:
        return self._config.stage

    def zero_optimization_partition_weights(self) -> bool:
        return self._config.stage == 3

    def wall_clock_breakdown(self) -> bool:
        return self._config.wall_clock_breakdown

    def steps_per_print(self) -> int | None:
        return self._config.steps_per_print or None

    def gradient_clipping(self) -> float:
        return self._config.clip

    # ---- Batches

    def gradient_accumulation_steps(self) -> int:
        return self._config.accumulation

    def train_micro_batch_size_per_gpu(self) -> int | None:
        return self._config.micro_batch

    def train_batch_size(self) -> int | None:
        config = self._config
        return None if config.micro_batch is None else config.micro_batch * config.accumulation * config.num_ranks

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Between steps: changes the micro-batches of a step. UsageError: they do not divide it."""
        micro = None if self._config.micro_batch is None else self._config.micro_batch * self._config.num_ranks
        if micro is None or train_batch_size < micro or train_batch_size % micro != 0:
            raise UsageError(f"forebay: the train batch size is to be {train_batch_size}, and the micro-batch of all "
                             f"ranks is {micro}. Choose a multiple of it, or call set_train_micro_batch_size() before.")
        self._config = self._config._replace(accumulation=train_batch_size // micro)

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Between steps: the micro-batches of a step stay as many."""
        self._config = self._config._replace(micro_batch=micro_batch_size)

    # ---- Memory

    def empty_partition_cache(self) -> None:
        """Gives back the weights that are here and not in use."""
        streamed = zero.streamed_of(self.optimizer)
        if streamed is not None:
            streamed.release()

    def offload_states(self, include: Any = None, device: Any = "cpu", pin_memory: bool = True,
                       non_blocking: bool = False) -> None:
        """Nothing: no state is on a GPU, where DeepSpeed takes it from."""

    def reload_states(self, non_blocking: bool = False) -> None:
        """Nothing, as above."""

    def compile(self, backend: Any = None, compile_kwargs: dict[str, Any] | None = None, schedule: Any = None,
                compiled_autograd_enabled: bool = False) -> None:
        """As torch.nn.Module.compile() of the module."""
        if schedule is not None or compiled_autograd_enabled:
            raise NotSupportedError("forebay: schedule= and compiled_autograd_enabled= are of DeepCompile, which is "
                                    "not there. Leave them out.")
        self.module.compile(**({} if backend is None else {"backend": backend}), **(compile_kwargs or {}))

    @property
    def is_compiled(self) -> bool:
        return self.module._compiled_call_impl is not None

    # ---- Weights

    def module_state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False,
                          exclude_frozen_parameters: bool = False) -> Any:
        """The state dict of the module, with its names: all weights, in RAM."""
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """The same, as torch calls it."""
        return self.module.state_dict(*arguments, **keywords)

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """The module's own."""
        return self.module.load_state_dict(*arguments, **keywords)

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Whether a script that saves the model gets its weights: unless the configuration says no."""
        return self._config.gathers_on_save

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> Any:
        return self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters)

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def save_16bit_model(self, save_dir: str, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """Writes the weights, in their type, with torch.save. False, and nothing written, where the configuration says
        stage3_gather_16bit_weights_on_model_save=false."""
        if self._config.stage == 3 and not self.zero_gather_16bit_weights_on_model_save():
            if self.global_rank == 0:
                print(f"forebay: {os.path.join(save_dir, save_filename)} is not written: "
                      "stage3_gather_16bit_weights_on_model_save is false")
            return False
        state = self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters)  # by all ranks

        def save() -> None:
            if self.global_rank == 0:
                os.makedirs(save_dir, exist_ok=True)
                torch.save(state, os.path.join(save_dir, save_filename))

        self.ranks.together(save, f"writing {os.path.join(save_dir, save_filename)}")
        return True

    save_fp16_model = save_16bit_model
