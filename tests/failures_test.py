"""failures.py prints what tells of a failed test, and nothing of those that passed."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import failures

LOG = """Start testing: Nov 29 12:00 UTC
----------------------------------------------------------
1/3 Testing: good_test
1/3 Test: good_test
Output:
----------------------------------------------------------
a.cc:1: Failure
<end of output>
Test Passed.

2/3 Testing: bad_test
2/3 Test: bad_test
Output:
----------------------------------------------------------
[ RUN      ] A.B
a.cc:3: Failure
Value of: x
[  FAILED  ] A.B (3 ms)
[       OK ] A.C (3 ms)
<end of output>
Test Failed.

3/3 Testing: silent_test
3/3 Test: silent_test
Output:
----------------------------------------------------------
its last words
<end of output>
Test Failed.
"""


class FailuresTest(unittest.TestCase):
    def printed(self, failed):
        with tempfile.TemporaryDirectory() as folder, io.StringIO() as out, contextlib.redirect_stdout(out):
            logs = pathlib.Path(folder) / "Testing" / "Temporary"
            logs.mkdir(parents=True)
            (logs / "LastTest.log").write_text(LOG)
            (logs / "LastTestsFailed.log").write_text(failed)
            failures.print_of(pathlib.Path(folder))
            return out.getvalue()

    def test_failures_and_what_stands_behind_them_are_printed(self):
        self.assertEqual(self.printed("2:bad_test\n"),
                         "-- bad_test\na.cc:3: Failure\nValue of: x\n[  FAILED  ] A.B (3 ms)\n")

    def test_a_test_without_such_lines_has_its_last_ones(self):
        self.assertEqual(self.printed("3:silent_test\n9:of_an_earlier_run_test\n"), "-- silent_test\nits last words\n")


if __name__ == "__main__":
    unittest.main()
