"""What is trained is what generation would have to produce: for every kind of tokenizer, every kind of template."""

import functools
import json
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
import template_kinds
import tokenizer_kinds
from conftest import load_tokenizer, write_lines
from tokenizer_kinds import BOS, EOS, UNKNOWN

from forebay_data import prompts
from forebay_data.samples import SampleOptions, SampleReader
from forebay_data.sources import find_sources
from forebay_data.spans import continuation
from forebay_data.template import ChatTemplate
from forebay_data.tokenizer import ModelConfig
from forebay_data.turns import TurnTokens

PAIRS = [("A:", "The"), ("A: ", "The"), ("A:", " The"), ("Hello wor", "ld"), ("play", "ing the cat"), ("The cat", "'s life"),
         ("The cat ", " sat"), ("12", "345"), ("Yes.\n", "\nIs it?"), ("Yes. ", "\nA cat"), ("e", "\u0301 naïve"), ("日", "本語"), ("", "A cat"),
         ("user:", "\tA cat\n"), ("A cat", ""), ("Hello", EOS), ("Hello ", "world" + EOS), (BOS + "The cat", " sat"), (BOS, "A"),
         ("(", "The)"), ("A  ", "  cat"), ("don", "'t"), ("think", "</think>")]


@pytest.fixture(scope="module", params=tokenizer_kinds.KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenizer_kinds.make(kind, template_kinds.SPECIALS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 2000}))
    return folder


def samples_of(model, data, template=None):
    def fail(message):
        raise AssertionError(message)
    return list(SampleReader(find_sources(str(data)), load_tokenizer(model), ModelConfig(str(model)), lambda: template,
                             SampleOptions(4096), fail))


def spelled(tokenizer, ids):
    return unicodedata.normalize("NFD", tokenizer.decode(ids))


def check_continuation(kind, tokenizer, before, generated, text):
    """`generated` are the tokens with which generation from `before` gives `text`."""
    whole = tokenizer.encode(text)
    if whole[:len(before)] == before:
        assert generated == whole[len(before):]
    elif kind not in tokenizer_kinds.WHOLE_WORDS and tokenizer._tokenizer.token_to_id(UNKNOWN) not in generated + whole:
        same = tokenizer.joined(before + generated) == tokenizer.joined(whole)
        assert same or spelled(tokenizer, before + generated) == spelled(tokenizer, whole)


def test_completion_is_what_generation_from_the_prompt_produces(kind, model, tmp_path):
    tokenizer = load_tokenizer(model)
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS])
    asked = write_lines(tmp_path / "p.jsonl", [{"prompt": prompt} for prompt, _ in PAIRS if prompt])
    answers = prompts.encode(SimpleNamespace(model=str(model), chat=False, prompts=str(asked), template=None))
    given = {prompt: answer["tokens"] for prompt, answer in zip((prompt for prompt, _ in PAIRS if prompt), answers)}
    given[""] = tokenizer.prefix_ids
    for (prompt, completion), sample in zip(PAIRS, samples_of(model, data), strict=True):
        before, tokens = given[prompt], sample.tokens.tolist()
        assert tokens[:len(before)] == before, (prompt, completion)
        assert sample.trained.tolist() == [at >= max(1, len(before)) for at in range(len(tokens))], (prompt, completion)
        generated = tokens[len(before):]
        assert generated[-1] == tokenizer.eos_id and tokenizer.eos_id not in generated[:-1], (prompt, completion)
        begun = tokenizer.encode(prompt)
        assert tokens[:len(before)] == (before[:len(before) - len(begun)] + begun)
        is_ended = completion.endswith(EOS)
        check_continuation(kind, tokenizer, begun, generated if is_ended else generated[:-1], prompt + completion)
        assert (before[:2] == [tokenizer.bos_id] * 2) is False


def test_every_place_of_a_text_may_be_where_generation_begins(kind, model):
    tokenizer = load_tokenizer(model)
    text = "A: The cat's life, worlds!  12345\n\nuser:\tIt's e\u0301 日本語 Hello</think>"
    whole = tokenizer.encode(text)
    for place in range(len(text) + 1):
        before = tokenizer.encode(text[:place])
        generated = continuation(before, whole, text[place:], text[:place], tokenizer)
        check_continuation(kind, tokenizer, before, generated, text)


def runs(flags):
    """[(begin, end)] of what is trained."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def places_of(pieces):
    """(text, [(begin, end)] of what is generated) of what a template writes."""
    text, places = "", []
    for piece, is_generated in pieces:
        if is_generated and piece:
            begin = places.pop()[0] if places and places[-1][1] == len(text) else len(text)
            places.append((begin, len(text) + len(piece)))
        text += piece
    return text, places


@functools.cache
def make_template(name):
    return ChatTemplate(template_kinds.KINDS[name].text, "'test'", {"bos_token": BOS, "eos_token": EOS})


@pytest.mark.parametrize("name", template_kinds.KINDS)
@pytest.mark.parametrize("chat", template_kinds.CHATS)
def test_turn_is_found_to_the_character(name, chat):
    template_kind = template_kinds.KINDS[name]
    tokens = TurnTokens(template_kind.stops, (BOS, EOS, *template_kind.specials), (BOS,))
    text, places = places_of(template_kind.write(chat))
    found, spans = make_template(name).render_with_spans(chat, tokens)
    assert found == text
    assert [text[begin:end] for begin, end in spans] == [text[begin:end] for begin, end in places]
    assert spans == places


def test_turns_are_what_generation_from_their_beginning_produces(kind, model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"messages": chat} for chat in template_kinds.CHATS])
    encode = functools.cache(load_tokenizer(model).encode)
    for name, template_kind in template_kinds.KINDS.items():
        tokenizer = load_tokenizer(model)
        ids = [tokenizer._tokenizer.token_to_id(text) for text in template_kind.stops]
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        samples = samples_of(model, data, make_template(name))
        for chat, sample in zip(template_kinds.CHATS, samples, strict=True):
            text, places = places_of(template_kind.write(chat))
            tokens, found = sample.tokens.tolist(), runs(sample.trained)
            if kind in tokenizer_kinds.WHOLE_WORDS and len(found) < len(places):
                continue  # unknown words that are one with what stands before them
            assert len(found) == len(places), (name, chat)
            has_bounds = True
            for (begin, end), (first, last) in zip(places, found):
                check_continuation(kind, tokenizer, encode(text[:begin]), tokens[first:last], text[:end])
                has_bounds = has_bounds and all(encode(text)[:len(encode(text[:bound]))] == encode(text[:bound])
                                                for bound in (begin, end))
            assert tokens == encode(text) or not has_bounds, (name, chat)
