"""DeepSpeed's JSON as the engine uses it. What each key does: _table.py."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from forebay.deepspeed import _optimizers, _schedules
from forebay.deepspeed._table import Values, node_at, shown
from forebay.deepspeed._text import parse
from forebay.errors import UsageError

_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_MONITORS = ("tensorboard", "csv_monitor", "wandb", "comet")


class Fp16(NamedTuple):
    auto_cast: bool
    static_scale: float  # 0: dynamic
    initial_scale_power: int
    window: int
    hysteresis: int
    consecutive_hysteresis: bool
    min_scale: float


class DataTypes(NamedTuple):
    """By the names of DeepSpeed ("bf16"); None: not said."""

    grad_accum: str | None
    buffers: str | None
    keep_in_fp32: Any  # patterns of names of buffers; "auto": as the model says


class Config(NamedTuple):
    """A configuration as forebay uses it. steps_per_print: 0: never. notes: one line for each key that does nothing."""

    document: dict[str, Any]
    notes: list[str]
    num_ranks: int
    micro_batch: int | None  # of one rank
    accumulation: int
    clip: float
    steps_per_print: int
    wall_clock_breakdown: bool
    memory_breakdown: bool
    drop_last: bool
    optimizer: str | None
    optimizer_params: dict[str, Any]
    scheduler: str | None
    scheduler_params: dict[str, Any]
    fp16: Fp16 | None
    bf16: bool
    skips_nonfinite: bool  # steps of bf16, as DeepSpeed does
    data_types: DataTypes
    stage: int
    reduce_bucket: int | None  # bytes; None: not said
    reduce_dtype: str | None  # None: not said
    optimizer_nvme: str | None  # the folder that states go to; None: RAM
    weights_nvme: str | None
    gathers_on_save: bool
    ignores_unused: bool  # parameters without a gradient in a step are left alone
    tag_validation: str  # "ignore", "warn" or "fail": of tags of checkpoints that differ between ranks
    monitors: dict[str, dict[str, Any]]  # those that are enabled
    cpu_checkpointing: bool

    @classmethod
    def read(cls, source: Any, num_ranks: int = 1) -> Config:
        """source: a dict, a path, or a text. UsageError names all that is wrong."""
        if isinstance(source, dict):
            return cls._of(source, "the configuration", num_ranks)
        text = os.fspath(source)
        if "{" in text:
            return cls._of(parse(text, "the configuration"), "the configuration", num_ranks)
        try:
            with open(text, encoding="utf-8") as file:
                return cls._of(parse(file.read(), text), text, num_ranks)
        except OSError as error:
            raise UsageError(f"forebay: the configuration {text} cannot be read: {error.strerror}.") from error

    @classmethod
    def _of(cls, document: dict[str, Any], source: str, num_ranks: int) -> Config:
        values = Values()
        values.take(document)
        problems = values.problems
        _optimizers.take(values)  # for what is wrong in their arguments
        _schedules.take(values)
        micro, accumulation = _batches(values, num_ranks)
        bf16 = _precision(values)
        stage, bucket = values.get("zero_optimization.stage"), values.get("zero_optimization.reduce_bucket_size")
        weights, states = _nvme(values, "offload_param"), _nvme(values, "offload_optimizer")
        if weights is not None and stage != 3:
            problems.append(f"zero_optimization.offload_param needs stage 3, as in DeepSpeed; this is {stage}.")
        _note(values, document)
        if problems:
            raise UsageError(f"forebay: {source}: {problems[0]}" if len(problems) == 1 else
                             f"forebay: {len(problems)} problems with {source}:\n  " + "\n  ".join(problems))
        return cls(
            document, values.notes, num_ranks, micro, accumulation, values.get("gradient_clipping") or 0.0,
            values.get("steps_per_print"), values.get("wall_clock_breakdown"), values.get("memory_breakdown"),
            values.get("dataloader_drop_last"), values.get("optimizer.type"), values.get("optimizer.params") or {},
            values.get("scheduler.type"), values.get("scheduler.params") or {}, _fp16(values), bf16,
            bf16 and values.get("bf16.check_grad_overflow"), _data_types(values), stage,
            # Gradients are fp32. Less than 1 MiB is no bucket here.
            None if bucket is None else max(4 * bucket, 2**20), values.get("communication_data_type"), states, weights,
            values.get("zero_optimization.stage3_gather_16bit_weights_on_model_save"),
            values.get("zero_optimization.ignore_unused_parameters"), values.get("checkpoint.tag_validation").lower(),
            {name: values.under(name + ".", node_at(name)["keys"]) for name in _MONITORS
             if values.get(name + ".enabled")},
            values.get("activation_checkpointing.cpu_checkpointing"))


def _note(values: Values, document: dict[str, Any]) -> None:
    if values.autos:
        values.notes.append(f'{", ".join(values.autos)}: "auto" says nothing. It is the Trainer of transformers that '
                            "fills it in")
    if not values.is_said("gradient_clipping"):
        values.notes.append("gradient_clipping is not given: 0, as it was before DeepSpeed 0.19 (there 1.0)")
    # Such a section may stand for an intention.
    for section, key in (("fp16", "fp16"), ("bf16", "bf16"), ("bfloat16", "bf16")):
        if document.get(section) is not None and not values.is_said(key + ".enabled"):
            values.notes.append(f'{section} is there without "enabled": true, so it does nothing')


def _batches(values: Values, num_ranks: int) -> tuple[int | None, int]:
    """Micro-batch of one rank (None: not said) and accumulation."""
    batch, micro, steps = (values.get(key) for key in _BATCHES)
    if batch is not None and micro is not None and steps is None:
        steps = batch // (micro * num_ranks)
    if batch is not None and micro is None:
        micro = batch // ((steps or 1) * num_ranks)
    if batch is not None and micro * (steps or 1) * num_ranks != batch:
        of_whom = "one rank" if num_ranks == 1 else f"each of {num_ranks} ranks"
        values.problems.append(
            f"train_batch_size is {batch}, and train_micro_batch_size_per_gpu times gradient_accumulation_steps is "
            f"{micro} * {steps or 1} (of {of_whom}). Make them fit.")
    return micro, steps or 1


def _precision(values: Values) -> bool:
    """Whether it is bf16."""
    fp16, bf16 = values.get("fp16.enabled"), values.get("bf16.enabled")
    if fp16 and bf16:
        values.problems.append("fp16.enabled and bf16.enabled are both true. Choose one.")
    given, used = values.get("data_types.param_dtype"), "fp16" if fp16 else "bf16" if bf16 else "fp32"
    if given is not None and given != used:
        values.problems.append(f"data_types.param_dtype is {shown(given)}, and fp16.enabled and bf16.enabled say "
                               f"{used}. Leave it out, or make them fit.")
    return bool(bf16)


def _fp16(values: Values) -> Fp16 | None:
    if not values.get("fp16.enabled"):
        return None
    return Fp16(*(values.get(f"fp16.{key}") for key in (
        "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
        "min_loss_scale")))


def _data_types(values: Values) -> DataTypes:
    return DataTypes(*(values.get(f"data_types.{key}") for key in (
        "grad_accum_dtype", "buffer_dtype", "keep_in_fp32_modules")))


def _nvme(values: Values, key: str) -> str | None:
    path = f"zero_optimization.{key}"
    if values.get(path + ".device") != "nvme":
        return None
    folder: str | None = values.get(path + ".nvme_path")
    if not folder:
        values.problems.append(f"{key}.device is nvme, and {key}.nvme_path is missing: name a folder on the disk.")
    return folder
