"""The types of a module's tensors under a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from forebay.deepspeed._config import DataTypes
from forebay.errors import UsageError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cast(module: torch.nn.Module, dtype: torch.dtype, types: DataTypes) -> str:
    """Parameters become `dtype`, and the statistics of batch norms, which torch wants in their type. Other buffers keep
    theirs, as in DeepSpeed: frequencies of positions lose too much; unless data_types says otherwise. Returns what the
    user should know; empty: nothing."""
    lost = {parameter.dtype for parameter in module.parameters()
            if parameter.is_floating_point() and parameter.dtype.itemsize < dtype.itemsize}
    kept = list(_kept_in_fp32(module, dtype, types.keep_in_fp32))  # as they are: 16 bits would lose some
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.dtype != dtype:
                parameter.data = parameter.data.to(dtype)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase):
            _cast_buffers(((part, name) for name in part._buffers), dtype)
    if types.buffers is not None:
        _cast_buffers(((part, name) for part in module.modules() for name in part._buffers), DTYPES[types.buffers])
    for part, name, buffer in kept:
        part._buffers[name] = buffer.float()
    were = ", ".join(sorted(map(str, lost)))
    return f"weights of the model were {were}: they are {dtype} now, as bf16 and fp16 are not enabled" if were else ""


def _cast_buffers(buffers: Iterable[tuple[torch.nn.Module, str]], dtype: torch.dtype) -> None:
    for part, name in list(buffers):
        buffer = part._buffers[name]
        if buffer is not None and buffer.is_floating_point():
            part._buffers[name] = buffer.to(dtype)


def _kept_in_fp32(module: torch.nn.Module, dtype: torch.dtype,
                  patterns: Any) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """The buffers that a model of transformers, or data_types.keep_in_fp32_modules, names: * stands for any letters."""
    if dtype == torch.float32:
        return
    expressions = _patterns_of(module, dtype) if patterns == "auto" else [each.replace("*", ".*") for each in patterns]
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():
            path = f"{prefix}.{name}" if prefix else name
            if buffer is not None and buffer.is_floating_point() and any(
                    re.search(expression, path) for expression in expressions):
                yield part, name, buffer


def _patterns_of(module: torch.nn.Module, dtype: torch.dtype) -> list[str]:
    """The patterns of the model's own classes: some for 16 bits, some only for fp16."""
    names = ["_keep_in_fp32_modules_strict", *(["_keep_in_fp32_modules"] if dtype == torch.float16 else [])]
    return [(rf"^{re.escape(prefix)}\..*" if prefix else "") + pattern.replace("*", ".*")
            for prefix, part in module.named_modules() for name in names for pattern in getattr(part, name, None) or ()]


def let_add_up_in(parameters: Iterable[torch.Tensor], name: str | None) -> None:
    """data_types.grad_accum_dtype: gradients of micro-batches add up in this type, not that of the weights. UsageError:
    PyTorch is too old for it."""
    if name is None:
        return
    for parameter in parameters:
        if parameter.dtype == DTYPES[name]:
            continue
        if not hasattr(parameter, "grad_dtype"):
            raise UsageError(f"forebay: data_types.grad_accum_dtype is {name}, and PyTorch {torch.__version__} has "
                             "gradients only in the type of the weights. Install PyTorch 2.10 or later, or leave it "
                             "out.")
        parameter.grad_dtype = DTYPES[name]


__all__ = ["DTYPES", "cast", "let_add_up_in"]
