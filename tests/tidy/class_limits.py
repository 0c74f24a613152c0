"""No class of a production header has more than 25 public functions or 20 members: what a person can hold in the head.

`python3 class_limits.py ROOT` lists every class above the limits. Those that were above them when the limits came are in
ABOVE with their numbers, which may only fall. Records (structs of members with hardly a function) have no limit.
"""

import pathlib
import re
import sys

MAX_FUNCTIONS, MAX_MEMBERS = 25, 20
# 2026-12-01. file: class: (public functions, members); remove a row once the class is within the limits.
ABOVE = {
    ("capi/c_layers.h", "LayersState"): (26, 12),
    ("collective/collective_rounds.h", "CollectiveRounds"): (3, 26),
    ("model/cuda_decoder/cuda_layer_compute.h", "CudaLayerCompute"): (17, 29),
    ("model/decoder_compute.h", "DecoderCompute"): (17, 27),
    ("offload/layer_session.h", "LayerSession"): (34, 46),
    ("optimizer/held_gradients.h", "HeldGradients"): (20, 21),
    ("optimizer/offloaded_optimizer.h", "OffloadedOptimizer"): (27, 2),
    ("optimizer/offloaded_optimizer_impl.h", "OffloadedOptimizer::Impl"): (47, 43),
    ("swap/session/tensor_session_impl.h", "TensorSession::Impl"): (26, 36),
    ("swap/store/tensor_store.h", "TensorStore"): (68, 1),
    ("swap/store/tensor_store_impl.h", "TensorStore::Impl"): (96, 35),
}
NOT_PRODUCTION = {"tests", "bench", "examples", "build"}

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', re.DOTALL)
DIRECTIVE = re.compile(r"^\s*#[^\n]*", re.MULTILINE)
CLASS_HEAD = re.compile(r"\b(class|struct)\s+([\w:]+)\s*(?:final\s*)?(?::[^;{}()]*)?$")
NEITHER = re.compile(r"(using|typedef|friend|enum|static_assert|class|struct)\b")


class Class:
    def __init__(self, kind, name):
        self.name = name
        self.is_public = kind == "struct"
        self.has_private = False
        self.num_functions = self.num_public = self.num_members = 0

    def enter(self, access):
        self.is_public = access == "public"
        self.has_private |= not self.is_public

    def add(self, statement):
        """A declaration, without the body of a function."""
        text = without_templates(statement).strip(" \n,")
        text = re.sub(r"^template\s*", "", text)
        if not text or NEITHER.match(text):
            return
        if "operator" not in text:
            text = re.sub(r"=(?!\s*(default|delete|0)\s*$).*", "", text, flags=re.DOTALL)  # an initial value
        if "(" in text:
            self.num_functions += 1
            self.num_public += self.is_public and not text.endswith("delete")
        elif not re.search(r"\bconstexpr\b", text):
            self.num_members += text.count(",") + 1

    @property
    def is_record(self):
        return not self.has_private and self.num_functions * 4 < self.num_members


def without_templates(text):
    while True:
        shorter = re.sub(r"<[^<>;{}]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def classes_of(text):
    """Those of a header, with what they declare."""
    text = DIRECTIVE.sub("", COMMENT_OR_TEXT.sub(" ", text))
    found, blocks = [], []  # blocks: the classes that are open; others as what stands before their brace
    begin = num_parens = 0
    for i, character in enumerate(text):
        num_parens += (character == "(") - (character == ")")
        if num_parens > 0 or character not in "{};:":
            continue
        before = text[begin:i].strip()
        inner = blocks[-1] if blocks and isinstance(blocks[-1], Class) else None
        if character == "{":
            head = None if "enum" in before.split() else CLASS_HEAD.search(without_templates(before))
            blocks.append(Class(head[1], head[2]) if head else before)
            found += [blocks[-1]] if head else []
        elif character == "}":
            closed = blocks.pop()
            if isinstance(closed, str) and blocks and isinstance(blocks[-1], Class):
                blocks[-1].add(closed)
        elif character == ";" and inner:
            inner.add(before)
        elif character == ":" and inner and before in ("public", "protected", "private"):
            inner.enter(before)
        elif character == ":":
            continue
        begin = i + 1
    return found


def problems_of(root, above):
    left = dict(above)
    for path in sorted(root.glob("*/**/*.h")):
        name = str(path.relative_to(root))
        if name.split("/")[0] in NOT_PRODUCTION:
            continue
        for each in classes_of(path.read_text()):
            numbers = (each.num_public, each.num_members)
            limits = left.pop((name, each.name), None)
            is_above = not each.is_record and (numbers[0] > MAX_FUNCTIONS or numbers[1] > MAX_MEMBERS)
            said = f"{name}: {each.name} has {numbers[0]} public functions and {numbers[1]} members"
            if is_above and limits is None:
                yield f"{said}; at most {MAX_FUNCTIONS} and {MAX_MEMBERS}: divide it"
            elif is_above and numbers != limits:
                grows = numbers[0] > limits[0] or numbers[1] > limits[1]
                yield f"{said}, and had {limits[0]} and {limits[1]}: " + ("it may not grow" if grows else "lower its row")
            elif not is_above and limits is not None:
                yield f"{said}, which is within the limits: remove its row"
    yield from (f"{name}: there is no {of} any more: remove its row" for name, of in left)


def main():
    problems = list(problems_of(pathlib.Path(sys.argv[1]).resolve(), ABOVE))
    print("\n".join(problems))
    print(f"class_limits: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
