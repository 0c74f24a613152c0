"""Layers of weights and their training state, on disk, in RAM or both. forebay/c.h has the whole contract."""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
from collections.abc import Iterable, Sequence
from ctypes import c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, ClassVar, NamedTuple

from forebay._forks import gives_up_locks
from forebay._given import Path, whole
from forebay._given import folders as folders_of
from forebay._library import (
    DTYPES,
    DURABILITIES,
    ENGINES,
    OPTIMIZERS,
    PLANE_BYTES,
    PLANES,
    Buffer,
    Group,
    LayersOptions,
    Owned,
    Pinned,
    StepGradientsStruct,
    StepOptions,
    array_of,
    call,
    index_of,
    lib,
    take_text,
    text_of,
)
from forebay._worker import Worker
from forebay.errors import UsageError
from forebay.inventory import Inventory
from forebay.lease import Lease
from forebay.ranks import Ranks

_TIERS = {"auto": 0, "ram": 1, "nvme": 2}
_PASSES = {"forward_backward": 0, "update_only": 1}
_STATE = {name: PLANES[name] for name in ("master", "m", "v")}

User = dict[str, Any]
DeviceMemory = tuple[int, int, object]


class StepGradients(NamedTuple):
    """norm: of all gradients, divided by loss_scale, before clipping. nonfinite_layer: the first layer with a gradient
    that is not finite (skip or abandon the step), or None."""

    norm: float
    nonfinite_layer: int | None


class Layers(Owned):
    """Weights, fp32 masters and moments of an inventory, in a store on disk, in RAM or both, inside a memory budget.

        create, fill, start             a new store, filled tensor by tensor
        create_from                     one with the state of another
        open                            the newest committed step of one that is there
        begin_step                      then, in any order that the model has:
          expect, acquire                 weights; a due update is applied to a layer on its way in
          add_gradient, close_layer       gradients, additive, tensor by tensor
        finish_backward                 the norm
        update, or skip, or abandon     the step is real; or counts and changes no weights; or never was
        commit                          durable

    Tensors and layers are named by their numbers in the inventory. After an error of a read or a write, abandon the
    step: the committed one stands. Thread-safe; calls run one after another. Ctrl-C ends the wait of every call on the
    main thread: the call itself goes on (`create`, `fill` and `open` end soon), and the next one waits for it.

    folders: the store's own, one for each disk. folder_weights: their shares. ram_bytes: all that this object may take;
    0: 80 % of what is available. weight_dtype: that weights are lent in. gradient_dtype: that complete gradients are
    rounded to while they wait. commit_every: -1: commit() alone commits. The rest: `forebay_layers_options` in
    forebay/c.h, with the same names and defaults.

    ranks: the processes that train these layers together, each with data of its own; a step has the mean of their
    gradients. All make the same calls in the same order, but for those that only ask and `add_gradient`; layers close
    from the last to the first; `fill` takes what rank 0 gives, and raw tensors are each rank's own; `folders` are the
    same of all, and each rank has its own in them; a commit is made by all ranks or by none. zero_stage: as ZeRO has
    it: 0: each rank has the whole state; 1 to 3: its part of it, and the weights of a layer are gathered once in a step
    (1, 2) or whenever it is acquired (3). reduce_bucket_bytes: of the gradients that are being summed at one time, a
    constant however large layers are; 0: 1 GiB, or as much as the largest layer. reduce_dtype: of gradients on their
    way between ranks: "bf16" and "f16" halve the bytes, and round each rank's gradients, which are added in fp32, and
    the sums.

    device: where leases lie: "cpu" (RAM), or "cuda:0" and so on. On a GPU there is a window of num_window_layers places
    (0: 4; 3 at least), each as large as the largest layer; `plan` says its "device_bytes". EnvironmentProblem: the
    library has no CUDA, or there is no such device. DoesNotFitError: its memory.

    `close` loses steps that are not committed; leases stay readable. DoesNotFitError names the least ram_bytes that
    works. Nothing touches a disk before `create` or `open`.
    """

    _closed: ClassVar[str] = "forebay: these Layers are closed. Make others, and open the store again."

    def __init__(self, inventory: Inventory, folders: Path | Sequence[Path], *,
                 folder_weights: Sequence[float] | None = None, ram_bytes: int = 0, weight_dtype: str = "bf16",
                 gradient_dtype: str = "bf16", optimizer: str = "adamw", nesterov: bool = False,
                 momentum: float = 0.0, weights_tier: str = "auto", state_tier: str = "auto",
                 gradients_tier: str = "auto", durability: str = "auto", commit_every: int = 0, engine: str = "auto",
                 num_threads: int = 0, pass_: str = "forward_backward", num_open_layers: int = 0,
                 num_window_layers: int = 0, update_in_backward: bool = False, tile_elems: int = 0, device: str = "cpu",
                 ranks: Ranks | None = None, zero_stage: int = 0, reduce_bucket_bytes: int = 0,
                 reduce_dtype: str = "f32", _worker: Worker | None = None) -> None:
        paths = folders_of(folders, "folders")
        if folder_weights is not None and len(folder_weights) != len(paths):
            raise UsageError(f"forebay: {len(folder_weights)} folder_weights for {len(paths)} folders. Give one each.")
        self.weight_dtype = weight_dtype
        self._cuda = _cuda_index_of(device)
        self.tensors = list(inventory.tensors)
        options = LayersOptions(
            struct_size=ctypes.sizeof(LayersOptions),
            folders=(c_char_p * len(paths))(*map(os.fsencode, paths)), num_folders=len(paths),
            folder_weights=None if folder_weights is None else array_of(c_double, folder_weights, "folder_weights"),
            ram_bytes=ram_bytes, weight_dtype=index_of(DTYPES, weight_dtype, "weight_dtype"),
            gradient_dtype=index_of(DTYPES, gradient_dtype, "gradient_dtype"),
            optimizer=index_of(OPTIMIZERS, optimizer, "optimizer"), nesterov=nesterov, momentum=momentum,
            weights_tier=index_of(_TIERS, weights_tier, "weights_tier"),
            state_tier=index_of(_TIERS, state_tier, "state_tier"),
            gradients_tier=index_of(_TIERS, gradients_tier, "gradients_tier"),
            durability=index_of(DURABILITIES, durability, "durability"), commit_every=commit_every,
            engine=index_of(ENGINES, engine, "engine"), num_threads=num_threads,
            pass_=index_of(_PASSES, pass_, "pass_"), num_open_layers=num_open_layers,
            num_window_layers=num_window_layers, update_in_backward=update_in_backward, tile_elems=tile_elems,
            device=int(self._cuda is not None), device_index=self._cuda or 0,
            ranks=None if ranks is None else ranks._use(), zero_stage=zero_stage,
            reduce_bucket_bytes=reduce_bucket_bytes, reduce_dtype=index_of(DTYPES, reduce_dtype, "reduce_dtype"))
        handle = c_void_p()
        self._worker = Worker("Layers") if _worker is None else _worker  # the thread of an object around this one
        if ranks is not None:
            self._worker.give_up = ranks._give_up
        self._worker.run(call, lib.forebay_layers_new, ctypes.byref(options), inventory._handle, ctypes.byref(handle))
        self._handle = handle
        self._lock = threading.Lock()  # stop() comes while a call is under way, and not while the object ends
        self._end_with(self._worker.close, _end, self._lock, handle)
        gives_up_locks(self, paths if ranks is None else [ranks.folder_in(path) for path in paths])

    # Whether the object is open is looked at when a call is made, which may be behind others.
    def _call(self, function: Any, *arguments: Any) -> None:
        call(function, self._use(), *arguments)

    def _get(self, function: Any, *arguments: Any) -> Any:
        return function(self._use(), *arguments)

    def _call_with(self, kept: Pinned, function: Any, *arguments: Any) -> None:
        """`kept`: data that outlive an interrupted wait."""
        call(function, self._use(), *arguments)

    def _take_text(self, function: Any) -> str:
        return take_text(function, self._use())

    def _wait(self, function: Any, *arguments: Any) -> None:
        self._worker.run(self._call, function, *arguments)

    def _wait_or_stop(self, function: Any, *arguments: Any) -> None:
        self._worker.run(self._call, function, *arguments, on_interrupt=self.stop)

    def _json(self, function: Any) -> Any:
        return json.loads(self._worker.quick(self._take_text, function) or "{}")

    # ---- The store

    def plan(self) -> dict[str, Any]:
        """The plan: the memory and disk that each part takes, the bytes that a step moves."""
        plan: dict[str, Any] = self._json(lib.forebay_layers_plan_json)
        return plan

    def exists(self) -> bool:
        """Whether there is a store in the folders, whole or damaged. What a creation left that was killed before its
        first commit counts as none. Of ranks all make this call. StorageError: that cannot be known; the errors of
        `open`, with ranks."""
        found = int(self._worker.run(self._get, lib.forebay_layers_exists))
        if found < 0:
            self._wait(lib.forebay_layers_open)  # it says why
        return found > 0

    def remove(self) -> None:
        """Removes the store in the folders if it has made no step, so that one with other weights can be created. Of
        ranks all make this call. UsageError: it has made some, or is open; nothing is removed then."""
        self._wait(lib.forebay_layers_remove)

    def create(self) -> None:
        """Makes the store. UsageError: one is there. DoesNotFitError, StorageError; EnvironmentProblem: another process
        uses the folders; StoppedError: after `stop`."""
        self._wait_or_stop(lib.forebay_layers_create)

    def fill(self, tensor: int, dtype: str, data: Buffer) -> None:
        """The first value of a tensor: all its elements, row-major, of `dtype`; of a raw tensor its bytes. Layers are
        filled in their order, the tensors of one in any; those that are not filled are zeros."""
        pinned = Pinned(data)
        self._worker.run(self._call_with, pinned, lib.forebay_layers_fill, tensor,
                         index_of(DTYPES, dtype, "dtype"), pinned.address, pinned.num_bytes, on_interrupt=self.stop)

    def start(self, user: User | None = None) -> None:
        """Ends the filling, and commits step 0 with `user` (see `update`)."""
        self._wait(lib.forebay_layers_start, *text_of(user))

    def create_from(self, folders: Path | Sequence[Path]) -> None:
        """In place of `create`, `fill` and `start`: makes a store with the state that lies in `folders`, at its step
        and with its `user`. It may have been made by any number of ranks, with any zero_stage, and stays as it is. Raw
        tensors are those of the same rank, or of the first. BadInputError: there is no store. CorruptError: its parts
        do not belong together. UsageError: it has other tensors, types or moments."""
        paths = folders_of(folders, "folders")
        self._wait_or_stop(lib.forebay_layers_create_from, (c_char_p * len(paths))(*map(os.fsencode, paths)),
                           len(paths))

    def open(self) -> None:
        """Opens the newest committed step. BadInputError: there is no store. UsageError: it has other tensors than the
        inventory. CorruptError: it is damaged."""
        self._wait_or_stop(lib.forebay_layers_open)

    # ---- Weights

    def expect(self, order: Iterable[int]) -> None:
        """Announces the layers that will be acquired next, in order, behind those already announced."""
        layers = list(order)
        self._wait(lib.forebay_layers_expect, array_of(c_int32, layers, "order"), len(layers))

    def cancel_expected(self) -> None:
        """Forgets what was announced and not acquired."""
        self._worker.post(self._get, lib.forebay_layers_cancel_expected)

    def acquire(self, layer: int) -> Lease:
        """Waits for the weights of the layer that was announced next: on a GPU until their copy has begun (see
        `Lease.ready`). UsageError there also while another lease of the layer is out."""
        lease: Lease = self._worker.run(self._acquire, layer)
        return lease

    def _acquire(self, layer: int) -> Lease:
        # On the thread of the calls: a lease whose caller was interrupted ends with its object.
        lease = c_void_p()
        self._call(lib.forebay_layers_acquire, layer, ctypes.byref(lease))
        return Lease(lease, layer, self.tensors, self.weight_dtype, self._worker, self._cuda)

    # ---- A step

    def begin_step(self, groups: Sequence[Group], *, clip: float = 0.0, loss_scale: float = 0.0) -> None:
        """groups: the settings of every group that the inventory names. Gradients are multiplied by 1 / loss_scale, and
        clipped to a norm of `clip` as torch.nn.utils.clip_grad_norm_ does it; 0: 1, and no clipping."""
        self._wait(lib.forebay_layers_begin_step, _step_options(groups, clip, loss_scale))

    def set_step(self, groups: Sequence[Group] = (), *, clip: float = 0.0, loss_scale: float = 0.0) -> None:
        """Replaces clip and loss_scale of the step in progress, and the groups where there are some. Before `update`,
        so that they may depend on the norm; where updates are applied in backward, before `finish_backward` and without
        groups."""
        self._wait(lib.forebay_layers_set_step, _step_options(groups, clip, loss_scale))

    def settle(self) -> None:
        """Applies what is left of the update of the step before: that of layers which were not read since. Call it
        between forward and backward where a step does not read all layers."""
        self._wait(lib.forebay_layers_settle)

    def add_gradient(self, tensor: int, dtype: str, gradient: Buffer) -> None:
        """Adds to the gradient of a tensor: all its elements, row-major, of `dtype`. Sums are fp32. A tensor that gets
        none in a step is left alone, moments too."""
        pinned = Pinned(gradient)
        self._worker.run(self._call_with, pinned, lib.forebay_layers_add_gradient, tensor,
                         index_of(DTYPES, dtype, "dtype"), pinned.address, pinned.num_bytes)

    def add_device_gradient(self, tensor: int, dtype: str, gradient: DeviceMemory, stream: int = 0) -> None:
        """The same of memory on the GPU of the layers, which work of `stream` has written (a cudaStream_t; 0: the
        default stream). The gradient is copied to RAM behind the call, and added by the next call of this step. Work
        that the stream is given later waits for the copy, so the memory is that work's to use.

        gradient: address, size in bytes, and an object that is kept until the call ends. UsageError also where layers
        are lent in RAM. EnvironmentProblem: the device failed; also of the next call.
        """
        pinned = Pinned(gradient)
        self._worker.run(self._call_with, pinned, lib.forebay_layers_add_device_gradient, tensor,
                         index_of(DTYPES, dtype, "dtype"), pinned.address, pinned.num_bytes,
                         whole(stream, "stream", 0, 2**64 - 1))

    def close_layer(self, layer: int) -> None:
        """No more gradients of this layer come in this step."""
        self._wait(lib.forebay_layers_close_layer, layer)

    def finish_backward(self) -> StepGradients:
        """Closes the layers that are open. Once in a step, before `update`, `skip` or `abandon`."""
        found = StepGradientsStruct(struct_size=ctypes.sizeof(StepGradientsStruct))
        self._wait(lib.forebay_layers_finish_backward, ctypes.byref(found))
        layer: int = found.nonfinite_layer
        return StepGradients(found.norm, None if layer < 0 else layer)

    def update(self, user: User | None = None, *, commit_now: bool = False) -> None:
        """Makes the step real. user: of at most 3 KiB as JSON, which its commit carries. commit_now: returns when it is
        durable. UsageError, and nothing changed: a gradient is not finite."""
        self._wait(lib.forebay_layers_update, *text_of(user), int(bool(commit_now)))

    def skip(self, user: User | None = None, *, commit_now: bool = False) -> None:
        """The step counts, and changes no weights."""
        self._wait(lib.forebay_layers_skip, *text_of(user), int(bool(commit_now)))

    def abandon(self) -> None:
        """The step never was. Also after an error, and for a step that has not begun."""
        self._worker.post(self._get, lib.forebay_layers_abandon)

    def commit(self, user: User | None = None) -> None:
        """Makes the last step durable, if it is not. user: takes the place of what the step was given; None: that.
        UsageError: the step is committed already with another `user`, a step is in progress, or a lease is out."""
        self._wait(lib.forebay_layers_commit, *((None, 0) if user is None else text_of(user)))

    def commit_once_applied(self, user: User | None = None) -> None:
        """The same, made once the step's update is applied: at once where it is, else by `settle` of the next step. It
        carries `user` (None: that of the step) and the raw tensors as they are now, which change within steps alone
        from here on. A crash until then leaves the step before."""
        self._wait(lib.forebay_layers_commit_once_applied, *((None, 0) if user is None else text_of(user)))

    # ---- How it stands

    @property
    def committed_step(self) -> int:
        """The last one that is durable; 0: that of the first weights."""
        return int(self._worker.quick(self._get, lib.forebay_layers_committed_step))

    @property
    def step(self) -> int:
        """The last one that is real."""
        return int(self._worker.quick(self._get, lib.forebay_layers_step))

    @property
    def user(self) -> User:
        """The `user` of the committed step."""
        user: User = self._json(lib.forebay_layers_user_json)
        return user

    def read(self, tensor: int, plane: str, values: Buffer, first: int = 0) -> None:
        """Copies elements of a plane ("master", "m" or "v") into `values` (fp32), as many
        as these hold, from element `first` on. UsageError: the last step is not committed, or the optimizer has no such
        plane."""
        pinned = Pinned(values, writable=True)
        self._worker.run(self._call_with, pinned, lib.forebay_layers_read, tensor,
                         index_of(_STATE, plane, "plane"), first, pinned.num_bytes // 4, pinned.address)

    def updates_of(self, tensor: int) -> int:
        """The updates that a tensor got: the committed step, less the steps in which it had no gradient."""
        count = c_int64()
        self._worker.quick(self._call, lib.forebay_layers_updates_of, tensor, ctypes.byref(count))
        return count.value

    def raw(self, tensor: int) -> memoryview:
        """The bytes of a raw tensor, until `close`: to be read at any time, and changed in a step, or behind it until
        `commit`."""
        data, num_bytes = c_void_p(), c_size_t()
        self._worker.quick(self._call, lib.forebay_layers_raw, tensor, ctypes.byref(data),
                           ctypes.byref(num_bytes))
        return memoryview((ctypes.c_char * num_bytes.value).from_address(data.value or 0)).cast("B")

    def snapshot(self) -> Snapshot:
        """The committed step, to be read while the next one is computed, written and committed. The first write of the
        step behind that one is a UsageError until the snapshot is closed. UsageError: the store has one copy."""
        handle = c_void_p()
        self._worker.run(self._call, lib.forebay_snapshot_create, ctypes.byref(handle))
        return Snapshot(handle)

    def stats(self) -> dict[str, Any]:
        """Bytes moved, time waited, memory taken, the engine; "leased_layers": as often as each is leased."""
        stats: dict[str, Any] = self._json(lib.forebay_layers_stats_json)
        return stats

    def stop(self) -> None:
        """Has `create`, `fill` and `open` end soon with StoppedError. Waits for nothing; from any thread."""
        self.check_process()
        with self._lock:
            if self._destroy.alive:
                lib.forebay_layers_stop(self._handle)


class Snapshot(Owned):
    """A committed step. Thread-safe; a reader's thread of its own is the place for it."""

    _closed: ClassVar[str] = "forebay: this snapshot is closed. Take another one."

    def __init__(self, handle: c_void_p) -> None:
        self._handle = handle
        self._end_with(lib.forebay_snapshot_destroy, handle)

    @property
    def step(self) -> int:
        """The committed one that it shows."""
        return int(lib.forebay_snapshot_step(self._use()))

    def read(self, tensor: int, plane: str, values: Buffer, first: int = 0) -> None:
        """Copies elements of a plane into `values`, as many as these hold, from element `first` on: of "master", "m"
        and "v" fp32, of "weight" bf16, of "raw" bytes."""
        pinned = Pinned(values, writable=True)
        call(lib.forebay_snapshot_read, self._use(), tensor, index_of(PLANES, plane, "plane"), first,
             pinned.num_bytes // PLANE_BYTES[plane], pinned.address)


def _end(lock: threading.Lock, handle: c_void_p) -> None:
    with lock:
        lib.forebay_layers_destroy(handle)


def _cuda_index_of(device: str) -> int | None:
    """None: RAM."""
    found = re.fullmatch(r"cpu|cuda(?::([0-9]+))?", device)
    if found is None:
        raise UsageError(f"forebay: device={device!r} is not known. Use \"cpu\", \"cuda\", or \"cuda:1\" and so on.")
    return None if device == "cpu" else int(found[1] or 0)


def _step_options(groups: Sequence[Group], clip: float, loss_scale: float) -> StepOptions:
    return StepOptions(struct_size=ctypes.sizeof(StepOptions), groups=(Group * len(groups))(*groups),
                       num_groups=len(groups), clip=clip, loss_scale=loss_scale)


__all__ = ["Layers", "Snapshot", "StepGradients"]
