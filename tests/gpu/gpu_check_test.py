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
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GPU_CHECK = ROOT / "scripts/gpu-check"
BUILD = pathlib.Path()
EMULATED = False
FEW = "device_test,ptx_test,cuda_ops,forebay"
# Stands in for forebay in tests that do not look at what it computes.
QUICK_FOREBAY = """
for argument; do case $argument in --out=*) out=${argument#--out=};; esac; done
case $1 in
  --version) echo CUDA;;
  doctor) echo '{"checks": [{"group": "gpu", "id": "card", "value": "a card", "verdict": "ok"}]}';;
  init) mkdir "$out";;
  plan) echo '{}';;
  train) mkdir "$out"; for step in 1 2 3; do echo '{"step_s": 0.1, "loss": 1}'; done >"$out/metrics.jsonl";;
  generate) echo '{}';;
esac
"""


def call(folder, command, expect=0, **settings):
    """Runs it in `folder`, and gives what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600, check=False, **settings)
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
        # A Python that nothing but PATH names.
        call(cls.packed.name, [sys.executable, "-m", "venv", "--without-pip", "far/.venv"])

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="forebay-gpu-check-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def unpacked(self, **suites):
        """A copy that the test may change, with programs that are these shell scripts."""
        copy = pathlib.Path(shutil.copytree(f"{self.packed.name}/gpu-check", self.folder / "gpu-check"))
        for name, script in suites.items():
            (copy / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        return copy

    def settings(self):
        """As little as the loader needs, and nothing that this machine has set."""
        return {"cwd": self.folder, "env": {"PATH": f"{self.packed.name}/far/.venv/bin:/usr/bin:/bin", "HOME": str(self.folder),
                                            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "")}}

    def rows(self):
        """Those on the disk, by name; a line that is not whole is an error."""
        text = (self.folder / "results/gpu-check.jsonl").read_text()
        return {row["name"]: row for row in map(json.loads, text.splitlines())}

    def run_away(self, program, expect, budget_s=570):
        """What it said, its rows and its page."""
        command = [program / "gpu-check", "run", "--out=results", f"--work={self.folder}/work", f"--budget_s={budget_s}"]
        done = call(command=command, expect=expect, folder=self.folder, env=self.settings()["env"])
        return done, self.rows(), (self.folder / "results/gpu-check.md").read_text()

    def test_a_dry_run_names_every_file_with_its_size_and_leaves_nothing(self):
        said = pack(self.folder, "--dry_run", "--only=device_test").stdout
        for line in (r"\d  bin/device_test", r"\d  data/1b.json", r"\d  gpu-check", r"\d  gpu_check_run.py", r"\d  lib/libfmt",
                     r"files; [\d,]+ packed"):
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
            if program.is_dir() or not program.read_bytes().startswith(b"\x7fELF"):
                continue
            listed = call(self.folder, ["ldd", program], env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(unpacked / "lib")}).stdout
            for line in listed.splitlines():
                if "=>" in line and "forebay-gpu-check-test-" not in line:
                    self.assertRegex(line.strip(), r"^lib(c|m|stdc\+\+|gcc_s|dl|rt|pthread|resolv|mvec)\.so")


class OnAnEmulatedGpu(GpuCheck, unittest.TestCase):
    def test_rows_and_figures_are_written(self):
        done, rows, page = self.run_away(self.unpacked(), expect=0)
        names = list(rows)
        self.assertEqual(names[:5], ["libraries", "ptx_test", "device_test", "operators", "operators of PyTorch"])
        for name in ("libraries", "ptx_test", "device_test", "operators", "train 1B, state in RAM", "train 1B, state on the GPU",
                     "train 3.2B in 12 GiB of GPU memory", "train 7B with int8-moments"):
            self.assertEqual(rows[name]["verdict"], "passed", rows[name])
        self.assertIn("CUDA", rows["libraries"]["version"])
        self.assertGreater(min(rows[name]["passed"] for name in ("ptx_test", "device_test")), 0)
        operators = rows["operators"]["operators"]
        names = [row["name"] for row in operators]
        for name in ("linear q backward of the weight", "attention backward", "cross_entropy forward and backward", "adamw update"):
            self.assertIn(name, names)
            self.assertIn(f"| {name} |", page)
        self.assertTrue(all(row["ms"] > 0 and row["share_of_roof"] > 0 for row in operators), operators)
        self.assertGreater(rows["operators"]["copies"]["share_of_raw"], 0)
        trained = rows["train 1B, state in RAM"]
        self.assertGreater(trained["tokens_per_s"], 0)
        self.assertGreater(trained["forecast_s"], 0)
        self.assertEqual(len(trained["losses"]), 4)
        self.assertIn("emulated GPU", page)
        self.assertIn("tokens/s", page)
        self.assertIn("operators of PyTorch", done.stdout)  # left out, or measured if torch is there

    def test_a_call_that_is_killed_behind_any_row_has_all_rows_before_it_and_the_next_goes_on(self):
        unpacked = self.unpacked(forebay=QUICK_FOREBAY)
        results = self.folder / "results/gpu-check.jsonl"

        def names():  # of whole lines
            return {json.loads(line)["name"] for line in (results.read_text() if results.exists() else "").split("\n")[:-1]}

        num_rows, ended = 0, False
        for num_calls in range(1, 40):
            with subprocess.Popen([unpacked / "gpu-check", "run", "--out=results", f"--work={self.folder}/work"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, **self.settings()) as process:
                while process.poll() is None and len(names()) <= num_rows:
                    time.sleep(0.01)
                process.kill()
                ended = process.wait() == 0
            self.assertGreaterEqual(len(self.rows()), num_rows)
            num_rows = len(self.rows())
            if ended:
                break
        self.assertTrue(ended)
        self.assertGreater(num_calls, 5)
        self.assertEqual(self.rows()["train 7B with int8-moments"]["verdict"], "passed")
        self.assertEqual(list((self.folder / "work").glob("run*")), [])

    def test_nothing_of_a_killed_call_goes_on(self):
        unpacked = self.unpacked(ptx_test="exec sleep 1007", forebay=QUICK_FOREBAY)
        with subprocess.Popen([unpacked / "gpu-check", "run", "--out=results", f"--work={self.folder}/work"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, **self.settings()) as process:
            while not (self.folder / "results/gpu-check.jsonl").exists() or "libraries" not in self.rows():
                time.sleep(0.05)
            time.sleep(0.5)
            process.kill()
        deadline = time.monotonic() + 20
        while any(str(unpacked) in line or line == "sleep 1007 " for line in self.command_lines()):
            self.assertLess(time.monotonic(), deadline, self.command_lines())
            time.sleep(0.05)

    def command_lines(self):
        """The command line of every process."""
        lines = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        return lines

    def test_what_the_budget_has_no_room_for_is_left_out_and_named(self):
        begin = time.monotonic()
        done, rows, page = self.run_away(self.unpacked(forebay=QUICK_FOREBAY), expect=0, budget_s=30)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(rows["libraries"]["verdict"], "passed")
        self.assertEqual(rows["operators"]["verdict"], "left out")
        self.assertRegex(rows["operators"]["why"], r"it may take 40 s, and \d+ are left of the budget")
        self.assertRegex(done.stdout, "left out: .*operators, .*the same call again goes on with them")
        self.assertIn("| operators | left out |", page)

    def test_a_row_that_hangs_is_ended_with_all_that_it_started(self):
        unpacked = self.unpacked(ptx_test="sleep 1009 & sleep 1009", cuda_ops="exit 3", forebay=QUICK_FOREBAY)
        code = unpacked / "gpu_check_run.py"
        code.write_text(code.read_text().replace("Row(name, 15,", "Row(name, 2,"))
        _, rows, _ = self.run_away(unpacked, expect=1, budget_s=28)
        self.assertEqual(rows["ptx_test"]["verdict"], "failed")
        self.assertRegex(rows["ptx_test"]["why"], "ran longer than 2 s")
        self.assertLess(rows["ptx_test"]["seconds"], 10)
        self.assertEqual([line for line in self.command_lines() if line == "sleep 1009 "], [])

    def test_a_suite_that_skips_where_there_is_a_card_has_failed(self):
        skipping = "printf 'x.cc:1: Skipped\\nno cuBLASLt\\n\\n[  PASSED  ] 2 tests.\\n[  SKIPPED ] 6 tests, listed below:\\n'"
        done, rows, page = self.run_away(self.unpacked(ptx_test=skipping, forebay=QUICK_FOREBAY), expect=1, budget_s=30)
        self.assertEqual(rows["ptx_test"]["verdict"], "failed")
        self.assertEqual(rows["ptx_test"]["why"], "6 tests were skipped: no cuBLASLt")
        self.assertIn("failed: ptx_test", done.stdout)
        self.assertIn("no cuBLASLt", page)

    def test_a_suite_that_fails_is_the_runs_failure(self):
        failing = "echo '[  FAILED  ] Mma.HasTheTwinsBits (3 ms)'; exit 1"
        done, rows, page = self.run_away(self.unpacked(ptx_test=failing, cuda_ops="exit 1", forebay=QUICK_FOREBAY), expect=1, budget_s=60)
        self.assertEqual(rows["ptx_test"]["verdict"], "failed")
        self.assertIn("Mma.HasTheTwinsBits", page)
        self.assertIn("failed: ptx_test, operators", done.stdout)

    def test_models_fit_on_a_disk_of_25_gb(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        import gpu_check_run
        loader = importlib_of(GPU_CHECK)
        params = {size: loader.params_of(model) for size, model in loader.MODELS.items()}
        self.assertAlmostEqual(params["1b"] / 1e9, 1.24, delta=0.01)
        self.assertAlmostEqual(params["7b"] / 1e9, 6.74, delta=0.01)
        items = [*loader.PROGRAMS, loader.PACKAGE, *loader.SCRIPTS]
        rows = gpu_check_run.all_rows({"tiny": False, "params": params, "items": items})
        most = 0
        for i in range(len(rows)):
            made = ModelsOf(params)
            gpu_check_run.keep_models(made, [other for other in rows[i:] if other.model is not None])
            most = max(most, sum(params[size] * 2e-9 for size in made.sizes))
        self.assertLess(most, 25)
        self.assertGreater(most, 20)


class ModelsOf:
    """A machine that notes the models that are made on it."""

    def __init__(self, params):
        self.manifest, self.sizes = {"params": params}, set()

    def make_model(self, size):
        self.sizes.add(size)

    def remove_model(self, size):
        pass


class WithoutAGpu(GpuCheck, unittest.TestCase):
    def test_without_a_gpu_nothing_is_run_and_the_reason_is_told(self):
        done, rows, page = self.run_away(self.unpacked(), expect=1)
        if rows["libraries"]["verdict"] == "passed":
            self.skipTest("this machine has a GPU")
        self.assertEqual(list(rows), ["libraries"])
        self.assertIn("no card", rows["libraries"]["why"])
        self.assertIn("failed: libraries", done.stdout)
        self.assertIn("| libraries | failed |", page)


def importlib_of(path):
    """A program of Python as a module."""
    import importlib.machinery
    import importlib.util
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    BUILD, EMULATED = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] == "emulated"
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(OnAnEmulatedGpu if EMULATED else WithoutAGpu)
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
