"""The class of a parameter whose weights are not here: they come before an operation reads them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol
from weakref import ref

import torch

from forebay.errors import UsageError
from forebay.torch._saved import hooks

# Attributes of a tensor that have its elements. All others say something about it, or are its gradient.
_ELEMENTS = {"data", "T", "mT", "H", "mH", "real", "imag"}
# Functions of torch and methods of tensors that need no elements.
_NEED_NO_ELEMENTS = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
    "is_floating_point", "is_complex", "is_signed", "is_pinned", "is_same_size", "is_inference", "is_conj", "is_neg",
    "is_shared", "is_coalesced", "is_distributed", "get_device", "dim_order", "has_names", "result_type", "can_cast",
    "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "__len__", "__hash__",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "empty_like", "zeros_like", "ones_like",
    "full_like", "rand_like", "randn_like", "randint_like", "new_empty_strided", "_is_view", "module_load", "backward",
    "grad"}
# Methods that write to the first argument, besides those with a name such as add_.
_WRITE = {"__set__", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__",
          "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}


_SAVE_TO_STATE_DICT = torch.nn.Module._save_to_state_dict.__code__
_STATE_DICT = torch.nn.Module.state_dict.__code__


class Weights(Protocol):
    """Where the weights of absent parameters come from."""

    module: ref[torch.nn.Module]

    def name_of(self, parameter: torch.Tensor) -> str: ...

    def using(self, parameters: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]: ...


class Absent(torch.nn.Parameter):
    """What a parameter is while it is a placeholder. Operations of PyTorch on it read its weights; what only asks for
    its shape, gradient and so on reads nothing. UsageError: an operation writes to it.

    A subclass for each module has its `window`. C++ code that is no operation of PyTorch finds the placeholder.
    """

    window: ref[Weights]
    present: type[torch.nn.Parameter]  # what it is otherwise

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Parameter containing:\n{self.detach().requires_grad_(self.requires_grad)!r}"

    def register_post_accumulate_grad_hook(self, hook: Callable[[torch.Tensor], None]) -> Any:
        """The hook runs before that of the optimizer, which takes the gradient."""
        handle = super().register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        hooks = self._post_accumulate_grad_hooks
        for key, other in list(hooks.items()):
            if hasattr(other, "takes_gradient"):
                hooks[key] = hooks.pop(key)  # torch looks at the order of the dict, which move_to_end leaves
        return handle

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, arguments: Sequence[Any] = (),
                           keywords: Mapping[str, Any] | None = None) -> Any:
        keywords = keywords or {}
        window = cls.window()
        if (torch.compiler.is_compiling() or not _needs_elements(function, arguments)
                or (window is not None and _is_in_state_dict_of(window, sys._getframe(1)))):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **keywords)
        with torch._C.DisableTorchFunctionSubclass():
            parameters = list(_parameters_in((arguments, keywords)))
            if window is None:
                raise UsageError("forebay: a parameter of a streamed module was used after its engine was closed. Its "
                                 "weights are in the store: go on with stream(..., resume=True).")
            _refuse_writes(function, arguments, keywords, window)
            with window.using(parameters), _saving_weights():
                return function(*arguments, **keywords)


def class_for(window: Weights, present: type[torch.nn.Parameter]) -> type[Absent]:
    """A subclass for the parameters of one window that are of the class `present`."""
    return type(present.__name__, (Absent, present), {"window": ref(window), "present": present})


def _saving_weights() -> contextlib.AbstractContextManager[None]:
    """Autograd keeps the names of weights, unless others keep what it saves: checkpointing compares what they get."""
    if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return contextlib.nullcontext()
    return hooks()


def _needs_elements(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):  # of an attribute
        return getattr(getattr(function, "__self__", None), "__name__", "") in _ELEMENTS
    if name == "__delete__" or name in _NEED_NO_ELEMENTS:
        return False
    return name != "type" or len(arguments) > 1


def _is_in_state_dict_of(window: Weights, frame: FrameType | None) -> bool:
    """Whether the operation is one of the whole module's state_dict(), whose hook fills in the weights at its end."""
    if frame is None or frame.f_code is not _SAVE_TO_STATE_DICT:
        return False
    while frame is not None:
        if frame.f_code is _STATE_DICT and frame.f_locals.get("self") is window.module():
            return True
        frame = frame.f_back
    return False


def _parameters_in(value: Any) -> Iterator[torch.nn.Parameter]:
    if isinstance(value, torch.nn.Parameter):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _parameters_in(each)
    elif isinstance(value, dict):
        yield from _parameters_in(list(value.values()))


def _refuse_writes(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any],
                   window: Weights) -> None:
    name = getattr(function, "__name__", "")
    writes = name in _WRITE or (name.endswith("_") and not name.endswith("__"))
    to = arguments[:1] or list(keywords.values())  # by name, in functions such as torch.nn.init.normal_
    written = [*_parameters_in(to if writes else ()), *_parameters_in(keywords.get("out"))]
    for parameter in written:
        if isinstance(parameter, Absent):
            what = "an assignment to .data" if name == "__set__" else f"{name}()"
            raise UsageError(f"forebay: {what} writes to {window.name_of(parameter)}. The weights of a streamed "
                             "module change only by step(). Change them before stream().")
