"""The Python package of this checkout, with the library that FOREBAY_LIBRARY names or the build has made.

FOREBAY_INSTALLED: the package that is installed (tests/wheel/check_wheel.py).
"""

import os
import pathlib
import sys

if "FOREBAY_INSTALLED" not in os.environ:
    _ROOT = pathlib.Path(__file__).resolve().parents[3]
    sys.path.insert(0, str(_ROOT / "python"))
    os.environ.setdefault("FOREBAY_LIBRARY", str(_ROOT / "build" / "lib" / "libforebay.so"))
    # For the programs that tests start.
    os.environ["PYTHONPATH"] = str(_ROOT / "python")
