"""State that a commit carries besides weights and moments, so that a run goes on as if it had never stopped: buffers of
the module, states of random number generators, and of what is tracked (schedulers, the position in the data)."""

from __future__ import annotations

import array
import copy
import io
import random
import sys
import warnings
from typing import Any, NamedTuple

import torch

from forebay.errors import CorruptError, UsageError
from forebay.inventory import Inventory
from forebay.layers import Layers
from forebay.torch._run.loader import ResumableLoader
from forebay.torch._tensors import memory_of, on_host

_NAME = "state of the run"
_ROOM = 64 << 10  # bytes, for the generators (10 KiB) and all that is tracked
_LENGTH = 8  # bytes before the state that say how long it is

State = dict[str, Any]


class Snapshot(NamedTuple):
    """The state at one moment."""

    values: State
    buffers: dict[str, torch.Tensor]


class RunState:
    """Raw tensors of a store. module: whose buffers are in it; None: none are."""

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self.objects: dict[str, Any] = {}
        self._module = module
        self._number = -1  # in the inventory, as those of the buffers
        self._buffers: dict[str, int] = {}
        self._loaded: State | None = None  # of the commit that the run goes on from; until its first step
        self._generators: State | None = None  # as the last step left them
        self._is_checked = False

    # ---- The store

    def add_to(self, inventory: Inventory) -> None:
        inventory.begin_raw_layer(_NAME)
        self._number = inventory.add_raw(_NAME, _ROOM)
        buffers = {} if self._module is None else persistent_buffers(self._module)
        self._buffers = {name: inventory.add_raw(name, buffer.numel() * buffer.element_size())
                         for name, buffer in buffers.items() if buffer.numel() > 0}

    def fill(self, layers: Layers) -> None:
        """The state of a new store."""
        layers.fill(self._number, "f32", self.pack().ljust(_ROOM, b"\0"))
        for name, number in self._buffers.items():
            layers.fill(number, "f32", memory_of(on_host(self._buffer(name))))

    def write(self, layers: Layers, state: bytes | Snapshot) -> None:
        """For the commit that follows."""
        packed = state if isinstance(state, bytes) else self._packed(state.values)
        layers.raw(self._number)[:len(packed)] = packed
        for name, number in self._buffers.items():
            raw = layers.raw(number)
            host = on_host(self._buffer(name) if isinstance(state, bytes) else state.buffers[name])
            if host.numel() * host.element_size() != len(raw):
                raise UsageError(f"forebay: the buffer {name} was of {len(raw)} bytes when the store was made, and is "
                                 f"{tuple(host.shape)} of {host.dtype} now. Keep its size, or register it with "
                                 "persistent=False.")
            torch.frombuffer(raw, dtype=torch.uint8).copy_(host.reshape(-1).view(torch.uint8))

    def read(self, layers: Layers) -> None:
        """Takes the buffers and generators of the commit; what is tracked gets its state from `track`."""
        raw = layers.raw(self._number)
        length = int.from_bytes(raw[:_LENGTH], "little")
        if length > len(raw) - _LENGTH:
            raise CorruptError(f"forebay: the store says that the state of its run has {length} bytes, and it has room "
                               f"for {_ROOM}. It was written by another program: give another folder.")
        try:
            self._loaded = torch.load(io.BytesIO(raw[_LENGTH:_LENGTH + length]), weights_only=True)
            self._loaded["step"] = layers.committed_step
        except Exception as error:
            raise CorruptError(f"forebay: the state of the run that the store has cannot be read: {error}. It was "
                               "written by another program: give another folder.") from error
        for name, number in self._buffers.items():
            buffer = self._buffer(name)
            values = torch.frombuffer(layers.raw(number), dtype=buffer.dtype).view(buffer.shape)
            with torch.no_grad():
                buffer.copy_(values)
        self.restore_generators()

    def _buffer(self, name: str) -> torch.Tensor:
        assert self._module is not None
        return self._module.get_buffer(name)

    # ---- What is tracked

    @property
    def has_loader(self) -> bool:
        return any(isinstance(each, ResumableLoader) for each in self.objects.values())

    @property
    def has_others(self) -> bool:
        """Whether something is tracked that is no loader."""
        return any(not isinstance(each, ResumableLoader) for each in self.objects.values())

    def track(self, objects: dict[str, Any]) -> bool:
        """Returns whether one of them got the state of the commit that the run goes on from."""
        for name, each in objects.items():
            if not callable(getattr(each, "state_dict", None)) or not callable(getattr(each, "load_state_dict", None)):
                raise UsageError(f"forebay: {name}, a {type(each).__name__}, cannot be tracked: it has no state_dict() "
                                 "and load_state_dict(). Give it both, or leave it out.")
        self.objects.update(objects)
        self._is_checked = False
        if self._loaded is None:
            return False
        saved = self._loaded["objects"]
        for name, each in objects.items():
            if name in saved:
                each.load_state_dict(saved[name])
            elif self._loaded["step"] > 0:
                warnings.warn(f"forebay: {name} begins anew: the commit that this run goes on from has "
                              f"{', '.join(saved) or 'nothing'} of what is tracked.", stacklevel=4)
        self.restore_generators()
        return not saved.keys().isdisjoint(objects)

    def restore_generators(self) -> None:
        """As the commit has them that the run goes on from; behind the first step nothing happens."""
        if self._loaded is not None:
            set_generators(self._loaded["generators"])

    def note_step(self, keeps_generators: bool) -> None:
        """A step was made. keeps_generators: its commit, which comes later, may have them as they are now."""
        self._generators = generators() if keeps_generators else None
        self._loaded = None

    def pack(self, *, now: bool = True) -> bytes:
        """The state for `write`. now: with the generators as they are, and not as the last step left them."""
        return self._packed(self._values(now))

    def snapshot(self, *, now: bool) -> Snapshot:
        """The same, with buffers, for a `write` that may come later."""
        # No version tells whether a buffer has changed: batch norm counts none of its writes.
        buffers = {name: self._buffer(name).detach().clone() for name in self._buffers}
        return Snapshot(copy.deepcopy(self._values(now)), buffers)

    def _values(self, now: bool) -> State:
        return {"generators": generators() if now or self._generators is None else self._generators,
                "objects": {name: _plain(each.state_dict()) for name, each in self.objects.items()}}

    def _packed(self, state: State) -> bytes:
        packed = self._serialized(state)
        if len(packed) > _ROOM - _LENGTH:
            raise UsageError(f"forebay: the state of {', '.join(self.objects)} and of the random number generators "
                             f"takes {len(packed)} bytes, and a commit has room for {_ROOM - _LENGTH}. Track what is "
                             "small, and keep the rest in files of your own.")
        return len(packed).to_bytes(_LENGTH, "little") + packed

    def _serialized(self, state: State) -> bytes:
        file = io.BytesIO()
        try:
            torch.save(state, file)
            if not self._is_checked:
                # One that could be saved and not loaded must not be found out after a crash.
                torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        except Exception as error:
            raise UsageError(f"forebay: the state of {', '.join(self.objects)} has more in it than numbers, texts, "
                             "tensors, and lists and dictionaries of them, so it cannot be loaded safely: "
                             f"{error}") from error
        self._is_checked = True
        return file.getvalue()


def persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that its state dict has, by name."""
    return {f"{prefix}.{name}" if prefix else name: buffer
            for prefix, part in module.named_modules() for name, buffer in part._buffers.items()
            if buffer is not None and name not in part._non_persistent_buffers_set}


def generators() -> State:
    """The states of the generators of torch, Python and NumPy (where it was imported)."""
    version, words, gauss = random.getstate()
    state: State = {"torch": torch.get_rng_state(), "python": [version, _tensor_of(array.array("I", words)), gauss]}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        import numpy as np
        kind, keys, *rest = np.random.get_state()
        state["numpy"] = [kind, _tensor_of(keys), *rest]
    return state


def set_generators(state: State) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array.array("I", words.numpy().tobytes())), gauss))
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        import numpy as np
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, keys.numpy().view(np.uint32), *rest))


def _tensor_of(words: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(each) for each in value) if type(value) in (list, tuple) else value
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
