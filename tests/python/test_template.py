"""Chat templates: the same text as transformers renders, and the right places trained."""

import re

import pytest
from conftest import CHATML, SPECIAL_TOKENS

from forebay_data.errors import BadInputError
from forebay_data.spans import texts_of, tokens_at_bounds, windows_at_bounds
from forebay_data.template import ChatTemplate
from forebay_data.turns import TurnTokens

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

# Like SmolLM2's: a system turn where there is none.
DEFAULT_SYSTEM = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
                  "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}" + CHATML[len(
                      "{% for message in messages %}"):])
# Like Llama 3's: trimmed contents, the BOS, a date where the program offers one, set blocks with trimmed lines.
TRIMMED = """{{- bos_token }}
{%- if strftime_now is defined %}{%- set date = strftime_now("%d %b %Y") %}{%- endif %}
{{- "Today: " + date + "\n" }}
{%- for message in messages %}
    {%- set content = message.content | trim %}
    {{- "[" + message.role + "]" + content + "</s>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "[assistant]" }}{%- endif %}"""
# Like Mistral's: refuses chats that do not alternate, and ends turns with EOS.
STRICT = ("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}"
          "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}"
          "{% endfor %}")
# Like Qwen3's: only the last turn of the assistant is written with its (here empty) thinking.
THINKING = ("{% for message in messages %}{% if message.role == 'assistant' and loop.last %}"
            "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' + message.content + '<|im_end|>\n' }}{% else %}"
            "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Says itself what is generated.
BLOCKS = ("{% for message in messages %}{{ message.role + ': ' }}{% if message.role == 'assistant' %}{% generation %}"
          "{{ message.content + '</s>' }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
# Uses what transformers offers to templates.
HELPERS = ("{% set state = namespace(n=0) %}{% for message in messages %}{% set state.n = state.n + 1 %}"
           "{% if message.role == 'system' %}{% continue %}{% endif %}{{ state.n }}{{ message | tojson }}"
           "{% if tools is none %}!{% endif %}{{ undefined_thing }}{% endfor %}")

CHAT = [{"role": "user", "content": " Who <b>are</b> you? "}, {"role": "assistant", "content": "A cat "},
        {"role": "user", "content": "é?"}, {"role": "assistant", "content": "Meow"}]


def template(text):
    return ChatTemplate(text, "'test'", SPECIAL)


TOKENS = TurnTokens(("</s>", "<|im_end|>"), (*SPECIAL_TOKENS, "</s>"), ("<s>",))


def generated(text, chat=CHAT, tools=None):
    rendered, spans = template(text).render_with_spans(chat, TOKENS, tools=tools)
    assert rendered == template(text).render(chat, tools=tools)
    return [rendered[begin:end] for begin, end in spans]


@pytest.mark.parametrize("text", [CHATML, DEFAULT_SYSTEM, STRICT, THINKING, BLOCKS, HELPERS])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_rendering_equals_transformers(text, add_generation_prompt):
    chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    expected = chat_template_utils.render_jinja_template(
        [CHAT], chat_template=text, add_generation_prompt=add_generation_prompt, **SPECIAL)
    expected = expected[0] if isinstance(expected, tuple) else expected
    assert template(text).render(CHAT, add_generation_prompt) == expected[0]


def test_dates_do_not_change_from_day_to_day_while_packing():
    assert template(TRIMMED).render(CHAT[:1]).startswith("<s>Today: 26 Jul 2024\n[user]Who <b>are</b> you?</s>")


@pytest.mark.parametrize("text, turns", [
    (CHATML, ["A cat <|im_end|>", "Meow<|im_end|>"]),
    (DEFAULT_SYSTEM, ["A cat <|im_end|>", "Meow<|im_end|>"]),
    (TRIMMED, ["A cat</s>", "Meow</s>"]),
    (STRICT, ["A cat </s>", "Meow</s>"]),
    (THINKING, ["A cat <|im_end|>", "Meow<|im_end|>"]),
    (BLOCKS, ["A cat </s>", "Meow</s>"]),
])
def test_turns_of_the_assistant_are_found(text, turns):
    assert generated(text) == turns


def test_chat_may_begin_with_the_assistant():
    assert generated(CHATML, CHAT[1:]) == ["A cat <|im_end|>", "Meow<|im_end|>"]


def test_turn_that_repeats_earlier_text_is_found_where_it_is():
    chat = [{"role": "user", "content": "Meow"}, {"role": "assistant", "content": "Meow"}] * 2
    rendered, spans = template(THINKING).render_with_spans(chat, TOKENS)
    assert [begin for begin, _ in spans] == [rendered.index("assistant\nMeow") + len("assistant\n"),
                                             rendered.index("</think>\n\n") + len("</think>\n\n")]


def test_template_that_hides_the_answer_is_refused():
    with pytest.raises(BadInputError, match="generation"):
        generated("{{ messages | length }}")


@pytest.mark.parametrize("text, problem", [
    ("{{ raise_exception('no tools') }}", "no tools"),
    ("{{ messages[9].content }}", "refuses this chat"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{% set n = namespace(__init__=1) %}", "__init__"),
    ("{% for i in range(10**9) %}{% endfor %}", "range"),
    ("{% include '/etc/passwd' %}", "refuses this chat"),
])
def test_failing_and_hostile_templates_are_errors(text, problem):
    with pytest.raises(BadInputError, match=problem):
        template(text).render(CHAT)


def test_syntax_error_names_the_line():
    with pytest.raises(BadInputError, match="line 2"):
        template("{{ messages }}\n{% for %}")


def at_bounds(tokenizer, text, bounds):
    windows = windows_at_bounds(text, bounds, tokenizer)
    return tokens_at_bounds(text, windows, tokenizer.encode_batch(texts_of(text, windows)), tokenizer)


def test_boundaries_fall_between_tokens(tokenizer):
    text = "assistant\n\n\nHello"
    tokens, ends = at_bounds(tokenizer, text, [len("assistant\n"), len(text)])
    assert tokenizer.decode(tokens[:ends[0]]) == "assistant\n"
    assert tokenizer.decode(tokens[ends[0]:ends[1]]) == "\n\nHello"


def test_whole_tokenization_is_kept_where_it_has_the_boundaries(tokenizer):
    text = "<|im_start|>user\nHello<|im_end|>"
    tokens, ends = at_bounds(tokenizer, text, [len("<|im_start|>user\n"), len(text)])
    assert tokens.tolist() == tokenizer.encode(text) and ends[1] == len(tokens)


def test_tokens_are_those_of_the_whole_chat_though_only_parts_of_it_are_tokenized(tokenizer):
    text = "".join(f"<|im_start|>user\nthe cat {n}<|im_end|>\n<|im_start|>assistant\nran {n}<|im_end|>\n" for n in range(50))
    ends = [match.end() for match in re.finditer(r"assistant\n|ran \d+<.im_end.>", text)] + [len(text)]
    windows = windows_at_bounds(text, ends, tokenizer)
    assert sum(map(len, texts_of(text, windows))) < 3 * len(text)
    assert at_bounds(tokenizer, text, ends)[0].tolist() == tokenizer.encode(text)
