"""The examples of docs/pytorch.md, one after another, as a reader runs them."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    examples = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "pytorch.md").read_text(), re.M | re.S)
    assert len(examples) == 14 and examples[0].count("\n") <= 12
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in examples:
        exec(compile(example, "docs/pytorch.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("the next step is 3\n") and float(printed.split("\n")[1]) > 0  # and then notes of keys
