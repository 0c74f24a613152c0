"""`import forebay`: quick, without other packages, and with an error that says what to do where there is no library."""

import os
import subprocess
import sys


def run(program, **environment):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_import_needs_neither_torch_nor_numpy_and_is_quick():
    # Modules instead of seconds, which depend on the machine: some 30 ms for 110 of them.
    before, after = (set(run(f"import sys, ctypes{more}; print(*sys.modules)").stdout.split()) for more in ("", ", forebay"))
    assert not {"torch", "numpy"} & after
    assert "forebay" in after and len(after - before) < 80, sorted(after - before)


def test_a_missing_library_says_what_to_do(tmp_path):
    done = run("import forebay", FOREBAY_LIBRARY=str(tmp_path / "none.so"))
    assert done.returncode == 1
    assert "ImportError: forebay: there is no library at" in done.stderr and "FOREBAY_LIBRARY" in done.stderr


def test_another_library_is_refused(tmp_path):
    done = run("import forebay", FOREBAY_LIBRARY="/lib/x86_64-linux-gnu/libm.so.6")
    assert "ImportError" in done.stderr and "forebay_shared" in done.stderr
    source = tmp_path / "other.c"
    source.write_text("int forebay_abi_version(void) { return 99; }")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "other.so", source], check=True)
    done = run("import forebay", FOREBAY_LIBRARY=str(tmp_path / "other.so"))
    assert "ImportError" in done.stderr and "has version 99 of the C interface" in done.stderr


def test_the_version_is_the_librarys():
    import forebay
    assert forebay.__version__.count(".") == 2
