"""Installs the wheel into a clean environment of the oldest Python from 3.9 on that is here and of the newest, with
FOREBAY_FULL=1 of every one, and uses it there.

  check_wheel.py WHEEL WORK [TORCH_PYTHON]

TORCH_PYTHON: one with PyTorch, which then trains with the installed package. The oldest Python gets the newest PyTorch that
pip finds for it, and runs tests of forebay.torch on the wheel; where there is no network it is left out, but for
FOREBAY_FULL=1, with which the newest Python does so too (its PyTorch is often TORCH_PYTHON's). What was downloaded and
installed is removed again: with CUDA it is several GB.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

MOST_BYTES = 20_000_000
OLDEST, NEWEST = 9, 20  # of Python 3

# A layer is made, updated and read, in a store.
USE = """
import struct, sys, time
began = time.perf_counter()
import forebay
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(f"import: {1000 * (time.perf_counter() - began):.0f} ms")
inventory = forebay.Inventory()
inventory.begin_layer("layer")
weight = inventory.add("weight", [1000])
with forebay.Layers(inventory, sys.argv[1], ram_bytes=64 << 20, weight_dtype="f32", gradient_dtype="f32") as layers:
    layers.create()
    layers.start()
    layers.begin_step([forebay.Group(lr=0.5, beta1=0.9, beta2=0.999, eps=1e-8)])
    layers.add_gradient(weight, "f32", struct.pack("1000f", *[1.0] * 1000))
    layers.close_layer(0)
    layers.finish_backward()
    layers.update(commit_now=True)
    values = bytearray(4000)
    layers.read(weight, "master", values)
    assert struct.unpack("1000f", values)[999] == -0.5
"""
TRAIN = """
import torch, forebay, forebay.torch
assert "site-packages" not in forebay.__file__ or sys.argv[1] in forebay.__file__, forebay.__file__
weight = torch.nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
optimizer = forebay.torch.AdamW([weight], lr=0.5, weight_decay=0.0)
weight.grad = torch.ones_like(weight)
optimizer.step()
assert (weight == -0.5).all()
"""


# Libraries of the system that auditwheel puts copies of into the wheel. There are none of what is headers alone:
# xxhash, nlohmann-json, CLI11. Static libraries are no way around the others: Highway, fmt and oneDNN (which needs libgomp and
# OpenCL) have none in Debian, and that of Abseil has thread-local variables which can be linked into programs alone
# (R_X86_64_TPOFF32), not into libforebay.so. fmt could be compiled in as headers, for which every source would be
# compiled once more; liburing and libaio are 50 KB. libsodium is linked statically (collective/CMakeLists.txt).
GRAFTED = re.compile(r"lib(absl_\w+|aio|uring|fmt|hwy|dnnl|gomp|OpenCL)-[0-9a-f]{8}\.so[0-9.]*")
# AdamW and others in RAM and on NVMe beside torch.optim, what a store keeps, and modules that are streamed.
TORCH_TESTS = ("test_torch_store.py", "test_torch_stream.py", "test_torch_optimizers.py")


def run(*command, **more):
    print("+", *command[:2], flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("FOREBAY_LIBRARY", "PYTHONPATH")}
    environment.update(more.pop("env", {}))
    return subprocess.run([str(part) for part in command], check=True, env=environment, **more)


def pythons():
    """One of each version: of PATH, and of pyenv."""
    found = {}
    places = [pathlib.Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    places += sorted((pathlib.Path.home() / ".pyenv/versions").glob("3.*/bin"))
    for minor in range(OLDEST, NEWEST):
        for place in places:
            python = place / f"python3.{minor}"
            works = python.exists() and subprocess.run([python, "-c", "import venv, ensurepip"], check=False,
                                                       capture_output=True).returncode == 0
            if works and minor not in found:
                found[minor] = python
    return found


def check_platform(wheel):
    """The tag in its name is what auditwheel finds by the symbols of its libraries, or an older system."""
    auditwheel = pathlib.Path(__file__).resolve().parents[2] / "build/wheel-venv/bin/auditwheel"
    shown = subprocess.run([auditwheel, "show", wheel], check=True, capture_output=True, text=True).stdout
    found = re.search(r'"(manylinux_\d+_\d+_\w+)"', shown)
    if found is None or found[1] not in wheel.name:
        sys.exit(f"its tag is not that of auditwheel show:\n{shown}")
    print(f"auditwheel show: {found[1]}")


def check_grafted(wheel):
    """It has copies of the libraries that are known to be needed, and of no others."""
    with zipfile.ZipFile(wheel) as files:
        copies = [name.partition("/")[2] for name in files.namelist() if name.startswith("forebay.libs/")]
    unknown = [name for name in copies if name and not GRAFTED.fullmatch(name)]
    if unknown or not any("absl_status-" in name for name in copies):
        sys.exit(f"the wheel has copies of other libraries than it is known to need: {unknown or copies}")


def check_torch(python, wheel, work):
    """Runs TORCH_TESTS with `python`, the wheel, and the newest PyTorch for it. Its version, or None."""
    environment = work / "with_torch"
    run(python, "-m", "venv", environment)
    installed = subprocess.run(
        [environment / "bin/pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir", "--retries", "1",
         wheel, "torch", "numpy", "pytest"], check=False, capture_output=True, text=True)
    if installed.returncode != 0:
        if os.environ.get("FOREBAY_FULL"):
            sys.exit(installed.stderr)
        print(f"left out: {python.name} got no PyTorch: {installed.stderr.strip().splitlines()[-1]}")
        return None
    said = run(environment / "bin/python", "-c", "import torch, forebay; print(torch.__version__, forebay.__file__)",
               cwd=work, capture_output=True, text=True).stdout.split()
    if str(environment) not in said[1]:
        sys.exit(f"{said[1]} was imported, and not the wheel")
    tests = pathlib.Path(__file__).resolve().parents[1] / "e2e/pytorch"
    run(environment / "bin/python", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", work / "pytest",
        *(tests / name for name in TORCH_TESTS), cwd=work, env={"FOREBAY_INSTALLED": "1", "OMP_WAIT_POLICY": "passive"})
    shutil.rmtree(environment)
    return said[0]


def main():
    wheel, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.1f} MB")
    if not re.fullmatch(r"forebay-[0-9.]+-py3-none-manylinux_[0-9]+_[0-9]+_\w+\.whl", wheel.name):
        sys.exit("its name is not that of a wheel for every Python of many Linuxes")
    # Only the one that users get: that of scripts/test --all has code for one GPU more.
    if os.environ.get("FOREBAY_FULL") and size >= MOST_BYTES:
        sys.exit(f"it has more than {MOST_BYTES} bytes")
    check_platform(wheel)
    check_grafted(wheel)
    shutil.rmtree(work, ignore_errors=True)
    versions = pythons()
    if not versions:
        sys.exit("there is no Python with venv from 3.9 on")
    if not os.environ.get("FOREBAY_FULL"):
        versions = {minor: versions[minor] for minor in (min(versions), max(versions))}
    for minor, python in versions.items():
        environment = work / f"python3.{minor}"
        run(python, "-m", "venv", environment)
        bin_folder = environment / "bin"
        run(bin_folder / "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps", wheel)
        run(bin_folder / "python", "-c", USE, work / f"store{minor}")
        for program in ("forebay", "swap-bench"):
            run(bin_folder / program, "--version")
        # Without what it needs for text, which pip was told to leave out, it says what is missing.
        says = subprocess.run([bin_folder / "forebay-data", "--help"], check=False, capture_output=True, text=True)
        if says.returncode != 0 and "pip install" not in says.stderr:
            sys.exit(f"forebay-data does not start: {says.stderr}")
    if len(sys.argv) > 3:  # in the last of them
        site = next(environment.glob("lib/python*/site-packages"))
        run(sys.argv[3], "-c", "import sys\n" + TRAIN, site, env={"PYTHONPATH": str(site)})
        for minor in sorted({min(versions), max(versions)} if os.environ.get("FOREBAY_FULL") else {min(versions)}):
            torch = check_torch(versions[minor], wheel, work)
            if torch is not None:
                print(f"forebay.torch works with Python 3.{minor} and torch {torch}")
    print(f"works with Python {', '.join(f'3.{minor}' for minor in versions)}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
