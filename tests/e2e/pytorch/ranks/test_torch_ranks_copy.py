"""A run that goes on with another number of ranks: the state is copied, to the bit, and what was there stays."""

import os
import random
import shutil

import pytest
import ranks_copy_run as program
import torch
from forked_ranks import ends_of, errors_of, on_ranks, start_ranks

STEPS, MORE = 3, 3


@pytest.mark.parametrize("before, after", [
    ((1, 0), (2, 3)), ((2, 3), (1, 0)), ((2, 3), (3, 3)), ((3, 1), (2, 0)), ((2, 0), (2, 3)), ((2, 0), (4, 1))], ids=str)
def test_goes_on_with_other_ranks(tmp_path, before, after):
    (old_ranks, old_stage), (new_ranks, new_stage) = before, after
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    ended = on_ranks(old_ranks, program.run, old, old_stage, STEPS)
    begun = on_ranks(new_ranks, program.run, new, new_stage, MORE, start_from=old)
    again = on_ranks(old_ranks, program.run, old, old_stage, 0, resume=True)
    for (state, step, resumed), buffer, _, _, _, _ in begun:
        assert state == ended[0][3] and step == STEPS and resumed == {}
        assert buffer != 0
    # Each row of the epoch once, in one order, by whichever ranks.
    rows = [[row for step in zip(*(end[2] for end in ends)) for own in step for row in own] for ends in (ended, begun)]
    assert len(rows[0]) == STEPS * program.ROWS and len(rows[1]) == MORE * program.ROWS
    assert sorted(rows[0] + rows[1][:48 - len(rows[0])]) == list(range(48))
    # The other run is what it was, and goes on too.
    assert [end[0][:2] for end in again] == [(ended[0][3], STEPS)] * old_ranks
    # And the copy is an ordinary run, which resumes.
    resumed = on_ranks(new_ranks, program.run, new, new_stage, 1, resume=True)
    assert all(end[0][:2] == (begun[0][3], STEPS + MORE) for end in resumed)
    weights = [torch.from_numpy(weight) for weight in begun[0][4].values()]
    assert all(torch.isfinite(weight).all() for weight in weights)


def test_a_copy_that_was_killed_is_made_anew(tmp_path):
    old = str(tmp_path / "old")
    ended = on_ranks(2, program.run, old, 3, 2)
    draw = random.Random(3)
    for kill in range(6):
        new = str(tmp_path / f"new{kill}")
        ranks = start_ranks(3, program.killed_while_copying, new, 3, old, kill % 3, draw.uniform(0.005, 0.12))
        ends_of(ranks)
        begun = on_ranks(3, program.run, new, 3, 1, start_from=old)
        assert all(end[0][:2] == (ended[0][3], 2) for end in begun)
        assert "creating" not in os.listdir(os.path.join(new, "rank-0-of-3"))


def test_a_mark_that_is_left_over_removes_no_run(tmp_path):
    """Of a copy that was begun and removed again; the run that was made behind it is no copy."""
    new = tmp_path / "new"
    (new / "rank-0-of-2").mkdir(parents=True)
    (new / "rank-0-of-2" / "creating").touch()
    ended = on_ranks(2, program.run, str(new), 3, 2)
    os.rename(new / "rank-1-of-2", tmp_path / "aside")
    for error, message in errors_of(2, program.run, str(new), 3, 1, resume=True):
        assert error == "CorruptError" and "has made 2 steps, and rank 1" in message
    shutil.rmtree(new / "rank-1-of-2", ignore_errors=True)
    os.rename(tmp_path / "aside", new / "rank-1-of-2")
    assert on_ranks(2, program.run, str(new), 3, 0, resume=True)[0][0][:2] == (ended[0][3], 2)


def test_mistakes_of_the_other_folder(tmp_path):
    old = tmp_path / "old"
    on_ranks(2, program.run, str(old), 3, 1)

    def refused(error, text, num_ranks=2, folder=old, stage=3):
        for its_error, message in errors_of(num_ranks, program.run, str(tmp_path / "new"), stage, 1,
                                            start_from=str(folder)):
            assert its_error == error and text in message, (its_error, message)

    refused("BadInputError", "there is no store in", folder=tmp_path)
    refused("BadInputError", "there is no store in", folder=tmp_path / "missing", num_ranks=1, stage=0)
    on_ranks(1, program.run, str(tmp_path / "another"), 0, 1)
    os.rename(tmp_path / "another", old / "rank-0-of-1")
    refused("UsageError", "there are stores of 1 and of 2 ranks")
    os.rename(old / "rank-0-of-1", tmp_path / "another")
    os.rename(old / "rank-1-of-2", tmp_path / "aside")
    refused("BadInputError", "rank-1-of-2")
    os.rename(tmp_path / "aside", old / "rank-1-of-2")
    assert on_ranks(2, program.run, str(tmp_path / "new"), 3, 1, start_from=str(old))[0][0][1] == 1
