"""For scripts that are written for DeepSpeed: `import forebay.deepspeed as deepspeed`. DeepSpeed itself is not needed.

Under torchrun or the deepspeed launcher each process is a rank. docs/pytorch.md says what is the same and what is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch

from forebay.deepspeed import _install, _process_group, accelerator, checkpointing, comm, ops, runtime, utils, zero
from forebay.deepspeed._config import Config
from forebay.deepspeed._engine import DeepSpeedEngine
from forebay.deepspeed.accelerator import get_accelerator
from forebay.deepspeed.comm import init_distributed
from forebay.deepspeed.utils import log_dist, logger
from forebay.errors import UsageError

__all__ = ["Config", "DeepSpeedEngine", "accelerator", "add_config_arguments", "checkpointing", "comm",
           "get_accelerator", "init_distributed", "initialize", "install", "log_dist", "logger", "ops", "runtime",
           "utils", "zero"]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"forebay.deepspeed has no '{name}'. What it has is in docs/pytorch.md; scripts that need "
                         "more of an installed DeepSpeed keep 'import deepspeed' and call "
                         "forebay.deepspeed.install() first")


def install() -> None:
    """Puts the engine under an installed DeepSpeed 0.19: `transformers.Trainer(deepspeed=JSON)`, accelerate and scripts
    that `import deepspeed` then run on it. Call it before they import names from DeepSpeed; again, it does nothing.

    EnvironmentProblem: DeepSpeed is not there, or of another layout.
    """
    _install.install(initialize)


def initialize(args: Any = None, model: torch.nn.Module | None = None,
               optimizer: torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer] | None = None,
               model_parameters: Iterable[Any] | None = None, training_data: Any = None, lr_scheduler: Any = None,
               distributed_port: int = 29500, mpu: Any = None, dist_init_required: bool | None = None,
               collate_fn: Callable[[list[Any]], Any] | None = None, config: Any = None, mesh_param: Any = None,
               config_params: Any = None) -> tuple[DeepSpeedEngine, Any, Any, Any]:
    """As DeepSpeed has it: (engine, optimizer, data loader or None, scheduler or None).

    config: a dict, the path of a file, or its text (JSON with comments and commas too many, or a Python dict);
    `args.deepspeed_config` where it is not given. Keys that do nothing here are told once; one that is not known is a
    UsageError with the nearest that is. torch.distributed begins, if the script has not begun it, and ends with the
    process; not with dist_init_required=False.
    """
    if model is None:
        raise UsageError("forebay: deepspeed.initialize() needs model=.")
    if mpu is not None or mesh_param is not None:
        raise UsageError("forebay: mpu= and mesh_param= are for model-parallel ranks, and all ranks here are "
                         "data-parallel. Leave them out.")
    source = config if config is not None else config_params
    if source is None:
        source = getattr(args, "deepspeed_config", None)
    if source is None:
        raise UsageError("forebay: there is no configuration. Give config= (a dict, or the path of a file), or "
                         "--deepspeed_config.")
    ranks = comm.ranks()
    read = Config.read(source, ranks.size)
    if dist_init_required is not False:
        _process_group.begin(ranks)
    engine = DeepSpeedEngine(model, read, optimizer, model_parameters, lr_scheduler, ranks)
    loader = None if training_data is None else engine.loader_of(training_data, collate_fn)
    return engine, engine.optimizer, loader, engine.lr_scheduler


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """--deepspeed and --deepspeed_config, and --local_rank where it is not there."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="use DeepSpeed (here: forebay)")
    group.add_argument("--deepspeed_config", default=None, type=str, help="DeepSpeed json configuration file")
    return parser
