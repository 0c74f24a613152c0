"""tests/run_cases.py: each part runs some cases of every test, and all parts together run each case."""

import os
import pathlib
import re
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "run_cases.py"
TESTS = """
import pytest
@pytest.mark.parametrize("b", range(2))
@pytest.mark.parametrize("a", range(5))
def test_many(a, b): pass
@pytest.mark.parametrize("case", ["x[1]", "y"])
def test_two(case): pass
def test_one(): pass
class TestIt:
    @pytest.mark.parametrize("a", range(3))
    def test_in_class(self, a): pass
"""


def run(folder, cases):
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run([sys.executable, PROGRAM, "-v", "-p", "no:cacheprovider", "test_it.py"], cwd=folder, text=True,
                          capture_output=True, env={**os.environ, "FOREBAY_CASES": cases})
    return done, set(re.findall(r"::(\S.*) PASSED", done.stdout))


def test_parts_are_all_of_it_and_each_has_some_of_every_test(tmp_path):
    everything = run(tmp_path, "")[1]
    assert len(everything) == 16
    parts = [run(tmp_path, f"{part}/3")[1] for part in (1, 2, 3)]
    assert set.union(*parts) == everything
    for part in parts:
        assert {case.split("[")[0] for case in part} == {"test_many", "test_two", "test_one", "TestIt::test_in_class"}
        assert len(part) <= 4 + 1 + 1 + 1


def test_a_part_that_is_none_is_refused(tmp_path):
    for cases in ("4/3", "0/3", "third"):
        done, _ = run(tmp_path, cases)
        assert done.returncode == 1 and f"FOREBAY_CASES is '{cases}'" in done.stderr
