"""What is under way on this thread. A signal handler may call an optimizer in the middle of anything, and so may a
hook: the call would find what is only half done. It is known by the stack, which no interrupt leaves wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from types import CodeType, FrameType
from typing import Any, TypeVar

from forebay.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])

BACKWARD = "_engine_run_backward"  # of torch

_calls: set[CodeType] = set()
_passes: set[CodeType] = set()


def whole(function: _Function) -> _Function:
    """Marks a call in whose middle no other is made."""
    _calls.add(function.__code__)
    return function


def passing(function: _Function) -> _Function:
    """Marks the forward pass of a streamed module, which calls the program's code."""
    _passes.add(function.__code__)
    return function


def is_inside(frame: FrameType, *, forward: bool = False, backward: bool = False) -> bool:
    """Whether the function of `frame` was called in the middle of a marked call; forward, backward: or of a forward
    pass of a streamed module, or of a backward pass."""
    return is_within(frame, _calls | _passes if forward else _calls, BACKWARD if backward else "")


def is_within(frame: FrameType, codes: AbstractSet[CodeType], name: str = "") -> bool:
    """The same of functions that are not marked, and of those of a name."""
    caller = frame.f_back
    while caller is not None:
        if caller.f_code in codes or caller.f_code.co_name == name:
            return True
        caller = caller.f_back
    return False


def num_backward_passes() -> int:
    """Those that this thread has begun and not ended: one inside the other."""
    frame, num_passes = sys._getframe(1), 0
    while frame is not None:
        num_passes += frame.f_code.co_name == BACKWARD
        frame = frame.f_back  # type: ignore[assignment]
    return num_passes


def refusal(call: str) -> UsageError:
    """The error of a call that comes in the middle of something."""
    return UsageError(f"forebay: {call} was called in the middle of a pass or of another call, as a signal handler or "
                      "a hook can. Nothing has changed. Have the handler set a flag, and look at it after step(); only "
                      "commit() may be called there, and is made when the step ends.")
