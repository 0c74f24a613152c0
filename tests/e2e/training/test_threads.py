"""How many threads compute where nobody says it: as many as the process has cores, or the time of."""

import os
import re
import subprocess

import pytest
from confined import in_group
from conftest import make_model, random_rows, write_rows
from option_flags import flag_of


@pytest.fixture(scope="module")
def threads_of(forebay, tmp_path_factory):
    """`threads_of(preexec_fn)`: with how many threads a run computes in a process that begins so."""
    folder = tmp_path_factory.mktemp("threads")
    model = make_model(forebay, folder / "model")
    data = write_rows(folder / "data.fbd", *random_rows(4, 32, 256, seed=1), 256)

    def train(preexec_fn=None, **settings):
        out = folder / f"run-{len(list(folder.iterdir()))}"
        settings = dict(model=model, data=data, out=out, seq=32, batch=1, steps=1, ram="256MiB", export="none", **settings)
        subprocess.run([forebay.binary, "train", *(flag_of(key, value) for key, value in settings.items())],
                       check=True, capture_output=True, preexec_fn=preexec_fn)
        return int(re.search(r" compute: .* (\d+) threads", (out / "events.log").read_text())[1])
    return train


def test_threads_are_the_cores_that_the_process_may_run_on(threads_of):
    cores = sorted(os.sched_getaffinity(0))
    assert threads_of(lambda: os.sched_setaffinity(0, cores[:1])) == 1
    assert threads_of(lambda: os.sched_setaffinity(0, cores[:1]), threads=3) == 3


def test_threads_are_the_whole_cores_that_the_group_has_the_time_of(threads_of):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core alone: no quota can be less")
    quota = dict(v1={"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "190000"}, v2={"cpu.max": "190000 100000"})
    with in_group("cpu", **quota) as enter:
        assert threads_of(enter) == 1
    assert threads_of() > 1
