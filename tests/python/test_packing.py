"""Rows of packed files: what is in them, what is trained, how full they are."""

import fcntl
import os
import pathlib
import random
import stat
import time

import numpy as np
import pytest
import xxhash
from conftest import load_tokenizer, make_model, pack_file, pack_options, write_lines

from forebay_data import pack, packed_file, row_packer
from forebay_data.errors import BadInputError, UsageError
from forebay_data.packed_file import PADDING, SEGMENT_START, TRAINED


def segments_of(tokens, flags):
    """[(tokens, trained flags)] of every segment, row by row."""
    found = []
    for row_tokens, row_flags in zip(tokens, flags):
        used = int((row_flags != PADDING).sum())
        starts = np.flatnonzero(row_flags & SEGMENT_START).tolist()
        for begin, end in zip(starts, starts[1:] + [used]):
            found.append((row_tokens[begin:end].tolist(), (row_flags[begin:end] & TRAINED).tolist()))
    return found


def test_text_is_its_tokens_and_then_eos(model, tokenizer, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat"}])
    _, tokens, flags = pack_file(model, data, 64, tmp_path / "o")
    ids = tokenizer.encode("the cat sat") + [tokenizer.eos_id]
    assert segments_of(tokens, flags) == [(ids, [0] + [1] * (len(ids) - 1))]


def test_padding_is_flagged_and_zero(model, tokenizer, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat"}])
    report, tokens, flags = pack_file(model, data, 64, tmp_path / "o")
    used = report["tokens"]
    assert (flags[0, used:] == PADDING).all() and (tokens[0, used:] == 0).all()
    assert report["padding_share"] == pytest.approx(1 - used / 64)


@pytest.mark.parametrize("seq", [2, 3, 7, 64, 1000])
def test_every_token_of_a_long_text_but_the_first_is_predicted_once(model, tokenizer, tmp_path, seq):
    data = tmp_path / "d.txt"
    data.write_text("the cat sat on the mat, and the dog ran. 123\n" * 10)
    report, tokens, flags = pack_file(model, data, seq, tmp_path / "o")
    ids = tokenizer.encode(data.read_text()) + [tokenizer.eos_id]
    predicted = []
    for segment, trained in segments_of(tokens, flags):
        assert trained == [0] + [1] * (len(segment) - 1)
        predicted.append(segment)
    predicted.sort(key=lambda segment: -len(segment))  # the short last piece may share a row
    assert [token for segment in predicted for token in segment[1:]] == ids[1:]
    assert predicted[0][0] == ids[0]
    assert report["trained"] == len(ids) - 1
    assert all(left[-1] == right[0] for left, right in zip(predicted, predicted[1:]))


def test_completion_that_begins_within_a_token_is_spelled_by_others_and_only_it_is_trained(model, tokenizer, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "the ca", "completion": "t sat"}])
    _, tokens, flags = pack_file(model, data, 64, tmp_path / "o")
    prompt, completion = tokenizer.encode("the ca"), tokenizer.encode("t sat")
    assert prompt + completion != tokenizer.encode("the cat sat")  # else this test shows nothing
    assert segments_of(tokens, flags) == [(prompt + completion + [tokenizer.eos_id],
                                           [0] * len(prompt) + [1] * (len(completion) + 1))]


def test_bos_comes_only_from_a_tokenizer_that_adds_it(bos_model, tmp_path):
    tokenizer = load_tokenizer(bos_model)
    chat = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "world"}]}
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, {"prompt": "the", "completion": " cat"}, chat])
    _, tokens, flags = pack_file(bos_model, data, 128, tmp_path / "o")
    text, prompt, messages = (segment for segment, _ in segments_of(tokens, flags))
    assert text == [1] + tokenizer.encode("the cat") + [2]
    assert prompt == [1] + tokenizer.encode("the") + tokenizer.encode(" cat") + [2]
    assert messages[0] == 1 and messages[1] != 1  # the template's own


def test_chat_trains_the_assistant_and_the_end_of_its_turn(model, tokenizer, tmp_path):
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "\n\nworld"},
            {"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    data = write_lines(tmp_path / "d.jsonl", [{"messages": chat}])
    _, tokens, flags = pack_file(model, data, 128, tmp_path / "o")
    [(segment, trained)] = segments_of(tokens, flags)
    assert tokenizer.decode(segment) == "".join(
        f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in chat)
    generated = [token for token, is_trained in zip(segment, trained) if is_trained]
    assert tokenizer.decode(generated) == "\n\nworld<|im_end|>sat<|im_end|>"


def test_short_samples_share_rows_and_none_is_lost(model, tmp_path):
    rng = random.Random(5)
    words = "the cat sat on mat dog ran 12 Hello".split()
    records = [{"text": " ".join(rng.choices(words, k=rng.randint(1, 40)))} for _ in range(600)]
    data = write_lines(tmp_path / "d.jsonl", records)
    report, tokens, flags = pack_file(model, data, 128, tmp_path / "o")
    tokenizer = load_tokenizer(model)
    expected = sorted(tokenizer.encode(record["text"]) + [2] for record in records)
    assert sorted(segment for segment, _ in segments_of(tokens, flags)) == expected
    assert report["padding_share"] < 0.02
    assert report["samples"] == 600 and report["tokens"] == sum(map(len, expected))


def test_first_row_holds_the_first_sample(model, tmp_path):
    records = [{"text": "the dog"}] + [{"text": "the cat sat on the mat " * 4}] * 20
    data = write_lines(tmp_path / "d.jsonl", records)
    _, tokens, flags = pack_file(model, data, 64, tmp_path / "o")
    assert segments_of(tokens, flags)[0][0] == load_tokenizer(model).encode("the dog") + [2]


def test_same_input_gives_the_same_bytes(model, tmp_path):
    records = [{"text": "the cat " * (1 + i % 7)} for i in range(100)]
    data = write_lines(tmp_path / "d.jsonl", records)
    pack_file(model, data, 32, tmp_path / "a")
    pack_file(model, data, 32, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("seed", range(20))
def test_rows_never_overflow_and_are_numbered_by_their_first_segment(seed):
    rng = np.random.default_rng(seed)
    seq = int(rng.integers(2, 300))
    lengths = rng.integers(1, seq + 1, size=int(rng.integers(1, 500)))
    rows = row_packer.assign_rows(lengths, seq)
    used = np.bincount(rows, weights=lengths)
    assert (used <= seq).all() and (used > 0).all()
    _, first = np.unique(rows, return_index=True)
    assert (np.diff(first) > 0).all()
    # Best fit decreasing needs at most 11/9 of the optimum plus one (Johnson 1973), and a row is at least half full
    # on average.
    assert len(used) <= 2 * -(-lengths.sum() // seq) + 1


def test_files_are_private_and_nothing_is_left_beside_them(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    (tmp_path / "out").mkdir()
    pack_file(model, data, 32, tmp_path / "out" / "o")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["o"]
    assert stat.S_IMODE((tmp_path / "out" / "o").stat().st_mode) == 0o600


def test_output_that_is_no_packed_file_is_not_overwritten(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    precious = tmp_path / "thesis.txt"
    precious.write_text("years of work")
    with pytest.raises(UsageError, match="does not overwrite"):
        pack_file(model, data, 32, precious)
    assert precious.read_text() == "years of work"


def test_output_does_not_follow_symbolic_links(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    pack_file(model, data, 32, tmp_path / "target")
    before = (tmp_path / "target").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    pack_file(model, data, 16, tmp_path / "link")
    assert (tmp_path / "target").read_bytes() == before and not (tmp_path / "link").is_symlink()


def test_packed_file_passes_through_after_a_check(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat on the mat"}])
    report, _, _ = pack_file(model, data, 32, tmp_path / "o")
    again = pack.pack(pack_options(model, tmp_path / "o", 32, out="unused"))
    assert again == {**report, "cached": True}
    with pytest.raises(BadInputError, match="rows of 32 tokens, but --seq=16"):
        pack.pack(pack_options(model, tmp_path / "o", 16))
    small = make_model(tmp_path / "small", vocab_size=390)
    with pytest.raises(BadInputError, match="vocabulary of 400, the model has 390"):
        pack.pack(pack_options(small, tmp_path / "o", 32))
    short = make_model(tmp_path / "short", positions=4)
    with pytest.raises(BadInputError, match="the model has 4 positions"):
        pack.pack(pack_options(short, tmp_path / "o", 32))
    (small / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes() + b" ")
    with pytest.raises(BadInputError, match="another tokenizer"):
        pack.pack(pack_options(small, tmp_path / "o", 32))


@pytest.mark.parametrize("at", [9, 20, 100, 4090, 4100, 8195, -1])
def test_damage_to_a_packed_file_is_noticed(model, tmp_path, at):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat on the mat"}])
    pack_file(model, data, 32, tmp_path / "o")
    contents = bytearray((tmp_path / "o").read_bytes())
    contents[at] ^= 0x20
    (tmp_path / "o").write_bytes(contents)
    with pytest.raises(BadInputError, match="damaged|version"):
        pack.pack(pack_options(model, tmp_path / "o", 32))


def test_every_row_has_a_checksum_of_its_own(tmp_path):
    tokens = np.arange(8, dtype=np.uint32).reshape(2, 4)
    flags = np.array([[SEGMENT_START, TRAINED, SEGMENT_START, 0], [SEGMENT_START, TRAINED, TRAINED, PADDING]], np.uint8)
    tokens[1, 3] = 0
    packed_file.write_rows(tmp_path / "o", tokens, flags, vocab_size=10)
    packed = packed_file.read_info(tmp_path / "o")
    checksums = np.frombuffer((tmp_path / "o").read_bytes(), "<u8", offset=packed.checksums_offset)
    # As docs/formats.md says.
    seed = int.from_bytes(bytes.fromhex(packed.digest)[:8], "little")
    for row in (0, 1):
        of_tokens = xxhash.xxh3_64_intdigest(tokens[row].tobytes(), (seed + row) % 2**64)
        assert checksums[row] == xxhash.xxh3_64_intdigest(flags[row].tobytes(), of_tokens)
    contents = bytearray((tmp_path / "o").read_bytes())
    contents[packed.checksums_offset] ^= 1
    (tmp_path / "o").write_bytes(contents)
    with pytest.raises(BadInputError, match="the checksums of its rows"):
        packed_file.check_contents(tmp_path / "o", packed)


def cache_report(model, data, folder, seq=32, **others):
    return pack.pack(pack_options(model, data, seq, cache=str(folder), **others))


def test_cache_is_used_when_nothing_changed(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat"}])
    first = cache_report(model, data, tmp_path / "cache")
    second = cache_report(model, data, tmp_path / "cache")
    assert not first["cached"] and second == {**first, "cached": True}


def test_cache_depends_on_text_settings_and_model(model, bos_model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat"}])
    other = write_lines(tmp_path / "e.jsonl", [{"text": "the cat sat."}])
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    longer = make_model(tmp_path / "longer", positions=4096)
    stopped = make_model(tmp_path / "stopped")
    (stopped / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    reports = [cache_report(model, data, tmp_path / "c"), cache_report(model, other, tmp_path / "c"),
               cache_report(model, data, tmp_path / "c", seq=16), cache_report(bos_model, data, tmp_path / "c"),
               cache_report(model, data, tmp_path / "c", truncate=True), cache_report(longer, data, tmp_path / "c"),
               cache_report(stopped, data, tmp_path / "c"),
               cache_report(model, data, tmp_path / "c", template=str(template))]
    assert len({report["path"] for report in reports}) == len(reports)
    assert not any(report["cached"] for report in reports)


def test_damaged_cache_is_packed_again(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat sat"}])
    first = cache_report(model, data, tmp_path / "cache")
    with open(first["path"], "r+b") as file:
        file.seek(8192)
        file.write(b"\xff")
    assert cache_report(model, data, tmp_path / "cache") == first
    packed_file.check_contents(first["path"], packed_file.read_info(first["path"]))


def set_age(path, days):
    then = time.time() - days * 24 * 60 * 60
    os.utime(path, (then, then))


def test_cache_drops_what_was_long_not_used_when_something_new_comes(model, tmp_path):
    folder = tmp_path / "cache"
    reports = [cache_report(model, write_lines(tmp_path / "d.jsonl", [{"text": text}]), folder)
               for text in ("one", "two", "three")]
    old, used, recent = (pathlib.Path(report["path"]) for report in reports)
    set_age(old, 31)
    set_age(used, 31)
    set_age(recent, 29)
    others = [folder / "notes.txt", folder / "link.packed", folder / "x.packed.tmp7", folder / "y.packed.tmp8"]
    for path in others:
        path.symlink_to(recent) if path.name == "link.packed" else path.write_text("x")
        os.utime(path, (0, 0), follow_symlinks=False)
    os.utime(others[-1])  # of a packer at work
    # What is used again is as good as new, and nothing is dropped without need.
    assert cache_report(model, write_lines(tmp_path / "d.jsonl", [{"text": "two"}]), folder)["cached"]
    assert old.exists()
    new = cache_report(model, write_lines(tmp_path / "d.jsonl", [{"text": "four"}]), folder)["path"]
    assert set(folder.iterdir()) == {used, recent, pathlib.Path(new), others[0], others[1], others[3]}


def test_cache_keeps_what_is_in_use(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "one"}])
    old = pathlib.Path(cache_report(model, data, tmp_path / "cache")["path"])
    set_age(old, 31)
    write_lines(data, [{"text": "two"}])
    with open(old, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as a run does
        cache_report(model, data, tmp_path / "cache")
        assert old.exists()
    write_lines(data, [{"text": "three"}])
    cache_report(model, data, tmp_path / "cache")
    assert not old.exists()
