"""Small real tokenizers and model folders, made on the spot."""

import json
import pathlib
import sys
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
          "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
CORPUS = ["In the beginning God created the heaven and the earth.\n", "the cat sat on the mat, and the dog ran.\n",
          "user assistant system Hello world 12345 def f(x):\n\treturn x\n\n"] * 4


def make_model(folder, vocab_size=400, bos=False, positions=2048, template=CHATML):
    """A model folder (without weights) with a byte-level BPE; `bos`: its tokenizer puts <|im_start|> before a text."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=380, special_tokens=SPECIAL_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {"vocab_size": vocab_size, "max_position_embeddings": positions, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "plain")


@pytest.fixture(scope="session")
def bos_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "bos", bos=True)


@pytest.fixture
def tokenizer(model):
    return load_tokenizer(model)


def load_tokenizer(folder):
    from forebay_data.tokenizer import ModelConfig, ModelTokenizer
    return ModelTokenizer(str(folder), ModelConfig(str(folder)))


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def pack_options(model, data, seq, **others):
    """Options of `pack` as the command line makes them."""
    options = {"truncate": False, "template": None, "cache": None, "out": None, **others}
    return SimpleNamespace(model=str(model), data=str(data), seq=seq, **options)


def pack_file(model, data, seq, out, **others):
    """Packs into `out`; returns (report, tokens [rows, seq], flags [rows, seq])."""
    from forebay_data import pack, packed_file
    report = pack.pack(pack_options(model, data, seq, out=str(out), **others))
    packed = packed_file.read_info(str(out))
    packed_file.check_contents(str(out), packed)
    return report, *packed_file.map_contents(str(out), packed)
