"""Calls that may wait, made so that Ctrl-C ends the wait.

Python handles a signal on its main thread, between two of its own instructions: a call into C that waits for a disk
would hold it up. So the main thread hands such calls to a thread and waits for it in Python, which signals interrupt.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from typing import Any

_MAIN = threading.main_thread().ident


class _Task:
    __slots__ = ("arguments", "done", "error", "function", "is_dropped", "result")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_dropped = False
        self.done = threading.Lock()
        self.done.acquire()


def _serve(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        if not task.is_dropped:
            try:
                task.result = task.function(*task.arguments)
            except BaseException as error:  # noqa: BLE001 - raised again where the call was made
                task.error = error
            if task.is_dropped:
                task.result = None  # a lease must not live as long as the traceback of its interrupted caller
        task.done.release()
        # Frees what the task keeps alive before the wait for the next one.
        del task


class Worker:
    """The calls of one object. Calls of the main thread run one after another; those of other threads run directly."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: int | None = None
        self._last: _Task | None = None  # that was abandoned

    def run(self, function: Callable[..., Any], *arguments: Any,
            on_interrupt: Callable[[], None] | None = None) -> Any:
        """A call that may wait. On KeyboardInterrupt, or whatever a signal raises, `on_interrupt` is called, the call
        goes on by itself, and the next one waits for it."""
        if _thread.get_ident() != _MAIN:
            return function(*arguments)
        if self._thread is None:
            # Not threading.Thread, whose start() is left half done when a signal interrupts it.
            self._thread = _thread.start_new_thread(_serve, (self._tasks,))
        task = _Task(function, arguments)
        try:
            self._tasks.put(task)
            task.done.acquire()
        except BaseException:
            task.is_dropped = True  # it does not begin, if it has not
            task.result = None
            self._last = task
            if on_interrupt is not None:
                on_interrupt()
            raise
        if task.error is not None:
            try:
                raise task.error
            finally:
                task.error = None  # no circle through the traceback
        return task.result

    def quick(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call that does not wait, but for an abandoned one."""
        last = self._last
        if last is None:
            return function(*arguments)
        result = self.run(function, *arguments)
        if _thread.get_ident() == _MAIN:
            self._last = None
        return result

    def close(self, function: Callable[..., Any], *arguments: Any) -> None:
        """The last call: after all others, which it waits for, unless it is made on the thread of the calls."""
        if self._thread is None or self._thread == _thread.get_ident():
            function(*arguments)
            return
        self._thread = None
        task = _Task(function, arguments)
        self._tasks.put(task)
        self._tasks.put(None)
        task.done.acquire()
