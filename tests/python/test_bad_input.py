"""Data, tokenizers and settings that cannot be used: the message names the place and the fix."""

import json
import os
import shutil

import pytest
from conftest import load_tokenizer, make_model, pack_file, pack_options, write_lines

from forebay_data import pack, show
from forebay_data.errors import BadInputError, UsageError


def refusal(model, data, seq=64, **others):
    with pytest.raises(BadInputError) as caught:
        pack_file(model, data, seq, data.parent / "refused.packed", **others)
    assert not (data.parent / "refused.packed").exists()
    return str(caught.value)


def refusal_of_bytes(model, tmp_path, name, contents, **others):
    (tmp_path / name).write_bytes(contents)
    return refusal(model, tmp_path / name, **others)


@pytest.mark.parametrize("name, contents", [("d.txt", b""), ("d.txt", b" \n\n"), ("d.txt", b"\xef\xbb\xbf"),
                                            ("d.jsonl", b""), ("d.jsonl", b"\n \n")])
def test_empty_data(model, tmp_path, name, contents):
    assert "data is empty" in refusal_of_bytes(model, tmp_path, name, contents)


def test_missing_data_and_folders(model, tmp_path):
    for folder in (model, broken_model(model, tmp_path, "tokenizer.json", None)):
        assert "no.txt' does not exist: --data" in refusal(folder, tmp_path / "no.txt")
    (tmp_path / "folder.txt").mkdir()
    assert "is a folder" in refusal(model, tmp_path / "folder.txt")


def test_unknown_suffix(model, tmp_path):
    assert "neither a packed file" in refusal_of_bytes(model, tmp_path, "d.pdf", b"x")


def test_text_that_is_not_utf8_names_line_and_byte(model, tmp_path):
    message = refusal_of_bytes(model, tmp_path, "d.txt", b"one\ntwo \xff")
    assert "d.txt:2: not UTF-8 at byte 8 (0xff)" in message


def test_json_line_that_is_not_utf8_names_line_and_byte(model, tmp_path):
    message = refusal_of_bytes(model, tmp_path, "d.jsonl", b'{"text":"a"}\n{"text":"\xe9"}\n')
    assert "d.jsonl:2: not UTF-8 at byte 22 (0xe9)" in message


@pytest.mark.parametrize("line, problem", [
    ('{"text": "a"', "not valid JSON at column"),
    ('{"text": "a"} x', "not valid JSON at column"),
    ("[" * 100_000, "not valid JSON"),
    ('{"text": 1' + "0" * 5000 + "}", "not valid JSON"),
    ('["a"]', "holds a JSON list"),
    ('{"text": "a", "text": "b"}', "'text' appears twice"),
    ('{"txt": "a"}', "unknown key 'txt'"),
    ('{"text": "a", "prompt": "b"}', "'text', 'prompt' do not make a sample"),
    ('{"prompt": "b"}', "'prompt' do not make a sample"),
    ("{}", "(none) do not make a sample"),
    ('{"text": 3}', "'text' is a JSON int"),
    ('{"text": "\\ud800"}', "half of a surrogate pair"),
    ('{"prompt": "a", "completion": null}', "'completion' is a JSON null"),
    ('{"messages": []}', "'messages' must be a list"),
    ('{"messages": ["a"]}', "message 1 must be an object"),
    ('{"messages": [{"role": "user"}]}', "message 1 must be an object with 'role' and 'content'"),
    ('{"messages": [{"role": "user", "content": ["a"]}]}', "the content of message 1 is a JSON list"),
    ('{"text": ""}', "no trained token: its text is empty"),
    ('{"prompt": "", "completion": ""}', "no trained token: its completion is empty"),
    ('{"messages": [{"role": "user", "content": "a"}]}', "no turn of the assistant says anything"),
])
def test_bad_line_is_named(model, tmp_path, line, problem):
    good = json.dumps({"text": "the cat"})
    message = refusal_of_bytes(model, tmp_path, "d.jsonl", f"{good}\n\n{line}\n{good}\n".encode())
    assert "d.jsonl:3: " in message and problem in message


LONG = {"prompt": "the cat sat on the mat " * 3, "completion": "and the dog ran"}
LONG_CHAT = {"messages": [{"role": "user", "content": "the cat sat " * 9}, {"role": "assistant", "content": "dog"}]}


@pytest.mark.parametrize("record", [LONG, LONG_CHAT])
def test_over_long_prompt_or_chat_is_an_error_without_truncate(model, tmp_path, record):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the"}, record])
    assert "d.jsonl:2: " in refusal(model, data, seq=20) and "--truncate" in refusal(model, data, seq=20)


def test_truncate_keeps_the_beginning_and_counts_it(model, tokenizer, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [LONG])
    prompt, completion = tokenizer.encode(LONG["prompt"]), tokenizer.encode(LONG["completion"])
    seq = len(prompt) + 2
    report, tokens, _ = pack_file(model, data, seq, tmp_path / "o", truncate=True)
    assert tokens[0].tolist() == prompt + completion[:2]
    assert report["truncated"] == 1 and report["trained"] == 2


def test_truncate_that_leaves_nothing_to_train_is_an_error(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [LONG])
    assert "left only the prompt" in refusal(model, data, seq=8, truncate=True)


def test_a_longer_row_is_advised_where_the_model_has_positions_for_it(tmp_path):
    model = make_model(tmp_path / "short", positions=16)
    data = write_lines(tmp_path / "d.jsonl", [LONG])
    for truncate in (False, True):
        assert "raise --seq" in refusal(model, data, seq=8, truncate=truncate)
        at_most = refusal(model, data, seq=16, truncate=truncate)
        assert "raise --seq" not in at_most and "shorten" in at_most


def test_sample_longer_than_the_models_positions(tmp_path):
    model = make_model(tmp_path / "short", positions=16)
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the"}, {"text": "the cat sat " * 20}])
    message = refusal(model, data, seq=32)
    assert "d.jsonl:2: " in message and "16 positions" in message and "--seq=16" in message


def test_rows_may_be_longer_than_positions_when_no_sample_is(tmp_path):
    model = make_model(tmp_path / "short", positions=16)
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}] * 8)
    report, _, _ = pack_file(model, data, 64, tmp_path / "o")
    assert report["rows"] == 1


@pytest.mark.parametrize("seq", [-1, 0, 1, 1 << 40])
def test_impossible_seq(model, tmp_path, seq):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the"}])
    with pytest.raises(UsageError, match="impossible"):
        pack.pack(pack_options(model, data, seq, out=str(tmp_path / "o")))


def broken_model(model, tmp_path, name, change):
    """A copy of the model whose JSON file `name` went through `change` (None: the file is removed)."""
    folder = tmp_path / "broken"
    shutil.copytree(model, folder)
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(change((folder / name).read_text()))
    return folder


@pytest.mark.parametrize("name, change, problem", [
    ("config.json", None, "config.json' does not exist"),
    ("config.json", lambda text: "{", "config.json' is not valid JSON at line 1"),
    ("config.json", lambda text: "[]", "not an object"),
    ("config.json", lambda text: "{}", "no 'vocab_size'"),
    ("config.json", lambda text: text.replace("400", '"many"'), "'vocab_size' is 'many'"),
    ("config.json", lambda text: text.replace("400", "300"), "belongs to another model"),
    ("tokenizer.json", None, "tokenizer.json' does not exist"),
    ("tokenizer.json", lambda text: text[:1000], "is no tokenizer"),
    ("tokenizer.json", lambda text: "{}", "is no tokenizer"),
])
def test_broken_model_folder(model, tmp_path, name, change, problem):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the"}])
    assert problem in refusal(broken_model(model, tmp_path, name, change), data)


def test_tokenizer_without_eos(model, tmp_path):
    folder = broken_model(model, tmp_path, "tokenizer_config.json", lambda text: "{}")
    assert load_tokenizer(folder).eos_id == 2  # from config.json
    (folder / "config.json").write_text('{"vocab_size": 400}')
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the"}])
    assert "names no EOS token" in refusal(folder, data)


def test_chat_without_a_template(tmp_path):
    model = make_model(tmp_path / "m", template=None)
    assert "has no chat template" in refusal(model, write_lines(tmp_path / "d.jsonl", [LONG_CHAT]))


def test_pack_lists_the_problems_that_check_lists(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, {"texts": "a"}, LONG, {"text": ""}, {"text": "dog"}])
    problems = show.check(pack_options(model, data, 20))["problems"]
    first, *lines = refusal(model, data, 20).split("\n")
    assert first == "the data has 3 problems:" and lines == [f"  {problem}" for problem in problems] and len(lines) == 3
    assert os.listdir(tmp_path) == ["d.jsonl"]


def test_pack_and_check_list_20_problems_and_count_the_others(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"texts": "a" * 3000}] * 1022)
    lines = refusal(model, data).split("\n")
    assert lines[0] == "the data has 1,022 problems:" and len(lines) == 22 and lines[-1] == "  and 1,002 more"
    assert "d.jsonl:20: unknown key" in lines[20]
    report = show.check(pack_options(model, data, 64))
    assert len(report["problems"]) == 20 and show.describe_check(report).endswith("\nproblem: and 1,002 more")


def test_one_problem_of_pack_stands_alone(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, {"texts": "a"}])
    message = refusal(model, data)
    assert message.startswith(f"{data}:2: unknown key 'texts'") and "\n" not in message


def test_check_lists_every_problem(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, LONG, {"text": ""}, LONG_CHAT])
    report = show.check(pack_options(model, data, 20))
    assert report["num_problems"] == 3 and report["samples"] == 1
    assert [problem.split(": ")[0].rsplit(":", 1)[1] for problem in report["problems"]] == ["2", "3", "4"]


def test_check_lists_rows_that_cannot_be_read_too(model, tmp_path):
    good, bad = json.dumps({"text": "good"}), tmp_path / "a.jsonl"
    bad.write_text("\n".join([good, "{", '{"texts": "a"}', '{"text": 1}', '{"text": ""}', good]) + "\n")
    (tmp_path / "b.json").write_text(f"[{good}, 3, {good}]")  # nobody knows where the next element begins
    (tmp_path / "c.jsonl").write_text("")
    (tmp_path / "d.jsonl").write_text(good + "\n")
    data = ",".join(str(tmp_path / name) for name in ("a.jsonl", "b.json", "c.jsonl", "d.jsonl"))
    report = show.check(pack_options(model, data, 64))
    assert report["samples"] == 4 and report["num_problems"] == 6
    wanted = {"a.jsonl:2: not valid JSON", "a.jsonl:3: unknown key 'texts'", "a.jsonl:4: 'text' is a JSON int", "a.jsonl:5: the sample has no",
              "b.json:1: element 2 of the array", "c.jsonl' has no text: data is empty"}
    assert all(any(words in problem for problem in report["problems"]) for words in wanted), report["problems"]


def test_check_of_chats_without_a_template_says_so_once(tmp_path):
    model = make_model(tmp_path / "m", template=None)
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    report = show.check(pack_options(model, write_lines(tmp_path / "d.jsonl", [chat] * 9), 64))
    assert report["num_problems"] == 1 and "has no chat template" in report["problems"][0]


def test_a_long_problem_is_cut(model, tmp_path):
    report = show.check(pack_options(model, write_lines(tmp_path / "d.jsonl", [{"k" * 9000: 1}]), 64))
    assert len(report["problems"][0]) < 2100 and " [...] " in report["problems"][0]


def test_check_counts_eos_and_doubled_bos(bos_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, {"text": "<|im_start|><|im_start|>the cat"}])
    report = show.check(pack_options(bos_model, data, 64))
    assert report["samples_with_trained_eos"] == 2 and report["samples_with_doubled_bos"] == 1
    assert report["kinds"] == {"text": 2}


def test_check_of_a_packed_file_counts_the_same(model, tmp_path):
    records = [{"text": "the cat"}, {"prompt": "the", "completion": " dog ran"}]
    data = write_lines(tmp_path / "d.jsonl", records)
    from_text = show.check(pack_options(model, data, 64))
    pack_file(model, data, 64, tmp_path / "o")
    from_packed = show.check(pack_options(model, tmp_path / "o", None))
    for key in ("rows", "tokens", "trained", "samples", "tokens_per_sample", "samples_with_trained_eos"):
        assert from_packed[key] == from_text[key], key


def test_packed_file_of_another_tokenizer_cannot_be_shown(model, bos_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    pack_file(model, data, 64, tmp_path / "o")
    with pytest.raises(BadInputError, match="another tokenizer"):
        show.show(pack_options(bos_model, tmp_path / "o", None, n=1))
