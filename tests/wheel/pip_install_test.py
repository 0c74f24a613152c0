"""`pip install .` in a checkout, with a build environment that pip makes: what it installs is used.

  pip_install_test.py SOURCE WORK

Needs the network for what builds it. Compiles everything, but for what ccache has: the flags are those of the wheel.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from check_wheel import USE, run

SKIPPED = 77


def main():
    source, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    shutil.rmtree(work, ignore_errors=True)
    environment = work / "environment"
    run(sys.executable, "-m", "venv", environment)
    # In place of a random folder one that is as deep as the wheel's, so that ccache has what was compiled for that.
    installed = subprocess.run(
        [environment / "bin/pip", "install", "--disable-pip-version-check", "-C", f"build-dir={work}", "."],
        check=False, cwd=source, capture_output=True, text=True,
        env={**os.environ, "CCACHE_BASEDIR": str(source), "CCACHE_NOHASHDIR": "1", "CCACHE_DEPEND": "1"})
    if "No matching distribution found for scikit-build-core" in installed.stdout + installed.stderr:
        print("skipped: pip cannot get scikit-build-core, without a network")
        return SKIPPED
    if installed.returncode != 0:
        sys.exit(installed.stdout[-5000:] + installed.stderr)
    run(environment / "bin/python", "-c", USE, work / "store", cwd=work)
    for program in ("forebay", "swap-bench"):
        run(environment / "bin" / program, "--version", cwd=work)
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
