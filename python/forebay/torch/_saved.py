"""Stand-ins for what autograd keeps of a tensor until backward needs it.

torch applies one pair of hooks alone, the one that was set last. So there is one pair for all that forebay does with
saved tensors: a weight that is leased becomes its name in the store, an activation goes where the innermost
`offload_activations` puts it, and everything else stays as it is.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch


class Saved:
    """Stands for a tensor in autograd's graph, and ends with it."""

    __slots__ = ()

    def restore(self) -> torch.Tensor:
        raise NotImplementedError


class Keeper(Protocol):
    """Takes tensors over that autograd is to keep. None: not this one."""

    def save(self, tensor: torch.Tensor) -> Saved | None: ...


class Unchanged(Saved):
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
def keeping_activations(keeper: Keeper) -> Iterator[None]:
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


def hooks_around_weights() -> contextlib.AbstractContextManager[None]:
    """As hooks(), where other hooks are set (by torch.utils.checkpoint, or by the program) on top of those. They get
    everything, but something empty for a weight: they might keep a parameter, which is a placeholder when they give it
    back."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if top is None:
        return hooks()
    pack, unpack = top
    if pack is _pack or isinstance(pack, _PackBehind):
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(
        _PackBehind(pack), lambda saved: saved.restore(unpack) if isinstance(saved, _Behind) else unpack(saved))


class _Behind(NamedTuple):
    weight: Saved
    packed: Any  # by the other hooks, which count what they get: checkpoint computes a block again when it is unpacked

    def restore(self, unpack: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        unpack(self.packed)
        return self.weight.restore()


class _PackBehind:
    def __init__(self, pack: Callable[[torch.Tensor], Any]) -> None:
        self._pack = pack

    def __call__(self, tensor: torch.Tensor) -> Any:
        weight = _save_weight(tensor)
        return self._pack(tensor) if weight is None else _Behind(weight, self._pack(tensor.new_empty(0)))


def _save_weight(tensor: torch.Tensor) -> Saved | None:
    for keeper in list(_weights):
        saved: Saved | None = keeper.save(tensor)
        if saved is not None:
            return saved
    return None


def _pack(tensor: torch.Tensor) -> Saved:
    saved = _save_weight(tensor)
    stack = _activations.__dict__.get("stack")
    if saved is None and stack:
        saved = stack[-1].save(tensor)
    return Unchanged(tensor) if saved is None else saved


def _unpack(saved: Saved) -> torch.Tensor:
    return saved.restore()
