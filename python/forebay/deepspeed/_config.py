"""DeepSpeed's JSON: what each key does here. Every key is used, ignored with a reason, or refused."""

from __future__ import annotations

import difflib
import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from forebay.deepspeed._text import parse
from forebay.errors import UsageError

# The effect of each key, by section: null: it is used; a text: it is ignored for that reason; a list of one text: it
# may be there and off, and cannot be on for that reason; an object has keys of its own, any where it has "*". `forebay
# train --ds_config` reads the same table.
KEYS: dict[str, Any] = json.loads((pathlib.Path(__file__).parent / "keys.json").read_text(encoding="utf-8"))
_TIERS = ("none", "cpu", "nvme")
_REDUCE_DTYPES = ("fp32", "bf16", "fp16")


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
    num_ranks: int
    micro_batch: int | None  # of one rank
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
    reduce_bucket: int | None  # bytes; None: not said
    reduce_dtype: str | None  # None: not said
    optimizer_nvme: str | None  # the folder that states go to; None: RAM
    weights_nvme: str | None
    ignores_unused: bool  # parameters without a gradient in a step are left alone
    tag_validation: str  # "ignore", "warn" or "fail": of tags of checkpoints that differ between ranks

    @classmethod
    def read(cls, source: Any, num_ranks: int = 1) -> Config:
        """source: a dict, a path, or a text. UsageError names the key."""
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
        notes = list(_walk(document, KEYS, "", source))
        zero = dict(document.get("zero_optimization") or {})
        for fragment in ("offload_optimizer", "offload_param"):
            if fragment in document:
                zero.setdefault(fragment, document[fragment])
        if zero.get("cpu_offload") is True:
            zero.setdefault("offload_optimizer", {"device": "cpu"})
        stage = _whole(zero.get("stage", 0), "zero_optimization.stage", 0, 3)
        micro, accumulation = _batches(document, num_ranks)
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
        return cls(document, notes, num_ranks, micro, accumulation, clip,
                   0 if every == math.inf else _whole(every, "steps_per_print", 0, 2**62),
                   bool(document.get("wall_clock_breakdown", False)), optimizer.get("type"),
                   dict(optimizer.get("params") or {}), scheduler.get("type"), dict(scheduler.get("params") or {}),
                   fp16, bf16, stage, _reduce_bucket(zero),
                   _reduce_dtype(document), _nvme(zero, "offload_optimizer"), weights,
                   zero.get("ignore_unused_parameters", True) is not False, _tag_validation(document))


def _tag_validation(document: dict[str, Any]) -> str:
    given = (document.get("checkpoint") or {}).get("tag_validation", "Warn")
    if not isinstance(given, str) or given.lower() not in ("ignore", "warn", "fail"):
        raise UsageError(f"forebay: checkpoint.tag_validation is {_shown(given)}, and has to be one of: Ignore, Warn, "
                         "Fail.")
    return given.lower()


def _reduce_bucket(zero: dict[str, Any]) -> int | None:
    elems = zero.get("reduce_bucket_size", "auto")
    if elems == "auto":
        return None
    # Gradients are fp32. Less than 1 MiB is no bucket here.
    return max(4 * _whole(elems, "zero_optimization.reduce_bucket_size", 1, 2**40), 2**20)


def _reduce_dtype(document: dict[str, Any]) -> str | None:
    given = document.get("communication_data_type")
    if given is not None and given not in _REDUCE_DTYPES:
        raise UsageError(f"forebay: communication_data_type is {_shown(given)}, and has to be one of: "
                         f"{', '.join(_REDUCE_DTYPES)}.")
    return given


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
                raise UsageError(f"forebay: {source}: {where} is {_shown(value)}, and has to be an object.")
            yield from _walk(value, known, where + ".", source)
        elif isinstance(known, list):
            if value is True or value not in (None, False, 0, 1):
                raise UsageError(f"forebay: {source}: {where} is {_shown(value)}: {known[0]}.")
        elif known is not None:
            yield f"{where} is ignored: {known}"


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


def _number(value: Any, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise UsageError(f"forebay: {where} is {_shown(value)}, and has to be a number from 0 on." +
                     (" It is the Trainer of transformers that fills \"auto\" in." if value == "auto" else ""))


def _whole(value: Any, where: str, least: int, most: int) -> int:
    if _number(value, where) == int(value) and least <= value <= most:
        return int(value)
    raise UsageError(f"forebay: {where} is {_shown(value)}, and has to be a whole number from {least} to {most}.")


def _batches(document: dict[str, Any], num_ranks: int) -> tuple[int | None, int]:
    """Micro-batch of one rank (None: not said) and accumulation."""
    given = {key: _whole(document[key], key, 1, 2**40)
             for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
             if document.get(key) is not None}
    batch, micro = given.get("train_batch_size"), given.get("train_micro_batch_size_per_gpu")
    steps = given.get("gradient_accumulation_steps")
    if batch is not None and micro is not None and steps is None:
        steps = batch // (micro * num_ranks)
    if batch is not None and micro is None and steps is not None:
        micro = batch // (steps * num_ranks)
    if batch is not None and micro is None and steps is None:
        micro = batch // num_ranks
    if batch is not None and (micro or 0) * (steps or 1) * num_ranks != batch:
        of_whom = "one rank" if num_ranks == 1 else f"each of {num_ranks} ranks"
        raise UsageError(f"forebay: train_batch_size is {batch}, and train_micro_batch_size_per_gpu times "
                         f"gradient_accumulation_steps is {micro} * {steps or 1} (of {of_whom}). Make them fit.")
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
        raise UsageError(f"forebay: {key}.device is {_shown(device)}, and has to be one of: {', '.join(_TIERS)}.")
    if device != "nvme":
        return None
    if not section.get("nvme_path"):
        raise UsageError(f"forebay: {key}.device is nvme, and {key}.nvme_path is missing: name a folder on the disk.")
    return str(section["nvme_path"])
