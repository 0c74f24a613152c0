"""Installs forebay, and builds and runs a project of its own with it. Usage: install_test.py BUILD SOURCE WORK COMPILER"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

INCLUDE = re.compile(r'#include "(forebay/[^"]+)"')


def run(*command, **more):
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], check=True, **more)


def headers_of(include):
    """The installed headers, all of which include installed headers alone."""
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.h"))
    for header in headers:
        for included in INCLUDE.findall((include / header).read_text()):
            if included not in headers:
                sys.exit(f"{header} includes {included}, which is not installed: add it to cmake/install.cmake")
    return headers


def main():
    build, source, work, compiler = (pathlib.Path(argument) for argument in sys.argv[1:])
    shutil.rmtree(work, ignore_errors=True)
    prefix, consumer = work / "prefix", work / "consumer"
    consumer.mkdir(parents=True)
    run("cmake", "--install", build, "--prefix", prefix, stdout=subprocess.DEVNULL)
    headers = headers_of(prefix / "include")
    lines = [f'#include "{header}"\n' for header in headers] + ["int main() { return 0; }\n"]
    (consumer / "all_headers.cc").write_text("".join(lines))
    libraries = next(prefix.glob("lib*/**/pkgconfig"))
    environment = dict(os.environ, PKG_CONFIG_PATH=str(libraries), CXX=str(compiler))
    run("cmake", "-S", source / "tests/install/consumer", "-B", consumer, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Debug", f"-DEMBEDDING_EXAMPLE={source}/tests/swap/session/embedding_example.cc",
        f"-DC_PROGRAM={source}/tests/capi/c_program.c", env=environment, stdout=subprocess.DEVNULL)
    run("cmake", "--build", consumer, stdout=subprocess.DEVNULL)
    environment["LD_LIBRARY_PATH"] = str(libraries.parent)
    run(consumer / "all_headers")
    for program, expected in (("embedding_example", "step 5: bias"), ("c_program", "committed step 3")):
        done = run(consumer / program, work / f"{program}.store", env=environment, capture_output=True, text=True)
        print(done.stdout, end="")
        if expected not in done.stdout:
            sys.exit(f"{program} printed no '{expected}'")
    run(prefix / "bin/forebay", "--version", stdout=subprocess.DEVNULL)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
