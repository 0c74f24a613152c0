"""The hooks of a streamed module: forward passes in brackets, parameters that come when they are asked for, and what
would read or move weights that are not there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from forebay.errors import NotSupportedError
from forebay.torch._under_way import passing


class _Brackets:
    """What forward passes of a module run inside of. generation: counts the functions that were its `forward`; what was
    put around an earlier one does nothing any more, as the present one may call it."""

    def __init__(self) -> None:
        self.around: list[Callable[[], contextlib.AbstractContextManager[Any]]] = []
        self.generation = 0


def bracket(module: torch.nn.Module, around: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Has every forward pass of `module` run inside `around()`: also if it is called without its hooks, is left by any
    exception (torch's hooks see no KeyboardInterrupt), or gets another `forward` later, as trainers give it."""
    brackets = getattr(module._call_impl, "_brackets", None)
    if brackets is None:
        brackets = _watch_forward(module)
    brackets.around.append(around)
    _bracket_forward(module, brackets, around)


def _watch_forward(module: torch.nn.Module) -> _Brackets:
    brackets, call_impl = _Brackets(), module._call_impl

    def call(*arguments: Any, **keywords: Any) -> Any:
        if getattr(module.forward, "_generation", None) != brackets.generation:
            brackets.generation += 1
            for around in brackets.around:
                _bracket_forward(module, brackets, around)
        return call_impl(*arguments, **keywords)  # type: ignore[no-untyped-call]

    leave_out_of_compilation(call, and_what_it_calls=False)
    call._brackets = brackets  # type: ignore[attr-defined]
    module._call_impl = call  # type: ignore[method-assign]
    return brackets


def _bracket_forward(module: torch.nn.Module, brackets: _Brackets,
                     around: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    inner, generation = module.forward, brackets.generation

    @functools.wraps(inner)
    @passing
    def forward(*arguments: Any, **keywords: Any) -> Any:
        if generation != brackets.generation:
            return inner(*arguments, **keywords)
        with around():
            return inner(*arguments, **keywords)

    leave_out_of_compilation(forward, and_what_it_calls=False)
    forward._generation = generation  # type: ignore[attr-defined]
    module.forward = forward


def leave_out_of_compilation(function: Any, *, and_what_it_calls: bool) -> None:
    """Has torch.compile take no notice of a function. As torch.compiler.disable, whose import takes a second."""
    function._torchdynamo_disable = True
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        frames.set_code_exec_strategy(function.__code__,
                                      frames._FrameExecStrategy(skip, skip if and_what_it_calls else default))


class Fetching(dict[str, Any]):
    """The parameters of a module: who takes one gets its weights."""

    def __init__(self, parameters: dict[str, Any], fetch: Callable[[torch.nn.Parameter], None]) -> None:
        super().__init__(parameters)
        self._fetch = fetch

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None and not torch.compiler.is_compiling():
            self._fetch(parameter)
        return parameter

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        raise NotSupportedError("forebay: a streamed module cannot be copied: its weights are in the store. Copy it "
                                "before stream(), or save state_dict() and load that into another module.")

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise NotSupportedError("forebay: a streamed module cannot be pickled: its weights are in the store. Save "
                                "module.state_dict(), or commit().")


leave_out_of_compilation(Fetching.__getitem__, and_what_it_calls=True)


def refuse_what_needs_weights(module: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    # torch marks the hook, which a method does not let it do.
    module.register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]
    module._apply = _checked_apply(module, dtype, device)  # type: ignore[method-assign]
    for part in module.modules():
        part._replicate_for_data_parallel = _refuse_replicas  # type: ignore[method-assign]


def _refuse_load(*_: Any) -> NoReturn:
    raise NotSupportedError("forebay: a streamed module takes a state dict only by its own load_state_dict(), and this "
                            "was that of a module around it. Call it with the part that is its own.")


def _refuse_replicas() -> NoReturn:
    raise NotSupportedError("forebay: DataParallel copies a module to every device, and the weights of a streamed one "
                            "are in the store. Use it on one device, without DataParallel.")


def _checked_apply(module: torch.nn.Module, dtype: torch.dtype,
                   device: torch.device) -> Callable[..., torch.nn.Module]:
    """to(), cuda(), half() and their like: fine where they change nothing."""
    def apply(function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
        changed = function(torch.empty(0, dtype=dtype, device=device))
        if changed.dtype == dtype and changed.device == device:
            return module
        raise NotSupportedError(f"forebay: a streamed module stays {dtype} on {device}, and was to become "
                                f"{changed.dtype} on {changed.device}. Change it before stream().")

    return apply
