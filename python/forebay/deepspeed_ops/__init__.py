"""DeepSpeed's operations on forebay's disk engine and update kernels: what an installed, unchanged DeepSpeed loads in
place of its own after `install()`. Nothing is compiled.

    import forebay.deepspeed_ops
    forebay.deepspeed_ops.install()
    import deepspeed

`async_io`, `pin_memory`, `cpu_adam`, `cpu_adagrad` and `cpu_lion` are served.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from forebay.deepspeed_ops import _async_io, _optimizers, _pin_memory
from forebay.errors import EnvironmentProblem

_PIN_MODULE = "_deepspeed_pin_memory_op_module"  # where DeepSpeed looks for it first


@functools.cache
def modules() -> dict[str, types.ModuleType]:
    """The modules that DeepSpeed's builders will give, by the operation's name."""
    return {"async_io": _async_io.module(), "pin_memory": _pin_memory.module(), **_optimizers.modules()}


def install() -> None:
    """Makes DeepSpeed load these operations. Call it before the first engine; called again, it does nothing.

    EnvironmentProblem, and nothing was changed: DeepSpeed is not installed, or keeps its operations elsewhere than 0.19
    does.
    """
    loaded = [_loaded_ops(name) for name in _builder_names()]
    mark = _marker_of_compatible_ops(_import("deepspeed.ops"))
    for ops in loaded:
        ops.update(modules())
    setattr(sys, _PIN_MODULE, modules()["pin_memory"])
    mark()


def _import(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(
            f"forebay: {name} cannot be imported ({error}). Install DeepSpeed for this Python: DS_BUILD_OPS=0 pip "
            "install 'deepspeed>=0.19,<0.20'.") from error


def _builder_names() -> list[str]:
    """The modules that keep what was loaded: of the package, and in a checkout of DeepSpeed a second one."""
    names = ["deepspeed.ops.op_builder.builder"]
    _import("deepspeed")
    try:
        if hasattr(importlib.import_module("op_builder"), "__deepspeed__"):
            names.append("op_builder.builder")
    except ImportError:
        pass  # the usual case: it is installed
    return names


def _loaded_ops(name: str) -> dict[str, Any]:
    found = getattr(getattr(_import(name), "OpBuilder", None), "_loaded_ops", None)
    if not isinstance(found, dict):
        raise _unknown_layout(f"{name}.OpBuilder has no _loaded_ops")
    return found


def _marker_of_compatible_ops(ops: types.ModuleType) -> Callable[[], None]:
    """A function that marks the operations as ones that can be had. DeepSpeed asks a compiler about all others when
    that is first looked at, which may be never."""
    available = dict.fromkeys(modules(), True)
    known = vars(ops).get("__compatible_ops__")
    if isinstance(known, dict):
        return lambda: known.update(available)
    probe = vars(ops).get("_probe_compatible_ops")
    if probe is None:
        raise _unknown_layout("deepspeed.ops has neither __compatible_ops__ nor _probe_compatible_ops")
    if hasattr(probe, "forebay"):
        return lambda: None

    def probe_with_these() -> dict[str, bool]:
        return {**probe(), **available}

    probe_with_these.forebay = True  # type: ignore[attr-defined]
    return lambda: setattr(ops, "_probe_compatible_ops", probe_with_these)


def _unknown_layout(what: str) -> EnvironmentProblem:
    version = getattr(sys.modules.get("deepspeed"), "__version__", "of an unknown version")
    return EnvironmentProblem(f"forebay: DeepSpeed {version} keeps its operations elsewhere than 0.19 does: {what}. "
                              "Install 'deepspeed>=0.19,<0.20'.")


__all__ = ["install", "modules"]
