"""Finds, loads and declares libforebay.so (capi/c.h), and passes buffers to it.

The library lies in this package; a checkout names its own in FOREBAY_LIBRARY.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from types import TracebackType
from typing import Any, ClassVar, TypeVar, Union

from forebay._forks import check_process
from forebay._given import json_of, real, whole
from forebay.errors import UsageError, check

ABI_VERSION = 1

DTYPES = {"f32": 0, "bf16": 1, "f16": 2}
DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
DURABILITIES = {"auto": 0, "none": 1, "step": 2}
ENGINES = {"auto": 0, "uring": 1, "libaio": 2, "threads": 3}
PLANES = {"master": 0, "m": 1, "v": 2, "weight": 3, "raw": 4}
PLANE_BYTES = {"master": 4, "m": 4, "v": 4, "weight": 2, "raw": 1}
OPTIMIZERS = {"adamw": 0, "adam": 1, "adagrad": 2, "lion": 3, "sgd": 4}

# Anything with the buffer protocol, contiguous; or (address, size in bytes) of memory that outlives the call; or
# (address, size in bytes, owner), where the owner is kept until the call ends.
Buffer = Union[bytes, bytearray, memoryview, "tuple[int, int]", "tuple[int, int, object]", Any]


# The numbers that a type holds: ctypes cuts off what is more.
_LIMITS: dict[Any, tuple[int, int]] = {c_int32: (-2**31, 2**31 - 1), c_int64: (-2**63, 2**63 - 1),
                                       c_size_t: (0, 2**64 - 1), c_uint64: (0, 2**64 - 1)}
_FLAGS = frozenset({"nesterov", "frozen", "update_in_backward", "without_m", "without_v", "is_write", "round_weights"})


def _checked(kind: Any, value: Any, name: str) -> Any:
    """UsageError: the type does not hold the value."""
    if kind in _LIMITS:
        return whole(value, name, *_LIMITS[kind])
    return real(value, name) if kind is c_double else value


def array_of(kind: Any, values: Sequence[Any], name: str) -> Any:
    """An array of C. UsageError: its type does not hold one of the values."""
    return (kind * len(values))(*[_checked(kind, value, f"{name}[{number}]") for number, value in enumerate(values)])


class Struct(ctypes.Structure):
    """Its fields by name, or in their order. UsageError: one of them does not hold what is given."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        kinds = dict(self._fields_)  # type: ignore[arg-type]
        given = {**dict(zip(kinds, values)), **fields}
        for name, value in given.items():
            is_flag = name in _FLAGS and isinstance(value, bool)
            given[name] = int(value) if is_flag else _checked(kinds.get(name), value, name.rstrip("_"))
        super().__init__(**given)


class Group(Struct):
    """forebay_group."""

    _fields_ = [("lr", c_double), ("weight_decay", c_double), ("beta1", c_double), ("beta2", c_double),
                ("eps", c_double), ("frozen", c_int32), ("reserved", c_int32)]


class LayersOptions(Struct):
    """forebay_layers_options."""

    _fields_ = [("struct_size", c_size_t), ("folders", POINTER(c_char_p)), ("num_folders", c_size_t),
                ("folder_weights", POINTER(c_double)), ("ram_bytes", c_int64), ("weight_dtype", c_int32),
                ("gradient_dtype", c_int32), ("optimizer", c_int32), ("nesterov", c_int32), ("momentum", c_double),
                ("weights_tier", c_int32), ("state_tier", c_int32), ("gradients_tier", c_int32),
                ("durability", c_int32), ("commit_every", c_int64), ("engine", c_int32), ("num_threads", c_int32),
                ("pass_", c_int32), ("num_open_layers", c_int32), ("num_window_layers", c_int32),
                ("update_in_backward", c_int32), ("tile_elems", c_int64), ("device", c_int32),
                ("device_index", c_int32), ("ranks", c_void_p), ("zero_stage", c_int32), ("reduce_dtype", c_int32),
                ("reduce_bucket_bytes", c_int64)]


class RanksOptions(Struct):
    """forebay_ranks_options."""

    _fields_ = [("struct_size", c_size_t), ("timeout_s", c_double), ("size", c_int32), ("rank", c_int32),
                ("master_address", c_char_p), ("master_port", c_int32), ("reserved", c_int32)]


class TensorsOptions(Struct):
    """forebay_tensors_options."""

    _fields_ = [("struct_size", c_size_t), ("folders", POINTER(c_char_p)), ("num_folders", c_size_t),
                ("ram_bytes", c_int64), ("lease_bytes", c_int64), ("wait_limit_s", c_double),
                ("weight_dtype", c_int32), ("without_m", c_int32), ("without_v", c_int32), ("durability", c_int32),
                ("engine", c_int32), ("reserved", c_int32), ("tile_elems", c_int64)]


class LeaseRequest(Struct):
    """forebay_lease_request."""

    _fields_ = [("tensor", c_int32), ("plane", c_int32), ("access", c_int32), ("reserved", c_int32)]


class StepOptions(Struct):
    """forebay_step_options."""

    _fields_ = [("struct_size", c_size_t), ("groups", POINTER(Group)), ("num_groups", c_size_t), ("clip", c_double),
                ("loss_scale", c_double)]


class StepGradientsStruct(Struct):
    """forebay_step_gradients."""

    _fields_ = [("struct_size", c_size_t), ("norm", c_double), ("nonfinite_layer", c_int32), ("reserved", c_int32)]


class KernelRun(Struct):
    """forebay_kernel_run."""

    _fields_ = [("struct_size", c_size_t), ("optimizer", c_int32), ("nesterov", c_int32), ("weight_dtype", c_int32),
                ("gradient_dtype", c_int32), ("num_elems", c_int64), ("weights", c_void_p), ("remainder", c_void_p),
                ("master", c_void_p), ("m", c_void_p), ("v", c_void_p), ("gradient", c_void_p), ("group", Group),
                ("step", c_int64), ("gradient_scale", c_double), ("round_weights", c_int32), ("moment_dtype", c_int32)]


class IoOptions(Struct):
    """forebay_io_options."""

    _fields_ = [("struct_size", c_size_t), ("engine", c_int32), ("num_threads", c_int32), ("block_bytes", c_int64),
                ("max_in_flight_bytes", c_int64)]


class IoRequest(Struct):
    """forebay_io_request."""

    _fields_ = [("struct_size", c_size_t), ("is_write", c_int32), ("fd", c_int32), ("path", c_char_p),
                ("path_length", c_size_t), ("offset_bytes", c_int64), ("data", c_void_p), ("num_bytes", c_size_t)]


_P = c_void_p  # an opaque object, or data
_TEXT = (c_char_p, c_size_t)
_OUT = POINTER(c_void_p)
_LAYERS = "forebay_layers_"
_SNAPSHOT = "forebay_snapshot_"
_TENSORS = "forebay_tensors_"
_TENSOR_LEASE = "forebay_tensor_lease_"
_KERNELS = "forebay_kernels_"

# Results and arguments of each function. Those of _CHECKED return a code and take `char** message` last.
_PLAIN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "forebay_abi_version": (c_int32, ()),
    "forebay_version": (c_char_p, ()),
    "forebay_free": (None, (_P,)),
    "forebay_inventory_create": (_P, ()),
    "forebay_inventory_destroy": (None, (_P,)),
    "forebay_ranks_destroy": (None, (_P,)),
    "forebay_ranks_abort": (None, (_P,)),
    "forebay_ranks_rank": (c_int32, (_P,)),
    "forebay_ranks_size": (c_int32, (_P,)),
    "forebay_ranks_local_rank": (c_int32, (_P,)),
    _LAYERS + "destroy": (None, (_P,)),
    _LAYERS + "exists": (c_int32, (_P,)),
    _LAYERS + "cancel_expected": (None, (_P,)),
    "forebay_lease_data": (_P, (_P, c_int32)),
    "forebay_lease_bytes": (_P, (_P, POINTER(c_size_t))),
    "forebay_lease_release": (None, (_P,)),
    "forebay_lease_dlpack": (_P, (_P, c_int32)),
    _LAYERS + "abandon": (None, (_P,)),
    _LAYERS + "committed_step": (c_int64, (_P,)),
    _LAYERS + "step": (c_int64, (_P,)),
    _LAYERS + "stop": (None, (_P,)),
    _SNAPSHOT + "destroy": (None, (_P,)),
    _SNAPSHOT + "step": (c_int64, (_P,)),
    _TENSORS + "destroy": (None, (_P,)),
    _TENSORS + "committed_step": (c_int64, (_P,)),
    _TENSOR_LEASE + "data": (_P, (_P, POINTER(c_size_t))),
    _TENSOR_LEASE + "dlpack": (_P, (_P,)),
    _TENSOR_LEASE + "discard": (None, (_P,)),
    _KERNELS + "destroy": (None, (_P,)),
    "forebay_io_destroy": (None, (_P,)),
    "forebay_memory_create": (_P, ()),
    "forebay_memory_destroy": (None, (_P,)),
    "forebay_memory_free": (c_int32, (_P, _P)),
    "forebay_memory_contains": (c_int32, (_P, _P, c_size_t)),
}
_CHECKED: dict[str, tuple[Any, ...]] = {
    "forebay_inventory_begin_layer": (_P, *_TEXT),
    "forebay_inventory_add": (_P, *_TEXT, POINTER(c_int64), c_int32, c_int32, POINTER(c_int32)),
    "forebay_inventory_begin_raw_layer": (_P, *_TEXT),
    "forebay_inventory_add_raw": (_P, *_TEXT, c_int64, POINTER(c_int32)),
    "forebay_ranks_connect": (POINTER(RanksOptions), _OUT),
    "forebay_ranks_warning": (_P, _OUT),
    "forebay_ranks_barrier": (_P,),
    "forebay_ranks_sum": (_P, _P, c_size_t),
    "forebay_ranks_sum_parts": (_P, _P, POINTER(c_int64)),
    "forebay_ranks_gather_parts": (_P, _P, POINTER(c_int64)),
    "forebay_ranks_broadcast": (_P, _P, c_size_t, c_int32),
    _LAYERS + "new": (POINTER(LayersOptions), _P, _OUT),
    _LAYERS + "plan_json": (_P, _OUT),
    _LAYERS + "remove": (_P,),
    _LAYERS + "create": (_P,),
    _LAYERS + "fill": (_P, c_int32, c_int32, _P, c_size_t),
    _LAYERS + "start": (_P, *_TEXT),
    _LAYERS + "create_from": (_P, POINTER(c_char_p), c_size_t),
    _LAYERS + "open": (_P,),
    _LAYERS + "expect": (_P, POINTER(c_int32), c_size_t),
    _LAYERS + "acquire": (_P, c_int32, _OUT),
    "forebay_lease_ready": (_P, _P),
    _LAYERS + "begin_step": (_P, POINTER(StepOptions)),
    _LAYERS + "set_step": (_P, POINTER(StepOptions)),
    _LAYERS + "settle": (_P,),
    _LAYERS + "add_gradient": (_P, c_int32, c_int32, _P, c_size_t),
    _LAYERS + "add_device_gradient": (_P, c_int32, c_int32, _P, c_size_t, _P),
    _LAYERS + "close_layer": (_P, c_int32),
    _LAYERS + "finish_backward": (_P, POINTER(StepGradientsStruct)),
    _LAYERS + "update": (_P, *_TEXT, c_int32),
    _LAYERS + "skip": (_P, *_TEXT, c_int32),
    _LAYERS + "commit": (_P, *_TEXT),
    _LAYERS + "commit_once_applied": (_P, *_TEXT),
    _LAYERS + "user_json": (_P, _OUT),
    _LAYERS + "read": (_P, c_int32, c_int32, c_int64, c_int64, _P),
    _LAYERS + "updates_of": (_P, c_int32, POINTER(c_int64)),
    _LAYERS + "raw": (_P, c_int32, _OUT, POINTER(c_size_t)),
    _LAYERS + "stats_json": (_P, _OUT),
    _SNAPSHOT + "create": (_P, _OUT),
    _SNAPSHOT + "read": (_P, c_int32, c_int32, c_int64, c_int64, _P),
    _TENSORS + "create": (POINTER(TensorsOptions), _P, _OUT),
    _TENSORS + "open": (POINTER(TensorsOptions), _OUT),
    _TENSORS + "inventory_json": (_P, _OUT),
    _TENSORS + "acquire": (_P, POINTER(LeaseRequest), c_size_t, _OUT),
    _TENSORS + "expect": (_P, c_int32, c_int32),
    _TENSOR_LEASE + "release": (_P,),
    _TENSORS + "commit": (_P, c_int64, *_TEXT),
    _TENSORS + "abort": (_P,),
    _TENSORS + "user_json": (_P, _OUT),
    _TENSORS + "read": (_P, c_int32, c_int32, c_int64, c_int64, _P),
    _TENSORS + "stats_json": (_P, _OUT),
    _KERNELS + "create": (c_int32, _OUT),
    _KERNELS + "update": (_P, POINTER(KernelRun), c_size_t),
    _KERNELS + "split": (_P, _P, c_int64, _P, _P),
    _KERNELS + "join": (_P, _P, _P, c_int64, _P),
    _KERNELS + "sum_of_squares": (_P, c_int32, _P, c_int64, POINTER(c_double)),
    "forebay_io_create": (POINTER(IoOptions), _OUT),
    "forebay_io_submit": (_P, POINTER(IoRequest), POINTER(c_uint64)),
    "forebay_io_wait": (_P, c_uint64),
    "forebay_io_wait_all": (_P, POINTER(c_int64)),
    "forebay_io_stats_json": (_P, _OUT),
    "forebay_memory_allocate": (_P, c_size_t, _OUT),
    "forebay_memory_note": (_P, _OUT),
}


def _load() -> ctypes.CDLL:
    named = os.environ.get("FOREBAY_LIBRARY")
    path = named or os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", "libforebay.so")
    if not os.path.exists(path):
        raise ImportError(
            f"forebay: there is no library at {path}. " +
            ("FOREBAY_LIBRARY names it: correct that, or unset it to take the package's own." if named else
             "Install the wheel; or build the target forebay_shared in a checkout, and name build/lib/libforebay.so "
             "in the environment variable FOREBAY_LIBRARY."))
    try:
        library = ctypes.CDLL(path)
        library.forebay_abi_version.restype = c_int32
        version = library.forebay_abi_version()
    except (OSError, AttributeError) as error:
        raise ImportError(f"forebay: {path} cannot be loaded ({error}). Install a wheel of this machine's kind, or "
                          "build the target forebay_shared again.") from error
    if version != ABI_VERSION:
        raise ImportError(f"forebay: {path} has version {version} of the C interface, and this package needs "
                          f"{ABI_VERSION}. Take both from the same wheel or checkout.")
    try:
        for name, (result, arguments) in _PLAIN.items():
            getattr(library, name).restype = result
            getattr(library, name).argtypes = arguments
        for name, arguments in _CHECKED.items():
            getattr(library, name).restype = c_int32
            getattr(library, name).argtypes = (*arguments, POINTER(c_void_p))
    except AttributeError as error:
        raise ImportError(f"forebay: {path} lacks a function that this package needs ({error}). Take both from the "
                          "same wheel or checkout.") from error
    return library


lib = _load()
version: str = lib.forebay_version().decode()


def call(function: Any, *arguments: Any) -> None:
    """Calls a function of _CHECKED, and raises what it reports. UsageError: a number is too large for its type."""
    for kind, value in zip(getattr(function, "argtypes", None) or (), arguments):
        if kind in _LIMITS:
            whole(value, f"a number that {function.__name__} is given", *_LIMITS[kind])
    message = c_void_p()
    code = function(*arguments, ctypes.byref(message))
    if code != 0:
        check(lib, code, message)


def take_text(function: Any, handle: Any) -> str:
    """The text that a function gives; it is freed."""
    text = c_void_p()
    call(function, handle, ctypes.byref(text))
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        lib.forebay_free(text)


def destroy(process: int, function: Any, *arguments: Any) -> None:
    """Ends an object: `process` made it. A fork has none of its threads, and leaves it alone."""
    if process == os.getpid():
        function(*arguments)


_Self = TypeVar("_Self", bound="Owned")


class Owned:
    """An object of the library. It ends with `close`, with a `with`, or when it is collected; in a fork of its process,
    where every other call is a UsageError, these do nothing."""

    _closed: ClassVar[str]  # the error of a use after that
    _handle: c_void_p
    _process: int  # that made it
    _destroy: Any  # weakref.finalize

    def _end_with(self, function: Any, *arguments: Any) -> None:
        """How the object ends, in this process."""
        self._process = os.getpid()
        self._destroy = weakref.finalize(self, destroy, self._process, function, *arguments)

    def check_process(self) -> None:
        """UsageError: this is a fork of the process that made the object."""
        check_process(self._process, f"{type(self).__name__}")

    def close(self) -> None:
        """Ends the object. Called again, it does nothing."""
        self._destroy()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._process == os.getpid():
            self.close()

    def _use(self) -> c_void_p:
        self.check_process()
        if not self._destroy.alive:
            raise UsageError(self._closed)
        return self._handle


class _PyBuffer(ctypes.Structure):
    """Py_buffer. ctypes' own from_buffer refuses buffers that are to be read only."""

    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p), ("suboffsets", c_void_p),
                ("internal", c_void_p)]


_WRITABLE = 1  # PyBUF_WRITABLE
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (POINTER(_PyBuffer),)
_release_buffer.restype = None


class Pinned:
    """Where a buffer lies: `address` and `num_bytes`, which hold until the object goes.

    TypeError: it has no buffer protocol. BufferError, of NumPy ValueError: it is not contiguous, or to be written to
    and read-only.
    """

    def __init__(self, buffer: Buffer, writable: bool = False) -> None:
        self.address: int
        self.num_bytes: int
        self._owner: object
        if isinstance(buffer, tuple):
            self.address, self.num_bytes, self._owner = (*buffer, None)[:3]
            return
        view = _PyBuffer()
        try:
            _get_buffer(buffer, ctypes.byref(view), _WRITABLE if writable else 0)
            self.address, self.num_bytes = view.buf or 0, view.len
            # A memory view ends in C code: Python drops an interrupt that comes while a __del__ runs.
            self._owner = memoryview(buffer)
        except ValueError:
            if not view.obj:
                raise
            self._owner = buffer  # an array of NumPy whose dtype has no format in the protocol, such as bfloat16
        finally:
            _release_buffer(ctypes.byref(view))

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._owner = None


def text_of(user: dict[str, Any] | None) -> tuple[bytes, int]:
    """An object of the caller's as JSON, and its length. UsageError: JSON has no such values."""
    text = json_of(user)
    return text, len(text)


def index_of(names: dict[str, int], name: str, option: str) -> int:
    """The number of a name; UsageError lists the names that there are."""
    if name not in names:
        raise UsageError(f"forebay: {option}={name!r} is not known. Use one of: {', '.join(names)}.")
    return names[name]
