"""Ranks under mpirun that divide the state, and of which one is killed at any moment: what goes on from there comes to
the bits of a run that nothing disturbed."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest
from rank_processes import make_task
from option_flags import flag_of

SEQ = 16
NUM_RANKS = 2
NUM_KILLS = 50 if os.environ.get("FOREBAY_FULL") == "1" else 12


@pytest.fixture(scope="module")
def mpirun(forebay):
    program = shutil.which("mpirun.openmpi")
    plugin = pathlib.Path(os.environ["FOREBAY_BIN"]) / "libforebay_mpi_openmpi.so"
    if program is None:
        pytest.skip("mpirun.openmpi is not there")
    if not plugin.exists():
        pytest.skip(f"{plugin} was not built")
    return [program, "-n", str(NUM_RANKS), "--allow-run-as-root", "--oversubscribe", forebay.binary, "train"]


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    return make_task(forebay, tmp_path_factory.mktemp("task"), SEQ, steps=20, ram="512MiB", precision="bf16",
                     weights_tier="nvme", state_tier="nvme", engine="threads", export="none")


def start(mpirun, *flags, **settings):
    return subprocess.Popen([*mpirun, *flags] + [flag_of(key, value) for key, value in settings.items()],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def train(mpirun, *flags, **settings):
    process = start(mpirun, *flags, **settings)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def ranks_of(mpirun_pid):
    """The pids of the ranks that this mpirun has started, by rank."""
    ranks = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == mpirun_pid else []
        except OSError:
            continue  # it has ended
        ranks.update({int(variable.partition(b"=")[2]): int(folder.name) for variable in variables
                      if variable.startswith(b"OMPI_COMM_WORLD_RANK=")})
    return ranks


def kill_one(process, draw):
    rank = draw.randrange(NUM_RANKS)
    pid = ranks_of(process.pid).get(rank)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    try:
        process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        # mpirun itself may hang when all its ranks have ended.
        assert not ranks_of(process.pid), "a rank outlives one that was killed"
        process.kill()
        process.communicate()


def is_ready(out):
    try:
        return json.loads((out / "run.json").read_text())["state"] == "ready"
    except (OSError, ValueError):
        return False


def test_kills_leave_a_run_that_comes_to_the_same_bits(forebay, mpirun, task, tmp_path):
    seed = int(os.environ.get("FOREBAY_KILLS_SEED", random.randrange(1 << 30)))
    print(f"FOREBAY_KILLS_SEED={seed}")
    draw = random.Random(seed)
    begin = time.monotonic()
    train(mpirun, out=tmp_path / "undisturbed", zero_stage=3, **task)
    whole_s = time.monotonic() - begin
    expected = forebay.digest(tmp_path / "undisturbed")
    num_resumed = 0
    for kill in range(NUM_KILLS):
        stage = draw.choice([1, 2, 3])
        out = tmp_path / f"run{kill}"
        process = start(mpirun, out=out, zero_stage=stage, **task)
        time.sleep(draw.uniform(0.1, 1) * whole_s)
        kill_one(process, draw)
        resumes = is_ready(out) or is_ready(out / "rank-001")
        num_resumed += resumes
        if resumes:
            train(mpirun, "--resume", out=out, zero_stage=stage)
        else:
            train(mpirun, out=out, zero_stage=stage, **task)
        assert forebay.digest(out) == expected, (kill, stage)
        shutil.rmtree(out)
    # Moments before the first commit are among them, but not alone.
    assert num_resumed > 0
