"""Files that comments, docstrings and pages name must exist. Run by ctest; exits 1 and lists every name without a file.

A name may be a path from the root, the end of one, or a bare file name. What begins with a folder that the tree does not
have (linux/fs.h) is somebody else's.
"""

import ast
import io
import os
import pathlib
import re
import sys
import tokenize

SUFFIXES = ("h", "cc", "cu", "cuh", "py", "md")
NAME = re.compile(rf"(?<![\w/.\-<*$}}{{~])((?:[\w.\-]+/)*\w[\w\-]*\.(?:{'|'.join(SUFFIXES)}))(?![\w/*{{]|\.\w)")
# Files of CUDA, Python, transformers, DeepSpeed and llama.cpp, and one that stands for any.
OTHERS = {"cublasLt.h", "sitecustomize.py", "modeling_rope_utils.py", "fused_optimizer.py", "loss_scaler.py",
          "lr_schedules.py", "convert_hf_to_gguf.py", "x_test.cc"}
NOT_OURS = {"build", "shared"}  # folders of a checkout that are not in the repository


def files_below(root):
    """Paths, relative to the root."""
    for folder, folders, files in os.walk(root):
        at_root = pathlib.Path(folder) == root
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__"
                            and not (at_root and name in NOT_OURS))
        yield from (pathlib.Path(folder, name).relative_to(root) for name in sorted(files))


def comments_in(path):
    """(line, text) of what is written for people in it."""
    text = path.read_text(errors="replace")
    if path.suffix == ".md":
        return list(enumerate(text.split("\n"), 1))
    if path.suffix != ".py":
        lines = [(number, line.partition("//")[2]) for number, line in enumerate(text.split("\n"), 1)]
        return [(number, comment) for number, comment in lines if comment]
    comments = [(token.start[0], token.string) for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                comments += enumerate(docstring.split("\n"), node.body[0].lineno)
    return comments


def check_references(root):
    """['file:line: problem']."""
    files = list(files_below(root))
    ends = {"/".join(path.parts[first:]) for path in files for first in range(len(path.parts))}
    folders = {part for path in files for part in path.parent.parts}
    problems = []
    for path in files:
        if path.suffix.lstrip(".") not in SUFFIXES:
            continue
        for number, comment in comments_in(root / path):
            for name in NAME.findall(comment):
                name = re.sub(r"^(\.\.?/)+", "", name).removeprefix("forebay/")
                is_ours = "/" not in name or name.split("/")[0] in folders
                if is_ours and name not in ends and name.split("/")[-1] not in OTHERS:
                    problems.append(f"{path}:{number}: there is no {name}")
    return problems


def main():
    problems = check_references(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(problems))
    print(f"check_references: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
