"""Makes wrong copies of sources of swap/, each with one exact replacement: what the crash suite has to notice.

  mutate.py list <root>                 name and source of each mutation, as CMake reads them
  mutate.py check <root>                exit 1 where a text is not in its source exactly once
  mutate.py make <root> <name> <out>    writes the mutated source
  mutate.py run <program> [--spare]     runs the crash suite against it: exit 0 when an assertion failed, or the check
                                        of the store ended it that is to (ENDED_BY), or with --spare when all held
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from mutations import ENDED_BY, MUTATIONS  # noqa: E402

TIMEOUT_S = 900
# Tests of the suite itself look for what a working store does. The smallest stores first: they notice most.
FILTERS = ("*/1x1-*WouldBeCaught*", "-*WouldBeCaught*:*/1x1")


def mutated(root, name):
    """The text of the source with the mutation `name`. ValueError where it does not apply."""
    source, text, replacement = MUTATIONS[name]
    contents = (root / "swap" / source).read_text()
    count = contents.count(text)
    if count != 1:
        raise ValueError(f"{name}: its text is in swap/{source} {count} times, not once: adapt mutations.py")
    return contents.replace(text, replacement)


def check(root):
    problems = []
    for name in MUTATIONS:
        try:
            if mutated(root, name) == (root / "swap" / MUTATIONS[name][0]).read_text() and name != "none":
                problems.append(f"{name}: it changes nothing")
        except ValueError as error:
            problems.append(str(error))
    print("\n".join(problems) or f"{len(MUTATIONS)} mutations apply")
    return 1 if problems else 0


def failed_tests(report):
    return [
        f"{suite['name']}.{test['name']}"
        for suite in report["testsuites"]
        for test in suite["testsuite"]
        if test.get("failures")
    ]


def ended_by_check(process):
    """The text of the check that ended the program, "" when none did."""
    if process.returncode != -signal.SIGABRT:
        return ""
    return process.stderr.rpartition("internal error: '")[2].partition("'")[0]


def tests_failed(program, tests, check):
    """The names of the tests that fail, the first of them alone, or the check that has `check` in it, where that ended
    the program. ValueError where the program ends otherwise: a crash or a timeout says nothing about the suite, nor
    does a failure that no test reports."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        command = [program, f"--gtest_filter={tests}", f"--gtest_output=json:{path}", "--gtest_fail_fast"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if check and check in ended_by_check(process):
            return [f"the check '{ended_by_check(process)}'"]
        if process.returncode not in (0, 1) or not path.exists():
            raise ValueError(f"{process.stdout[-4000:]}{process.stderr[-4000:]}it ended with {process.returncode}")
        failed = failed_tests(json.loads(path.read_text()))
    if bool(failed) != (process.returncode == 1):
        raise ValueError(f"{process.stdout[-4000:]}it ended with {process.returncode}, but {len(failed)} tests failed")
    return failed


def run(program, spare):
    check = ENDED_BY.get(pathlib.Path(program).name.removeprefix("crash_mutation_"))
    for tests in FILTERS:
        failed = tests_failed(program, tests, check)
        if failed:
            print("noticed by " + ", ".join(failed))
            return 1 if spare else 0
    print("not noticed")
    return 0 if spare else 1


def main(arguments):
    command, *rest = arguments
    if command == "run":
        return run(rest[0], "--spare" in rest)
    root = pathlib.Path(rest[0])
    if command == "list":
        print(";".join(f"{name}={source}" for name, (source, _, _) in MUTATIONS.items()), end="")
        return 0
    if command == "check":
        return check(root)
    pathlib.Path(rest[2]).write_text(mutated(root, rest[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
