"""Runs the program in a process of its own, so that there is somebody left to say what ended it.

What a file from elsewhere makes it do may end the process at any moment (bounds.py). Imports nothing large: this process
waits as long as the other one works.
"""

import ctypes
import os
import signal
import sys

from . import bounds
from .errors import report_error, shortened

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(work, arguments):
    """The exit code of `work()`, which a child process runs. Signals that stop programs go on to it.

    `arguments`: of the command line, for errors. Where such a signal ended the child, it ends this process too.
    """
    waited_for = {signal.SIGCHLD, *_STOPS}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored nobody hears of the child's end
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    parent = os.getpid()
    worker = os.fork()
    if worker == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # which has died before that
            os._exit(128 + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited_for)
        return work()
    # Only the child uses them: a reader of its output must see end-of-file when the child ends, and not later.
    code = _wait(worker, waited_for)
    return code if code >= 0 else _say_what_ended_it(-code, arguments)


def _wait(worker, waited_for):
    """The exit code of the child, or less than 0: the signal that ended it."""
    while True:
        number = signal.sigwaitinfo(waited_for).si_signo
        if number != signal.SIGCHLD:
            os.kill(worker, number)
            continue
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _say_what_ended_it(number, arguments):
    message = bounds.death_message(number) if number not in _STOPS else None
    if message is not None:
        return report_error(arguments, shortened(message), 3)
    if number == signal.SIGKILL:
        return report_error(arguments, "the program was killed, most likely because memory ran out: split the data into "
                                       "several files", 6)
    # As if there had been one process.
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # a signal that does not end a process
