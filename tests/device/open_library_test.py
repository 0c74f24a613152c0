#!/usr/bin/env python3
"""Where a library of NVIDIA's is found on machines of several kinds, with a stand-in for it.

  open_library_test.py PROGRAM LIBRARY
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, LIBRARY = pathlib.Path(), pathlib.Path()
PACKAGES = "lib/python3.12/site-packages"


class OpenLibrary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="forebay-open-library-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def put(self, path, source=None):
        """A copy in the folder of this test, of the library unless another file is named."""
        to = self.folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source or LIBRARY, to)
        return str(to)

    def put_python(self, path, *packages):
        """A python3 that imports from these folders."""
        to = self.folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(f"#!{sys.executable}\nimport sys\nsys.path[:] = {['', *map(str, packages)]}\nexec(sys.argv[2])\n")
        to.chmod(0o755)

    def found(self, program=None, expect=0, **environment):
        """What the program prints, with no other variables than these."""
        done = subprocess.run([program or PROGRAM], capture_output=True, text=True, cwd=self.folder, check=False,
                              env={"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", ""), **environment})
        self.assertEqual((done.returncode, done.stderr), (expect, ""), done.stdout)
        return done.stdout.strip()

    def test_the_python_of_the_path_is_asked_where_no_variable_names_its_environment(self):
        library = self.put(f"far/.venv/{PACKAGES}/nvidia/cu13/lib/libforebay_twin.so.13")
        self.put_python("far/.venv/bin/python3", self.folder / "no-such", self.folder / "far/.venv" / PACKAGES)
        self.assertEqual(self.found(PATH=f"/no-such:{self.folder}/far/.venv/bin"), library)

    def test_packages_beside_the_program_are_found(self):
        library = self.put(f"prefix/{PACKAGES}/nvidia/twin/lib/libforebay_twin.so.12")
        self.assertEqual(self.found(self.put("prefix/bin/program", PROGRAM)), library)
        self.assertEqual(self.found(self.put(f"prefix/{PACKAGES}/forebay/_bin/program", PROGRAM)), library)

    def test_a_link_to_the_program_leads_to_the_packages_beside_it(self):
        library = self.put(f"prefix/{PACKAGES}/nvidia/twin/lib/libforebay_twin.so.12")
        self.put("prefix/bin/program", PROGRAM)
        (self.folder / "link").symlink_to(self.folder / "prefix/bin/program")
        self.assertEqual(self.found(self.folder / "link"), library)

    def test_the_environment_goes_before_the_program_before_python_before_the_user(self):
        places = {"environment": dict(VIRTUAL_ENV=f"{self.folder}/environment"), "prefix": {},
                  "python": dict(PATH=f"{self.folder}/python/bin"), "home/.local": dict(HOME=f"{self.folder}/home")}
        variables = {name: value for place in places.values() for name, value in place.items()}
        self.put_python("python/bin/python3", self.folder / "python" / PACKAGES)
        program = self.put("prefix/bin/program", PROGRAM)
        libraries = [self.put(f"{place}/{PACKAGES}/nvidia/twin/lib/libforebay_twin.so.13") for place in places]
        for library in libraries:
            self.assertEqual(self.found(program, **variables), library)
            os.remove(library)

    def test_an_environments_older_library_goes_before_the_users_newer_one(self):
        library = self.put(f"environment/{PACKAGES}/nvidia/twin/lib/libforebay_twin.so.12")
        self.put(f"home/.local/{PACKAGES}/nvidia/cu13/lib/libforebay_twin.so.13")
        self.assertEqual(self.found(VIRTUAL_ENV=f"{self.folder}/environment", HOME=f"{self.folder}/home"), library)

    def test_libraries_of_conda_and_of_a_toolkit_are_found(self):
        library = self.put("toolkit/lib64/libforebay_twin.so.13")
        self.assertEqual(self.found(CUDA_HOME=f"{self.folder}/toolkit"), library)
        library = self.put("conda/lib/libforebay_twin.so.12")
        self.assertEqual(self.found(CONDA_PREFIX=f"{self.folder}/conda", CUDA_HOME=f"{self.folder}/toolkit"), library)

    def test_what_the_loader_knows_goes_first(self):
        library = self.put("loader/libforebay_twin.so.12")
        self.put(f"environment/{PACKAGES}/nvidia/cu13/lib/libforebay_twin.so.13")
        self.assertEqual(self.found(LD_LIBRARY_PATH=f"{self.folder}/loader", VIRTUAL_ENV=f"{self.folder}/environment"), library)

    def test_a_named_file_is_the_only_one_that_is_tried(self):
        library = self.put("elsewhere/anything.so")
        self.assertEqual(self.found(FOREBAY_LIBRARY_TWIN=library), library)
        self.put(f"environment/{PACKAGES}/nvidia/cu13/lib/libforebay_twin.so.13")
        said = self.found(FOREBAY_LIBRARY_TWIN="/no-such.so", VIRTUAL_ENV=f"{self.folder}/environment", expect=1)
        self.assertRegex(said, "^tried /no-such.so; the last: /no-such.so: cannot open")

    def test_the_current_folder_is_no_place_though_python_imports_from_it(self):
        self.put("nvidia/cu13/lib/libforebay_twin.so.13")
        self.put_python("bin/python3")
        self.found(PATH=f"{self.folder}/bin", expect=1)

    def test_a_file_that_is_none_is_told_and_the_next_is_tried(self):
        broken = self.folder / "environment" / PACKAGES / "nvidia/cu13/lib/libforebay_twin.so.13"
        broken.parent.mkdir(parents=True)
        broken.write_text("no library")
        said = self.found(VIRTUAL_ENV=f"{self.folder}/environment", expect=1)
        self.assertRegex(said, f"tried libforebay_twin.so.13, libforebay_twin.so.12, .*{broken.parent}.*; the last: {broken}: ")
        library = self.put(f"home/.local/{PACKAGES}/nvidia/cu13/lib/libforebay_twin.so.13")
        self.assertEqual(self.found(VIRTUAL_ENV=f"{self.folder}/environment", HOME=f"{self.folder}/home"), library)

    def test_a_python_that_fails_is_passed_over(self):
        (self.folder / "python3").write_text("#!/bin/sh\necho no such version >&2; exit 127\n")
        (self.folder / "python3").chmod(0o755)
        library = self.put(f"home/.local/{PACKAGES}/nvidia/cu13/lib/libforebay_twin.so.13")
        self.assertEqual(self.found(PATH=str(self.folder), HOME=f"{self.folder}/home"), library)


if __name__ == "__main__":
    PROGRAM, LIBRARY = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(OpenLibrary)
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
