"""Weights of a streamed module into files that from_pretrained reads: the largest unit in memory at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from forebay.errors import UsageError
from forebay.torch._files.safetensors import entry_of, write_folder
from forebay.torch._run.state import persistent_buffers

Tensors = dict[str, torch.Tensor]


def names_of(module: torch.nn.Module) -> dict[torch.Tensor, str]:
    """One name of each parameter: of tied ones that which transformers keeps, else the first."""
    tied = getattr(module, "all_tied_weights_keys", None) or {}
    names: dict[torch.Tensor, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter not in names or (names[parameter] in tied and name not in tied):
            names[parameter] = name
    return names


def save_pretrained(module: torch.nn.Module, folder: str, names: Sequence[Sequence[str]], units: Iterable[Tensors],
                    max_shard_bytes: int) -> None:
    """names: of the parameters of each unit. units: their weights. UsageError, StorageError."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"forebay: there can be no folder {folder}: {error.strerror}. Name another one.") from error
    # An attribute of a streamed module would bring its weights.
    parameters = dict(module.named_parameters(remove_duplicate=False))
    shapes = [{name: torch.empty_like(parameters[name], device="meta") for name in unit} for unit in names]
    others = _others(module, {name for unit in names for name in unit})
    entries = {name: entry_of(tensor) for unit in (*shapes, others) for name, tensor in _as_saved(module, unit).items()}

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for unit in units:
            yield from _as_saved(module, unit).items()
        yield from _as_saved(module, others).items()

    write_folder(folder, entries, tensors(), max_shard_bytes)
    _save_configuration(module, folder)


def _others(module: torch.nn.Module, streamed: set[str]) -> Tensors:
    """Buffers, and parameters without elements."""
    return {**{name: parameter.detach() for parameter, name in names_of(module).items() if name not in streamed},
            **persistent_buffers(module)}


def _is_pretrained(module: torch.nn.Module) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def _as_saved(module: torch.nn.Module, unit: Tensors) -> Tensors:
    """With names and shapes of the files that transformers writes, which may be others than the module's."""
    if not _is_pretrained(module) or not unit:
        return unit
    from transformers.core_model_loading import revert_weight_conversion
    model: Any = module
    ignored = getattr(module, "_keys_to_ignore_on_save", None) or ()
    saved: Tensors = revert_weight_conversion(model, {name: unit[name] for name in unit if name not in ignored})
    return saved


def _save_configuration(module: torch.nn.Module, folder: str) -> None:
    if not _is_pretrained(module):
        return
    model: Any = module
    model.config.dtype = str(model.dtype).split(".")[1]
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
