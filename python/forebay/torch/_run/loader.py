"""Data in an order that a run can go on in the middle of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from forebay.errors import UsageError
from forebay.ranks import Ranks

_END = object()


class _Order(Sampler[int]):
    """The indices of an epoch from `first` on: shuffled by the seed and the number of the epoch alone."""

    def __init__(self, num_samples: int, batch_size: int, shuffle: bool, seed: int, ranks: Ranks | None) -> None:
        self.rank, self.num_ranks = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        self.num_all = num_samples // self.num_ranks * self.num_ranks
        self.num_samples = self.num_all // self.num_ranks
        self.num_in_data = num_samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.first = 0

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        all_of_them: Sequence[int] = range(self.num_in_data)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            all_of_them = torch.randperm(self.num_in_data, generator=generator).tolist()
        return iter(self._own_of(all_of_them)[self.first:])

    def _own_of(self, order: Sequence[int]) -> Sequence[int]:
        """This rank's part of each so many in turn as the ranks together take in a step."""
        if self.num_ranks == 1:
            return order
        own: list[int] = []
        of_step = self.batch_size * self.num_ranks
        for begin in range(0, self.num_all, of_step):
            count = min(of_step, self.num_all - begin) // self.num_ranks
            begin += self.rank * count
            own += order[begin:begin + count]
        return own


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose position is what the loop was given, also with workers that read ahead.

    Arguments are those of DataLoader, and the `seed` that epochs are shuffled by. Each iteration is an epoch:

        engine.track(loader=loader)
        for epoch in range(loader.epoch, num_epochs):
            for batch in loader:

    ranks: `forebay.Ranks`: each of them gets its part of one order, `batch_size` samples a step; what is left of an
    epoch when it is not divisible by their number is left out.

    An epoch that was interrupted goes on with the batch that comes next. Random numbers that workers draw are not those
    of a run without a stop: derive them from the index of the sample.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, *, seed: int = 0,
                 ranks: Ranks | None = None, **options: Any) -> None:
        if {"sampler", "batch_sampler"} & options.keys() or isinstance(dataset, IterableDataset):
            raise UsageError("forebay: a ResumableLoader finds its place by the indices of its own order, so it takes "
                             "no sampler, batch_sampler or IterableDataset. Give it a dataset with a length, and "
                             "shuffle= and seed=.")
        self._order = _Order(len(dataset), batch_size or 1, shuffle, seed, ranks)
        self._position = 0  # samples of this epoch that were delivered
        self._is_over = False
        self._goes_on = False  # with what load_state_dict said
        self.before_next: Callable[[], None] | None = None  # set by what tracks it
        self.after_begin: Callable[[], None] | None = None
        self.at_end: Callable[[], None] | None = None
        super().__init__(dataset, batch_size, sampler=self._order, **options)

    @property
    def epoch(self) -> int:
        """The epoch in progress; behind its end, the next one."""
        return self._order.epoch + self._is_over

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._ask()
        goes_on = self._begin()
        batches = super().__iter__()
        if goes_on and self.after_begin is not None:
            self.after_begin()  # to begin has drawn a random number, which this epoch had drawn before
        while (batch := next(batches, _END)) is not _END:
            self._position = min(self._position + (self.batch_size or 1), len(self._order))
            yield batch
            self._ask()
        if self.at_end is not None:
            self.at_end()
        self._is_over = True

    def _ask(self) -> None:
        if self.before_next is not None:
            self.before_next()

    def _begin(self) -> bool:
        """Returns whether an epoch goes on that had begun."""
        if not self._goes_on and self._position > 0:
            self._order.epoch += 1
            self._position = 0
        self._goes_on = self._is_over = False
        self._order.first = self._position
        return self._position > 0

    def state_dict(self) -> dict[str, Any]:
        """The position. load_state_dict() of a loader of the same data goes on from it."""
        order = self._order
        state = {"epoch": self.epoch, "position": 0 if self._is_over else self._position, "seed": order.seed,
                 "shuffle": order.shuffle, "num_samples": order.num_samples}
        if order.num_ranks > 1:
            state.update(num_ranks=order.num_ranks, batch_size=order.batch_size, num_in_data=order.num_in_data)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Also that of another number of ranks, or batch_size on ranks, where those have gone through whole steps of
        this one's. UsageError: they have not, or it is of other data, or of another order."""
        order = self._order
        of_data = state.get("num_in_data", state["num_samples"])
        for key, its, mine in (("num_samples", of_data, order.num_in_data), ("seed", state["seed"], order.seed),
                               ("shuffle", state["shuffle"], order.shuffle)):
            if its != mine:
                raise UsageError(f"forebay: the run has gone through its data with {key}={its}, and would go on with "
                                 f"{mine}: in another order. Give the same data, seed and shuffle.")
        position = self._position_of(state)
        self._order.epoch, self._position = state["epoch"], position
        self._goes_on, self._is_over = True, False

    def _position_of(self, state: dict[str, Any]) -> int:
        """This rank's, where the ranks of `state` have gone through the first samples of the epoch's order."""
        order, position, num_ranks = self._order, int(state["position"]), int(state.get("num_ranks", 1))
        batch_size = int(state.get("batch_size", 1))
        if (num_ranks, batch_size) == (order.num_ranks, order.batch_size if num_ranks > 1 else 1):
            return position
        if position >= state["num_samples"]:
            return order.num_samples  # but for what is left out, the epoch is over
        num_done, of_step = position * num_ranks, order.batch_size * order.num_ranks if order.num_ranks > 1 else 1
        if position % batch_size != 0 or num_done % of_step != 0:
            raise UsageError(f"forebay: {num_ranks} ranks have gone through {num_done} samples of the epoch, which are "
                             f"no whole steps of {order.num_ranks} ranks with batch_size={order.batch_size}. Give a "
                             "batch_size that divides them.")
        return num_done // order.num_ranks
