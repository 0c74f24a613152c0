"""deepspeed.runtime.dataloader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class RepeatingLoader:
    """Batches of a loader without end: after the last one it begins anew. StopIteration: the loader has none."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch."""
        for batch in self.data_iter:
            return batch
        self.data_iter = iter(self.loader)
        return next(self.data_iter)


__all__ = ["RepeatingLoader"]
