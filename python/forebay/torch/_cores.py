"""If the kernel refuses to say on which cores a process may run (seccomp in a container), torch fails: it asks when an
optimizer or a DataLoader is made, and expects an answer. All cores are one, as os.cpu_count() counts them."""

from __future__ import annotations

import os


def answer_for_the_kernel() -> None:
    """Does nothing if the kernel answers."""
    asked = getattr(os, "sched_getaffinity", None)
    try:
        if asked is None or asked(0):
            return
    except OSError:
        pass
    os.sched_getaffinity = lambda _pid: set(range(os.cpu_count() or 1))
