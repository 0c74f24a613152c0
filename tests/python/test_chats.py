"""Chats as people have them: tool calls, thoughts, turns without content, a BOS of their own."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import load_tokenizer, make_model, pack_file, pack_options, write_lines

from forebay_data import pack, prompts, show
from forebay_data.errors import BadInputError
from forebay_data.template import ChatTemplate, load_chat_template
from forebay_data.turns import TurnTokens

TOKENS = TurnTokens(("<|im_end|>",), ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), ())
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
# Like Hermes and Qwen: calls are JSON in tags, what tools answer stands in a turn of the user.
CALLS = ("{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
         "{{ '<|im_end|>\n' }}{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
         "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}{% else %}"
         "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and THINKS %}{{ '<think>\n' + (m.reasoning_content or '') "
         "+ '\n</think>\n\n' }}{% endif %}{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
         "{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
         "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
         "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{{ '<think>\n' if THINKS and PROMPTS else '' }}{% endif %}")
PLAIN_CALLS = CALLS.replace("PROMPTS", "false").replace("THINKS", "false")
CHAT = [{"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"n": 1, "m": 1}}}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "2"},
        {"role": "assistant", "content": "It is 2."}]
CALL = '\n<tool_call>\n{"name": "add", "arguments": {"n": 1, "m": 1}}\n</tool_call><|im_end|>'


def generated(template, chat=CHAT, tools=TOOLS, tokens=TOKENS):
    rendered, spans = ChatTemplate(template, "'test'", {}).render_with_spans(chat, tokens, tools=tools)
    return [rendered[begin:end] for begin, end in spans]


def without(message, *keys):
    return {key: value for key, value in message.items() if key not in keys}


@pytest.mark.parametrize("call", [CHAT[1], without(CHAT[1], "content"), {**CHAT[1], "content": ""}])
@pytest.mark.parametrize("tokens", [TOKENS, TurnTokens(("</s>",), (*TOKENS.specials, "<tool_call>", "</tool_call>"), ())])
def test_calls_of_a_turn_without_content_are_trained_and_what_tools_answer_is_not(call, tokens):
    assert generated(PLAIN_CALLS, [CHAT[0], call, *CHAT[2:]], tokens=tokens) == [CALL, "It is 2.<|im_end|>"]


def test_chat_with_calls_equals_that_of_transformers():
    chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    # As apply_chat_template calls it.
    given = [without(message, *(key for key, value in message.items() if value is None)) for message in CHAT]
    [expected], _ = chat_template_utils.render_jinja_template([given], tools=TOOLS, chat_template=PLAIN_CALLS)
    assert ChatTemplate(PLAIN_CALLS, "'test'", {}).render(CHAT, tools=TOOLS) == expected


def test_template_of_before_that_asks_for_null_is_given_null():
    template = ("{% for m in messages %}{{ m.role + ':' }}{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}"
                "{{ m.content.strip() }}{% endif %}{{ '<|im_end|>' }}{% endfor %}{{ 'assistant:' if add_generation_prompt }}")
    assert generated(template) == ["add<|im_end|>", "It is 2.<|im_end|>"]
    with pytest.raises(BadInputError, match=r'without \'content\', give it "content": ""'):
        generated("{% for m in messages %}{{ m.content.strip() }}{% endfor %}")


def trained_text(model, tmp_path, *records, **options):
    data = write_lines(tmp_path / "d.jsonl", list(records))
    _, tokens, flags = pack_file(model, data, 512, tmp_path / "o", **options)
    return load_tokenizer(model).decode(tokens[flags == 1])


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)])
def test_tools_of_a_row_go_to_the_template_as_a_list_or_as_its_text(tmp_path, tools):
    model = make_model(tmp_path / "model", template=PLAIN_CALLS)
    assert trained_text(model, tmp_path, {"messages": CHAT, "tools": tools}) == CALL + "It is 2.<|im_end|>"
    shown = show.show(pack_options(model, tmp_path / "d.jsonl", 512, n=1))["samples"][0]
    assert '"parameters": {"type": "object"' in shown["parts"][0]["text"]


@pytest.mark.parametrize("tools", [[], "[]", None])
def test_no_tools_are_no_tools(tmp_path, tools):
    model = make_model(tmp_path / "model", template="{{ 'tools!' if tools is not none }}" + PLAIN_CALLS)
    write_lines(tmp_path / "d.jsonl", [{"messages": CHAT, "tools": tools}])
    shown = show.show(pack_options(model, tmp_path / "d.jsonl", 512, n=1))["samples"][0]
    assert "tools!" not in "".join(part["text"] for part in shown["parts"])


@pytest.mark.parametrize("changes, problem", [
    ({"tools": "[{"}, "'tools' is a string, but not valid JSON"),
    ({"tools": ["add"]}, "'tools' must be a list of objects"),
    ({"tools": {"add": 1}}, "'tools' must be a list of objects"),
    ({"messages": [{"role": "user"}]}, "may be without 'content', if it has 'tool_calls'"),
    ({"messages": [{"role": "assistant", "content": None}]}, "may be without 'content', if it has 'tool_calls'"),
    ({"messages": [{"role": "assistant", "tool_calls": "[]"}]}, "'tool_calls' of message 1 must be a list of objects"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "\ud800"}}]}]}, "half of a surrogate pair"),
])
def test_wrong_tools_and_calls_are_named_with_the_line(model, tmp_path, changes, problem):
    data = write_lines(tmp_path / "d.jsonl", [{"messages": CHAT, **changes}])
    with pytest.raises(BadInputError, match="d.jsonl:1: ") as error:
        pack_file(model, data, 512, tmp_path / "o")
    assert problem in str(error.value)


def test_template_for_tools_is_taken_for_chats_that_have_some(tmp_path):
    model = make_model(tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))

    def both():
        template = load_chat_template(load_tokenizer(model))
        return [template.for_tools(tools).render(CHAT) for tools in (None, TOOLS)]
    assert both() == ["plain", "with tools"]
    (model / "chat_template.jinja").write_text("plain file")
    assert both() == ["plain file", "plain file"]
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("file with tools")
    assert both() == ["plain file", "file with tools"]


def test_prompt_of_a_file_may_have_tools(tmp_path):
    model = make_model(tmp_path / "model", template=PLAIN_CALLS)
    asked = write_lines(tmp_path / "p.jsonl", [{"messages": CHAT[:3], "tools": json.dumps(TOOLS)}])
    [answer] = prompts.encode(SimpleNamespace(model=str(model), chat=False, prompts=str(asked), template=None))
    text = load_tokenizer(model).decode(answer["tokens"])
    assert text == ChatTemplate(PLAIN_CALLS, "'test'", {}).render(CHAT[:3], True, tools=TOOLS)


THOUGHT = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2.", "reasoning_content": "Count."}]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("prompts_begin_it, begin", [("false", "<think>\n"), ("true", "")])
def test_thought_of_the_data_is_trained_from_where_generation_begins(key, prompts_begin_it, begin):
    template = CALLS.replace("PROMPTS", prompts_begin_it).replace("THINKS", "true")
    chat = [THOUGHT[0], {"role": "assistant", "content": "2.", key: "Count."}]
    assert generated(template, chat) == [begin + "Count.\n</think>\n\n2.<|im_end|>"]


@pytest.mark.parametrize("prompts_begin_it", ["false", "true"])
def test_empty_thought_that_the_template_writes_is_not_trained_before_a_call_either(prompts_begin_it):
    template = CALLS.replace("PROMPTS", prompts_begin_it).replace("THINKS", "true")
    assert generated(template) == [CALL.lstrip(), "It is 2.<|im_end|>"]


def test_empty_thought_of_the_data_is_trained():
    chat = [THOUGHT[0], {"role": "assistant", "content": "<think>\n\n</think>\n\n2."}]
    assert generated(PLAIN_CALLS, chat) == ["<think>\n\n</think>\n\n2.<|im_end|>"]


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"),
                                  ("<seed:think>", "</seed:think>"), ("◁think▷", "◁/think▷")])
def test_empty_thoughts_of_other_tags_are_known(tags):
    empty = f"{tags[0]}\\n{tags[1]}\\n"
    template = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + ('" + empty + "' if m.role == 'assistant' else '') + "
                "m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    chat = [THOUGHT[0], {"role": "assistant", "content": "2."}]
    assert generated(template, chat) == ["2.<|im_end|>"]


def test_text_that_ends_generation_ends_the_turn():
    chat = [THOUGHT[0], {"role": "assistant", "content": "2.<|im_end|>\n<|im_start|>user\nMore?"}]
    assert generated(PLAIN_CALLS, chat) == ["2.<|im_end|>"]


@pytest.mark.parametrize("template, lost", [
    (PLAIN_CALLS, []),
    (PLAIN_CALLS.replace("m.tool_calls or []", "[]"), ["message 2 (assistant)"]),
    (PLAIN_CALLS.replace("m.tool_calls or []", "[]").replace("m.content or ''", "m.content or 'Nothing.'"),
     ["message 2 (assistant)"]),
    (PLAIN_CALLS.replace("+ m.content + '\n</tool", "+ '\n</tool"), ["message 3 (tool)"]),
    (PLAIN_CALLS.replace("{% if tools %}", "{% if false %}"), ["the tools"]),
    (PLAIN_CALLS.replace("{% if tools %}", "{{ tools[0].function.name }}{% if false %}"), []),
    ("{% for m in messages if m.role != 'tool' and not m.tool_calls %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}",
     ["message 2 (assistant)", "message 3 (tool)", "the tools"]),
])
def test_check_names_what_the_template_drops(tmp_path, template, lost):
    model = make_model(tmp_path / "model", template=template)
    data = write_lines(tmp_path / "d.jsonl", [{"messages": CHAT, "tools": TOOLS}] * 2)
    report = show.check(pack_options(model, data, 512))
    assert report["num_problems"] == 0
    for note, what in zip(report["notes"], lost, strict=True):
        assert note.startswith("d.jsonl:1: the chat template in ") and note.endswith(
            f"writes nothing of {what}: it is not trained (and in 1 more)")


def test_calls_beside_content_that_the_template_drops_are_named(tmp_path):
    model = make_model(tmp_path / "model")
    data = write_lines(tmp_path / "d.jsonl", [{"messages": [CHAT[0], {**CHAT[1], "content": "Let me add."}]}])
    [note] = show.check(pack_options(model, data, 512))["notes"]
    assert "the tool calls of message 2 (assistant)" in note


def test_turn_of_which_nothing_is_written_is_not_trained_to_be_empty():
    assert generated(PLAIN_CALLS.replace("m.tool_calls or []", "[]")) == ["", "It is 2.<|im_end|>"]


def test_text_with_a_bos_of_its_own_gets_no_other(bos_model, tmp_path):
    tokenizer = load_tokenizer(bos_model)
    records = [{"text": "<|im_start|>the cat"}, {"prompt": "<|im_start|>the", "completion": " cat<|im_end|>"}]
    data = write_lines(tmp_path / "d.jsonl", records)
    _, tokens, flags = pack_file(bos_model, data, 512, tmp_path / "o")
    expected = [1, *tokenizer.encode("the cat"), 2]
    assert tokens[0][:2 * len(expected)].tolist() == expected + [1, *tokenizer.encode("the"), *tokenizer.encode(" cat"), 2]
    (tmp_path / "d.txt").write_text("<|im_start|>the cat<|im_end|>")
    _, tokens, _ = pack_file(bos_model, tmp_path / "d.txt", len(expected), tmp_path / "o")
    assert tokens[0].tolist() == expected


def run(*arguments):
    program = f"import sys; sys.path[:0] = {sys.path!r}; import forebay_data_main; sys.exit(forebay_data_main.run())"
    return subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True)


def test_two_bos_of_a_chat_are_noted_once_where_it_is_packed_and_where_it_is_asked(tmp_path):
    model = make_model(tmp_path / "model", template="{{ bos_token }}{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    chat = [{"role": "user", "content": "<|im_start|>the"}, {"role": "assistant", "content": "cat"}]
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the dog"}, *[{"messages": chat}] * 3])
    asked = write_lines(tmp_path / "p.jsonl", [{"messages": chat[:1]}] * 2)
    for _ in range(2):  # the second time from the cache
        [note] = pack.pack(pack_options(model, data, 512, cache=str(tmp_path / "cache")))["notes"]
        assert note.startswith("d.jsonl:2: it begins with two BOS tokens ('<|im_start|>')") and note.endswith("(and in 2 more)")
    answered = run("encode", f"--model={model}", f"--prompts={asked}", "--format=json")
    assert answered.stderr.count("two BOS tokens") == 1 and f"{asked}:1: the prompt: it begins with" in answered.stderr
