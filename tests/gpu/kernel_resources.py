#!/usr/bin/env python3
"""Compares what every kernel of the build takes of a GPU with the table beside this file: registers of a thread, bytes of
shared memory of a block (without what a launch asks for) and bytes of stack of a thread, which is where spilled registers go.

  kernel_resources.py BUILD NVCC             what ctest does; exits 1 where they differ, 77 where they cannot be compared
  kernel_resources.py BUILD NVCC --update    writes the table anew

Needs cuobjdump: beside NVCC, in the PATH, or in build/cuobjdump, where scripts/test puts it. Other versions of nvcc give
kernels other registers, so the table is of one version.
"""

import argparse
import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_suffix(".txt")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
LIBRARIES = ("collective", "model", "optimizer")
SKIPPED = 77


def find_cuobjdump(nvcc):
    """The program, or None."""
    beside = pathlib.Path(os.path.realpath(nvcc)).with_name("cuobjdump")
    fetched = ROOT / "build/cuobjdump/nvidia/cu13/bin/cuobjdump"
    for path in (beside, fetched):
        if path.exists():
            return str(path)
    return shutil.which("cuobjdump")


def release_of(nvcc):
    """"13.0.88" of the compiler."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    if found is None:
        sys.exit(f"kernel_resources: '{nvcc} --version' names no version: {text}")
    return found[1]


def objects_of(build):
    """The compiled .cu files of our libraries."""
    commands = json.loads((build / "compile_commands.json").read_text())
    outputs = {build / command["output"] for command in commands if command["file"].endswith(".cu")}  # may be absolute
    return sorted(path for path in outputs if path.parent.name != "Unity" and path.relative_to(build).parts[0] in LIBRARIES)


def demangled(names):
    """By mangled name."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    plain = {}
    for name, text in zip(names, done.stdout.splitlines()):
        # nvcc gives anonymous namespaces a name of their file and a hash of its path.
        text = re.sub(r"(forebay::|cuda::|\(anonymous namespace\)::|_GLOBAL__N__\w+::|_INTERNAL_\w+::)", "", text)
        plain[name] = re.sub(r"^void ", "", text).split("(")[0]
    return plain


def resources_of(cuobjdump, path):
    """(architecture, mangled name): "registers/shared/stack", of one object."""
    dump = subprocess.run([cuobjdump, "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True).stdout
    found, architecture, function = {}, "", ""
    for line in dump.splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\w+):", line):
            function = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            found[architecture, function] = f"{match[1]}/{match[3]}/{match[2]}"
    return found


def table_of(cuobjdump, build, release):
    """The text of the table."""
    lines = []
    for path in objects_of(build):
        found = resources_of(cuobjdump, path)
        names = sorted({name for _, name in found})
        plain = demangled(names)
        source = path.name.removesuffix(".o")
        for name in names:
            columns = [found.get((architecture, name), "-") for architecture in ARCHITECTURES]
            lines.append("".join(f"{column:<14}" for column in columns) + f"{source} {plain[name]}")
    heading = "".join(f"{architecture:<14}" for architecture in ARCHITECTURES)
    return "\n".join([
        f"# nvcc {release}; registers/shared memory/stack. Written by kernel_resources.py --update, which says what they are",
        heading + "kernel", *sorted(lines, key=lambda line: line[14 * len(ARCHITECTURES):]), ""])


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("nvcc")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    cuobjdump = find_cuobjdump(arguments.nvcc)
    if cuobjdump is None:
        print("skipped: no cuobjdump beside nvcc, in the PATH or in build/cuobjdump; scripts/test puts one there")
        return SKIPPED
    release = release_of(arguments.nvcc)
    actual = table_of(cuobjdump, arguments.build.resolve(), release)
    if arguments.update:
        TABLE.write_text(actual)
        return 0
    expected = TABLE.read_text()
    if f"nvcc {release};" not in expected:
        print(f"skipped: the table is of another nvcc than {release}")
        return SKIPPED
    differences = list(difflib.unified_diff(expected.splitlines(), actual.splitlines(), str(TABLE), "this build", "", "", 0, ""))
    if differences:
        print("\n".join(differences))
        print(f"Where more registers or any stack is no mistake, write the table anew: {' '.join(sys.argv)} --update")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
