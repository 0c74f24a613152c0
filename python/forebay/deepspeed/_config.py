"""DeepSpeed's JSON: what each key does here. Every key is used, ignored with a reason, or refused."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from forebay.deepspeed._text import parse
from forebay.errors import UsageError


class _Off(NamedTuple):
    """A key that may be there and off. reason: why it cannot be on, and the way out."""

    reason: str


_NO_GPU = "there is no GPU to share the update with"
_ONE_RANK = "there is one rank"
_FOLLOWS_BUDGET = "buffers follow the memory budget"
_OFFLOAD = {"device": None, "nvme_path": None, "pin_memory": "memory is pinned for GPUs alone",
            "buffer_count": _FOLLOWS_BUDGET, "buffer_size": _FOLLOWS_BUDGET, "max_in_cpu": _FOLLOWS_BUDGET,
            "fast_init": "a store is written once in any case", "pipeline_read": "reads overlap in any case",
            "pipeline_write": "writes overlap in any case", "pipeline": "reads and writes overlap in any case",
            "ratio": _NO_GPU, "super_offload": _NO_GPU, "cpuadam_cores_perc": "all cores update"}

# By path: None is used; a text is ignored for that reason; `_Off` is refused unless it is off; a dict has keys of its
# own, any where it has "*".
_ANY: dict[str, Any] = {"*": None}
_ANY_IGNORED = {"*": "units are a module's blocks"}
_ONE = _Off("there is one rank. Leave it out")
_MONITOR = {"*": "losses are the script's to log"}
KEYS: dict[str, Any] = {
    "train_batch_size": None, "train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": None,
    "gradient_clipping": None, "steps_per_print": None, "wall_clock_breakdown": None,
    "dataloader_drop_last": None, "memory_breakdown": "the rate that steps_per_print prints has the memory",
    "managed_gradient_accumulation": "set_gradient_accumulation_boundary() has the last word",
    "optimizer": {"type": None, "params": _ANY, "legacy_fusion": "there is one implementation"},
    "scheduler": {"type": None, "params": _ANY},
    "fp16": {"enabled": None, "auto_cast": None, "loss_scale": None, "initial_scale_power": None,
             "loss_scale_window": None, "hysteresis": None, "consecutive_hysteresis": None, "min_loss_scale": None,
             "fp16_master_weights_and_grads": None},
    "bf16": {"enabled": None, "immediate_grad_update": "gradients are taken as they come",
             "check_grad_overflow": "gradients are always checked",
             "bf16_master_weights_and_grads": _Off("masters are fp32. Set it to false"),
             "bf16_optimizer_states": _Off("moments are fp32. Set it to false")},
    "amp": {"enabled": _Off("Apex is not there. Use bf16 or fp16"), "*": "Apex is not there"},
    "torch_autocast": {"enabled": _Off("put torch.autocast around the forward pass"),
                       "*": "it is off"},
    "data_types": {"grad_accum_dtype": "gradients add up in the type of the weights, and norms in fp32"},
    "zero_optimization": {
        "stage": None, "offload_optimizer": _OFFLOAD, "offload_param": _OFFLOAD, "cpu_offload": None,
        "allgather_partitions": _ONE_RANK, "allgather_bucket_size": _ONE_RANK, "reduce_scatter": _ONE_RANK,
        "reduce_bucket_size": _ONE_RANK, "overlap_comm": _ONE_RANK, "round_robin_gradients": _ONE_RANK,
        "contiguous_gradients": "gradients lie in one vector per layer",
        "sub_group_size": "tiles are the unit of an update",
        "stage3_max_live_parameters": _FOLLOWS_BUDGET, "stage3_max_reuse_distance": _FOLLOWS_BUDGET,
        "stage3_prefetch_bucket_size": _FOLLOWS_BUDGET, "stage3_param_persistence_threshold": _FOLLOWS_BUDGET,
        "stage3_model_persistence_threshold": _FOLLOWS_BUDGET,
        "stage3_gather_16bit_weights_on_model_save": None, "stage3_gather_fp16_weights_on_model_save": None,
        **{key: _ONE_RANK for key in (
            "use_multi_rank_bucket_allreduce", "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
            "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights",
            "zero_quantized_gradients", "mics_shard_size", "mics_hierarchical_params_gather", "parameter_alignment",
            "legacy_stage1")},
        "stage3_module_granularity_threshold": "units are a module's blocks", "leaf_module": _ANY_IGNORED,
        "memory_efficient_linear": "weights are kept for backward by name alone", "compute_grad_norm": "it always is",
        "pipeline_loading_checkpoint": _FOLLOWS_BUDGET, "override_module_apply": "modules are not changed",
        "log_trace_cache_warnings": "engine.optimizer.layers.stats() counts", "enable_sanity_checks": "they always are",
        "zenflow": _Off("updates are not put off. Leave it out"),
        "cpu_offload_param": _Off("it is deprecated. Write offload_param"), "cpu_offload_use_pin_memory": "no GPU",
        "load_from_fp32_weights": "masters are always loaded", "ignore_unused_parameters": "they are always left alone",
        "elastic_checkpoint": _ONE_RANK},
    "zero_allow_untested_optimizer": "each optimizer that maps is tested",
    "zero_force_ds_cpu_optimizer": "the update is forebay's", "prescale_gradients": _ONE_RANK,
    "gradient_predivide_factor": _ONE_RANK, "communication_data_type": _ONE_RANK, "sparse_gradients": _ONE_RANK,
    "seq_parallel_communication_data_type": _ONE_RANK, "gradient_allreduce_op": _ONE_RANK,
    "disable_allgather": _ONE_RANK, "comms_logger": {"*": _ONE_RANK}, "sequence_parallel_size": _ONE,
    "data_parallel_size": _ONE, "tensor_parallel": {"autotp_size": _ONE, "*": _ONE_RANK},
    "checkpoint": {"*": "a checkpoint is a folder that needs nothing else"},
    "flops_profiler": {"*": "there is no profiler: torch.profiler sees all"}, "tensorboard": _MONITOR,
    "wandb": _MONITOR, "csv_monitor": _MONITOR, "comet": _MONITOR, "disable_python_gc": "the script decides",
    "dump_state": "engine.config is what was read",
    "activation_checkpointing": {
        key: "it acts on deepspeed.checkpointing alone, which this script does not call"
        for key in ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
                    "number_checkpoints", "synchronize_checkpoint_boundary", "profile")},
    "autotuning": {"*": "it acts under `deepspeed --autotuning` alone"},
    "aio": {"*": "the disk engine finds its own settings"},
    "msamp": {"enabled": None, "opt_level": "FP8 is off", "use_te": "FP8 is off"},
    "offload_optimizer": _OFFLOAD, "offload_param": _OFFLOAD,  # a fragment that people paste
}
_TIERS = ("none", "cpu", "nvme")


class Fp16(NamedTuple):
    auto_cast: bool
    static_scale: float  # 0: dynamic
    initial_scale_power: int
    window: int
    hysteresis: int
    consecutive_hysteresis: bool
    min_scale: float


class Config(NamedTuple):
    """A configuration as forebay uses it. steps_per_print: 0: never. notes: one line for each key that does nothing."""

    document: dict[str, Any]
    notes: list[str]
    micro_batch: int | None
    accumulation: int
    clip: float
    steps_per_print: int
    wall_clock_breakdown: bool
    optimizer: str | None
    optimizer_params: dict[str, Any]
    scheduler: str | None
    scheduler_params: dict[str, Any]
    fp16: Fp16 | None
    bf16: bool
    stage: int
    optimizer_nvme: str | None  # the folder that states go to; None: RAM
    weights_nvme: str | None

    @classmethod
    def read(cls, source: Any) -> Config:
        """source: a dict, a path, or a text."""
        if isinstance(source, dict):
            return cls._of(source, "the configuration")
        text = os.fspath(source)
        if "{" in text:
            return cls._of(parse(text, "the configuration"), "the configuration")
        try:
            with open(text, encoding="utf-8") as file:
                return cls._of(parse(file.read(), text), text)
        except OSError as error:
            raise UsageError(f"forebay: the configuration {text} cannot be read: {error.strerror}.") from error

    @classmethod
    def _of(cls, document: dict[str, Any], source: str) -> Config:
        notes = list(_walk(document, KEYS, "", source))
        zero = dict(document.get("zero_optimization") or {})
        for fragment in ("offload_optimizer", "offload_param"):
            if fragment in document:
                zero.setdefault(fragment, document[fragment])
        if zero.get("cpu_offload") is True:
            zero.setdefault("offload_optimizer", {"device": "cpu"})
        stage = _whole(zero.get("stage", 0), "zero_optimization.stage", 0, 3)
        micro, accumulation = _batches(document)
        if (document.get("msamp") or {}).get("enabled"):
            raise UsageError("forebay: msamp.enabled: FP8 is not there. Set it to false.")
        fp16, bf16 = _fp16(document.get("fp16") or {}), bool((document.get("bf16") or {}).get("enabled", False))
        if fp16 is not None and bf16:
            raise UsageError("forebay: fp16.enabled and bf16.enabled are both true. Choose one.")
        optimizer, scheduler = document.get("optimizer") or {}, document.get("scheduler") or {}
        weights = _nvme(zero, "offload_param")
        if weights is not None and stage != 3:
            raise UsageError("forebay: zero_optimization.offload_param needs stage 3, as in DeepSpeed; this is "
                             f"{stage}.")
        if "gradient_clipping" not in document:
            notes.append("gradient_clipping is not given: 0, as it was before DeepSpeed 0.19 (there 1.0)")
        every = document.get("steps_per_print") or 0  # accelerate has infinity for never
        clip = _number(document.get("gradient_clipping", 0), "gradient_clipping")
        return cls(document, notes, micro, accumulation, clip,
                   0 if every == math.inf else _whole(every, "steps_per_print", 0, 2**62),
                   bool(document.get("wall_clock_breakdown", False)), optimizer.get("type"),
                   dict(optimizer.get("params") or {}), scheduler.get("type"), dict(scheduler.get("params") or {}),
                   fp16, bf16, stage, _nvme(zero, "offload_optimizer"), weights)


def _walk(document: dict[str, Any], keys: dict[str, Any], path: str, source: str) -> Iterator[str]:
    for key, value in document.items():
        where = path + key
        if key not in keys and "*" not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            raise UsageError(f"forebay: {source}: {where} is not known." +
                             (f" Is {path}{near[0]} meant?" if near else " Remove it."))
        known = keys.get(key, keys.get("*"))
        if isinstance(known, dict):
            if value is None:
                continue
            if not isinstance(value, dict):
                raise UsageError(f"forebay: {source}: {where} is {value!r}, and has to be an object.")
            yield from _walk(value, known, where + ".", source)
        elif isinstance(known, _Off):
            if value is True or value not in (None, False, 0, 1):
                raise UsageError(f"forebay: {source}: {where} is {value!r}: {known.reason}.")
        elif known is not None:
            yield f"{where} is ignored: {known}"


def _number(value: Any, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise UsageError(f"forebay: {where} is {value!r}, and has to be a number from 0 on." +
                     (" It is the Trainer of transformers that fills \"auto\" in." if value == "auto" else ""))


def _whole(value: Any, where: str, least: int, most: int) -> int:
    if _number(value, where) == int(value) and least <= value <= most:
        return int(value)
    raise UsageError(f"forebay: {where} is {value!r}, and has to be a whole number from {least} to {most}.")


def _batches(document: dict[str, Any]) -> tuple[int | None, int]:
    """Micro-batch (None: not said) and accumulation."""
    given = {key: _whole(document[key], key, 1, 2**40)
             for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
             if document.get(key) is not None}
    batch, micro = given.get("train_batch_size"), given.get("train_micro_batch_size_per_gpu")
    steps = given.get("gradient_accumulation_steps")
    if batch is not None and micro is not None and steps is None:
        steps = batch // micro
    if batch is not None and micro is None and steps is not None:
        micro = batch // steps
    if batch is not None and micro is None and steps is None:
        micro = batch
    if batch is not None and (micro or 1) * (steps or 1) != batch:
        raise UsageError(f"forebay: train_batch_size is {batch}, and train_micro_batch_size_per_gpu times "
                         f"gradient_accumulation_steps is {micro} * {steps or 1} (of one rank). Make them fit.")
    return micro, steps or 1


def _fp16(document: dict[str, Any]) -> Fp16 | None:
    if not document.get("enabled", False):
        return None
    if document.get("fp16_master_weights_and_grads"):
        raise UsageError("forebay: fp16.fp16_master_weights_and_grads is true, and masters are fp32 here. Set it to "
                         "false.")
    return Fp16(bool(document.get("auto_cast", False)), _number(document.get("loss_scale", 0), "fp16.loss_scale"),
                _whole(document.get("initial_scale_power", 16), "fp16.initial_scale_power", 0, 64),
                _whole(document.get("loss_scale_window", 1000), "fp16.loss_scale_window", 1, 2**40),
                _whole(document.get("hysteresis", 2), "fp16.hysteresis", 1, 2**31),
                bool(document.get("consecutive_hysteresis", False)),
                _number(document.get("min_loss_scale", 1), "fp16.min_loss_scale"))


def _nvme(zero: dict[str, Any], key: str) -> str | None:
    section = zero.get(key) or {}
    device = section.get("device") or "none"
    if device not in _TIERS:
        raise UsageError(f"forebay: {key}.device is {device!r}, and has to be one of: {', '.join(_TIERS)}.")
    if device != "nvme":
        return None
    if not section.get("nvme_path"):
        raise UsageError(f"forebay: {key}.device is nvme, and {key}.nvme_path is missing: name a folder on the disk.")
    return str(section["nvme_path"])
