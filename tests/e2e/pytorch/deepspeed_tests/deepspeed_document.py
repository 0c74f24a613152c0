"""docs/deepspeed-keys.md, of the table python/forebay/deepspeed/keys.json. The test that compares them,
test_deepspeed_keys.py, writes it anew with FOREBAY_WRITE_EXPECTED=1."""

INTRODUCTION = """# Keys of DeepSpeed's configurations

What becomes of each key of DeepSpeed 0.19 under `forebay train --ds_config` and in scripts on `forebay.deepspeed`
([pytorch.md](pytorch.md#scripts-that-are-written-for-deepspeed)). "Used" has DeepSpeed's meaning. A key that is ignored is
told at the start, with the reason. One that is refused may be there and off (false, 0, null or empty; for sizes also 1). A
key that is not in these tables is an error that names the nearest; all errors are told at once. `"auto"` says nothing: the
flags of `forebay train` have the say, or in a script the Trainer of transformers fills it in. Switches may be written as
DeepSpeed reads them (`"True"`, `1`, `"yes"`), and numbers as texts.

<!-- Written by tests/e2e/pytorch/deepspeed_tests/test_deepspeed_keys.py with FOREBAY_WRITE_EXPECTED=1. -->
"""
VALUES = {"flag": "true or false", "number": "a number from 0 on", "text": "a text", "names": "a list of texts",
          "betas": "two numbers from 0 to below 1", "object": "an object", "on": "true"}


def _values(node):
    kind = node["type"]
    # Limits that are there for numbers that mean nothing are not shown.
    most = f"to {node['most']}" if kind == "whole" and node["most"] < 2**31 else "or more"
    text = (f"{node['least']} {most}" if kind == "whole" else ", ".join(node["choices"])
            if kind == "choice" else VALUES[kind])
    others = ", ".join(f"`{other}`" for other in node.get("values", {}))
    default = node.get("default")
    return (text + (f"; also {others}" if others else "") +
            ("" if default in (None, "") else f"; default {str(default).lower() if kind == 'flag' else default}"))


def _becomes(node):
    """What a key does, natively and in scripts."""
    if isinstance(node, str):
        return f"ignored: {node}", "the same"
    if isinstance(node, list):
        return f"refused: {node[0]}", "the same"
    if node.get("type") == "on":
        return f"refused if false: {node['why']}", "the same"
    native, script = [f"ignored: {node[way]}" if way in node else "used" for way in ("native", "python")]
    return native, "the same" if native == script else script


def _rows(keys, section=""):
    for key, node in keys.items():
        path = section + key
        if isinstance(node, dict) and "alias" in node:
            of = node["alias"]
            yield f"`{path}`", "", f"another name of `{of if '.' in of else section + of}`", "the same"
        elif isinstance(node, dict) and "keys" in node:
            yield from _rows(node["keys"], path + ".")
        else:
            yield (f"`{path}`", _values(node) if isinstance(node, dict) else "", *_becomes(node))


def _table(keys, columns=("key", "values", "`forebay train`", "scripts")):
    rows = [columns, ["---"] * len(columns), *(row[:len(columns)] for row in _rows(keys))]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def document_of(table):
    parts = [INTRODUCTION, _table(table["keys"])]
    for kind, entry in table["optimizers"].items():
        names = ", ".join(f"`{name}`" for name in entry["names"])
        parts.append(f"## optimizer.params of {kind}\n\n`optimizer.type` is, in any letters, one of: {names}.\n\n"
                     + _table(entry["keys"]))
    for kind, entry in table["schedules"].items():
        parts.append(f"## scheduler.params of {kind}\n\n" + _table(entry["keys"]))
    parts.append("## autotuning\n\n" + _table(table["autotuning"]["keys"], ("key", "values", "`forebay train --autotune`")))
    return "\n".join(parts)
