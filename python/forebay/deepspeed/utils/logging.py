"""deepspeed.utils.logging: lines on standard output, of some ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from forebay.deepspeed import comm


class _Printed(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


def _make_logger() -> logging.Logger:
    # Not DeepSpeed's name: after install() it has a logger of its own.
    made = logging.getLogger("forebay.deepspeed")
    made.setLevel(logging.INFO)
    made.propagate = False
    made.handlers = [_Printed()]
    made.handlers[0].setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] "
                                                    "[%(filename)s:%(lineno)d:%(funcName)s] %(message)s"))
    return made


logger = _make_logger()


def log_dist(message: Any, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Logs the message, with the rank before it, on those of `ranks`; on all with [-1], and on none without any.
    Before init_distributed() or initialize() has begun, every process logs it, as rank -1."""
    rank, named = comm.rank_so_far(), list(ranks or [])
    if rank == -1 or rank in named or named[:1] == [-1]:
        logger.log(level, f"[Rank {rank}] {message}", stacklevel=2)


__all__ = ["log_dist", "logger"]
