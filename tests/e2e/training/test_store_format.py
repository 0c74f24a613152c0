"""docs/formats.md is enough to read a store: a reader that knows nothing else agrees with the program."""

import json

import pytest
from conftest import make_model, random_rows, read_safetensors, write_rows
from store_reader import Damaged, Store

SEQ = 48
CASES = {
    "bf16": {},
    "fp16": dict(precision="fp16"),
    "steps that were skipped": dict(precision="fp16", initial_scale_power=100),
    "fp32": dict(precision="fp32", layout="fp32"),
    "one slot": dict(durability="none"),
    "large tiles": dict(tile_elems=131072),  # of several parts
    "bf16-moments": dict(layout="bf16-moments"),
    "int8-moments": dict(layout="int8-moments"),
    "int8-moments, large tiles": dict(layout="int8-moments", tile_elems=131072),
    "lion": dict(optimizer="lion", layout="int8-moments"),
    "adagrad": dict(optimizer="adagrad", layout="int8-moments"),
    "fp16, sgd with momentum": dict(precision="fp16", optimizer="sgd", momentum=0.9),
    "sgd": dict(optimizer="sgd"),
    "sgd without any state": dict(optimizer="sgd", precision="fp32", layout="fp32"),
}


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    data = write_rows(folder / "data.fbd", *random_rows(10, SEQ, 256, seed=4), 256)
    return dict(model=make_model(forebay, folder / "model"), data=data, batch=2, seq=SEQ, lr=1e-3, ram="1GiB",
                weights_tier="nvme", state_tier="nvme", steps=3)


@pytest.mark.parametrize("case", CASES)
def test_what_the_document_says_gives_every_value(forebay, task, tmp_path, case):
    out = tmp_path / "run"
    forebay.run("train", out=out, **{**task, "tile_elems": 4096, **CASES[case]})
    store = Store([out / "swap"])
    assert (store.record["step"], store.record["trainer"]["metrics"]["step"]) == (3, 3)
    if "fp16" in case or "skipped" in case:
        assert store.record["trainer"]["updates"] == (0 if "skipped" in case else 3)
    assert store.digest() == forebay.digest(out)
    exported = read_safetensors(out / "model" / "model.safetensors")
    tensors = store.tensors()
    assert set(exported) == set(tensors)
    for name, (_, weights, *_) in tensors.items():
        assert weights.tobytes() == exported[name].tobytes(), name


def test_of_several_folders(forebay, task, tmp_path):
    out = tmp_path / "run"
    disks = [tmp_path / name for name in "abc"]
    forebay.run("train", out=out, **task, tile_elems=4096, nvme=",".join(map(str, disks)), nvme_weights="3,1,2")
    folders = [next(disk.iterdir()) for disk in disks]
    assert Store(reversed(folders)).digest() == forebay.digest(out)
    # As the store of another program, which has no run folder.
    document = json.loads(forebay.run("inspect", ",".join(map(str, folders)), "--verify", "--format=json").stdout)
    assert document["kind"] == "store" and document["verified"]["damaged"] == []
    assert [stripe["folder"] for stripe in document["stripes"]] == [str(folder) for folder in folders]


@pytest.mark.parametrize("settings", [dict(optimizer="sgd", precision="fp32"), dict(layout="int8-moments")], ids=["sgd", "int8"])
def test_of_several_folders_with_less_state(forebay, task, tmp_path, settings):
    out = tmp_path / "run"
    disks = [tmp_path / name for name in "ab"]
    settings = dict(task, weights_tier="auto", state_tier="auto", tile_elems=4096, nvme=",".join(map(str, disks)), **settings)
    forebay.run("train", out=out, **settings)
    folders = [next(disk.iterdir()) for disk in disks]
    assert Store(reversed(folders)).digest() == forebay.digest(out)


def test_and_finds_a_flipped_bit(forebay, task, tmp_path):
    out = tmp_path / "run"
    forebay.run("train", out=out, **task, tile_elems=4096)
    path = out / "swap" / "state.fbs"
    store = Store([out / "swap"])
    data = bytearray(path.read_bytes())
    data[store._offset(store.tiles[-1], "state")] ^= 4
    path.write_bytes(data)
    with pytest.raises(Damaged, match=f"tile {len(store.tiles) - 1}, plane 1"):
        store.digest()
