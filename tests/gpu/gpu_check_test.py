#!/usr/bin/env python3
"""Packs for a machine with a GPU, and runs the pack away from the checkout.

  gpu_check_test.py BUILD emulated|nvcc    with an emulated GPU the run has to succeed; without any, to say that there is none
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GPU_CHECK = ROOT / "scripts/gpu-check"
BUILD = pathlib.Path()
EMULATED = False
FEW = "device_test,ptx_test,cuda_ops,forebay"


def call(folder, command, expect=0, **settings):
    """Runs it in `folder`, and gives what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600, **settings)
    if done.returncode != expect:
        raise AssertionError(f"{command} ended with {done.returncode}, not {expect}\n{done.stdout}\n{done.stderr}")
    return done


def pack(folder, *arguments):
    """The command, for the kind of this build."""
    tiny = ["--tiny"] if EMULATED else []
    return call(folder, [sys.executable, GPU_CHECK, "pack", f"--build={BUILD}", *tiny, *arguments])


class GpuCheck:
    @classmethod
    def setUpClass(cls):
        cls.packed = tempfile.TemporaryDirectory(prefix="forebay-gpu-check-test-")
        cls.addClassCleanup(cls.packed.cleanup)
        pack(cls.packed.name, f"--only={FEW}")
        call(cls.packed.name, ["tar", "-xJf", "gpu-check.tar.xz"])

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="forebay-gpu-check-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def unpacked(self):
        """A copy that the test may change."""
        return pathlib.Path(shutil.copytree(f"{self.packed.name}/gpu-check", self.folder / "gpu-check"))

    def run_away(self, program, expect):
        """Without what this machine has set, as little as the loader needs."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "")}
        done = call(self.folder, [program / "gpu-check", "run", "--out=results", f"--work={self.folder}"], expect, env=environment)
        report = json.loads((self.folder / "results/gpu-check.json").read_text())
        return done, report, (self.folder / "results/gpu-check.md").read_text()

    def test_a_dry_run_names_every_file_with_its_size_and_leaves_nothing(self):
        said = pack(self.folder, "--dry_run", "--only=device_test").stdout
        for line in (r"\d  bin/device_test", r"\d  data/config.json", r"\d  gpu-check", r"\d  lib/libfmt", r"files; [\d,]+ packed"):
            self.assertRegex(said, line)
        for name in ("libc.so", "libstdc++", "ld-linux"):
            self.assertNotIn(f"lib/{name}", said)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_what_is_not_built_is_named(self):
        done = call(self.folder, [sys.executable, GPU_CHECK, "pack", f"--build={self.folder}", "--only=device_test"], expect=1)
        self.assertIn("tests_bin/device_test' is not built", done.stderr)

    def test_a_pack_brings_the_libraries_that_its_programs_load(self):
        unpacked = self.unpacked()
        for program in (unpacked / "bin").iterdir():
            listed = call(self.folder, ["ldd", program], env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(unpacked / "lib")}).stdout
            for line in listed.splitlines():
                if "=>" in line and "forebay-gpu-check-test-" not in line:
                    self.assertRegex(line.strip(), r"^lib(c|m|stdc\+\+|gcc_s|dl|rt|pthread|resolv|mvec)\.so")


class OnAnEmulatedGpu(GpuCheck, unittest.TestCase):
    def test_suites_and_figures_are_written(self):
        _, report, page = self.run_away(self.unpacked(), expect=0)
        self.assertEqual({row["name"]: row["verdict"] for row in report["suites"]}, {"ptx_test": "passed", "device_test": "passed"})
        self.assertGreater(min(row["passed"] for row in report["suites"]), 0)
        operators = report["operators"]["operators"]
        names = [row["name"] for row in operators]
        for name in ("linear q backward of the weight", "attention backward", "cross_entropy forward and backward", "adamw update"):
            self.assertIn(name, names)
            self.assertIn(f"| {name} |", page)
        self.assertTrue(all(row["ms"] > 0 and row["share_of_roof"] > 0 for row in operators), operators)
        self.assertGreater(report["operators"]["copies"]["share_of_raw"], 0)
        self.assertGreater(report["train"]["tokens_per_s"], 0)
        self.assertGreater(report["train"]["forecast_s"], 0)
        self.assertEqual(len(report["train"]["losses"]), 4)
        self.assertIn("emulated GPU", page)
        self.assertIn("tokens/s", page)

    def test_a_suite_that_fails_is_the_runs_failure(self):
        unpacked = self.unpacked()
        broken = unpacked / "bin/ptx_test"
        broken.write_text("#!/bin/sh\necho '[  FAILED  ] Mma.HasTheTwinsBits (3 ms)'\nexit 1\n")
        (unpacked / "bin/cuda_ops").unlink()
        (unpacked / "bin/cuda_ops").symlink_to("/bin/false")
        done, report, page = self.run_away(unpacked, expect=1)
        self.assertEqual(report["suites"][0]["verdict"], "failed")
        self.assertIn("Mma.HasTheTwinsBits", page)
        self.assertIn("failed: ptx_test, operators", done.stdout)


class WithoutAGpu(GpuCheck, unittest.TestCase):
    def test_without_a_gpu_suites_are_skipped_and_figures_are_missing(self):
        done, report, page = self.run_away(self.unpacked(), expect=1)
        if report["operators"].get("card"):
            self.skipTest("this machine has a GPU")
        self.assertEqual([row["verdict"] for row in report["suites"]], ["skipped", "passed"])  # ptx_test; device_test has the host's twin
        self.assertIn("no usable GPU", report["operators"]["error"])
        self.assertIn("failed: operators, train", done.stdout)
        self.assertIn("Not measured:", page)


if __name__ == "__main__":
    BUILD, EMULATED = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] == "emulated"
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(OnAnEmulatedGpu if EMULATED else WithoutAGpu)
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
