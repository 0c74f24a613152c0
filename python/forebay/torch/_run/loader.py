"""Data in an order that a run can go on in the middle of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from forebay.errors import UsageError

_END = object()


class _Order(Sampler[int]):
    """The indices of an epoch from `first` on: shuffled by the seed and the number of the epoch alone."""

    def __init__(self, num_samples: int, shuffle: bool, seed: int) -> None:
        self.num_samples = num_samples
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.first = 0

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.first, self.num_samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.num_samples, generator=generator).tolist()[self.first:])


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose position is what the loop was given, also with workers that read ahead.

    Arguments are those of DataLoader, and the `seed` that epochs are shuffled by. Each iteration is an epoch:

        engine.track(loader=loader)
        for epoch in range(loader.epoch, num_epochs):
            for batch in loader:

    An epoch that was interrupted goes on with the batch that comes next. Random numbers that workers draw are not those
    of a run without a stop: derive them from the index of the sample.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, *, seed: int = 0,
                 **options: Any) -> None:
        if {"sampler", "batch_sampler"} & options.keys() or isinstance(dataset, IterableDataset):
            raise UsageError("forebay: a ResumableLoader finds its place by the indices of its own order, so it takes "
                             "no sampler, batch_sampler or IterableDataset. Give it a dataset with a length, and "
                             "shuffle= and seed=.")
        self._order = _Order(len(dataset), shuffle, seed)
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
        return {"epoch": self.epoch, "position": 0 if self._is_over else self._position, "seed": order.seed,
                "shuffle": order.shuffle, "num_samples": order.num_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """UsageError: it is of other data, or of another order."""
        mine = self.state_dict()
        for key in ("num_samples", "seed", "shuffle"):
            if state[key] != mine[key]:
                raise UsageError(f"forebay: the run has gone through its data with {key}={state[key]}, and would go on "
                                 f"with {mine[key]}: in another order. Give the same data, seed and shuffle.")
        self._order.epoch, self._position = state["epoch"], state["position"]
        self._goes_on, self._is_over = True, False
