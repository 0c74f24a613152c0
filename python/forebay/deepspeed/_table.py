"""What each key of a DeepSpeed configuration does here: the table keys.json, and documents read by it. `forebay train
--ds_config` reads the same table.

In the table a key is one of: a text: it is ignored for that reason; a list: it may be there and off, and cannot be on
for the reason that comes first in the list (the rest are values that are off too); {"alias": path or name}: another
name; {"keys": ...}: a section, which has any keys if "*" is one of them; {"type": ...}: it is used. Other words of the
last: "default"; "values": what other values stand for, by their JSON; "native" and "python": why the program, or this
package, ignores it; "required".
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterable
from typing import Any

TABLE: dict[str, Any] = json.loads((pathlib.Path(__file__).parent / "keys.json").read_text(encoding="utf-8"))
KEYS: dict[str, Any] = TABLE["keys"]
# As pydantic has them, with which DeepSpeed reads most of its sections.
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")
_AUTO = "auto"


class _Wrong(Exception):
    """What a value has to be."""


class Values:
    """The keys of a document that are used, by their paths ("fp16.enabled"), and what is to be said of the others."""

    def __init__(self) -> None:
        self._used: dict[str, Any] = {}
        self._said: dict[str, str] = {}  # how the document calls the keys
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.autos: list[str] = []  # those that are "auto", and so not said

    def take(self, document: dict[str, Any], keys: dict[str, Any] = KEYS, section: str = "", said: str = "") -> None:
        """section: the path of the document among the keys; said: the same as it is written."""
        for key, value in document.items():
            node = keys.get(str(key), keys.get("*"))
            if node is None:
                self.problems.append(f"{said}{key} is not known. {_cure(str(key), keys, section, said)}")
            else:
                self._visit(node, keys, section, f"{section}{key}", f"{said}{key}", value)

    def _visit(self, node: Any, keys: dict[str, Any], section: str, path: str, said: str, value: Any) -> None:
        if value is None:
            return
        if isinstance(node, dict):
            value = node.get("values", {}).get(shown(value), value)
        if isinstance(node, str):
            if value != _AUTO:
                self.notes.append(f"{said} is ignored: {node}")
        elif isinstance(node, list):
            if not _is_off(value) and shown(value) not in map(shown, node[1:]):
                self.problems.append(f"{said} is {shown(value)}: {node[0]}.")
        elif "alias" in node:
            of = node["alias"]  # a path, or a key of the same section
            self._visit(node_at(of) if "." in of else keys[of], keys, section, of if "." in of else section + of, said,
                        value)
        elif "keys" in node:
            self._take_section(node["keys"], path, said, value)
        elif value == _AUTO:
            if node.get("default") != _AUTO:
                self.autos.append(said)
        else:
            self._take_value(node, path, said, value)

    def _take_section(self, keys: dict[str, Any], path: str, said: str, value: Any) -> None:
        if isinstance(value, dict):
            self.take(value, keys, path + ".", said + ".")
        elif value != _AUTO:
            example = ', such as {"enabled": true}' if "enabled" in keys else ""
            self.problems.append(f"{said} is {shown(value)}, and has to be an object{example}.")

    def _take_value(self, node: dict[str, Any], path: str, said: str, value: Any) -> None:
        try:
            value = _converted(node, value)
        except _Wrong as wrong:
            self.problems.append(f"{said} is {shown(value)}, and has to be {wrong}.")
            return
        if self._used.get(path, value) != value:
            first, second = sorted((self._said[path], said))
            self.problems.append(f"{first} and {second} are one setting, and have two values. Remove one of them.")
        self._used[path], self._said[path] = value, said
        if "python" in node and value is not False:
            self.notes.append(f"{said} is ignored: {node['python']}")

    def get(self, path: str) -> Any:
        """What the document says, or the default; None: neither."""
        return self._used[path] if path in self._used else node_at(path).get("default")

    def is_said(self, path: str) -> bool:
        return path in self._used

    def under(self, section: str, keys: dict[str, Any]) -> dict[str, Any]:
        """The used keys of a section, with the defaults that its table has."""
        defaults = {key: node["default"] for key, node in keys.items() if isinstance(node, dict) and "default" in node}
        return {**defaults, **{path[len(section):]: value for path, value in self._used.items()
                               if path.startswith(section)}}


def node_at(path: str) -> Any:
    """The one of the key at `path`, which has no other names in it."""
    keys, node = KEYS, None
    for name in path.split("."):
        node = keys[name]
        keys = node.get("keys", {}) if isinstance(node, dict) else {}
    return node


def names_of(keys: dict[str, Any]) -> list[str]:
    """The names of the keys that are used."""
    return [key for key, node in keys.items() if isinstance(node, dict) and "alias" not in node]


def _is_off(value: Any) -> bool:
    if isinstance(value, dict):
        return not value or _is_off(value.get("enabled", True))
    try:
        return value in (None, [], "") or not _flag(value)
    except _Wrong:
        return False


def _converted(node: dict[str, Any], value: Any) -> Any:
    kind = node["type"]
    if kind == "flag":
        return _flag(value)
    if kind == "on":
        if _flag(value):
            return True
        raise _Wrong(f"true: {node['why']}")
    if kind == "number":
        return _number(value)
    if kind == "whole":
        return _whole(value, node["least"], node["most"])
    if kind == "betas":
        return _betas(value)
    if kind == "choice":
        found = [each for each in node["choices"] if isinstance(value, str) and each.lower() == value.lower()]
        if found:
            return found[0]
        raise _Wrong(f"one of: {', '.join(node['choices'])}")
    if kind == "text" and not isinstance(value, str):
        raise _Wrong("a text")
    if kind == "names" and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise _Wrong("a list of texts")
    if kind == "object" and not isinstance(value, dict):
        raise _Wrong("an object")
    return value


def _flag(value: Any) -> bool:
    text = value.lower() if isinstance(value, str) else "" if isinstance(value, bool) else str(value)
    if value is True or text in _TRUE:
        return True
    if value is False or text in _FALSE:
        return False
    raise _Wrong("true or false")


def _number_or_none(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _number(value: Any) -> float:
    number = _number_or_none(value)
    if number is None:
        raise _Wrong("a number from 0 on")
    return number


def _whole(value: Any, least: int, most: int) -> int:
    number = _number_or_none(value)
    if number is None or number != int(number) or not least <= number <= most:
        raise _Wrong(f"a whole number from {least} to {most}")
    return int(number)


def _betas(value: Any) -> list[float]:
    numbers = [_number_or_none(each) for each in value] if isinstance(value, (list, tuple)) else []
    if len(numbers) != 2 or any(each is None or each >= 1 for each in numbers):
        raise _Wrong("two numbers from 0 to below 1")
    return [each for each in numbers if each is not None]


def _cure(key: str, keys: dict[str, Any], section: str, said: str) -> str:
    if section.startswith(("optimizer.params.", "scheduler.params.")):
        return f"There are: {', '.join(names_of(keys))}."
    elsewhere = sorted(path for path in _paths(KEYS, "") if path.endswith("." + key))
    near = nearest(key, list(keys))
    if near:
        return f"Is {said}{near} meant?"
    return f"Is {elsewhere[0]} meant?" if elsewhere else "Remove it."


def _paths(keys: dict[str, Any], section: str) -> Iterable[str]:
    for key, node in keys.items():
        yield section + key
        if isinstance(node, dict) and "keys" in node:
            yield from _paths(node["keys"], section + key + ".")


def nearest(name: str, candidates: list[str]) -> str:
    """The candidate that `name` may be a misspelling of; empty: none. As base/format.h has it, except that
    capitals count as small letters."""
    name = name.lower().replace("-", "_")
    best, best_distance = "", min(max(2, len(name) // 3), len(name) - 1) + 1
    for candidate in candidates:
        distance = _edit_distance(name, candidate)
        if distance < best_distance:
            best, best_distance = candidate, distance
    return best


def _edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]


def shown(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))
