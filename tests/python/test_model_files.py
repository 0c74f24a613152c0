"""What the files of a model folder may say: end tokens, added tokens, numbers, and what stands in their place."""

import json
import os
import stat

import pytest

from conftest import load_tokenizer, make_model, pack_file, write_lines
from forebay_data import prompts
from forebay_data.errors import BadInputError
from forebay_data.tokenizer import ModelConfig

LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 17209961\n"


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def add_token(folder, text):
    """A token after those of the tokenizer, which are as many as the model has rows; returns its number."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    number = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"].append({"id": number, "content": text, "special": True, "single_word": False,
                                      "lstrip": False, "rstrip": False, "normalized": False})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    change(folder / "config.json", vocab_size=number)
    return number


@pytest.fixture
def folder(tmp_path):
    return make_model(tmp_path / "model")


# ---- Where generation stops ----

def test_without_generation_config_all_end_tokens_of_the_config_stop(folder):
    change(folder / "config.json", eos_token_id=[0, 2])
    assert load_tokenizer(folder).stop_ids() == [0, 2]


def test_the_token_that_training_ends_texts_with_stops_beside_those_of_the_config(folder):
    change(folder / "config.json", eos_token_id=[0, 1])
    assert load_tokenizer(folder).stop_ids() == [0, 1, 2]


@pytest.mark.parametrize("value", [-1, [-1], None, []])
def test_a_config_may_name_no_end_token(folder, value):
    change(folder / "config.json", eos_token_id=value)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    assert load_tokenizer(folder).stop_ids() == [2]  # the tokenizer's


def test_an_end_token_that_is_no_number_names_file_and_field(folder):
    change(folder / "config.json", eos_token_id="</s>")
    with pytest.raises(BadInputError, match="config.json': 'eos_token_id' is '</s>'"):
        load_tokenizer(folder).stop_ids()


# ---- Tokens past the vocabulary ----

def test_added_tokens_past_the_vocabulary_are_a_warning(folder, capsys):
    number = add_token(folder, "<pad>")
    assert load_tokenizer(folder).encode("the cat")
    said = capsys.readouterr().err
    assert f"adds '<pad>' ({number}) past the model's vocabulary of {number}" in said and "is refused" in said


def test_a_sample_with_a_token_past_the_vocabulary_is_refused(folder, tmp_path):
    number = add_token(folder, "<pad>")
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, {"text": "the <pad> cat"}])
    with pytest.raises(BadInputError, match=rf"d\.jsonl:2: the sample has the token '<pad>' \({number}\)"):
        pack_file(folder, data, 32, tmp_path / "d.fbd")
    write_lines(data, [{"text": "the cat"}])
    assert pack_file(folder, data, 32, tmp_path / "d.fbd")[0]["samples"] == 1


def test_a_prompt_with_a_token_past_the_vocabulary_is_refused(folder, tmp_path):
    number = add_token(folder, "<pad>")
    (tmp_path / "p.txt").write_text("the cat\nthe <pad>\n")
    with pytest.raises(BadInputError, match=rf"p\.txt:2: the prompt has the token '<pad>' \({number}\)"):
        prompts.encode(options_of(folder, tmp_path / "p.txt"))


def options_of(folder, file):
    return type("Options", (), {"model": str(folder), "prompts": str(file), "chat": False, "template": None})


def test_an_end_token_past_the_vocabulary_is_refused_before_any_sample(folder):
    add_token(folder, "<end>")
    change(folder / "tokenizer_config.json", eos_token="<end>")
    with pytest.raises(BadInputError, match="ends samples with the token '<end>'.*set 'eos_token'"):
        load_tokenizer(folder).require_eos()


# ---- Numbers ----

def test_whole_numbers_may_be_written_as_floats(folder):
    change(folder / "config.json", max_position_embeddings=32768.0, vocab_size=400.0, eos_token_id=2.0)
    config = ModelConfig(str(folder))
    assert (config.max_positions, config.vocab_size, config.eos_ids()) == (32768, 400, [2])
    assert type(config.max_positions) is int
    change(folder / "config.json", max_position_embeddings=64.5)
    with pytest.raises(BadInputError, match="'max_position_embeddings' is 64.5"):
        ModelConfig(str(folder))


# ---- Other files in their place ----

@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_pointer_of_git_lfs_says_so(folder, name):
    (folder / name).write_text(LFS_POINTER)
    with pytest.raises(BadInputError, match=f"{name}': this is a Git LFS pointer, .*run git lfs pull"):
        load_tokenizer(folder).stop_ids()


@pytest.mark.parametrize("name", ["data.txt", "data.jsonl", "data.fbd"])
def test_data_that_is_a_pointer_of_git_lfs_says_so(folder, tmp_path, name):
    (tmp_path / name).write_text(LFS_POINTER)
    with pytest.raises(BadInputError, match=f"{name}': this is a Git LFS pointer, .*run git lfs pull"):
        pack_file(folder, tmp_path / name, 32, tmp_path / "out.fbd")


def test_a_folder_with_an_adapter_alone_says_so(folder):
    os.rename(folder / "config.json", folder / "adapter_config.json")
    with pytest.raises(BadInputError, match="an adapter .*and no model.*merge_and_unload"):
        ModelConfig(str(folder))


# ---- Permissions ----

def test_packed_data_is_its_owners_alone(folder, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    old_mask = os.umask(0)
    try:
        pack_file(folder, data, 32, tmp_path / "d.fbd")
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE((tmp_path / "d.fbd").stat().st_mode) == 0o600
