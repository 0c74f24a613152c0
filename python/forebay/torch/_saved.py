"""What autograd keeps of a tensor until backward needs it.

torch applies one pair of hooks alone, the one that was set last. So there is one pair for all that forebay does with
saved tensors: a weight that is leased becomes its name in the store, an activation goes where the innermost
`offload_activations` puts it, and everything else stays as it is.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Protocol

import torch


class Saved(Protocol):
    """Stands for a tensor in autograd's graph, and ends with it."""

    def restore(self) -> torch.Tensor: ...


class Keeper(Protocol):
    """Takes tensors over that autograd is to keep. None: not this one."""

    def save(self, tensor: torch.Tensor) -> Saved | None: ...


class Unchanged:
    """A tensor that stays where it is. Under hooks torch does not look whether it was written to: this does."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._version = tensor._version

    def restore(self) -> torch.Tensor:
        check_version(self._tensor, self._version)
        return self._tensor


def check_version(tensor: torch.Tensor, version: int) -> None:
    """RuntimeError, as torch has it: the tensor was written to since it was saved."""
    if tensor._version != version:
        raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace "
                           f"operation: a {tensor.dtype} tensor of shape {list(tensor.shape)} is at version "
                           f"{tensor._version}; expected version {version} instead. Write to a copy of it.")


_weights: weakref.WeakSet[Any] = weakref.WeakSet()  # Keepers of weights: the windows of all streamed modules
_activations = threading.local()  # its `stack`: Keepers of activations; the innermost is last


def add_weights(keeper: Keeper) -> None:
    """Has it asked for every tensor, until it is collected."""
    _weights.add(keeper)


@contextlib.contextmanager
def keeping_activations(keeper: Keeper) -> Any:
    """While it lasts, on this thread, activations go to `keeper`."""
    stack = _activations.__dict__.setdefault("stack", [])
    stack.append(keeper)
    try:
        with hooks():
            yield
    finally:
        stack.remove(keeper)


def hooks() -> contextlib.AbstractContextManager[None]:
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)


def hooks_are_set() -> bool:
    """Whether any hooks of saved tensors are active on this thread."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


def _pack(tensor: torch.Tensor) -> Any:
    for keeper in list(_weights):
        saved = keeper.save(tensor)
        if saved is not None:
            return saved
    stack = _activations.__dict__.get("stack")
    saved = stack[-1].save(tensor) if stack else None
    return Unchanged(tensor) if saved is None else saved


def _unpack(saved: Saved) -> torch.Tensor:
    return saved.restore()
