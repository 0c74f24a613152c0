"""Configurations as people write them: JSON with comments and commas too many, a Python dict, or Hjson, as DeepSpeed
reads it (keys and texts without quotes, lines without commas)."""

from __future__ import annotations

import ast
import importlib
import json
import re
from typing import Any

from forebay.errors import UsageError

_TOKEN = re.compile(r'''(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?\*/)'''
                    r'''|(?P<word>\b(?:True|False|None)\b)|(?P<comma>,)|(?P<space>\s+)|(?P<other>[^\s,])''', re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}


def parse(text: str, source: str) -> dict[str, Any]:
    """UsageError with line and column: it is none of them, or is Hjson and the package hjson is not installed; a key is
    there twice; the outermost is no object."""
    pieces: list[str] = []
    comma = None  # the position of the last one, while nothing has followed it
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token.group()
        if kind == "comment":
            word = re.sub(r"[^\n]", " ", word)  # so that lines and columns stay what they are
        elif kind == "string":
            word = json.dumps(ast.literal_eval(word)) if word[0] == "'" else word
        elif kind == "word":
            word = _WORDS[word]
        if kind == "other" and word in "}]" and comma is not None:
            pieces[comma] = " "
        if kind == "comma":
            comma = len(pieces)
        elif kind not in ("comment", "space"):
            comma = None
        pieces.append(word)
    try:
        value = json.loads("".join(pieces), object_pairs_hook=lambda pairs: _object(pairs, source))
    except json.JSONDecodeError as error:
        value = _hjson(text, source, f"{error.msg} in line {error.lineno}, column {error.colno}")
    if not isinstance(value, dict):
        raise UsageError(f"forebay: {source} is a {type(value).__name__}, and a configuration is an object.")
    return value


def _hjson(text: str, source: str, why_no_json: str) -> Any:
    try:
        hjson: Any = importlib.import_module("hjson")  # which comes with DeepSpeed
    except ImportError:
        raise UsageError(f"forebay: {source} is no JSON, nor a Python dict: {why_no_json}. If it is Hjson, install the "
                         "Python package hjson.") from None
    try:
        return hjson.loads(text, object_pairs_hook=lambda pairs: _object(pairs, source))
    except hjson.HjsonDecodeError:
        raise UsageError(f"forebay: {source} is no JSON, Hjson or Python dict: {why_no_json}.") from None


def _object(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"forebay: {source} has the key '{key}' twice. Remove one.")
        found[key] = value
    return found
