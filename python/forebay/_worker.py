"""Calls that may wait, made so that Ctrl-C ends the wait.

Python handles a signal on its main thread, between two of its own instructions: a call into C that waits for a disk
would hold it up. So the main thread hands such calls to a thread and waits for it in Python, which signals interrupt.
"""

from __future__ import annotations

import _thread
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from forebay._forks import check_process

_MAIN = threading.main_thread().ident
_LOOKS_EVERY_S = 0.5
_MOST_WAIT_S = 2.0  # for an interrupted call that may wait for the caller


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
    """The calls of one object. Calls of the main thread run one after another; those of other threads run directly.
    In a fork, which has no such thread, all are UsageErrors."""

    def __init__(self, what: str = "an object") -> None:
        """what: the object, for that error."""
        self._what = what
        self._process = os.getpid()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: int | None = None
        self._last: _Task | None = None  # that was abandoned
        self._aside: list[_Task] = []  # abandoned, and not waited for
        self.give_up: Callable[[], None] | None = None  # ends calls that wait for another process

    def check_process(self) -> None:
        """UsageError: this is a fork of the process that made the object."""
        check_process(self._process, self._what)

    def run(self, function: Callable[..., Any], *arguments: Any,
            on_interrupt: Callable[[], None] | None = None, needs_caller: bool = False) -> Any:
        """A call that may wait. On KeyboardInterrupt, or whatever a signal raises, `on_interrupt` is called, the call
        goes on by itself, and the next one waits for it. needs_caller: it may wait for what the caller does next, so
        the next one does not wait."""
        self.check_process()
        if _thread.get_ident() != _MAIN:
            return function(*arguments)
        if self._thread is None:
            # Not threading.Thread, whose start() is left half done when a signal interrupts it.
            self._thread = _thread.start_new_thread(_serve, (self._tasks,))
        task = _Task(function, arguments)
        try:
            self._tasks.put(task)
            # A signal that comes just before the lock is slept on wakes nobody: it is looked at by and by.
            while not task.done.acquire(timeout=_LOOKS_EVERY_S):
                pass
        except BaseException:
            task.is_dropped = True  # it does not begin, if it has not
            task.result = None
            if needs_caller:
                self._leave_aside(task)
            else:
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

    def _leave_aside(self, task: _Task) -> None:
        """Another thread makes the calls that follow."""
        self._aside = [each for each in self._aside if each.done.locked()] + [task]
        self._tasks.put(None)
        self._tasks, self._thread = queue.SimpleQueue(), None

    def wait_for_those_aside(self) -> None:
        """For a while: they end soon where the caller has done its part."""
        self.check_process()
        end = time.monotonic() + _MOST_WAIT_S
        for task in self._aside:
            if task.done.acquire(timeout=max(0.0, end - time.monotonic())):
                task.done.release()

    def whole(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call that does not wait itself, and that a signal is not to cut in two."""
        self.check_process()
        return function(*arguments) if self._thread is None else self.run(function, *arguments)

    def post(self, function: Callable[..., Any], *arguments: Any) -> None:
        """As whole(), of a call that tidies up: behind an abandoned one, and then not waited for."""
        self.check_process()
        if self._last is None or self._thread is None or _thread.get_ident() != _MAIN:
            self.whole(function, *arguments)
        else:
            self._tasks.put(_Task(function, arguments))

    def quick(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call that does not wait, but for an abandoned one."""
        self.check_process()
        last = self._last
        if last is None:
            return function(*arguments)
        result = self.run(function, *arguments)
        if _thread.get_ident() == _MAIN:
            self._last = None
        return result

    def end_abandoned(self) -> None:
        """Before the object ends, which waits for an abandoned call: that may wait for another process, and long."""
        if self.give_up is not None and self._last is not None and self._last.done.locked():
            self.give_up()

    def close(self, function: Callable[..., Any], *arguments: Any) -> None:
        """The last call: after all others, which it waits for, unless it is made on the thread of the calls. Where one
        waits for the caller, it is made by itself once that has ended."""
        if self._thread == _thread.get_ident():
            function(*arguments)
            return
        self.end_abandoned()
        aside, self._aside = [task for task in self._aside if task.done.locked()], []
        if self._thread is None and not aside:
            function(*arguments)
            return
        if self._thread is None:
            _thread.start_new_thread(_serve, (self._tasks,))
        tasks, self._tasks, self._thread = self._tasks, queue.SimpleQueue(), None
        task = _Task(_after, (aside, function, arguments))
        tasks.put(task)
        tasks.put(None)
        task.done.acquire(timeout=_MOST_WAIT_S if aside else -1)


def _after(tasks: list[_Task], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for task in tasks:
        task.done.acquire()
    function(*arguments)
