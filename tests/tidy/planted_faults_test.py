"""Faults of every kind, planted into every module of a small tree with the gates of this one, are reported by each gate.

usage: planted_faults_test.py ROOT

The modules are the folders of ROOT with C++ sources, so that one which the list in cmake/modules.cmake lacks is a failure.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
NO_MODULES = {"tests", "bench", "examples", "build"}
MODULES = sorted({path.relative_to(ROOT).parts[0] for path in ROOT.glob("[a-z]*/**/*.cc")} - NO_MODULES)
GATES = [".clang-tidy", ".clang-format", "scripts/format", "cmake/modules.cmake", "cmake/forebay_library.cmake",
         "cmake/check_headers.cmake", "docs/architecture.md", "docs/design/folders.md", "tests/tidy/clang_tidy.sh",
         "tests/tidy/check_tree.py"]
PROJECT = """
cmake_minimum_required(VERSION 3.23)
project(planted LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(FOREBAY_UNITY ON)
set(FOREBAY_UNITY_BATCH 0)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/forebay SYMBOLIC)
include(cmake/modules.cmake)
include(cmake/forebay_library.cmake)
include(cmake/check_headers.cmake)
foreach(module ${FOREBAY_MODULES})
  add_subdirectory(${module})
endforeach()
forebay_check_headers(${FOREBAY_MODULES})
"""
# clang-tidy has something to say of the header, and of the source, which is too long, written as no formatter would, and
# has a line that is too wide.
HEADER = "#pragma once\n\nstruct lower_case {};\n"
SOURCE = f"""#include "forebay/MODULE/planted.h"

int  LongFunction(int x) {{
{"  ++x;{}".format(chr(10)) * 71}  return x;
}}
// {"wide " * 20}.
"""


class PlantedFaultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="planted"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        for name in GATES:
            (cls.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, cls.root / name)
        files = {"planted.h": HEADER, "planted.cc": SOURCE, "alone.h": "#pragma once\ninline not_declared x;\n",
                 "absent.cc": "struct not_built {};\n", "kernel.cu": "int  x;\n", "kernel.cuh": "int  x;\n",
                 "CMakeLists.txt": "forebay_library(MODULE SOURCES planted.cc)\n"}
        for module in MODULES:
            (cls.root / module).mkdir()
            for name, text in files.items():
                (cls.root / module / name).write_text(text.replace("MODULE", module))
        (cls.root / "CMakeLists.txt").write_text(PROJECT)
        cls.build = cls.root / "build"
        cls.run_gate("cmake", "-G", "Ninja", "-B", cls.build, "-DCMAKE_CXX_COMPILER=clang++-14",
                     succeeds=True)

    @classmethod
    def run_gate(cls, *command, succeeds=False):
        """What it wrote; it has to fail, or with `succeeds` must not."""
        done = subprocess.run(list(map(str, command)), cwd=cls.root, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        assert (done.returncode == 0) == succeeds, f"{command} returned {done.returncode}:\n{text[-3000:]}"
        return text

    def assert_found_in_each(self, pattern, text):
        missing = [module for module in MODULES if not re.search(pattern.replace("MODULE", module), text, re.MULTILINE)]
        self.assertEqual(missing, [], f"'{pattern}' was not reported for these modules in:\n{text[-3000:]}")

    def test_clang_tidy_reports_headers_and_sources_of_every_module(self):
        listed = re.search(r"set\(FOREBAY_MODULES\s([^)]*)\)", (ROOT / "cmake/modules.cmake").read_text())[1].split()
        text = self.run_gate("tests/tidy/clang_tidy.sh", self.build, *listed)
        self.assert_found_in_each(r"/MODULE/planted\.h:3:.*readability-identifier-naming", text)
        self.assert_found_in_each(r"/MODULE/planted\.cc:3:.*readability-function-size", text)
        self.assert_found_in_each(r"/MODULE/absent\.cc:1:.*readability-identifier-naming", text)

    def test_the_formatter_reports_every_kind_of_file_of_every_module(self):
        text = self.run_gate("scripts/format", "--check")
        for name in (r"planted\.cc", r"kernel\.cu", r"kernel\.cuh"):
            self.assert_found_in_each(rf"/MODULE/{name}:.*clang-format", text)

    def test_a_header_that_does_not_stand_alone_is_reported_in_every_module(self):
        text = self.run_gate("cmake", "--build", self.build, "--target", "forebay_headers_alone", "--", "-k", "0")
        self.assert_found_in_each(r"/MODULE/alone\.h:2:.*error", text)

    def test_check_tree_reports_sources_of_every_module(self):
        text = self.run_gate(sys.executable, "-B", "tests/tidy/check_tree.py", self.root)
        self.assert_found_in_each(r"^MODULE/planted\.cc:\d+: \d+ columns", text)


if __name__ == "__main__":
    for program in ("clang++-14", "run-clang-tidy-14", "clang-format-14"):
        if not shutil.which(program):
            print(f"skipped: {program} is not there; scripts/test installs it")
            sys.exit(SKIPPED)
    unittest.main()
