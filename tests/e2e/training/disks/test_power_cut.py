"""The power fails while a run trains: a guest trains on a disk of which every write and flush is logged, and the disk is
made as a power cut may leave it, at each of the flushes and between them."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess

import guest
import pytest
from conftest import make_model, random_rows, write_rows
from write_log import Disk, read_log
from option_flags import flag_of

SEQ, STEPS = 32, 5
SETTINGS = dict(batch=2, seq=SEQ, steps=STEPS, lr=1e-3, weights_tier="nvme", state_tier="nvme", ram="200M", threads=2,
                tile_elems=16384)
DISK_BYTES = 96 << 20
CASES = {"step": dict(durability="step", save_every=2)}
DRAWN_CUTS = 3  # between two flushes
FINISHED = 12  # one of so many disks is trained on to the end of the run, in a guest again

# The same steps, undisturbed, in the memory of the guest, with the digest after each.
REFERENCE = f"""
forebay train {{start}} --out=/tmp/run --stop_after=1 > /dev/null 2>&1 || [ $? = 75 ]
for step in $(seq {STEPS}); do
  echo "digest $(forebay inspect /tmp/run --hash --format=json)"
  [ $step = {STEPS} ] || forebay train --resume --out=/tmp/run --stop_after=1 > /dev/null 2>&1 || [ $? = 75 ]
done
"""
# As anybody would who finds the run after a power cut.
FINISH = """
if grep -q '"state": "ready"' /disk/run/run.json; then forebay train --resume --out=/disk/run
else forebay train {start} --out=/disk/run; fi
echo "digest $(forebay inspect /disk/run --hash --format=json)"
"""


def flags(settings):
    inputs = dict(model="/task/model", data="/task/data.fbd")
    return " ".join(flag_of(key, value) for key, value in {**inputs, **SETTINGS, **settings}.items())


def digests(printed):
    """{step: digest} of what a guest printed."""
    found = map(json.loads, re.findall(r"digest (\{.*\})", printed))
    return {entry["step"]: entry["digest"] for entry in found}


@pytest.fixture(scope="module")
def machine(forebay, tmp_path_factory):
    kernel = guest.need()
    folder = tmp_path_factory.mktemp("guest")
    data = write_rows(folder / "data.fbd", *random_rows(8, SEQ, 256, seed=6), 256)
    model = pathlib.Path(make_model(forebay, folder / "model"))
    files = {f"task/model/{path.name}": path for path in model.iterdir()}
    return guest.Guest(kernel, folder, forebay.binary, files | {"task/data.fbd": data})


@pytest.fixture
def empty(tmp_path):
    """The image of an ext4 with nothing on it."""
    image = tmp_path / "empty"
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(image)], check=True)
    return image


@contextlib.contextmanager
def mounted(image, folder):
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def look(forebay, image, folder, expected):
    """The step that the run on a copy of `image` is at, -1 when it was not begun for good. All that is there is whole."""
    copy = shutil.copy(image, folder / "copy")
    with mounted(copy, folder / "disk") as disk:
        run = disk / "run"
        if not (run / "run.json").exists() or json.loads((run / "run.json").read_text())["state"] != "ready":
            return -1
        forebay.run("inspect", run, "--verify")
        found = json.loads(forebay.run("inspect", run, "--hash", "--format=json").stdout)
        assert found["step"] == 0 or found["digest"] == expected[found["step"]], found
        for export in [*(run / "exports").glob("step-?"), *run.glob("model")]:
            forebay.run("inspect", export, "--verify")
        return found["step"]


@pytest.mark.parametrize("case", CASES)
def test_a_power_cut_at_every_flush_and_between_them(forebay, machine, empty, tmp_path, case):
    start = flags(CASES[case])
    log, after = tmp_path / "log", shutil.copy(empty, tmp_path / "after")
    printed = machine.run(after, REFERENCE.format(start=start) + f"forebay train {start} --out=/disk/run\n", log)
    expected = digests(printed)
    assert sorted(expected) == list(range(1, STEPS + 1)), printed
    epochs = read_log(log)
    # The file system itself flushes a few times; a step more often.
    assert len(epochs) > 4 * STEPS, [len(epoch) for epoch in epochs]

    looked = []

    def check(image, newest):
        step = look(forebay, image, tmp_path, expected)
        assert step >= newest, f"disk {len(looked)}: step {step}, but {newest} was there before"
        if len(looked) % FINISHED == 0:
            assert digests(machine.run(shutil.copy(image, tmp_path / "copy"), FINISH.format(start=start))) == {
                STEPS: expected[STEPS]
            }
        looked.append(step)
        return step

    flushed = shutil.copy(empty, tmp_path / "flushed")
    disk = Disk(log, flushed)
    newest = -1
    for number, epoch in enumerate(epochs):
        for seed in range(DRAWN_CUTS if epoch else 0):
            cut = shutil.copy(flushed, tmp_path / "cut")
            torn = Disk(log, cut)
            torn.do_some(epoch, seed=number * DRAWN_CUTS + seed)
            torn.close()
            check(cut, newest)
        disk.do(epoch)
        newest = check(flushed, newest)
    disk.close()
    assert newest == STEPS and set(looked) == set(range(-1, STEPS + 1)), looked
