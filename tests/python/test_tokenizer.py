"""Tokenizing long texts in pieces, and decoding token by token."""

import random

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from forebay_data import long_text
from forebay_data.long_text import LongText
from forebay_data.tokenizer import StreamDecoder

PARTS = ["the cat sat on the mat", " and the dog", "\n", "\n\n", "\r\n", "  ", " \n ", "\t", "12345", "!!!", "...\n",
         "naïve café", " 日本語", "😀", "\u0301", "don't", "<|im_end|>", "def f(x):\n\treturn x\n", "-" * 40, " " * 40]


def random_text(seed, parts):
    rng = random.Random(seed)
    return "".join(rng.choice(PARTS) + rng.choice(["", " ", "\n"]) for _ in range(parts))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(long_text, "PIECE_BYTES", 500)
    monkeypatch.setattr(long_text, "WINDOW_CHARS", 100)
    monkeypatch.setattr(long_text, "GROUP_BYTES", 4000)


def long_pieces(tokenizer, text, chunk_chars=700):
    """The tokens of each piece that a long text is tokenized in."""
    chunks = (text[at:at + chunk_chars] for at in range(0, len(text), chunk_chars))
    return [ids.tolist() for ids in LongText(tokenizer, chunks).arrays()]


@pytest.mark.parametrize("seed", range(8))
def test_pieces_give_the_tokens_of_the_whole(tokenizer, small_pieces, seed):
    text = random_text(seed, 3000)
    pieces = long_pieces(tokenizer, text)
    assert len(pieces) > 20
    assert sum(pieces, []) == tokenizer.encode(text)


@pytest.mark.parametrize("text", ["", "a", "a" * 5000, " " * 5000, "\n" * 5000, "x\n" * 3000, "ab " * 2000])
def test_texts_without_or_with_many_places_to_cut(tokenizer, small_pieces, text):
    for chunk_chars in (1, 64, 100_000):
        assert sum(long_pieces(tokenizer, text, chunk_chars), []) == tokenizer.encode(text)


@pytest.mark.parametrize("prefix", [
    {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
    {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first", split=False)},
    {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always")},
    {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
])
def test_a_tokenizer_that_begins_every_text_with_a_space_does_so_once(tokenizer, small_pieces, prefix):
    # As of Llama 2, Mistral and TinyLlama: such a text could be cut nowhere.
    spaced = Tokenizer(models.BPE(unk_token="?", byte_fallback=False))
    for name, part in prefix.items():
        setattr(spaced, name, part)
    spaced.train_from_iterator(["the cat sat\non the mat\n" * 20], trainers.BpeTrainer(
        vocab_size=120, special_tokens=["?"], show_progress=False))
    tokenizer._tokenizer = spaced
    text = "the cat sat on\nthe mat\nat the hat\n" * 400
    pieces = long_pieces(tokenizer, text)
    assert len(pieces) > 10
    assert sum(pieces, []) == tokenizer.encode(text)


def test_tokenizer_whose_tokens_span_every_place_is_not_cut(model, tokenizer, small_pieces):
    whole = Tokenizer(models.BPE(unk_token="?"))  # no pre-tokenizer: merges run across words and lines
    whole.train_from_iterator(["ab\ncd ef\n" * 50], trainers.BpeTrainer(vocab_size=200, special_tokens=["?"],
                                                                      show_progress=False))
    tokenizer._tokenizer = whole
    text = "ab\ncd ef\n" * 300
    assert sum(long_pieces(tokenizer, text), []) == tokenizer.encode(text)


def test_stream_gives_every_character_whole_and_once(tokenizer):
    text = random_text(1, 200).replace("<|im_end|>", "")
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(token) for token in tokenizer.encode(text)] + [decoder.finish()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert max(map(len, pieces)) < 30  # it streams


def test_stream_skips_special_tokens(tokenizer):
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("<|im_start|>Hello<|im_end|> world")
    assert "".join([decoder.push(token) for token in ids]) + decoder.finish() == "Hello world"


def test_unfinished_character_becomes_a_replacement_at_the_end(tokenizer):
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("a😀")
    assert [decoder.push(token) for token in ids[:-1]] == ["a"] + [""] * (len(ids) - 2)
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_bytes_that_never_become_a_character_do_not_stop_the_stream(tokenizer):
    decoder = StreamDecoder(tokenizer)
    first_byte = tokenizer.encode("😀")[0]
    pieces = [decoder.push(token) for token in [first_byte, *tokenizer.encode(" the cat")]]
    assert "".join(pieces).endswith(" the cat")


def test_truncation_and_padding_settings_of_the_file_are_ignored(model, tmp_path):
    from conftest import load_tokenizer, make_model
    folder = make_model(tmp_path / "m")
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file.enable_truncation(2)
    file.enable_padding(length=7)
    file.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).encode("the cat sat on") == load_tokenizer(model).encode("the cat sat on")


def test_stop_tokens_come_from_generation_config_first(model, tmp_path):
    from conftest import load_tokenizer, make_model
    folder = make_model(tmp_path / "m")
    assert load_tokenizer(folder).stop_ids() == [2]
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert load_tokenizer(folder).stop_ids() == [2, 0]
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert load_tokenizer(folder).stop_ids() == [0]
