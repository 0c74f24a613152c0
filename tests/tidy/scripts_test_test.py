"""scripts/test in a tiny checkout: what it runs with each option, and what its last lines say.

The build is a stub with a few tests of ctest; nothing is installed.
"""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Stands in for scripts/build: a folder of tests that count their runs.
BUILD = """#!/bin/bash
preset=${1:-release}
echo "$*" >>builds
folder=build; [ "$preset" = release ] || folder=build/$preset
mkdir -p $folder
test() {
  echo "add_test($1 sh -c \\"echo $1 >>$PWD/runs; $3\\")"
  echo "set_tests_properties($1 PROPERTIES LABELS \\"$2\\" SKIP_RETURN_CODE 77)"
}
case $preset in
  release)
    test in_share 'unit;store;share' true
    test other 'unit' "exit $(cat other_code)"
    test beside_torch 'e2e;torch' true ;;
  tidy) test linted tidy true ;;
  fuzz) test fuzzed fuzz true ;;
  *) for part in 1 2 3; do test sanitized_$part "core;core_part$part" true; done ;;
esac >$folder/CTestTestfile.cmake
"""
NO_INSTALLS = """
for need in packages browser cuobjdump smollm2 venv deepspeed_sources; do eval "need_$need() { :; }"; done
"""


class ScriptsTestTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="scripts_test"))
        self.addCleanup(shutil.rmtree, self.root)
        for name in ("scripts/test", "scripts/lib.sh", "tests/failures.py"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        with (self.root / "scripts/lib.sh").open("a") as library:
            library.write(NO_INSTALLS)
        self.write_program("scripts/build", BUILD)
        self.write_program("scripts/wheel", "#!/bin/sh\n:\n")
        self.write_program("other_code", "0")
        (self.root / "tests/wheel").mkdir()
        self.write_program("tests/wheel/check_wheel.py", "")
        self.write_program("build/test-wheels/forebay-1.whl", "")

    def write_program(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *options, code=0):
        done = subprocess.run(["scripts/test", *options], cwd=self.root, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def runs(self):
        path = self.root / "runs"
        return path.read_text().split() if path.exists() else []

    def test_without_options_a_share_is_built_and_run(self):
        text = self.run_script()
        self.assertEqual(self.runs(), ["in_share"])
        self.assertEqual((self.root / "builds").read_text(), "release -- --target shares\n")
        self.assertIn("Tests that took longest:", text)
        self.assertRegex(text, r"\d s  in_share")
        self.assertIn("scripts/test: passed in", text.splitlines()[-1])

    def test_all_runs_every_test_of_every_suite_and_none_twice(self):
        self.run_script("--all")
        self.assertEqual(sorted(self.runs()), ["beside_torch", "fuzzed", "in_share", "linted", "other",
                                               "sanitized_1", "sanitized_1"])  # by ASan, and by TSan

    def test_a_failure_does_not_stop_the_other_suites_and_is_told_at_the_end(self):
        (self.root / "other_code").write_text("1")
        text = self.run_script("--all", code=1)
        self.assertEqual(len(self.runs()), 7)
        self.assertRegex(text, r"unit and end-to-end tests \(part [1-6]/6 of the cases of pytest\): FAILED")
        self.assertIn("scripts/test: FAILED", text)

    def test_suites_that_are_left_out_are_named_in_the_last_lines(self):
        script = (self.root / "scripts/test").read_text()
        self.write_program("scripts/test", script.replace("last_minute * 60", "last_minute * 0"))
        text = self.run_script("--all", "--minutes=1")
        last = text[text.index("NOT ALL WAS TESTED"):].splitlines()[1:]
        self.assertEqual(len(last), 8, text)
        self.assertTrue(all("LEFT OUT" in line for line in last), last)

    def test_a_test_is_repeated_until_it_fails(self):
        self.run_script("--repeat=5", "in_share")
        self.assertEqual(self.runs(), ["in_share"] * 5)
        (self.root / "other_code").write_text("1")
        self.run_script("--repeat=5", "other", code=8)
        self.assertEqual(self.runs().count("other"), 1)

    def test_repeating_what_is_skipped_or_unknown_is_a_failure(self):
        (self.root / "other_code").write_text("77")
        self.assertIn("a test was skipped", self.run_script("--repeat=2", "other", code=1))
        self.run_script("--repeat=2", "nothing", code=8)
        self.assertIn("names no test", self.run_script("--repeat=2", code=1))


if __name__ == "__main__":
    unittest.main()
