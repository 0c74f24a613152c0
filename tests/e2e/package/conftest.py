"""The Python package of this checkout, with the library that FOREBAY_LIBRARY names or the build has made."""

import os
import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(_ROOT / "python"))
os.environ.setdefault("FOREBAY_LIBRARY", str(_ROOT / "build" / "lib" / "libforebay.so"))
# For the programs that tests start.
os.environ["PYTHONPATH"] = str(_ROOT / "python")
