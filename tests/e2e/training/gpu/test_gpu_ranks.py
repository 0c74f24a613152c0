"""Ranks that each compute on a GPU of its own, which is emulated in each process."""

import os

import pytest
from conftest import read_metrics
from rank_processes import ends_of, folder_of, make_task, start_ranks, train_ranks

pytestmark = pytest.mark.skipif(
    os.environ.get("FOREBAY_DEVICE") != "cuda",
    reason="needs a build that emulates a GPU (FOREBAY_CUDA=EMULATED), with FOREBAY_DEVICE=cuda",
)


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    return make_task(forebay, tmp_path_factory.mktemp("task"), seq=16, steps=3, ram="512MiB")


@pytest.fixture(scope="module")
def expected(forebay, task, tmp_path_factory):
    """The digest of two ranks that divide the state, and their losses."""
    out = tmp_path_factory.mktemp("expected") / "run"
    train_ranks(forebay, 2, zero_stage=3, out=out, **task)
    return forebay.digest(out), [line["loss"] for line in read_metrics(out)]


def test_all_stages_have_the_same_bits_and_the_losses_of_one_process(forebay, task, expected, tmp_path):
    for stage in (0, 1):
        train_ranks(forebay, 2, zero_stage=stage, out=tmp_path / str(stage), **task)
        assert forebay.digest(tmp_path / str(stage)) == expected[0]
    assert forebay.digest(folder_of(tmp_path / "0", 1)) == expected[0]
    forebay.run("train", out=tmp_path / "alone", **task)
    assert expected[1] == pytest.approx([line["loss"] for line in read_metrics(tmp_path / "alone")], rel=2e-3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_gpu_ends_all_with_its_reason_and_the_run_goes_on(forebay, task, expected, tmp_path, victim):
    lost = [{}, {}]
    lost[victim] = {"FOREBAY_EMULATION_LOST_AFTER": "1000"}
    ends = ends_of(start_ranks(forebay, 2, environments=lost, zero_stage=3, out=tmp_path / "run", **task))
    assert [code for code, _, _ in ends] == [9, 9], ends
    assert all("cudaErrorDevicesUnavailable" in errors for _, _, errors in ends)
    assert f"rank {victim} of 2 on " in ends[1 - victim][2]
    train_ranks(forebay, 2, "--resume", out=tmp_path / "run")
    assert forebay.digest(tmp_path / "run") == expected[0]


def test_two_ranks_on_one_gpu_are_refused(forebay, task, tmp_path):
    same = [{"FOREBAY_EMULATION_GPU_NUMBER": "7"}] * 2
    ends = ends_of(start_ranks(forebay, 2, environments=same, zero_stage=3, out=tmp_path / "run", **task))
    assert [code for code, _, _ in ends] == [2, 2], ends
    assert all("would compute on one GPU" in errors for _, _, errors in ends)


def test_each_takes_the_gpu_of_its_number(forebay, task, expected, tmp_path):
    both = [{"FOREBAY_EMULATION_GPU_NUMBER": "7", "FOREBAY_EMULATION_NUM_GPUS": "2"}] * 2
    train_ranks(forebay, 2, environments=both, zero_stage=3, out=tmp_path / "run", **task)
    assert forebay.digest(tmp_path / "run") == expected[0]


def test_a_rank_without_a_gpu_is_named(forebay, task, tmp_path):
    without = [{}, {"FOREBAY_EMULATION_DRIVER": "none"}]
    ends = ends_of(start_ranks(forebay, 2, device="auto", environments=without, out=tmp_path / "run", **task))
    assert [code for code, _, _ in ends] == [2, 2], ends
    assert all("rank 0 (" in errors and "rank 1 (" in errors and "no CUDA-capable device" in errors
               for _, _, errors in ends)
    train_ranks(forebay, 2, device="auto", environments=[without[1]] * 2, out=tmp_path / "run", **task)


def test_a_plan_has_the_gpu_of_each_rank(forebay, task):
    shown = forebay.run("plan", task["model"], ranks=2, zero_stage=3, batch=4, seq=16, gpu_mem="512MiB").stdout
    for words in ("of each of 2 ranks", "total on the GPU", "weights of all ranks", "sum of gradients over ranks (fp32)"):
        assert words in shown
