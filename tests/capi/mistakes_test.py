"""Every function of c.h with arguments that are wrong: none of them ends the process, and none changes anything.

  mistakes_test.py HEADER

FOREBAY_LIBRARY names the library, and PYTHONPATH has the package `forebay`. The functions are those of the header: one
that has no call in RIGHT fails the test. Calls are made in child processes, so that one that crashes is named.
"""

import ctypes
import json
import mmap
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from ctypes import byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p, sizeof

from forebay import _library as declared

OK, INTERNAL, USAGE = 0, 1, 2
NUM_ELEMS = 1000
NUMBERS = {"int32_t": c_int32, "int64_t": c_int64, "size_t": c_size_t, "uint64_t": c_uint64, "double": c_double}
# The worst numbers of a type. size_t has none: it tells what memory the caller has, which only he knows.
WORST = {c_int32: (-1, 2**31 - 1, -(2**31)), c_int64: (-1, 2**62, -(2**63)), c_uint64: (0, 2**64 - 1),
         c_double: (-1.0, float("nan"), float("inf"), 1e300), c_size_t: ()}
# These tell that too.
MEMORY_OF_THE_CALLER = {("forebay_kernels_split", "num_elems"), ("forebay_kernels_join", "num_elems"),
                        ("forebay_kernels_sum_of_squares", "num_elems"), ("forebay_inventory_add", "rank"),
                        ("KernelRun", "num_elems")}
# Pointers that c.h lets be NULL beside others that are not.
MAY_BE_NULL = {("forebay_inventory_add", "index"), ("forebay_inventory_add_raw", "index"),
               ("forebay_layers_commit", "user"), ("forebay_layers_commit_once_applied", "user"),
               ("forebay_layers_raw", "num_bytes"), ("forebay_lease_ready", "stream"),
               ("forebay_layers_add_device_gradient", "stream"), ("forebay_io_wait_all", "num_ended")}
# NULL is released for free.
NULL_IS_OK = {("forebay_tensor_lease_release", "lease")}
# A call without a code that is given nothing returns NULL, or this.
OF_NOTHING = {"forebay_layers_committed_step": -1, "forebay_layers_step": -1, "forebay_snapshot_step": -1,
              "forebay_tensors_committed_step": -1, "forebay_abi_version": 1, "forebay_layers_exists": 0,
              "forebay_memory_free": 0, "forebay_memory_contains": 0, "forebay_ranks_rank": -1,
              "forebay_ranks_size": -1, "forebay_ranks_local_rank": -1}
GIVE_WITHOUT_BEING_GIVEN = {"forebay_version", "forebay_inventory_create", "forebay_memory_create"}


# ---- The header --------------------------------------------------------------------------------------------------


class Function:
    """A function of c.h: its result and parameters, as ctypes has them."""

    def __init__(self, result, name, parameters):
        self.name = name
        self.result = c_void_p if "*" in result else None if result == "void" else NUMBERS[result]
        self.parameters = []  # (name, type)
        for parameter in [] if parameters == "void" else parameters.split(","):
            kind, spelled = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", parameter, re.DOTALL).groups()
            self.parameters.append((spelled, c_void_p if "*" in kind else NUMBERS[kind]))
        self.has_message = self.parameters[-1:] == [("message", c_void_p)]
        self.given = self.parameters[:-1] if self.has_message else self.parameters


def functions_of(header):
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    found = re.findall(r"^((?:const )?\w+\*?) (forebay_\w+)\(([^;]*?)\);", text, re.MULTILINE | re.DOTALL)
    if len(found) != len(re.findall(r"\bforebay_\w+\(", text)):
        sys.exit("a declaration of c.h is of a form that this test does not read")
    return {name: Function(result, name, parameters) for result, name, parameters in found}


def check_python_declarations(functions):
    """Those of the Python package are the header's."""
    ours = dict(declared._PLAIN)
    for name, arguments in declared._CHECKED.items():
        ours[name] = (c_int32, (*arguments, c_void_p))
    if set(ours) != set(functions):
        sys.exit(f"declared in c.h or in _library.py alone: {sorted(set(ours) ^ set(functions))}")
    scalars = set(NUMBERS.values())
    for name, (result, arguments) in ours.items():
        kinds = [kind if kind in scalars else c_void_p for kind in (result, *arguments) if kind is not None]
        wanted = [kind for kind in (functions[name].result, *(kind for _, kind in functions[name].parameters)) if kind]
        if kinds != wanted:
            sys.exit(f"{name}: _library.py declares {kinds}, and c.h {wanted}")


# ---- Right calls -------------------------------------------------------------------------------------------------


class World:
    """The objects that calls are made on, and what is passed to them. A NULL is an object that is not there."""

    def __init__(self, functions, folder):
        self.functions, self.folder = functions, folder
        self.lib = ctypes.CDLL(os.environ["FOREBAY_LIBRARY"])
        for function in functions.values():
            entry = getattr(self.lib, function.name)
            entry.restype, entry.argtypes = function.result, [kind for _, kind in function.parameters]
        for name in ("inventory", "ranks", "layers", "lease", "snapshot", "tensors", "tensor_lease", "kernels", "io",
                     "memory", "block", "text"):
            setattr(self, name, c_void_p())
        self.kept = []  # leases that are left when another is acquired
        self.values = (c_float * NUM_ELEMS)(*[0.001 * i for i in range(NUM_ELEMS)])
        self.halves, self.remainder = (ctypes.create_string_buffer(2 * NUM_ELEMS) for _ in range(2))
        self.moments = [(c_float * NUM_ELEMS)() for _ in range(2)]
        self.read = []  # what reads have given
        self.shape, self.index, self.order = (c_int64 * 1)(NUM_ELEMS), c_int32(), (c_int32 * 1)(0)
        self.parts = (c_int64 * 2)(0, NUM_ELEMS)  # of one rank
        self.size, self.count, self.sum = c_size_t(), c_int64(), c_double()
        self.ticket, self.address = c_uint64(), c_void_p()
        group = declared.Group(lr=0.01, weight_decay=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
        self.groups = (declared.Group * 1)(group)
        folders = (c_char_p * 1)(str(folder / "layers").encode())
        of_tensors = (c_char_p * 1)(str(folder / "tensors").encode())
        weights = (c_double * 1)(1.0)
        self.other_folders = (c_char_p * 1)(str(folder / "another").encode())
        self.keep = [folders, of_tensors, weights]
        self.ranks_options = self.struct(declared.RanksOptions, size=1)  # others would be waited for
        self.layers_options = self.struct(declared.LayersOptions, folders=folders, num_folders=1,
                                          folder_weights=weights, ram_bytes=64 << 20, num_threads=1,
                                          commit_every=-1, tile_elems=4096)
        self.tensors_options = self.struct(declared.TensorsOptions, folders=of_tensors, num_folders=1,
                                           ram_bytes=1 << 20, wait_limit_s=0.1, tile_elems=4096)
        self.step_options = self.struct(declared.StepOptions, groups=self.groups, num_groups=1, clip=1.0)
        self.gradients = self.struct(declared.StepGradientsStruct)
        self.request = declared.LeaseRequest(tensor=0, plane=0, access=1)
        at = [ctypes.cast(array, c_void_p) for array in (self.values, *self.moments)]
        self.run = self.struct(declared.KernelRun, num_elems=NUM_ELEMS, weights=at[0], gradient=at[0], m=at[1], v=at[2],
                               group=group, step=1)
        self.io_options = self.struct(declared.IoOptions)
        path = str(folder / "file").encode()
        self.io_request = self.struct(declared.IoRequest, is_write=1, path=path, path_length=len(path), data=at[0],
                                      num_bytes=4 * NUM_ELEMS)

    @staticmethod
    def struct(kind, **fields):
        return kind(struct_size=sizeof(kind), **fields)

    def call(self, name, arguments, with_message=True):
        """The result, and the message of one that fails. What is called is written down before."""
        function = self.functions[name]
        _note(f"{name}({', '.join(map(str, arguments))})")
        if not function.has_message:
            return getattr(self.lib, name)(*arguments), None
        message = c_void_p()
        code = getattr(self.lib, name)(*arguments, byref(message) if with_message else None)
        text = ctypes.string_at(message.value).decode() if message.value else None
        self.lib.forebay_free(message)
        return code, text

    def right(self, name, nulls=False):
        """The right call: with NULL where that may be, too."""
        arguments = RIGHT[name](self)
        if nulls:
            arguments = [None if (name, parameter) in MAY_BE_NULL else argument
                         for argument, (parameter, _) in zip(arguments, self.functions[name].given)]
        held = {"forebay_layers_acquire": self.lease, "forebay_tensors_acquire": self.tensor_lease}.get(name)
        before = held.value if held is not None else None
        result, message = self.call(name, arguments)
        if before is not None and result == OK:
            self.kept.append((name, before))
        if name in ENDS and (not self.functions[name].has_message or result == OK):
            getattr(self, ENDS[name]).value = None
        if name.endswith("_create") and not arguments:
            getattr(self, name.split("_")[1]).value = result
        if name.endswith("_dlpack") and result:
            ctypes.CFUNCTYPE(None, c_void_p).from_address(result + 56)(result)  # its deleter
        if name.endswith("_read") and result == OK:
            self.read.append(bytes(self.moments[0]).hex())
        return result, message

    def end(self):
        for name, lease in self.kept:
            if "layers" in name:
                self.lib.forebay_lease_release(lease)
            else:
                self.lib.forebay_tensor_lease_discard(lease)
        self.kept = []
        for name in ENDS:
            if self.functions[name].result is None:
                self.right(name)


# The arguments of each call before its message, in the order of the header.
RIGHT = {
    "abi_version": lambda w: [],
    "version": lambda w: [],
    "free": lambda w: [w.text],
    "inventory_create": lambda w: [],
    "inventory_destroy": lambda w: [w.inventory],
    "inventory_begin_layer": lambda w: [w.inventory, b"layer", 5],
    "inventory_add": lambda w: [w.inventory, b"weight", 6, w.shape, 1, 0, byref(w.index)],
    "inventory_begin_raw_layer": lambda w: [w.inventory, b"buffers", 7],
    "inventory_add_raw": lambda w: [w.inventory, b"count", 5, 8, byref(w.index)],
    "ranks_connect": lambda w: [byref(w.ranks_options), byref(w.ranks)],
    "ranks_destroy": lambda w: [w.ranks],
    "ranks_rank": lambda w: [w.ranks],
    "ranks_size": lambda w: [w.ranks],
    "ranks_local_rank": lambda w: [w.ranks],
    "ranks_warning": lambda w: [w.ranks, byref(w.text)],
    "ranks_abort": lambda w: [w.ranks],
    "ranks_barrier": lambda w: [w.ranks],
    "ranks_sum": lambda w: [w.ranks, w.values, NUM_ELEMS],
    "ranks_sum_parts": lambda w: [w.ranks, w.values, w.parts],
    "ranks_gather_parts": lambda w: [w.ranks, w.halves, w.parts],
    "ranks_broadcast": lambda w: [w.ranks, w.halves, 2 * NUM_ELEMS, 0],
    "layers_new": lambda w: [byref(w.layers_options), w.inventory, byref(w.layers)],
    "layers_destroy": lambda w: [w.layers],
    "layers_plan_json": lambda w: [w.layers, byref(w.text)],
    "layers_exists": lambda w: [w.layers],
    "layers_remove": lambda w: [w.layers],
    "layers_create": lambda w: [w.layers],
    "layers_fill": lambda w: [w.layers, 0, 0, w.values, 4 * NUM_ELEMS],
    "layers_start": lambda w: [w.layers, b"{}", 2],
    "layers_create_from": lambda w: [w.layers, w.other_folders, 1],
    "layers_open": lambda w: [w.layers],
    "layers_expect": lambda w: [w.layers, w.order, 1],
    "layers_cancel_expected": lambda w: [w.layers],
    "layers_acquire": lambda w: [w.layers, 0, byref(w.lease)],
    "lease_data": lambda w: [w.lease, 0],
    "lease_bytes": lambda w: [w.lease, byref(w.size)],
    "lease_ready": lambda w: [w.lease, None],
    "lease_release": lambda w: [w.lease],
    "lease_dlpack": lambda w: [w.lease, 0],
    "layers_begin_step": lambda w: [w.layers, byref(w.step_options)],
    "layers_set_step": lambda w: [w.layers, byref(w.step_options)],
    "layers_settle": lambda w: [w.layers],
    "layers_add_gradient": lambda w: [w.layers, 0, 0, w.values, 4 * NUM_ELEMS],
    "layers_add_device_gradient": lambda w: [w.layers, 0, 0, w.values, 4 * NUM_ELEMS, None],
    "layers_close_layer": lambda w: [w.layers, 0],
    "layers_finish_backward": lambda w: [w.layers, byref(w.gradients)],
    "layers_update": lambda w: [w.layers, b'{"a":1}', 7, 0],
    "layers_skip": lambda w: [w.layers, b'{"a":2}', 7, 0],
    "layers_abandon": lambda w: [w.layers],
    "layers_commit": lambda w: [w.layers, b'{"a":3}', 7],
    "layers_commit_once_applied": lambda w: [w.layers, b'{"a":4}', 7],
    "layers_committed_step": lambda w: [w.layers],
    "layers_step": lambda w: [w.layers],
    "layers_user_json": lambda w: [w.layers, byref(w.text)],
    "layers_read": lambda w: [w.layers, 0, 1, 0, NUM_ELEMS, w.moments[0]],
    "layers_updates_of": lambda w: [w.layers, 0, byref(w.count)],
    "layers_raw": lambda w: [w.layers, 1, byref(w.address), byref(w.size)],
    "layers_stats_json": lambda w: [w.layers, byref(w.text)],
    "layers_stop": lambda w: [w.layers],
    "snapshot_create": lambda w: [w.layers, byref(w.snapshot)],
    "snapshot_destroy": lambda w: [w.snapshot],
    "snapshot_step": lambda w: [w.snapshot],
    "snapshot_read": lambda w: [w.snapshot, 0, 0, 0, NUM_ELEMS, w.moments[0]],
    "tensors_create": lambda w: [byref(w.tensors_options), w.inventory, byref(w.tensors)],
    "tensors_open": lambda w: [byref(w.tensors_options), byref(w.tensors)],
    "tensors_destroy": lambda w: [w.tensors],
    "tensors_inventory_json": lambda w: [w.tensors, byref(w.text)],
    "tensors_acquire": lambda w: [w.tensors, byref(w.request), 1, byref(w.tensor_lease)],
    "tensors_expect": lambda w: [w.tensors, 0, 1],
    "tensor_lease_data": lambda w: [w.tensor_lease, byref(w.size)],
    "tensor_lease_dlpack": lambda w: [w.tensor_lease],
    "tensor_lease_release": lambda w: [w.tensor_lease],
    "tensor_lease_discard": lambda w: [w.tensor_lease],
    "tensors_commit": lambda w: [w.tensors, 1, b"{}", 2],
    "tensors_abort": lambda w: [w.tensors],
    "tensors_committed_step": lambda w: [w.tensors],
    "tensors_user_json": lambda w: [w.tensors, byref(w.text)],
    "tensors_read": lambda w: [w.tensors, 0, 0, 0, NUM_ELEMS, w.moments[0]],
    "tensors_stats_json": lambda w: [w.tensors, byref(w.text)],
    "kernels_create": lambda w: [1, byref(w.kernels)],
    "kernels_destroy": lambda w: [w.kernels],
    "kernels_update": lambda w: [w.kernels, byref(w.run), 1],
    "kernels_split": lambda w: [w.kernels, w.values, NUM_ELEMS, w.halves, w.remainder],
    "kernels_join": lambda w: [w.kernels, w.halves, w.remainder, NUM_ELEMS, w.moments[0]],
    "kernels_sum_of_squares": lambda w: [w.kernels, 0, w.values, NUM_ELEMS, byref(w.sum)],
    "io_create": lambda w: [byref(w.io_options), byref(w.io)],
    "io_destroy": lambda w: [w.io],
    "io_submit": lambda w: [w.io, byref(w.io_request), byref(w.ticket)],
    "io_wait": lambda w: [w.io, w.ticket.value],
    "io_wait_all": lambda w: [w.io, byref(w.count)],
    "io_stats_json": lambda w: [w.io, byref(w.text)],
    "memory_create": lambda w: [],
    "memory_destroy": lambda w: [w.memory],
    "memory_allocate": lambda w: [w.memory, 100, byref(w.block)],
    "memory_free": lambda w: [w.memory, w.block],
    "memory_contains": lambda w: [w.memory, w.block, 100],
    "memory_note": lambda w: [w.memory, byref(w.text)],
}
RIGHT = {f"forebay_{name}": arguments for name, arguments in RIGHT.items()}
# Calls that end an object: in this order, where all are ended.
ENDS = {"free": "text", "lease_release": "lease", "tensor_lease_release": "tensor_lease",
        "tensor_lease_discard": "tensor_lease", "snapshot_destroy": "snapshot", "layers_destroy": "layers",
        "tensors_destroy": "tensors", "inventory_destroy": "inventory", "kernels_destroy": "kernels",
        "io_destroy": "io", "memory_destroy": "memory", "ranks_destroy": "ranks"}
ENDS = {f"forebay_{name}": what for name, what in ENDS.items()}
STRUCTS = {"ranks_connect": "ranks_options", "layers_new": "layers_options",
           "tensors_create": "tensors_options", "tensors_open": "tensors_options",
           "layers_begin_step": "step_options", "layers_set_step": "step_options",
           "layers_finish_backward": "gradients", "tensors_acquire": "request", "kernels_update": "run",
           "io_create": "io_options", "io_submit": "io_request"}
# The parameter names of objects that a fork must not use.
OF_ONE_PROCESS = {"ranks", "layers", "lease", "snapshot", "tensors", "kernels", "io", "memory"}
# Whole runs, every call of which is right. `free` is of the text before it.
_INVENTORY = "inventory_create inventory_begin_layer inventory_add inventory_begin_raw_layer inventory_add_raw"
_STEP = ("layers_begin_step layers_expect layers_acquire lease_ready lease_data lease_bytes lease_dlpack lease_release "
         "layers_add_gradient layers_close_layer layers_finish_backward layers_set_step")
RUNS = [f"""{_INVENTORY} abi_version version layers_new layers_plan_json free layers_exists layers_remove layers_create
            layers_fill
            layers_start layers_committed_step {_STEP} layers_update layers_step layers_commit
            layers_user_json free layers_read layers_updates_of layers_raw layers_stats_json free
            layers_begin_step layers_settle layers_expect layers_cancel_expected layers_abandon {_STEP} layers_skip
            layers_commit_once_applied snapshot_create snapshot_step snapshot_read {_STEP} layers_update snapshot_read
            snapshot_destroy layers_commit layers_read {_STEP} layers_update layers_commit_once_applied
            layers_begin_step layers_settle layers_abandon layers_read layers_stop layers_destroy layers_new
            layers_open layers_read layers_destroy inventory_destroy""",
        f"""{_INVENTORY} tensors_create tensors_inventory_json free tensors_expect tensors_acquire tensor_lease_data
            tensor_lease_dlpack tensor_lease_release tensors_commit tensors_committed_step tensors_user_json free
            tensors_acquire tensor_lease_discard tensors_acquire tensor_lease_release tensors_abort tensors_read
            tensors_stats_json free tensors_destroy tensors_open tensors_read tensors_destroy inventory_destroy""",
        """ranks_connect ranks_rank ranks_size ranks_local_rank ranks_warning free ranks_barrier ranks_sum
            ranks_sum_parts ranks_gather_parts ranks_broadcast ranks_abort ranks_destroy""",
        "kernels_create kernels_update kernels_sum_of_squares kernels_split kernels_join kernels_destroy",
        """io_create io_submit io_wait io_submit io_wait_all io_stats_json free io_destroy memory_create memory_allocate
           memory_contains memory_free memory_note free memory_destroy"""]
RUNS = [[f"forebay_{name}" for name in run.split()] for run in RUNS]
# For layers that are lent on a GPU, and those of a second store.
NO_RUN_HAS_IT = {"forebay_layers_add_device_gradient", "forebay_layers_create_from"}


# ---- Wrong ones --------------------------------------------------------------------------------------------------


def with_each_null(world, name):
    """Calls `name` with each pointer NULL in turn that has to be none."""
    function = world.functions[name]
    for i, (parameter, kind) in enumerate(function.given):
        if kind is not c_void_p or (name, parameter) in MAY_BE_NULL:
            continue
        arguments = RIGHT[name](world)
        arguments[i] = None
        for with_message in (True, False):
            result, message = world.call(name, arguments, with_message)
            wanted = OK if (name, parameter) in NULL_IS_OK else USAGE
            if function.has_message and (result != wanted or (wanted and with_message and not message)):
                raise AssertionError(f"{name} with {parameter} NULL returned {result}, '{message}', and not {wanted}")


def check_code(name, code, message, what):
    if code == INTERNAL or (code != OK and not message):
        raise AssertionError(f"{name} with {what} returned {code}: '{message}'")


def follow(world, name, what):
    """A plan that was made of strange options is used."""
    if name == "forebay_layers_new":
        for next_name in ("layers_create", "layers_fill", "layers_start", "layers_begin_step", "layers_destroy"):
            result, message = world.right(f"forebay_{next_name}")
            if message is not None:
                check_code(next_name, result, message, what)
    elif name.startswith("forebay_tensors_") and world.tensors.value:
        world.right("forebay_tensors_destroy")
    shutil.rmtree(world.folder / "layers", ignore_errors=True)


def with_each_number(world, name):
    """Calls `name` with each number in turn as it may be at its worst, also those of a struct that it takes."""
    function = world.functions[name]
    for i, (parameter, kind) in enumerate(function.given):
        for worst in WORST.get(kind, ()):
            if (name, parameter) in MEMORY_OF_THE_CALLER and worst > 0:
                continue
            arguments = RIGHT[name](world)
            arguments[i] = worst
            code, message = world.call(name, arguments)
            if function.has_message:
                check_code(name, code, message, f"{parameter} {worst}")
    struct = getattr(world, STRUCTS.get(name.removeprefix("forebay_"), ""), None)
    if struct is None:
        return
    for field, kind in struct._fields_:
        worst_of_field = range(8) if field == "struct_size" else WORST.get(kind, (None,))
        for worst in [] if kind is declared.Group else worst_of_field:
            if (type(struct).__name__, field) in MEMORY_OF_THE_CALLER and worst > 0:
                continue
            before = getattr(struct, field)
            setattr(struct, field, worst)
            code, message = world.call(name, RIGHT[name](world))
            check_code(name, code, message, f"{field} {worst}")
            if field == "struct_size" and code != USAGE:
                raise AssertionError(f"{name} took a struct of {worst} bytes")
            follow(world, name, f"{field} {worst}")
            setattr(struct, field, before)


def do_run(world, run, wrong=None, nulls=False):
    """Makes all calls of a run; before each, `wrong` has its time."""
    family = sorted(set(run))
    for name in run:
        if wrong is not None:
            wrong(world, name, family)
        result, message = world.right(name, nulls)
        if world.functions[name].has_message and result != OK:
            raise AssertionError(f"the right call of {name} returned {result}: {message}")
        if world.functions[name].result is c_void_p and not result:
            raise AssertionError(f"the right call of {name} returned NULL")


# ---- In child processes ------------------------------------------------------------------------------------------

_LAST_CALL = mmap.mmap(-1, 4096)  # shared with children


def _note(text):
    _LAST_CALL[:] = text.encode()[:4095].ljust(4096, b"\0")


def in_child(work, body, *arguments):
    """Returns body(folder, ...), as JSON has it, and an error as a text: also where the child ends before."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(60)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # what asks for more has its answer soon
        try:
            answer = {"value": body(folder, *arguments)}
        except BaseException:  # noqa: BLE001 - the parent tells it
            answer = {"error": traceback.format_exc()}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    shutil.rmtree(folder)
    last = _LAST_CALL[:].rstrip(b"\0").decode(errors="replace")
    if status != 0 or not text:
        return None, f"the process ended with {status} in {last}"
    answer = json.loads(text)
    return answer.get("value"), answer.get("error") and f"{answer['error']}the last call was {last}"


def nothing(folder, functions, name):
    function, world = functions[name], World(functions, folder)
    zeros = [None if kind is c_void_p else 0 for _, kind in function.given]
    for with_message in (True, False):
        result, message = world.call(name, zeros, with_message)
        if not function.has_message:
            wanted = OF_NOTHING.get(name)
            assert result is not None if name in GIVE_WITHOUT_BEING_GIVEN else result == wanted, (result, wanted)
        elif name.removeprefix("forebay_") == "tensor_lease_release":
            assert result == OK
        else:
            assert result == USAGE and (message or not with_message), (result, message)


def whole_run(folder, functions, run, is_wrong, nulls):
    def wrong(world, _, family):
        for name in family + sorted(NO_RUN_HAS_IT):
            with_each_null(world, name)

    world = World(functions, folder)
    do_run(world, run, wrong if is_wrong else None, nulls)
    return world.read


def forks(folder, functions, run):
    """Before each call of a run, a fork of the process makes all of its calls: they are USAGE at once, and what ends an
    object leaves it alone."""
    def fork(world, _, family):
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            for name in family:
                function, arguments = functions[name], RIGHT[name](world)
                if not arguments or function.given[0][0] not in OF_ONE_PROCESS or not arguments[0]:
                    continue
                result, message = world.call(name, arguments)
                if function.has_message:
                    is_right = result == USAGE and "fork" in message
                else:
                    is_right = result in (None, 0, -1)
                if not is_right:
                    os._exit(1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status != 0:
            raise AssertionError(f"a fork ended with {status}")

    world = World(functions, folder)
    do_run(world, run, fork)
    return world.read


def wrong_numbers(folder, functions, run, wanted):
    world = World(functions, folder)
    for name in run:
        if name == wanted:
            with_each_number(world, name)
            break
        world.right(name)
    world.end()


def random_walk(folder, functions, run, seed):
    """Calls of a run in any order, right but for a number here and there."""
    choices, world = random.Random(seed), World(functions, folder)
    for name in run[:choices.randrange(len(run))]:
        world.right(name)
    family = sorted(set(run) - {"forebay_inventory_destroy"})
    for _ in range(120):
        name = choices.choice(family)
        made = {"layers_new": "layers", "tensors_create": "tensors", "tensors_open": "tensors",
                "kernels_create": "kernels", "io_create": "io", "inventory_create": "inventory",
                "memory_create": "memory", "snapshot_create": "snapshot"}.get(name.removeprefix("forebay_"))
        if made is not None and getattr(world, made).value:
            continue  # two of them would be a leak of this test
        if name.endswith("_destroy") and choices.random() < 0.7:
            continue
        result, message = world.right(name)
        if world.functions[name].has_message:
            check_code(name, result, message, f"a random order, seed {seed}")
    world.end()


def main():
    functions = functions_of(pathlib.Path(sys.argv[1]))
    check_python_declarations(functions)
    if set(RIGHT) != set(functions):
        sys.exit(f"in c.h or in RIGHT alone: {sorted(set(RIGHT) ^ set(functions))}")
    called = {name for run in RUNS for name in run} | NO_RUN_HAS_IT
    if called != set(functions):
        sys.exit(f"no run calls {sorted(set(functions) ^ called)}")
    failures = []

    def check(body, *arguments):
        value, error = in_child(work, body, functions, *arguments)
        if error:
            failures.append(f"{body.__name__}: {error}")
        return value

    with tempfile.TemporaryDirectory() as work:
        for name in functions:
            check(nothing, name)
        for run in RUNS:
            undisturbed = check(whole_run, run, False, False)
            check(whole_run, run, False, True)
            if check(whole_run, run, True, False) != undisturbed:
                failures.append("refused calls changed what is read")
            if check(forks, run) != undisturbed:
                failures.append("calls of forks changed what is read")
            for name in sorted(set(run)):
                check(wrong_numbers, run, name)
            for seed in range(20):
                check(random_walk, run, seed)
    print("\n".join(failures), file=sys.stderr)
    print(f"{len(functions)} functions, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
