"""Progress of long work: silent when it is short, else with the time left."""

import io
import sys
import time

from forebay_data.files import Progress


def test_it_says_what_is_left_of_work_that_takes_long(monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = Progress("reading", 1000)
    for at, done in ((101, 100), (103, 0), (114, 250), (115, 300), (125, 800), (400, 801)):
        seconds[0] = at
        progress.update(done)
    progress.close()
    assert sys.stderr.getvalue().splitlines() == [
        "forebay-data: reading 0 %",
        "forebay-data: reading 25 %, 42 s left",
        "forebay-data: reading 80 %, 6 s left",
        "forebay-data: reading 80 %, 1m15s left",
    ]
