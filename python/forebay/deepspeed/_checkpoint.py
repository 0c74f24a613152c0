"""Checkpoints of an engine. Each tag is a folder that needs nothing else: `forebay.pt`, and where the state lies in a
store, a copy of it. So tags can be removed, moved and loaded in any order, and the engine's own store is scratch."""

from __future__ import annotations

import array
import os
import re
import shutil
from typing import Any, Protocol

import torch

from forebay._descriptors import open_to_write
from forebay.deepspeed._scaler import LossScaler
from forebay.deepspeed._scratch import Scratch, copy_store, sync_folder
from forebay.errors import BadInputError, NotSupportedError, UsageError
from forebay.ranks import Ranks
from forebay.torch import Optimizer

FILE = "forebay.pt"
_COPY = re.compile(r"store-(\d+)")
_KEYS = {"module", "buffers", "optimizer", "lr_scheduler", "scaler", "counts", "store", "is_streamed", "client_state"}
_PART = re.compile(r"rank-\d+-of-\d+")


class Engine(Protocol):
    """What a checkpoint has of an engine."""

    module: torch.nn.Module
    optimizer: Optimizer | None
    lr_scheduler: Any
    scaler: LossScaler | None
    scratch: list[Scratch]
    ranks: Ranks
    global_rank: int
    is_streamed: bool
    global_steps: int
    skipped_steps: int
    micro_steps: int
    global_samples: int

    def module_state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False,
                          exclude_frozen_parameters: bool = False) -> Any: ...


def save(engine: Engine, save_dir: str, tag: str, client_state: dict[str, Any], save_latest: bool,
         exclude_frozen: bool) -> None:
    """A crash at any moment leaves the tags that were there, and `latest`, as they were, or this one too."""
    folder = os.path.join(save_dir, tag)
    os.makedirs(folder, exist_ok=True)
    optimizer = None if engine.optimizer is None else engine.optimizer.state_dict()  # commits
    weights = _weights(engine, exclude_frozen)
    copies = _names_of_copies(engine, folder)
    engine.ranks.together(lambda: _copy_stores(engine, folder, copies), f"copying the state into {folder}")
    document = {"module": weights, "buffers": _buffers(engine.module), "optimizer": optimizer,
                "lr_scheduler": None if engine.lr_scheduler is None else engine.lr_scheduler.state_dict(),
                "scaler": None if engine.scaler is None else engine.scaler.state_dict(),
                "counts": [engine.global_steps, engine.skipped_steps, engine.micro_steps, engine.global_samples],
                "store": copies, "is_streamed": engine.is_streamed, "client_state": client_state}

    def write() -> None:
        if engine.global_rank == 0:
            _write(document, save_dir, tag, save_latest)

    engine.ranks.together(write, f"writing {os.path.join(folder, FILE)}")


def _write(document: dict[str, Any], save_dir: str, tag: str, save_latest: bool) -> None:
    folder, copies = os.path.join(save_dir, tag), document["store"]
    with open_to_write(os.path.join(folder, FILE + ".new"), "wb") as file:
        torch.save(document, file)
        file.flush()
        os.fsync(file.fileno())
    _replace(folder, FILE)
    for name in os.listdir(folder):  # what this tag had before, or a crash has left
        if _COPY.fullmatch(name) and not any(copy.startswith(name + os.sep) for copy in copies):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    if save_latest:
        with open_to_write(os.path.join(save_dir, "latest.new"), "w", encoding="utf-8") as text:
            text.write(tag)
            text.flush()
            os.fsync(text.fileno())
        _replace(save_dir, "latest")


def _names_of_copies(engine: Engine, folder: str) -> list[str]:
    """Where the stores are to be copied to, relative to the folder of a tag: new ones, the same on all ranks."""
    if not engine.scratch:
        return []
    number = 1 + max((int(found[1]) for found in map(_COPY.fullmatch, os.listdir(folder)) if found), default=-1)
    of_all = array.array("q", [number])
    engine.ranks.broadcast(of_all)
    return [os.path.join(f"store-{of_all[0]}", str(disk)) for disk in range(len(engine.scratch))]


def _copy_stores(engine: Engine, folder: str, copies: list[str]) -> None:
    """Copies those of this rank."""
    for scratch, copy in zip(engine.scratch, copies):
        copy_store(engine.ranks.folder_in(scratch.store), engine.ranks.folder_in(os.path.join(folder, copy)),
                   f"checkpoint {folder}")


def _replace(folder: str, name: str) -> None:
    os.replace(os.path.join(folder, name + ".new"), os.path.join(folder, name))
    sync_folder(folder)


def _weights(engine: Engine, exclude_frozen: bool) -> dict[str, Any] | None:
    """None: they are in the store."""
    return None if engine.is_streamed else engine.module_state_dict(exclude_frozen_parameters=exclude_frozen)


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that a state dict has."""
    return {f"{prefix}.{name}" if prefix else name: buffer for prefix, part in module.named_modules()
            for name, buffer in part._buffers.items()
            if buffer is not None and name not in part._non_persistent_buffers_set}


def tag_of(load_dir: str, tag: str | None) -> str | None:
    """The tag to load; None: there is none. BadInputError: it is not whole."""
    if tag is None:
        latest = os.path.join(load_dir, "latest")
        if not os.path.exists(latest):
            return None
        with open(latest, encoding="utf-8") as file:
            tag = file.read().strip()
    if not os.path.exists(os.path.join(load_dir, tag, FILE)):
        whole = sorted(name for name in os.listdir(load_dir) if os.path.exists(os.path.join(load_dir, name, FILE))
                       ) if os.path.isdir(load_dir) else []
        raise BadInputError(f"forebay: there is no checkpoint {tag} in {load_dir}. " +
                            (f"These can be loaded: {', '.join(whole)}." if whole else "It has none of forebay's."))
    return tag


def _read(folder: str, trusts: bool) -> dict[str, Any]:
    """BadInputError: it is damaged, or has objects that only their own code can make, and that is not trusted."""
    path = os.path.join(folder, FILE)
    try:
        document = torch.load(path, map_location="cpu", weights_only=not trusts)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a stranger's bytes lead to any
        if trusts:
            raise BadInputError(f"forebay: {path} cannot be read: {error}. It is damaged: load another tag.") from error
        raise BadInputError(
            f"forebay: {path} cannot be read without running code that it names: its client_state (or the state of its "
            "scheduler) has more in it than numbers, texts, tensors, and lists and dictionaries of them; or it is "
            "damaged. If you trust its origin, call load_checkpoint(..., trust_client_state=True). The cause: "
            f"{error}") from error
    if not isinstance(document, dict) or not _KEYS <= document.keys():
        raise BadInputError(f"forebay: {path} is no checkpoint of forebay's. Load another tag.")
    return document


def load(engine: Engine, folder: str, *, is_strict: bool, with_optimizer: bool, with_scheduler: bool,
         trusts: bool) -> Any:
    """Returns the client_state. trusts: code that the checkpoint names is run."""
    document = _read(folder, trusts)
    with_optimizer = with_optimizer and engine.optimizer is not None
    _check(engine, document, folder, with_optimizer)
    if engine.scratch and engine.optimizer is not None:
        # From here on the store is another; where the optimizer is not loaded, a new one of the loaded weights.
        engine.optimizer.move_store([scratch.store for scratch in engine.scratch])
        for scratch in engine.scratch:
            scratch.clear()
    if document["module"] is not None:
        engine.module.load_state_dict(document["module"], strict=is_strict)
    if with_optimizer and engine.optimizer is not None:
        for scratch, copy in zip(engine.scratch, document["store"]):
            copy_store(engine.ranks.folder_in(os.path.join(folder, copy)), engine.ranks.folder_in(scratch.store),
                       f"loading {folder}")
        _load_optimizer(engine.optimizer, document["optimizer"])
    elif engine.optimizer is not None and not engine.scratch:
        engine.optimizer.reload_model_params()
    with torch.no_grad():
        for name, buffer in _buffers(engine.module).items():
            if name in document["buffers"]:
                buffer.copy_(document["buffers"][name])
    if with_scheduler and engine.lr_scheduler is not None and document["lr_scheduler"] is not None:
        engine.lr_scheduler.load_state_dict(document["lr_scheduler"])
    if engine.scaler is not None and document["scaler"] is not None:
        engine.scaler.load_state_dict(document["scaler"])
    engine.global_steps, engine.skipped_steps, engine.micro_steps, engine.global_samples = document["counts"]
    return document["client_state"]


def _check(engine: Engine, document: dict[str, Any], folder: str, with_optimizer: bool) -> None:
    is_streamed = bool(document["is_streamed"])
    if is_streamed != engine.is_streamed or (with_optimizer and len(document["store"]) != len(engine.scratch)):
        raise UsageError(f"forebay: the checkpoint {folder} was made with another offload_optimizer or offload_param. "
                         "Load it with the configuration that it was made with.")
    if with_optimizer and document["optimizer"] is None:
        raise UsageError(f"forebay: the checkpoint {folder} was made without an optimizer. Load it with "
                         "load_optimizer_states=False.")
    if is_streamed and not with_optimizer:
        raise NotSupportedError("forebay: the weights of a streamed module lie in its store beside the optimizer's "
                                "state, and are loaded together with it. Leave load_module_only and "
                                "load_optimizer_states out; or save_16bit_model(), and load that into the model before "
                                "initialize().")
    for copy in document["store"] if with_optimizer else ():
        part = engine.ranks.folder_in(os.path.join(folder, copy))
        if os.path.isdir(part):
            continue
        others = sorted(name for name in os.listdir(os.path.dirname(part)) if _PART.fullmatch(name)) if os.path.isdir(
            os.path.dirname(part)) else []
        raise BadInputError(f"forebay: the checkpoint's state lies in {part}, which is not there. Load another tag." +
                            (f" It was made by other ranks ({', '.join(others)}): start as many." if others else ""))


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The groups stay the same dictionaries, which schedulers may have."""
    groups = list(optimizer.param_groups)
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups):
        if group is not loaded:
            kept = dict(loaded)
            group.clear()
            group.update(kept)
    optimizer.param_groups[:] = groups


__all__ = ["load", "save", "tag_of"]
