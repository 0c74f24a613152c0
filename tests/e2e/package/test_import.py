"""`import forebay`: quick, without other packages, and with an error that says what to do where there is no library."""

import os
import subprocess
import sys


def run(program, **environment):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_import_needs_neither_torch_nor_numpy_and_is_quick():
    program = ("import time; begin = time.process_time(); import forebay; spent = time.process_time() - begin\n"
               "import sys; print('torch' in sys.modules or 'numpy' in sys.modules, spent)")
    found = [run(program).stdout.split() for _ in range(5)]
    assert {imported for imported, _ in found} == {"False"}
    # 30 ms of CPU time; more room for a busy machine.
    assert min(float(spent) for _, spent in found) < 0.1


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
