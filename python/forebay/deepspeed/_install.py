"""install(): the engine under an installed DeepSpeed, for transformers and accelerate, which import that."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from forebay.deepspeed import zero
from forebay.deepspeed._engine import DeepSpeedEngine
from forebay.deepspeed.ops import adagrad, adam, lion
from forebay.errors import EnvironmentProblem

# The replacements: a name, and the modules that have it. That is DeepSpeed 0.19's layout.
_ZERO = ("deepspeed.runtime.zero", "deepspeed.runtime.zero.partition_parameters")
_NAMES: list[tuple[str, Any, tuple[str, ...]]] = [
    ("DeepSpeedEngine", DeepSpeedEngine, ("deepspeed", "deepspeed.runtime.engine")),
    ("Init", zero.Init, _ZERO),
    ("GatheredParameters", zero.GatheredParameters, _ZERO),
    ("register_external_parameter", zero.register_external_parameter, _ZERO),
    ("DeepSpeedCPUAdam", adam.DeepSpeedCPUAdam, ("deepspeed.ops.adam", "deepspeed.ops.adam.cpu_adam")),
    ("FusedAdam", adam.FusedAdam, ("deepspeed.ops.adam", "deepspeed.ops.adam.fused_adam")),
    ("DeepSpeedCPUAdagrad", adagrad.DeepSpeedCPUAdagrad, ("deepspeed.ops.adagrad",)),
    ("DeepSpeedCPULion", lion.DeepSpeedCPULion, ("deepspeed.ops.lion",)),
    ("FusedLion", lion.FusedLion, ("deepspeed.ops.lion",)),
]
_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def install(initialize: Callable[..., Any]) -> None:
    places = [(_module(module), name, ours) for name, ours, modules in _NAMES for module in modules]
    places.append((_module("deepspeed"), "initialize", _under_deepspeed(initialize)))
    for module, name, _ in places:
        if not hasattr(module, name):
            version = getattr(sys.modules["deepspeed"], "__version__", "of an unknown version")
            raise EnvironmentProblem(f"forebay: DeepSpeed {version} has no {module.__name__}.{name}, and install() is "
                                     "written for 0.19. Install that: pip install 'deepspeed>=0.19,<0.20'; or have the "
                                     "script import forebay.deepspeed as deepspeed.")
    if getattr(sys.modules["deepspeed"].initialize, "is_of_forebay", False):
        return
    _be_a_rank()
    # It compiles C++ for sums over ranks when it begins, for minutes.
    getattr(_module("deepspeed.ops"), "__compatible_ops__", {})["deepspeed_shm_comm"] = False
    for module, name, ours in places:
        setattr(module, name, ours)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "deepspeed":
            raise EnvironmentProblem("forebay: DeepSpeed is not installed, so there is nothing to install under. "
                                     "Install it: DS_BUILD_OPS=0 pip install 'deepspeed>=0.19,<0.20'; or have the "
                                     "script import forebay.deepspeed as deepspeed.") from error
        raise EnvironmentProblem(f"forebay: DeepSpeed cannot be used: {error}. install() is written for 0.19: pip "
                                 "install 'deepspeed>=0.19,<0.20'.") from error


def _under_deepspeed(initialize: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_ours(*arguments: Any, **keywords: Any) -> Any:
        deepspeed: Any = sys.modules["deepspeed"]
        if keywords.get("dist_init_required") is not False:
            deepspeed.init_distributed(dist_backend="gloo")  # DeepSpeed's own comm is asked for ranks
        return initialize(*arguments, **keywords)

    initialize_ours.__doc__ = initialize.__doc__
    initialize_ours.is_of_forebay = True  # type: ignore[attr-defined]
    return initialize_ours


def _be_a_rank() -> None:
    """The variables that a launcher would set, where none has: without it DeepSpeed looks for MPI."""
    for name, value in _RANK.items():
        os.environ.setdefault(name, value)
    if "MASTER_PORT" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(free.getsockname()[1])


__all__ = ["install"]
