"""Installs forebay, compiles each installed header alone, and builds and runs a project of its own with them.

  install_test.py BUILD SOURCE WORK COMPILER
"""

import concurrent.futures
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


def listed_headers(source):
    """Those that cmake/install.cmake promises, and c.h."""
    names = re.search(r"set\(FOREBAY_PUBLIC_HEADERS\s(.*?)\)", (source / "cmake/install.cmake").read_text(), re.DOTALL)
    return sorted([f"forebay/{name}" for name in names[1].split()] + ["forebay/c.h"])


def compile_alone(header, include, work, compiler):
    """Compiles a header alone, included twice, for an include guard that does not guard. Returns the errors, or ""."""
    languages = [("c++", "c++20")] if header != "forebay/c.h" else [("c++", "c++20"), ("c", "c11")]
    said = ""
    for language, standard in languages:
        source = work / f"{header.replace('/', '_')}.{language}"
        source.write_text(f'#include "{header}"\n#include "{header}"\n')
        # To an object, and not as far as the syntax alone: ccache, where it is there, keeps that.
        command = [*([shutil.which("ccache")] if shutil.which("ccache") else []), compiler, "-x", language,
                   f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", include, "-c", source,
                   "-o", f"{source}.o"]
        done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            said += f"{header} does not compile alone as {standard}:\n{done.stderr}"
    return said


def check_headers_alone(headers, include, work, compiler):
    alone = work / "alone"
    alone.mkdir()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        said = threads.map(lambda header: compile_alone(header, include, alone, compiler), headers)
        problems = "".join(said)
    if problems:
        sys.exit(problems)
    print(f"{len(headers)} headers compile alone")


def main():
    build, source, work, compiler = (pathlib.Path(argument) for argument in sys.argv[1:])
    shutil.rmtree(work, ignore_errors=True)
    prefix, consumer = work / "prefix", work / "consumer"
    consumer.mkdir(parents=True)
    run("cmake", "--install", build, "--prefix", prefix, stdout=subprocess.DEVNULL)
    headers = headers_of(prefix / "include")
    unlike = set(headers) ^ set(listed_headers(source))
    if unlike:
        sys.exit(f"installed or listed in cmake/install.cmake alone: {sorted(unlike)}")
    check_headers_alone(headers, prefix / "include", work, compiler)
    lines = [f'#include "{header}"\n' for header in headers] + ["int main() { return 0; }\n"]
    (consumer / "all_headers.cc").write_text("".join(lines))
    libraries = next(prefix.glob("lib*/**/pkgconfig"))
    environment = dict(os.environ, PKG_CONFIG_PATH=str(libraries), CXX=str(compiler))
    run("cmake", "-S", source / "tests/install/consumer", "-B", consumer, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug",
        f"-DEMBEDDING_EXAMPLE={source}/tests/swap/session/embedding_example.cc",
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
