"""forebay.deepspeed under a launcher of several processes."""

import os

import deepspeed_ranks_run as program
import pytest
import torch
from forked_ranks import errors_of, on_ranks


def zero_of(stage, where, folder):
    """where: None, "cpu", or "nvme" with the optimizer's state there; stage 3 has its weights there too."""
    if where is None:
        return {"stage": stage}
    section = {"device": where, **({"nvme_path": str(folder)} if where == "nvme" else {})}
    zero = {"stage": stage, "offload_optimizer": section}
    return {**zero, "offload_param": section} if stage == 3 and where == "nvme" else zero


def in_one_process():
    """The weights of plain PyTorch, of all rows together."""
    model = program.make_model(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=program.LR)
    for step in range(program.STEPS):
        inputs, targets = program.batch_of(step)
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), program.CLIP)
        optimizer.step()
    return model.state_dict()


@pytest.fixture(scope="module")
def digests():
    return {}


@pytest.mark.parametrize(("num_ranks", "stage", "where"), [
    (2, 0, None), (2, 1, "nvme"), (2, 2, "cpu"), (2, 2, "nvme"), (2, 3, "nvme"), (4, 3, "nvme")])
def test_trains_saves_and_loads_as_one_process_does(tmp_path, digests, num_ranks, stage, where):
    ends = on_ranks(num_ranks, program.train, zero_of(stage, where, tmp_path / "swap"), str(tmp_path))
    expected = in_one_process()
    for end, loaded, again, values in ends:
        assert loaded == (program.SAVED_AT, {"said_by": 0})
        assert again == end
        # The stage changes no bit.
        assert digests.setdefault(num_ranks, end) == end
        for name, weight in values.items():
            torch.testing.assert_close(torch.from_numpy(weight), expected[name], rtol=0, atol=2e-5)
    assert sorted(os.listdir(tmp_path)) == ["global_step3", "latest", "saved.bin", *(["swap"] * (where == "nvme"))]
    assert where != "nvme" or not os.listdir(tmp_path / "swap")
    assert program.digest_of(torch.load(tmp_path / "saved.bin")) == ends[0][0]


def test_torch_distributed_has_the_same_ranks():
    assert on_ranks(2, program.sum_by_torch) == [(rank, 3.0, "gloo") for rank in range(2)]


@pytest.mark.parametrize("stage", [0, 3])
def test_all_ranks_leave_out_a_step_of_which_one_overflows(tmp_path, stage):
    ends = on_ranks(2, program.overflow, zero_of(stage, "nvme" if stage == 3 else None, tmp_path / "swap"),
                    str(tmp_path))
    assert ends[0] == ends[1]
    is_unchanged, scale, skipped, _ = ends[0]
    assert is_unchanged and scale == 8.0 and skipped == 1


@pytest.mark.parametrize("rank_without", [0, 1])
def test_no_rank_has_a_checkpoint_that_another_could_not_write(tmp_path, rank_without):
    ends = on_ranks(2, program.save_without_room, zero_of(3, "nvme", tmp_path / "swap"), str(tmp_path), rank_without)
    assert ends[rank_without] == ("the disk is full", "second")
    assert "failed on another rank" in ends[1 - rank_without][0] and ends[1 - rank_without][1] == "second"
    assert not os.path.exists(tmp_path / "first" / "forebay.pt")


def test_the_loader_divides_the_data(tmp_path):
    given = on_ranks(2, program.loader, str(tmp_path))
    assert [len(batches) for batches in given] == [7, 7]
    rows = [int(row) for batches in given for batch in batches for row in batch]
    assert sorted(rows) == list(range(50))


def test_mistakes_are_told_by_all_ranks(tmp_path):
    for error, message in errors_of(2, program.wrong_batch):
        assert error == "UsageError" and "is 8 * 1 (of each of 2 ranks). Make them fit" in message
    on_ranks(2, program.train, zero_of(3, "nvme", tmp_path / "swap"), str(tmp_path))
    for error, message in errors_of(4, program.load, zero_of(3, "nvme", tmp_path / "swap"), str(tmp_path)):
        assert error == "BadInputError" and "made by other ranks (rank-0-of-2, rank-1-of-2): start as many" in message
    for error, message in errors_of(2, program.load, zero_of(1, "nvme", tmp_path / "swap"), str(tmp_path)):
        assert error == "UsageError" and "another offload_optimizer or offload_param" in message


def test_tags_that_differ_between_ranks(tmp_path):
    for error, message in errors_of(2, program.save_under_own_tag, str(tmp_path), "FAIL"):
        assert error in ("UsageError", "StorageError"), message
        assert "give one tag" in message or "one tag failed on another rank" in message
    assert not os.path.exists(tmp_path / "tag-0")
    assert on_ranks(2, program.save_under_own_tag, str(tmp_path), "Warn") == [["tag-0"]] * 2


@pytest.mark.parametrize(("stage", "where"), [(1, None), (2, "nvme"), (3, "nvme")])
def test_the_trainer_of_transformers(tmp_path, stage, where):
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    alone = on_ranks(1, program.trainer, stage, where, str(tmp_path / "alone"))[0]
    for whole, resumed in on_ranks(2, program.trainer, stage, where, str(tmp_path / "ranks")):
        for key, wanted in alone[0].items():
            # Norms of clipped gradients are sums of other parts.
            assert whole[key] == pytest.approx(wanted, rel=1e-5), key
            assert resumed[key] == pytest.approx(whole[key], rel=1e-6), key
    from safetensors.torch import load_file
    saved, of_one = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("ranks", "alone"))
    assert saved.keys() == of_one.keys()
    for name, weight in of_one.items():
        torch.testing.assert_close(saved[name], weight, rtol=0, atol=1e-4)
