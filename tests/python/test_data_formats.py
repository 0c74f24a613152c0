"""Data in the forms that people have it: what a row, a chat or a file becomes, and what is refused."""

import gzip
import json
import os
import pathlib
import sys

import pytest
from conftest import make_model, pack_options, write_lines

from forebay_data import pack, row_files, rows, show, sources
from forebay_data.errors import BadInputError

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- data formats: begin -->\n", "<!-- data formats: end -->\n"
TEMPLATE = ("{% for message in messages %}{{ message.role + ': ' + message.content + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")
ASKED, ANSWERED = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
SHARE_GPT = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
ALPACA = {"instruction": "Add", "input": "1, 2", "output": "3"}

# What the table of the docs shows, in its order: what it is, and rows or the text of a file.
ROWS = [
    ("text", {"text": "some text"}),
    ("prompt and completion", {"prompt": "the cat", "completion": " sat"}),
    ("the same as messages (TRL)", {"prompt": [ASKED], "completion": [ANSWERED]}),
    ("messages (OpenAI, TRL)", {"messages": [ASKED, ANSWERED]}),
    ("content in parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]},
                                       ANSWERED]}),
    ("a turn not to train on", {"messages": [ASKED, {**ANSWERED, "train": False}, ASKED, ANSWERED]}),
    ("the same (OpenAI)", {"messages": [ASKED, {**ANSWERED, "weight": 0}, ASKED, {**ANSWERED, "weight": 1}]}),
    ("ShareGPT", {"conversations": SHARE_GPT}),
    ("ShareGPT with a system prompt", {"system": "Be kind.", "conversations": SHARE_GPT}),
    ("messages with a system prompt", {"system": "Be kind.", "messages": [ASKED, ANSWERED]}),
    ("roles in capitals", {"messages": [{"role": "USER", "content": "Hi"}, {"role": "Assistant", "content": "Hello"}]}),
    ("an empty answer", {"messages": [ASKED, {**ANSWERED, "content": ""}]}),
    ("Alpaca", ALPACA),
    ("Alpaca as it is published", {**ALPACA, "text": "Below is an instruction ..."}),
    ("more columns than are used", {"id": 7, "messages": [ASKED, ANSWERED], "source": "web"}),
    ("two forms in one row", {"text": "some text", "messages": [ASKED, ANSWERED]}),
    ("a text with a prompt", {"text": "some text", "prompt": "the cat"}),
    ("two system prompts", {"system": "Be kind.", "messages": [{"role": "system", "content": "Be brief."}, ASKED, ANSWERED]}),
    ("other names", {"question": "Hi", "answer": "Hello"}),
    ("a picture", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x.png"}]}, ANSWERED]}),
    ("weights between", {"messages": [ASKED, {**ANSWERED, "weight": 0.5}]}),
]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("formats") / "model", template=TEMPLATE)


def shown(model, data, n=99):
    """(samples with what is trained in marks, notes)."""
    report = show.show(pack_options(model, data, None, n=n))
    samples = ["".join(f"«{part['text']}»" if part["trained"] else part["text"] for part in sample["parts"])
               for sample in report["samples"]]
    return samples, report["notes"]


def shown_row(model, tmp_path, row):
    return shown(model, write_lines(tmp_path / "d.jsonl", [row]))


def refusal(model, data):
    with pytest.raises(BadInputError) as caught:
        show.show(pack_options(model, data, None, n=99))
    return str(caught.value)


def what_becomes(model, tmp_path, row):
    try:
        [sample], notes = shown_row(model, tmp_path, row)
    except BadInputError as error:
        return "refused: " + str(error).split("d.jsonl:1: ")[1]
    return sample.replace("<|im_end|>", "[EOS]").rstrip("\n").replace("\n", " ↵ ") + "".join(f" (note: {note})" for note in notes)


def test_the_table_of_the_docs_says_what_becomes_of_each_form(chat_model, tmp_path):
    """When this fails, paste the printed block between the two markers."""
    block = "| row | for example | what becomes of it |\n|---|---|---|\n"
    for name, row in ROWS:
        cells = [name, f"`{json.dumps(row)}`", what_becomes(chat_model, tmp_path, row)]
        block += "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
    text = DOCS.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN):text.index(END)] == block, block


# ---- Rows

def test_each_kind_of_row_is_in_the_table_of_the_docs():
    used = {name for _, row in ROWS for name in row}
    assert {name for kind in rows.KINDS for name in kind.needed} <= used


def test_columns_of_no_use_are_named_once_for_all_rows(chat_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "a", "id": 1}, {"text": "b", "id": 2, "url": "x"}, {"text": "c"}])
    report = pack.pack(pack_options(chat_model, data, 32, out=str(tmp_path / "o")))
    assert report["notes"] == ["columns that are not used: 'id', 'url'"]
    assert report["samples"] == 3
    assert "note: columns that are not used: 'id', 'url'" in pack.describe(report)


def test_notes_are_there_again_when_data_comes_from_the_cache(chat_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "a", "id": 1}])
    first, second = (pack.pack(pack_options(chat_model, data, 32, cache=str(tmp_path / "c"))) for _ in range(2))
    assert second["cached"] and second["notes"] == first["notes"] != []


@pytest.mark.parametrize("row", [
    {"text": "a", "messages": [ASKED, ANSWERED]},
    {"text": "a", "prompt": "a", "completion": "b"},
    {"messages": [ASKED, ANSWERED], "conversations": SHARE_GPT},
    {"prompt": "a", "completion": "b", "messages": [ASKED, ANSWERED]},
    {**ALPACA, "output": None, "text": "all of it"},
    {**ALPACA, "text": "all of it", "messages": [ASKED, ANSWERED]},
    {"text": "an answer?", "prompt": "a"},
])
def test_a_row_of_which_two_kinds_compete_is_refused_with_both(chat_model, tmp_path, row):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "good"}, row])
    message = refusal(chat_model, data)
    assert "d.jsonl:2: " in message and "leave all but one out" in message
    assert sum(f"'{name}'" in message for name in row) >= 2


def test_a_chat_is_taken_whatever_stands_beside_it(chat_model, tmp_path):
    row = {"prompt": "Hi", "prompt_id": "7", "messages": [ASKED, ANSWERED], "score": 1.5}
    samples, notes = shown_row(chat_model, tmp_path, row)
    assert samples == ["user: Hi<|im_end|>\nassistant: «Hello<|im_end|>»\n"]
    assert notes == ["columns that are not used: 'prompt', 'prompt_id', 'score'"]


def test_a_column_that_is_null_is_as_good_as_none(chat_model, tmp_path):
    samples, notes = shown_row(chat_model, tmp_path, {"text": None, "messages": [ASKED, ANSWERED], "prompt": None})
    assert len(samples) == 1 and notes == []


def test_alpaca_without_a_chat_template_is_asked_as_its_authors_do(tmp_path):
    model = make_model(tmp_path / "base", template=None)
    [with_input], _ = shown_row(model, tmp_path, ALPACA)
    assert with_input.startswith("Below is an instruction that describes a task, paired with an input")
    assert "### Instruction:\nAdd\n\n### Input:\n1, 2\n\n### Response:\n«3<|im_end|>»" in with_input
    [without], _ = shown_row(model, tmp_path, {**ALPACA, "input": "", "instruction": "{input}"})
    assert "### Instruction:\n{input}\n\n### Response:\n«3<|im_end|>»" in without and "Input" not in without


@pytest.mark.parametrize("speaker, role", [*rows.ROLES.items(), ("user", "user"), ("system", "system"), ("tool", "tool")])
def test_speakers_of_share_gpt_have_the_roles_of_templates(speaker, role):
    value = '{"name": "f", "arguments": {"x": 1}}' if speaker == "function_call" else "a"
    [turn] = rows.chat_turns([{"from": speaker, "value": value}], "d:1", "'conversations'")
    assert turn["role"] == role
    calls = turn.get("tool_calls", [])
    assert [call["function"]["name"] for call in calls] == (["f"] if speaker == "function_call" else [])


@pytest.mark.parametrize("turn, words", [
    ({"from": "function_call", "value": "f(1)"}, "message 2 is a function_call"),
    ({"role": "user", "content": [{"type": "text"}]}, "message 2 is a JSON list, whose part 1 is of type 'text'"),
    ({"role": "user", "content": ["a"]}, "whose part 1 is a JSON str"),
    ({"role": "user", "content": "a", "train": True}, "message 2 is of role 'user' and is to be trained"),
    ({"role": "assistant", "content": "a", "train": "no"}, "'train' of message 2 is 'no'"),
    ({"role": "assistant", "content": "a", "weight": -1}, "'weight' of message 2 is -1"),
    ("a", "message 2 must be an object with 'role' and 'content'; it is a JSON str"),
    (None, "it is a JSON null"),
    ({"user": "a", "bot": "b"}, "it has 'user', 'bot'"),
    ({"from": "function_call", "value": "[" * 100_000}, "message 2 is a function_call"),
])
def test_a_turn_that_cannot_be_read_is_named(chat_model, tmp_path, turn, words):
    message = refusal(chat_model, write_lines(tmp_path / "d.jsonl", [{"messages": [ASKED, turn, ANSWERED]}]))
    assert "d.jsonl:1: " in message and words in message


@pytest.mark.parametrize("turns", [
    [{"from": "Human", "value": "Hi"}, {"from": "GPT", "value": "Hello"}],
    [{"from": "human", "content": "Hi"}, {"from": "gpt", "content": "Hello"}],
    [{"role": "user", "value": "Hi"}, {"role": "assistant", "value": "Hello"}],
])
def test_spellings_of_a_turn_may_be_mixed(chat_model, tmp_path, turns):
    for name in ("messages", "conversations"):
        assert shown_row(chat_model, tmp_path, {name: turns}) == (["user: Hi<|im_end|>\nassistant: «Hello<|im_end|>»\n"], [])


def test_the_same_system_prompt_twice_is_one(chat_model, tmp_path):
    row = {"system": "Be kind.", "conversations": [{"from": "system", "value": "Be kind."}, *SHARE_GPT]}
    assert shown_row(chat_model, tmp_path, row)[0][0].count("Be kind.") == 1


def test_calls_as_openai_had_them_first_are_calls():
    call = {"name": "f", "arguments": '{"x": 1}'}
    turns = rows.chat_turns([{"role": "assistant", "content": None, "function_call": call},
                             {"role": "function", "name": "f", "content": "2"}], "d:1", "'messages'")
    assert [turn["role"] for turn in turns] == ["assistant", "tool"]
    assert turns[0]["tool_calls"] == [{"type": "function", "function": call}] and "function_call" not in turns[0]


def test_roles_that_are_not_trained_are_named(chat_model, tmp_path):
    bot = {"role": "bot", "content": "Hello"}
    [sample], notes = shown_row(chat_model, tmp_path, {"messages": [ASKED, bot, ASKED, ANSWERED]})
    assert sample.count("«") == 1
    assert notes == ["d.jsonl:1: turns of the role 'bot' are not trained, as they are not the assistant's"]
    message = refusal_of_pack(chat_model, write_lines(tmp_path / "d.jsonl", [{"messages": [ASKED, bot]}]))
    assert "d.jsonl:1: " in message and "no turn of the assistant says anything: its roles are 'user', 'bot', and none is 'assistant'" in message


def test_an_empty_completion_is_noted(chat_model, tmp_path):
    samples, notes = shown_row(chat_model, tmp_path, {"prompt": "the cat", "completion": ""})
    assert samples == ["the cat«<|im_end|>»"]
    assert notes == ["d.jsonl:1: its completion is empty: only the token that ends it is trained"]


def test_a_list_of_messages_that_is_a_text_is_read_or_named(chat_model, tmp_path):
    samples, _ = shown_row(chat_model, tmp_path, {"messages": json.dumps([ASKED, ANSWERED])})
    assert samples == ["user: Hi<|im_end|>\nassistant: «Hello<|im_end|>»\n"]
    for text in ("Hi", "[" * 100_000):
        message = refusal(chat_model, write_lines(tmp_path / "d.jsonl", [{"messages": text}]))
        assert "d.jsonl:1: 'messages' is a text; it must be a list of messages" in message


def test_turns_that_are_not_trained_are_known_in_templates_with_blocks(tmp_path):
    template = ("{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
                "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}")
    model = make_model(tmp_path / "m", template=template)
    chat = [ASKED, {**ANSWERED, "train": False}, ASKED, {**ANSWERED, "content": "world"}]
    assert shown_row(model, tmp_path, {"messages": chat})[0] == ["user:Hi;assistant:Hello;user:Hi;assistant:«world»;"]
    # A block that writes nothing is no place: nobody could tell which turn is which.
    message = refusal(model, write_lines(tmp_path / "e.jsonl", [{"messages": [*chat, ASKED, {**ANSWERED, "content": ""}]}]))
    assert "e.jsonl:1: " in message and "marks 2 places for the 3 turns" in message


def test_earlier_answers_of_a_prompt_are_not_trained(chat_model, tmp_path):
    samples, _ = shown_row(chat_model, tmp_path, {"prompt": [ASKED, ANSWERED, ASKED], "completion": [ANSWERED]})
    assert samples == ["user: Hi<|im_end|>\nassistant: Hello<|im_end|>\nuser: Hi<|im_end|>\nassistant: «Hello<|im_end|>»\n"]
    message = refusal(chat_model, write_lines(tmp_path / "d.jsonl", [{"prompt": [ASKED], "completion": "Hello"}]))
    assert "d.jsonl:1: of 'prompt' and 'completion' one is a list of messages" in message


def test_no_degree_of_training_but_all_or_none(chat_model, tmp_path):
    row = {"messages": [ASKED, {**ANSWERED, "train": False}]}
    message = refusal_of_pack(chat_model, write_lines(tmp_path / "d.jsonl", [row]))
    assert "d.jsonl:1: the sample has no trained token" in message


def refusal_of_pack(model, data, **others):
    with pytest.raises(BadInputError) as caught:
        pack.pack(pack_options(model, data, 64, out=str(data.parent / "refused"), **others))
    return str(caught.value)


# ---- Files

LINES = [{"text": f"the cat {number} é"} for number in range(50)]
TEXTS = [f"the cat {number} é" for number in range(50)]


def plain(samples):
    return [sample.replace("«", "").replace("»", "").replace("<|im_end|>", "") for sample in samples]


def write_zst(path, contents):
    zstandard = pytest.importorskip("zstandard")
    half = len(contents) // 2
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (contents[:half], contents[half:])))


def write_form(path, lines):
    """Rows in a file of the form that its name says."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet
        parquet.write_table(pyarrow.Table.from_pylist(lines), path, row_group_size=7)
    elif path.suffix == ".json":
        path.write_text(json.dumps(lines, ensure_ascii=False, indent=2), encoding="utf-8")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zst":
        write_zst(path, text.encode())
    else:
        path.write_text(text, encoding="utf-8")
    return path


FORMS = ["d.jsonl", "d.ndjson", "d.json", "d.jsonl.gz", "d.jsonl.zst", "d.parquet"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_file_has_the_same_rows(chat_model, tmp_path, name, monkeypatch):
    for part in ("_READ_BYTES", "_ZSTD_READ_BYTES", "_ELEMENT_CHARS"):
        monkeypatch.setattr(row_files, part, 10)  # so that rows lie across what is read at a time
    samples, notes = shown(chat_model, write_form(tmp_path / name, LINES))
    assert plain(samples) == TEXTS and notes == []


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_file_has_chats_and_names_unused_columns(chat_model, tmp_path, name):
    line = {"messages": [{**ASKED, "train": None}, {**ANSWERED, "train": None}], "id": 3}
    samples, notes = shown(chat_model, write_form(tmp_path / name, [line] * 3))
    assert samples == ["user: Hi<|im_end|>\nassistant: «Hello<|im_end|>»\n"] * 3
    assert notes == ["columns that are not used: 'id'"]


@pytest.mark.parametrize("name", FORMS)
def test_a_bad_row_is_named_in_every_form_of_file(chat_model, tmp_path, name):
    data = write_form(tmp_path / name, [{"text": "a"}] * 20 + [{"text": ""}])
    message = refusal_of_pack(chat_model, data)
    place = {".parquet": "row 21: ", ".json": "62: element 21 of the array: "}.get(data.suffix, "21: ")
    assert f"{name}:{' ' if data.suffix == '.parquet' else ''}{place}" in message


def test_text_files_may_be_compressed(chat_model, tmp_path):
    text = "the cat sat on the mat\n" * 30
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert plain(shown(chat_model, tmp_path / "d.txt.gz")[0]) == [text]


@pytest.mark.parametrize("name", ["d.jsonl.gz", "d.jsonl.zst", "d.parquet", "d.txt.gz"])
def test_a_file_that_is_cut_off_or_something_else_is_named(chat_model, tmp_path, name):
    data = write_form(tmp_path / name, LINES * 50)
    contents = data.read_bytes()
    for damaged in (contents[:len(contents) // 3], contents[:-1], b"PK\x03\x04 something else"):
        data.write_bytes(damaged)
        message = refusal_of_pack(chat_model, data)
        assert name in message and ("cannot be uncompressed" in message or "cannot be read as a Parquet file" in message)


@pytest.mark.parametrize("name, contents, words", [
    ("d.jsonl", gzip.compress(b'{"text": "a"}'), "is compressed, and its name does not say so: add .gz to it"),
    ("d.jsonl", '{"text": "a"}'.encode("utf-16"), "is not UTF-8 but UTF-16: convert it with 'iconv -f UTF-16 -t UTF-8'"),
    ("d.jsonl.gz", b'{"text": "a"}', "or not compressed at all"),
    ("d.csv", b"text", "write its rows as JSON lines (with the package 'datasets': load_dataset('csv'"),
    ("d.arrow", b"ARROW1", "load_from_disk('FOLDER').to_json('data.jsonl')"),
    ("d.jsonl.bz2", b"BZh", "unpack it first"),
])
def test_a_file_of_another_form_has_its_cure(chat_model, tmp_path, name, contents, words):
    (tmp_path / name).write_bytes(contents)
    assert words in refusal(chat_model, tmp_path / name)


def test_a_data_set_of_the_hub_is_to_be_fetched_first(chat_model):
    assert "hf download --repo-type=dataset tatsu-lab/alpaca --local-dir" in refusal(chat_model, "tatsu-lab/alpaca")


def test_a_text_file_of_rows_is_noted(chat_model, tmp_path):
    (tmp_path / "d.txt").write_text('\n{"text": "a"}\n{"text": "b"}\n')
    _, notes = shown(chat_model, tmp_path / "d.txt")
    assert notes == ["d.txt: it looks like rows and is read as one text, for its name: name it .jsonl if its rows are meant"]


@pytest.mark.parametrize("text, words", [
    ('[{"text": "a"}, {"text": "b"}', "element 2 of the array should be followed by a comma or a bracket (]), not the end of the file"),
    ('[{"text": "a"},\n\n ["b"]]', "d.json:3: element 2 of the array is no JSON object"),
    ('[{"text": "a"}] x', "'x' comes after the end of the array"),
    ('[{"text": "a" "b"}]', "element 1 of the array: not valid JSON at line 1, column 14"),
    ('[{"text": "a" "b"}' + "," * 20_000 + "]", "element 1 of the array: not valid JSON at line 1, column 14"),
    ('[{"text": "' + "a" * 9_000 + "]", "element 1 of the array: not valid JSON at line 1, column 10 of the element (Unterminated"),
    ('[{"text": "a", "text": "b"}]', "element 1 of the array: not valid JSON (the key 'text' appears twice)"),
    ('[{"text": ' + "[" * 100_000, "nested too deeply"),
    ("[]", "has no text: data is empty"),
    ('{\n"text": "a"\n}\n', "every line must be one JSON object, or the file one array of them"),
])
def test_an_array_that_cannot_be_read_is_named_with_its_place(chat_model, tmp_path, text, words):
    (tmp_path / "d.json").write_text(text)
    assert words in refusal(chat_model, tmp_path / "d.json")


def test_an_array_is_known_by_its_bracket_whatever_the_name(chat_model, tmp_path):
    (tmp_path / "d.jsonl").write_text('\ufeff\n [ {"text": "a"} ,\n{"text": "b"}\n]\n', encoding="utf-8")
    assert plain(shown(chat_model, tmp_path / "d.jsonl")[0]) == ["a", "b"]


def test_without_the_package_for_it_a_file_is_refused_with_the_cure(chat_model, tmp_path, monkeypatch):
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    (tmp_path / "d.jsonl.zst").write_bytes(b"x")
    for package in ("pyarrow", "zstandard"):
        monkeypatch.setitem(sys.modules, package, None)
    assert "pip install pyarrow" in refusal(chat_model, tmp_path / "d.parquet")
    assert "pip install zstandard" in refusal(chat_model, tmp_path / "d.jsonl.zst")


# ---- Folders, and several with weights

def make_folder(tmp_path, *names):
    for name in names:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.stem if path.suffix == ".txt" else json.dumps({"text": path.stem}) + "\n")
    return tmp_path / "data"


def test_a_folder_is_its_files_in_the_order_of_their_names(chat_model, tmp_path):
    folder = make_folder(tmp_path, "b.txt", "a.jsonl", "sub/c.jsonl", "README.md", ".cache/x.jsonl", "_d.jsonl", "_log/x.json")
    samples, notes = shown(chat_model, folder)
    assert plain(samples) == ["a", "b", "c"]
    assert notes == [f"the folder '{folder}' has 3 files of data: 'a.jsonl', 'b.txt', 'sub/c.jsonl'; no data, and not read: "
                     "'README.md', '_d.jsonl'"]


def test_a_folder_with_files_to_test_with_is_refused(chat_model, tmp_path):
    folder = make_folder(tmp_path, "train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl")
    message = refusal(chat_model, folder)
    assert "test-00000" in message and f"--data={folder / 'train-00000-of-00001.jsonl'}" in message and "--eval_data" in message


def test_a_folder_of_which_a_part_cannot_be_read_is_an_error(chat_model, tmp_path, monkeypatch):
    folder, scandir = make_folder(tmp_path, "a.jsonl", "sub/c.jsonl"), os.scandir

    def refuse(path):
        if os.path.basename(path) == "sub":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        sources.find_sources(str(folder))


def test_a_folder_without_data_is_refused(chat_model, tmp_path):
    assert "is a folder without data" in refusal(chat_model, make_folder(tmp_path, "README.md"))


def test_what_datasets_writes_beside_data_is_none(chat_model, tmp_path):
    folder = make_folder(tmp_path, "data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl")
    (folder / "dataset_infos.json").write_text('{"default": {}}')
    samples, [note] = shown(chat_model, folder)
    assert len(samples) == 2 and "no data, and not read: 'dataset_infos.json'" in note
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json"):
        (saved / name).write_text("{}")
    message = refusal(chat_model, saved)
    assert "is a folder without data" in message and "load_from_disk('FOLDER').to_json('data.jsonl')" in message


def test_weights_say_how_often_each_row_is_there(chat_model, tmp_path):
    data = write_lines(tmp_path / "a.jsonl", [{"text": f"first {number}"} for number in range(10)])
    other = write_lines(tmp_path / "b.jsonl", [{"text": f"second {number}"} for number in range(10)])
    counts = {}
    for weights in ("1 1", "2 0.5", "1.5 0.1", "0.05 3"):
        first, second = weights.split()
        report = pack.pack(pack_options(chat_model, f"{data}:{first},{other}:{second}", 64, out=str(tmp_path / "o")))
        text = text_of(chat_model, tmp_path / "o")
        counts[weights] = (text.count("first"), text.count("second"))
        assert report["samples"] == 20
    assert counts == {"1 1": (10, 10), "2 0.5": (20, 5), "1.5 0.1": (15, 1), "0.05 3": (1, 30)}
    assert [note for note in report["notes"] if "b.jsonl" in note] == ["'b.jsonl' (weight 3) gives 97.2 % of the tokens"]


def text_of(model, packed):
    return " ".join(plain(shown(model, packed)[0]))


def test_a_part_of_a_source_is_spread_over_it(chat_model, tmp_path):
    data = write_lines(tmp_path / "a.jsonl", [{"text": f"<{number}>"} for number in range(9)])
    pack.pack(pack_options(chat_model, f"{data}:1/3", 64, out=str(tmp_path / "o")))
    assert text_of(chat_model, tmp_path / "o").split() == ["<0>", "<3>", "<6>"]


def test_the_cache_knows_weights_and_order(chat_model, tmp_path):
    first = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    second = write_lines(tmp_path / "b.jsonl", [{"text": "b"}])
    names = [f"{first},{second}", f"{second},{first}", f"{first}:2,{second}", str(first), f"{first}:2"]
    paths = {pack.pack(pack_options(chat_model, name, 32, cache=str(tmp_path / "c")))["path"] for name in names}
    assert len(paths) == len(names)


def test_a_name_with_a_comma_or_a_colon_is_a_name_if_it_is_there(chat_model, tmp_path):
    for name in ("a,b.jsonl", "c:2", "d.jsonl:3"):
        path = write_lines(tmp_path / name, [{"text": "a"}])
        if name.endswith(".jsonl"):
            assert len(shown(chat_model, path)[0]) == 1
        else:
            assert f"'{path}' is neither a packed file" in refusal(chat_model, path)


@pytest.mark.parametrize("data, words", [
    ("a.jsonl:0", "the weight '0' of"), ("a.jsonl:-1", "the weight '-1' of"), ("a.jsonl:x", "the weight 'x' of"),
    ("a.jsonl:1001", "up to 1000"), ("a.jsonl:1/0", "the weight '1/0' of"), ("a.jsonl,,", "empty name between its commas"),
    ("a.jsonl,no.jsonl:2,b.pdf", "no.jsonl' does not exist"), ("a.jsonl,no.jsonl:2,b.pdf", "b.pdf' is neither a packed file"),
    ("o.packed,a.jsonl", "is packed already"), ("o.packed:2", "is packed already"),
])
def test_problems_of_names_and_weights_are_told_all_at_once(chat_model, tmp_path, monkeypatch, data, words):
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    (tmp_path / "b.pdf").write_text("x")
    pack.pack(pack_options(chat_model, tmp_path / "a.jsonl", 32, out=str(tmp_path / "o.packed")))
    monkeypatch.chdir(tmp_path)
    assert words in refusal(chat_model, data)


def test_the_digest_of_data_is_of_contents_and_not_of_places(tmp_path):
    one, other = tmp_path / "a.jsonl", tmp_path / "sub" / "b.jsonl"
    other.parent.mkdir()
    for path in (one, other):
        write_lines(path, [{"text": "a"}])
    [first], [second] = sources.find_sources(str(one)), sources.find_sources(str(other))
    assert first.digest == second.digest
    os.rename(one, tmp_path / "a.txt")  # the same bytes, read otherwise
    assert sources.find_sources(str(tmp_path / "a.txt"))[0].digest != second.digest
