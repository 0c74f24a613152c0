"""Rules about the whole tree that no compiler checks. Run by ctest; exits 1 and lists every violation.

The table of allowed includes is the one in docs/design/folders.md, so that page and test cannot differ. The map,
docs/architecture.md, stays short and names every room.
"""

import ast
import pathlib
import re
import sys

MAX_LINES = 600
MAX_COLUMNS = 100
ARROWS = "docs/design/folders.md"
MAP = "docs/architecture.md"
MAX_MAP_LINES = 250
MAX_MAP_COLUMNS = 125
# May include anything of ours, and headers beside them: they sit above every module.
UNRESTRICTED = {"tests", "bench"}
# Third-party headers that belong to one place: what leaks here cannot be replaced there.
THIRD_PARTY = {
    re.compile(r"(oneapi/)?dnnl"): ("model/",),
    re.compile(r"hwy/"): ("base/fp16-inl.h", "model/", "optimizer/"),
    re.compile(r"CLI/"): ("tools/",),
    re.compile(r"(liburing|libaio)\.h"): ("aio/",),
    re.compile(r"sodium"): ("collective/sockets/",),
}
# Names of ours that every file which uses them has to include: sources are compiled several at a time, where a
# neighbour's include would hide that one is missing.
OWN_MACROS = {
    re.compile(r"\bFOREBAY_(ASSIGN_OR_RETURN|RETURN_IF_ERROR)\("): "forebay/base/errors.h",
    re.compile(r"\bFOREBAY_CHECK\("): "forebay/base/check.h",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def read_arrows(page):
    """The rows of the table after the marker: {"swap": {"base", ...}, "swap/store": {"swap/tiles", ...}}."""
    text = page.read_text()
    marker = text.index("<!-- arrows -->")
    arrows = {}
    for line in text[marker:].splitlines()[1:]:
        if not line.startswith("|"):
            if arrows:
                break
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        folder = re.fullmatch(r"`([\w/]+)/`", cells[0])
        if folder:
            arrows[folder[1]] = set(re.findall(r"[\w/]+", cells[1]))
    if not arrows:
        raise ValueError(f"{page} has no table after '<!-- arrows -->'")
    return arrows


def check_room(room, target_room, arrows):
    """The problem with an include within a module, from one of its folders into another, or None."""
    if room not in arrows:
        return f"folder '{room}' is not in the table of {ARROWS}"
    if target_room not in arrows[room]:
        return f"{room}/ may not include {target_room}/; see the table in {ARROWS}"
    return None


def check_include(path, room, spelling, target, arrows):
    """The problem with one #include of a file in the folder `room`, or None."""
    folder = room.split("/")[0]
    if target.startswith("forebay/"):
        if spelling == "<":
            return f'{target}: our own headers are included with quotes: "{target}"'
        module = target.split("/")[1]
        target_room = target.removeprefix("forebay/").rpartition("/")[0]
        if folder in UNRESTRICTED or target_room == room:
            return None
        if module == folder:
            return check_room(room, target_room, arrows)
        if folder not in arrows:
            return f"folder '{folder}' is not in the table of {ARROWS}"
        if module not in arrows[folder]:
            return f"{folder}/ may not include {module}/ ({target}); see the table in {ARROWS}"
        return None
    if spelling == '"' and folder not in UNRESTRICTED and (path.parent / target).exists():
        return f'"{target}": spell it "forebay/<module>/<file>.h"'
    for pattern, places in THIRD_PARTY.items():
        if pattern.match(target) and folder not in UNRESTRICTED and not f"{room}/{path.name}".startswith(places):
            return f"{target} may only be included in {' and '.join(places)}"
    return None


def check_order(path, root, lines):
    """Problems with a header's guard, or with what a source includes first (its own header, which thereby has to
    name what it needs)."""
    relative = path.relative_to(root)
    if path.suffix == ".h" and not path.name.endswith("-inl.h"):  # those are included once per CPU target
        if "#pragma once" not in lines:
            yield f"{relative}: no '#pragma once'"
    own = path.with_suffix(".h")
    if path.suffix == ".cc" and own.exists():
        first = next((include[2] for include in map(INCLUDE.match, lines) if include), None)
        if first not in (f"forebay/{own.relative_to(root)}", own.name):
            yield f"{relative}: includes {first} first, not its own header"


def check_macros(path, root, lines):
    """A macro of ours without the include that defines it."""
    relative = path.relative_to(root)
    code = [line for line in lines if not line.lstrip().startswith("//")]
    included = {include[2] for include in map(INCLUDE.match, lines) if include}
    for pattern, header in OWN_MACROS.items():
        if header not in included and not header.endswith(str(relative)) and any(map(pattern.search, code)):
            yield f"{relative}: uses a macro of {header} and does not include it"


def check_file(path, root, arrows):
    """Yields 'file:line: problem'."""
    relative = path.relative_to(root)
    folder = relative.parts[0]
    room = relative.parent.as_posix()
    lines = path.read_text(errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) > MAX_LINES:
        yield f"{relative}: {len(lines)} lines; at most {MAX_LINES}, so that a file is one idea"
    yield from check_order(path, root, lines)
    yield from check_macros(path, root, lines)
    raw_string = False  # text in R"(...)" is data, which no formatter may break
    for number, line in enumerate(lines, 1):
        is_data = raw_string or 'R"' in line
        raw_string = is_data and line.rfind('R"') > line.rfind(')"') or raw_string and ')"' not in line
        if len(line) > MAX_COLUMNS and not is_data:
            yield f"{relative}:{number}: {len(line)} columns; at most {MAX_COLUMNS}"
        if "fmt::print(" in line and folder not in UNRESTRICTED and not line.lstrip().startswith("//"):
            yield f"{relative}:{number}: fmt::print throws where it cannot write; use PrintTo of tools/print.h"
        if "\t" in line:
            yield f"{relative}:{number}: a tab; indent with spaces"
        include = INCLUDE.match(line)
        if include:
            problem = check_include(path, room, include[1], include[2], arrows)
            if problem:
                yield f"{relative}:{number}: {problem}"


def sources_of(root, arrows):
    """Our C++ and CUDA files."""
    for folder in sorted({*(room.split("/")[0] for room in arrows), *UNRESTRICTED}):
        for suffix in ("h", "cc", "cu", "cuh"):
            yield from sorted((root / folder).rglob(f"*.{suffix}"))


def find_circle(arrows):
    """Folders that include each other, in a row that ends where it begins; or None."""
    done = set()

    def visit(room, above):
        if room in above:
            return [*above[above.index(room) :], room]
        if room in done:
            return None
        for target in sorted(arrows.get(room, ())):
            circle = visit(target, [*above, room])
            if circle:
                return circle
        done.add(room)
        return None

    return next(filter(None, (visit(room, []) for room in sorted(arrows))), None)


def check_installed_headers(root):
    """Headers that an installed one includes, and that are not installed."""
    listing = root / "cmake" / "install.cmake"
    if not listing.exists():
        return
    names = re.search(r"set\(FOREBAY_PUBLIC_HEADERS(.*?)\)", listing.read_text(), re.DOTALL)[1]
    installed = set(re.findall(r"[\w/]+\.h\b", names))
    for header in sorted(installed):
        for include in map(INCLUDE.match, (root / header).read_text().split("\n")):
            included = include[2].removeprefix("forebay/") if include and include[2].startswith("forebay/") else header
            if included not in installed:
                yield f"cmake/install.cmake: {header} is installed and includes {included}, which is not"


def check_modules(root, arrows):
    """The list of modules in CMake, which every gate reads, beside the table and the folders that there are."""
    listing = root / "cmake" / "modules.cmake"
    listed = set(re.search(r"set\(FOREBAY_MODULES\s([^)]*)\)", listing.read_text())[1].split())
    in_table = {room.split("/")[0] for room in arrows}
    for module in sorted(listed ^ in_table):
        yield f"'{module}' is in only one of cmake/modules.cmake and the table of {ARROWS}"
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "build"))):
        if folder.name not in listed | UNRESTRICTED and any(folder.rglob("*.cc")):
            yield f"'{folder.name}' has C++ sources and is not in cmake/modules.cmake"


def check_map(root, arrows):
    """The page that a newcomer reads first is short, and has a row for every room."""
    lines = (root / MAP).read_text().splitlines()
    if len(lines) > MAX_MAP_LINES:
        yield f"{MAP}: {len(lines)} lines; at most {MAX_MAP_LINES}: details belong in docs/design/"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_MAP_COLUMNS:
            yield f"{MAP}:{number}: {len(line)} columns; at most {MAX_MAP_COLUMNS}"
    rooms = {room[1] for room in (re.match(r"\| `(\w+)/`", line) for line in lines) if room}
    for module in sorted({room.split("/")[0] for room in arrows} - rooms):
        yield f"{MAP}: the table of rooms has no row for '{module}'"


def python_imports(path, modules):
    """The modules of ours that one imports when it is loaded or type-checked, of `modules`."""
    body = list(ast.parse(path.read_text()).body)
    for statement in body:
        if isinstance(statement, (ast.If, ast.Try)):
            body += statement.body
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
            for alias in statement.names:
                inner = f"{statement.module}.{alias.name}"
                yield inner if inner in modules else statement.module
        elif isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)


def check_python(root):
    """Python modules that import each other."""
    folder = root / "python"
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    arrows = {name: {to for to in python_imports(path, modules) if to in modules} for name, path in modules.items()}
    circle = find_circle(arrows)
    if circle:
        yield f"python: modules import each other: {' -> '.join(circle)}"


def check_tree(root):
    arrows = read_arrows(root / ARROWS)
    circle = find_circle(arrows)
    if circle:
        return [f"{ARROWS}: folders include each other: {' -> '.join(circle)}"]
    return [*(problem for path in sources_of(root, arrows) for problem in check_file(path, root, arrows)),
            *check_installed_headers(root), *check_modules(root, arrows), *check_map(root, arrows), *check_python(root)]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = check_tree(root)
    print("\n".join(problems))
    print(f"check_tree: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
