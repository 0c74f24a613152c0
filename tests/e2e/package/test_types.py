"""The package under mypy --strict and ruff (python/ruff.toml)."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

PYTHON = pathlib.Path(__file__).resolve().parents[3] / "python"


@pytest.mark.parametrize("command", [["mypy", "--strict", "--cache-dir=/dev/null", "-p", "forebay"],
                                     ["ruff", "check", "--no-cache", "-q", "forebay"]], ids=lambda command: command[0])
def test_the_package_is_clean_under(command):
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([sys.executable, "-m", *command], cwd=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
