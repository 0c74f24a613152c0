"""deepspeed.zero for one rank: models are made in RAM, and move into the store in initialize()."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def Init(*_: Any, **__: Any) -> Iterator[None]:
    yield
