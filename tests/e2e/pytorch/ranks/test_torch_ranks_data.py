"""The parts of one order that a ResumableLoader gives to ranks: together the rows of one process with as many a
step."""

from types import SimpleNamespace

import forebay
import forebay.torch
import pytest
import torch


def loader_of(num_samples, batch_size, num_ranks, rank, **options):
    ranks = None if num_ranks == 1 else SimpleNamespace(size=num_ranks, rank=rank)
    return forebay.torch.ResumableLoader(torch.arange(num_samples), batch_size, ranks=ranks, seed=6, **options)


def epochs_of(loader, num_epochs):
    return [[batch.tolist() for batch in loader] for _ in range(loader.epoch, num_epochs)]


CASES = [(num_samples, batch_size, num_ranks, options)
         for num_samples, batch_size, num_ranks in [(48, 4, 2), (50, 4, 2), (51, 4, 2), (47, 3, 4), (5, 4, 2), (7, 1, 3)]
         for options in ({}, {"shuffle": True}, {"drop_last": True}, {"shuffle": True, "drop_last": True})]


@pytest.mark.parametrize("num_samples, batch_size, num_ranks, options",
                         [*CASES, (50, 4, 2, {"shuffle": True, "num_workers": 1})], ids=str)
def test_ranks_have_the_rows_of_one_process(num_samples, batch_size, num_ranks, options):
    whole = epochs_of(loader_of(num_samples, batch_size * num_ranks, 1, 0, **options), 2)
    of_ranks = [epochs_of(loader_of(num_samples, batch_size, num_ranks, rank, **options), 2)
                for rank in range(num_ranks)]
    for epoch, steps in enumerate(whole):
        assert len({len(own[epoch]) for own in of_ranks}) == 1
        together = [[row for own in of_ranks for row in own[epoch][step]] for step in range(len(of_ranks[0][epoch]))]
        for step, rows in enumerate(together):
            assert len({len(own[epoch][step]) for own in of_ranks}) == 1  # a mean of them is that of all rows
            # A rest that cannot be divided is left out.
            assert rows == steps[step][:len(rows)] and len(steps[step]) - len(rows) < num_ranks
        missing = sum(map(len, steps)) - sum(map(len, together))
        assert missing < num_ranks or (options.get("drop_last") and len(together) == len(steps))


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_rank_goes_on_with_the_batch_that_comes_next(num_ranks, shuffle):
    for rank in range(num_ranks):
        whole = epochs_of(loader_of(50, 4, num_ranks, rank, shuffle=shuffle), 2)
        for stop in (1, 3, len(whole[0])):
            loader = loader_of(50, 4, num_ranks, rank, shuffle=shuffle)
            batches = iter(loader)
            for _ in range(stop):
                next(batches)
            resumed = loader_of(50, 4, num_ranks, rank, shuffle=shuffle)
            resumed.load_state_dict(loader.state_dict())
            assert epochs_of(resumed, 2) == ([whole[0][stop:]] if stop < len(whole[0]) else [[]]) + whole[1:]


def test_len_is_that_of_one_rank():
    assert len(loader_of(50, 4, 2, 0)) == 7 and len(loader_of(51, 4, 2, 1)) == 7 and len(loader_of(48, 4, 2, 1)) == 6


def state_after(num_batches, num_samples, num_ranks, batch_size):
    loader = loader_of(num_samples, batch_size, num_ranks, 0, shuffle=True)
    batches = iter(loader)
    for _ in range(num_batches):
        next(batches)
    return loader.state_dict()


@pytest.mark.parametrize("of_state, mine", [((2, 4), (3, 4)), ((1, 4), (2, 4)), ((2, 3), (4, 2))], ids=str)
@pytest.mark.parametrize("num_samples", [48, 50])
def test_a_position_within_a_step_of_other_ranks_is_refused(num_samples, of_state, mine):
    """Numbers of ranks, and their batch: what was gone through is told by both."""
    state = state_after(1, num_samples, *of_state)
    with pytest.raises(forebay.UsageError, match="no whole steps of"):
        loader_of(num_samples, mine[1], mine[0], 0, shuffle=True).load_state_dict(state)
    with pytest.raises(forebay.UsageError, match="num_samples"):
        loader_of(num_samples + 1, of_state[1], of_state[0], 0, shuffle=True).load_state_dict(state)


@pytest.mark.parametrize("of_state, mine", [((2, 4), (1, 4)), ((2, 4), (2, 2)), ((2, 4), (1, 8)), ((1, 8), (2, 4)),
                                            ((4, 2), (2, 4)), ((2, 4), (4, 1))], ids=str)
@pytest.mark.parametrize("num_samples", [48, 50])
def test_other_ranks_go_on_with_the_samples_that_come_next(num_samples, of_state, mine):
    order = epochs_of(loader_of(num_samples, num_samples, 1, 0, shuffle=True), 2)
    for num_batches in (1, 3):
        state = state_after(num_batches, num_samples, *of_state)
        loaders = [loader_of(num_samples, mine[1], mine[0], rank, shuffle=True) for rank in range(mine[0])]
        for loader in loaders:
            loader.load_state_dict(state)
        first, second = ([row for step in zip(*epoch) for own in step for row in own]
                         for epoch in zip(*(epochs_of(loader, 2) for loader in loaders)))
        num_done = num_batches * of_state[0] * of_state[1]
        assert first == order[0][0][num_done:num_samples // mine[0] * mine[0]]
        assert second == order[1][0][:num_samples // mine[0] * mine[0]]


def test_samples_without_a_batch():
    """batch_size None: single samples, of which each rank has every second one."""
    own = [[sample.item() for sample in loader_of(9, None, 2, rank)] for rank in (0, 1)]
    assert own == [[0, 2, 4, 6], [1, 3, 5, 7]]
