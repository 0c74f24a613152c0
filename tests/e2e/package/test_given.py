"""What is given to the package: numbers that their type does not hold, folders in every form, words that are no JSON; a
folder that is left by chdir; and streams that are closed when the program starts."""

import math
import os
import pathlib
import signal
import subprocess
import sys

import forebay
import forebay.io
import numpy as np
import pytest
from test_layers import GROUP, layers, make, run_step, values

HUGE = 2**70


def refused(call, *words):
    """The call is a UsageError, which is what torch's own would be too: a ValueError."""
    with pytest.raises(forebay.UsageError) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in message, message


# ---- Numbers


@pytest.mark.parametrize("option", [
    "ram_bytes", "commit_every", "num_threads", "num_open_layers", "num_window_layers", "tile_elems", "zero_stage",
    "reduce_bucket_bytes"])
@pytest.mark.parametrize("value", [2**32, HUGE, -HUGE, -2, True, 1.5, 1.0, math.nan, "1", None, [1]], ids=str)
def test_a_number_of_layers_that_is_none_is_named(tmp_path, option, value):
    if value == 2**32 and option in ("ram_bytes", "commit_every", "tile_elems", "reduce_bucket_bytes"):
        pytest.skip("a number that they may be")
    refused(lambda: layers(tmp_path / "store", **{option: value}), option)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("make_it", "name"), [
    (lambda n: forebay.Kernels(n), ""),
    (lambda n: forebay.Ranks(size=n), "size"), (lambda n: forebay.Ranks(size=2, rank=n), "rank"),
    (lambda n: forebay.Ranks(size=2, rank=0, master_address="h", master_port=n), "master_port"),
    (lambda n: forebay.io.DiskEngine(num_threads=n), "num_threads"),
    (lambda n: forebay.io.DiskEngine(block_bytes=n), "block_bytes"),
    (lambda n: forebay.io.DiskEngine(max_in_flight_bytes=n), "max_in_flight_bytes"),
    (lambda n: forebay.io.LockedMemory().allocate(n), "num_bytes"),
    (lambda n: forebay.Inventory().add_raw("a", n), ""),
    (lambda n: forebay.Tensors("t", forebay.Inventory(), ram_bytes=n), "ram_bytes"),
    (lambda n: forebay.Tensors("t", forebay.Inventory(), lease_bytes=n), "lease_bytes"),
    (lambda n: forebay.Tensors("t", forebay.Inventory(), tile_elems=n), "tile_elems")],
    ids=str)
@pytest.mark.parametrize("value", [HUGE, -HUGE, -5, True, 2.0, "2", None], ids=str)
def test_a_number_of_other_objects_that_is_none_is_named(make_it, name, value):
    refused(lambda: make_it(value), name)


def test_numbers_of_calls_are_not_cut_off(tmp_path):
    with make(tmp_path / "store") as run:
        run.begin_step([GROUP])
        for call in (lambda n: run.expect([n]), lambda n: run.close_layer(n), lambda n: run.updates_of(n),
                     lambda n: run.raw(n), lambda n: run.acquire(n), lambda n: run.fill(n, "f32", values()[0]),
                     lambda n: run.add_gradient(n, "f32", values()[0]),
                     lambda n: run.read(n, "master", np.zeros(4, np.float32))):
            for number in (2**32, HUGE, -1, True, 0.0, "0", None):
                refused(lambda call=call, number=number: call(number))
        refused(lambda: run.read(0, "master", np.zeros(4, np.float32), first=2**64), "layers_read")
        run.abandon()
        run.expect([0])
        with run.acquire(0) as lease:
            refused(lambda: lease.address(2**32), "tensor")
            refused(lambda: lease.ready(-1), "stream")
        for shape in ([2**64 + 2], [True], [2.0], ["2"]):
            refused(lambda shape=shape: forebay_inventory_with(shape), "the shape of")
        run_step(run)  # nothing has changed
        assert run.step == 1


def forebay_inventory_with(shape):
    inventory = forebay.Inventory()
    inventory.begin_layer("layer")
    inventory.add("weight", shape)


def test_numpys_numbers_are_numbers(tmp_path):
    run = make(tmp_path / "store", num_threads=np.int64(1), ram_bytes=np.uint32(1 << 26))
    run.expect(np.arange(2))
    run.acquire(np.int32(0)).release()
    group = forebay.Group(lr=np.float32(1e-2), weight_decay=0, beta1=np.float64(0.9), beta2=0.999, eps=1e-8)
    assert group.lr == np.float32(1e-2) and forebay.Group(1.0, 2).weight_decay == 2
    run.close()


@pytest.mark.parametrize(("field", "value"), [("lr", "1e-3"), ("lr", True), ("lr", math.nan), ("eps", None),
                                              ("frozen", 2**40), ("beta1", HUGE**20)])
def test_settings_of_a_group_are_numbers(field, value):
    refused(lambda: forebay.Group(**{field: value}), field)


@pytest.mark.parametrize("step", [{"clip": -1.0}, {"clip": math.nan}, {"loss_scale": math.inf}, {"loss_scale": -1.0}],
                         ids=str)
def test_settings_of_a_step_that_are_none_change_nothing(tmp_path, step):
    with make(tmp_path / "store") as run:
        refused(lambda: run.begin_step([GROUP], **step))
        run_step(run)


# ---- Folders


def test_folders_come_in_every_form(tmp_path):
    for given in (str(tmp_path / "a"), os.fsencode(tmp_path / "b"), tmp_path / "c", [tmp_path / "d"],
                  (os.fsencode(tmp_path / "e"),)):
        make(given).close()
    assert sorted(each.name for each in tmp_path.iterdir()) == list("abcde")


@pytest.mark.parametrize("given", ["", b"", [""], [b""], None, [None], 1, [1], "a\0b", ["a\ud800"], True], ids=repr)
def test_what_is_no_folder_is_refused(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    for call in (lambda: layers(given), lambda: forebay.Tensors(given, forebay.Inventory()),
                 lambda: forebay.Tensors(given)):
        refused(call, "names no folder")
    with make(tmp_path / "store") as run:
        refused(lambda: run.create_from(given), "names no folder")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    run = layers("store")
    tensors = forebay.Tensors(pathlib.Path("tensors"), inventory_of_one())
    os.chdir("else")
    run.create()
    for tensor, array in enumerate(values()):
        run.fill(tensor, "f32", array)
    run.start()
    os.chdir("/")
    run_step(run, {"step": 1})
    run.commit()
    tensors.commit(1)
    run.close()
    tensors.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["else", "store", "tensors"]
    assert not list((tmp_path / "else").iterdir())
    os.chdir(tmp_path)
    run = layers("store")
    os.chdir("/")
    assert run.exists()
    run.open()
    assert run.user == {"step": 1}
    run.close()
    os.chdir(tmp_path / "else")
    copy = layers("copy")
    copy.create_from("../store")
    copy.close()


def inventory_of_one():
    inventory = forebay.Inventory()
    inventory.begin_layer("layer")
    inventory.add("weight", [1000])
    return inventory


def test_without_a_current_folder_relative_ones_are_an_error(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(forebay.StorageError, match="current folder"):
        layers("store")
    layers(tmp_path / "store").close()


# ---- Words of a commit

CYCLE: dict = {}
CYCLE["itself"] = [CYCLE]
DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(("user", "words"), [
    ({"a": "\ud800"}, ["user['a']", "surrogate"]), ({"a": [1, {"b": "x\udfff"}]}, ["user['a'][1]['b']"]),
    ({"\ud800": 1}, ["key", "\\ud800"]), ({"a": math.nan}, ["user['a']", "nan"]), ({"a": -math.inf}, ["user['a']"]),
    ({"a": {1, 2}}, ["user['a']", "set"]), ({"a": b"x"}, ["user['a']", "bytes"]), ({1: 2}, ["key 1", "int"]),
    ({"a": {None: 2}}, ["key None", "user['a']"]), ({"a": 2**64}, ["user['a']", "64 bits"]), (CYCLE, ["user['itself'][0]"]),
    ({"a": np.float32(1)}, ["user['a']", "float32"]), ({"a": DEEP}, ["user", "deeply"]), ([1], ["list"]),
    ("text", ["str"]), (0, ["int"])], ids=lambda value: str(type(value)))
def test_words_that_json_has_not_are_named(tmp_path, user, words):
    with make(tmp_path / "store") as run:
        run_step(run)
        for call in (lambda: run.commit(user), lambda: run.commit_once_applied(user)):
            refused(call, *words)
        run.commit({"is": "fine", "number": 2**63, "list": [1.5, None, True, "\u00e9\U0001f600"]})
        assert run.user == {"is": "fine", "number": 2**63, "list": [1.5, None, True, "\u00e9\U0001f600"]}
    with forebay.Tensors(tmp_path / "tensors", inventory_of_one()) as tensors:
        refused(lambda: tensors.commit(1, user), *words)
        assert tensors.committed_step is None


@pytest.mark.parametrize("name", ["\ud800", "a\0b", 3], ids=repr)
def test_names_that_are_no_text_are_refused(name):
    inventory = forebay.Inventory()
    for call in (lambda: inventory.begin_layer(name), lambda: inventory.begin_raw_layer(name),
                 lambda: forebay.Ranks(size=2, rank=1, master_address=name, master_port=1)):
        refused(call)


# ---- Standard streams that are closed

PROGRAM = """
import ctypes, os, sys
import numpy as np
import forebay, forebay.io
sys.path.insert(0, sys.argv[2])
import test_layers
streams = [number for number in (0, 1, 2) if os.path.exists(f"/proc/self/fd/{number}")]
run = test_layers.make(os.path.join(sys.argv[1], "store"), engine=sys.argv[3])
engine = forebay.io.DiskEngine(engine=sys.argv[3])
engine.write(os.path.join(sys.argv[1], "file"), b"a" * 8192)
engine.wait_all()
ctypes.CDLL(None).puts(b"printed")
ctypes.CDLL(None).fflush(None)
test_layers.run_step(run)
run.commit()
taken = [number for number in (0, 1, 2) if number not in streams and os.path.exists(f"/proc/self/fd/{number}")]
with open(os.path.join(sys.argv[1], "taken"), "w") as file:
    file.write(repr(taken))
run.close()
"""


@pytest.mark.parametrize("engine", ["uring", "libaio", "threads"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path, engine):
    try:
        forebay.io.DiskEngine(engine=engine).close()
    except forebay.EnvironmentProblem as error:
        pytest.skip(str(error))

    def close():
        for number in (0, 1, 2):
            os.close(number)

    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), os.path.dirname(__file__), engine],
                          preexec_fn=close, check=False)
    assert done.returncode == 0
    assert (tmp_path / "taken").read_text() == "[]"
    for file in (tmp_path / "store").rglob("*"):
        assert file.is_dir() or b"printed" not in file.read_bytes(), file
    with layers(tmp_path / "store") as run:
        run.open()
        assert run.step == 1


# ---- Forks


def in_fork(body, limit_s=10):
    """What body() returns, of a fork of this process, which has so many seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(limit_s)
        try:
            text = repr(body())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, f"the fork hung, or crashed: {text}"
    return text


def public_calls(thing):
    """Every method and property of an object, but those that end it."""
    return [name for name in dir(type(thing)) if not name.startswith("_")
            and name not in ("close", "release", "folder_in", "layer", "dtype")]


def test_every_call_in_a_fork_is_an_error_at_once(tmp_path):
    run = make(tmp_path / "store")
    run_step(run)
    run.commit()
    tensors = forebay.Tensors(tmp_path / "tensors", inventory_of_one())
    leases = tensors.acquire((0, "master", "write"), (0, "m", "read"))
    run.expect([0])
    objects = [run, run.snapshot(), run.acquire(0), tensors, *leases, forebay.Kernels(1), forebay.Ranks(size=1),
               forebay.io.DiskEngine(), forebay.io.LockedMemory()]
    memory = objects[-1].allocate(100)
    arguments = {"acquire": (0,), "fill": (0, "f32", values()[0]), "read": (0, "master", np.zeros(4, np.float32)),
                 "create_from": (tmp_path / "store",), "expect": ([0],), "begin_step": ([GROUP],),
                 "add_gradient": (0, "f32", values()[0]), "add_device_gradient": (0, "f32", (1, 4, None)),
                 "close_layer": (0,), "updates_of": (0,), "raw": (3,), "address": (0,), "memory": (0,), "tensor": (0,),
                 "whole": (len, ()), "together": (lambda: None, "it"), "sum": (np.zeros(1, np.float32),),
                 "sum_parts": (np.zeros(1, np.float32), [0, 1]), "gather_parts": (np.zeros(1, np.float32), [0, 4]),
                 "broadcast": (np.zeros(1, np.float32),), "update": ([],), "split": (np.zeros(1, np.float32), bytearray(2), bytearray(2)),
                 "join": (b"12", b"12", np.zeros(1, np.float32)), "sum_of_squares": ("f32", np.zeros(1, np.float32)),
                 "write": (str(tmp_path / "file"), b"x"), "wait": (1,), "allocate": (1,), "commit": (1,)}
    of_a_tensor = {"memory": (), "expect": (0, "m"), "acquire": ((0, "m", "read"),)}
    of_layers = {"update": (), "commit": ()}

    def all_calls():
        wrong = []
        for thing in objects:
            for name in public_calls(thing):
                is_property = isinstance(getattr(type(thing), name), property)
                given = arguments.get(name, ())
                if isinstance(thing, (forebay.Tensors, forebay.TensorLease)):
                    given = of_a_tensor.get(name, given)
                if isinstance(thing, forebay.Layers):
                    given = of_layers.get(name, given)
                if name == "read" and isinstance(thing, forebay.io.DiskEngine):
                    given = (__file__, bytearray(1))
                if name in ("free", "contains", "view"):
                    continue
                try:
                    found = getattr(thing, name)
                    if not is_property:
                        found(*given)
                    wrong.append(f"{type(thing).__name__}.{name}")
                except forebay.UsageError as error:
                    if "a fork of it" not in str(error) or str(os.getpid()) not in str(error):
                        wrong.append(f"{type(thing).__name__}.{name}: {error}")
        if objects[-1].free(memory) or objects[-1].contains(memory, 1):
            wrong.append("memory of the parent's")
        for thing in objects:
            thing.__exit__(None, None, None)
        objects.clear()  # the collector ends them
        with forebay.Kernels(1) as kernels:  # others can be made
            kernels.update([])
        return wrong

    assert in_fork(all_calls) == "[]"
    # The parent has what it had.
    leases[0].release()
    tensors.commit(1)
    objects[2].release()
    objects[1].close()
    run_step(run)
    run.commit()
    assert run.committed_step == 2
