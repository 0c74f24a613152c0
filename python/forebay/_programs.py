"""The programs that come with the package: `forebay`, `swap-bench` and `forebay-data`."""

import os
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).parent / "_bin"


def _run(name: str, called: str) -> None:
    """Becomes the program `name`, called `called`, with the arguments of this process; forebay-data runs with this
    Python."""
    program = str(_FOLDER / name)
    environment = {"FOREBAY_PYTHON": sys.executable, **os.environ}
    try:
        os.execve(program, [called, *sys.argv[1:]], environment)
    except OSError as error:
        print(f"{called}: error: '{program}' cannot be run ({error.strerror}): install forebay again", file=sys.stderr)
        sys.exit(9)


def forebay() -> None:
    _run("forebay", "forebay")


def swap_bench() -> None:
    _run("forebay", "swap-bench")  # one program, as tools/both says


def forebay_data() -> None:
    _run("forebay-data", "forebay-data")
