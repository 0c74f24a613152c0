"""Starts forebay-data: checks the interpreter and the packages, then runs the command line."""

import os
import pathlib
import signal
import sys

# Before the imports, which take a while: Ctrl-C ends them without a word. cli.main has a handler of its own.
signal.signal(signal.SIGINT, signal.SIG_DFL)

# A panic of the Rust library behind tokenizers becomes an error of ours; where in it says nothing to a user.
os.environ["RUST_BACKTRACE"] = "0"

PACKAGES = "numpy, tokenizers>=0.20, jinja2>=3.1.6, xxhash and gguf"


def open_missing_streams():
    """If a program is started without standard streams, the first files that it opens would get its output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def missing_package():
    try:
        import jinja2
        import numpy  # noqa: F401
        import tokenizers
        import xxhash  # noqa: F401
    except ImportError as error:
        return f"the Python package '{error.name}' cannot be imported"
    # Older versions let a template out of the sandbox (CVE-2025-27516).
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal()) < (3, 1, 6):
        return f"the Python package 'jinja2' is too old ({jinja2.__version__})"
    if not hasattr(tokenizers.Tokenizer, "encode_batch_fast"):
        return f"the Python package 'tokenizers' is too old ({tokenizers.__version__})"
    return None


def run():
    from forebay_data.supervisor import supervise
    return supervise(run_here, sys.argv[1:])


def run_here():
    problem = missing_package()
    if problem is None:
        from forebay_data import cli
        return cli.main(sys.argv[1:])
    from forebay_data.errors import report_error
    # Out of an installed package, or out of a build.
    is_installed = pathlib.Path(__file__).parent.name == "_bin"
    fix = ("pip install 'forebay[data]'" if is_installed else
           "run scripts/build, which makes a Python environment with all that is needed in build/venv, or set "
           f"FOREBAY_PYTHON to a Python that has {PACKAGES}")
    return report_error(sys.argv[1:], f"{problem} by {sys.executable}: {fix}", 9)


if __name__ == "__main__":
    open_missing_streams()
    sys.exit(run())
