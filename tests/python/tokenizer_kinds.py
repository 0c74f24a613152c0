"""Tokenizers of every kind that `tokenizers` can make: each normalizer, pre-tokenizer, decoder and post-processor.

They are trained on the spot, know the special tokens of template_kinds.py, and put BOS first if they have a template.
"""

import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
CORPUS = ["The cat sat on the mat, and the dog ran. Hello world 12345! It's a cat's life: A: B:\n\n",
          "user assistant system tool model USER ASSISTANT [INST] ### Response:\n def f(x):\n\treturn x\n",
          "naïve café e\u0301 日本語 é? Who are you? A cat. Meow think thought hello Hi there play playing worlds add five\n",
          '{"name": "add", "arguments": {"n": 5}} Yes. Is it? <think> </think> AXB AxxB\n'] * 4
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
GPT2_SPLIT = Regex(r"'s|'t|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def charsmap():
    """A table of SentencePiece that maps nothing."""
    return struct.pack("<I", 1024) + bytes(1024)


def bpe(normalizer=None, pre_tokenizer=None, decoder=None, alphabet=(), byte_fallback=False, **options):
    return _trained(models.BPE(unk_token=UNKNOWN, **options), trainers.BpeTrainer, normalizer, pre_tokenizer, decoder,
                    byte_fallback, initial_alphabet=list(alphabet), **{
                        key: value for key, value in options.items()
                        if key in ("end_of_word_suffix", "continuing_subword_prefix")})


def unigram(normalizer=None, pre_tokenizer=None, decoder=None):
    return _trained(models.Unigram(), trainers.UnigramTrainer, normalizer, pre_tokenizer, decoder, False, unk_token=UNKNOWN)


def wordpiece(normalizer=None, pre_tokenizer=None, decoder=None):
    return _trained(models.WordPiece(unk_token=UNKNOWN), trainers.WordPieceTrainer, normalizer, pre_tokenizer,
                    decoder or decoders.WordPiece(), False)


def wordlevel(normalizer=None, pre_tokenizer=None, decoder=None):
    return _trained(models.WordLevel(unk_token=UNKNOWN), trainers.WordLevelTrainer, normalizer, pre_tokenizer, decoder, False)


def _trained(model, trainer, normalizer, pre_tokenizer, decoder, byte_fallback, **options):
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
    special = [BOS, EOS, UNKNOWN] + (BYTES if byte_fallback else [])
    tokenizer.train_from_iterator(CORPUS, trainer(vocab_size=900, special_tokens=special, show_progress=False, **options))
    if byte_fallback:
        tokenizer = _with_bytes(tokenizer)
    return tokenizer


def _with_bytes(tokenizer):
    """The same with bytes that are tokens, but no special ones."""
    import json
    contents = json.loads(tokenizer.to_str())
    contents["added_tokens"] = [token for token in contents["added_tokens"] if token["content"] not in BYTES]
    contents["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(contents))


def _metaspace(scheme, split=True):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


def _byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def _bytes(normalizer=None, pre_tokenizer=None):
    return bpe(normalizer, pre_tokenizer or _byte_level(), decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet())


def _llama2():
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return bpe(normalizer, None, decoders.Sequence(LLAMA_DECODER), byte_fallback=True, fuse_unk=True)


def _of_template(tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tokenizer


def _with_post(tokenizer, post_processor):
    tokenizer.post_processor = post_processor
    return tokenizer


SEQUENCE = pre_tokenizers.Sequence
# name: what makes it.
KINDS = {
    "byte-level": lambda: _with_post(_bytes(), processors.ByteLevel(trim_offsets=False)),
    "byte-level that puts a blank first": lambda: _bytes(pre_tokenizer=_byte_level(prefix=True)),
    "byte-level with BOS": lambda: _with_post(_bytes(), processors.Sequence([
        processors.ByteLevel(), processors.TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=[(BOS, 0), (EOS, 1)])])),
    "Llama-3: split by a pattern": lambda: _of_template(_bytes(
        pre_tokenizer=SEQUENCE([pre_tokenizers.Split(GPT2_SPLIT, "isolated"), _byte_level(regex=False)]))),
    "Qwen: NFC": lambda: _bytes(normalizers.NFC()),
    "digits apart": lambda: _bytes(pre_tokenizer=SEQUENCE([pre_tokenizers.Digits(individual_digits=True), _byte_level()])),
    "byte-level normalizer": lambda: bpe(normalizers.ByteLevel(), None, decoders.ByteLevel(),
                                         pre_tokenizers.ByteLevel.alphabet()),
    "Llama-2: prepend, no pre-tokenizer": lambda: _of_template(_llama2()),
    "Mistral: Metaspace first, not split": lambda: _of_template(bpe(
        None, _metaspace("first", False), decoders.Sequence(LLAMA_DECODER), byte_fallback=True)),
    "Metaspace always": lambda: bpe(None, _metaspace("always"), decoders.Metaspace(prepend_scheme="always")),
    "Metaspace first": lambda: bpe(None, _metaspace("first"), decoders.Metaspace(prepend_scheme="first")),
    "Metaspace never": lambda: bpe(None, _metaspace("never"), decoders.Metaspace(prepend_scheme="never")),
    "Gemma: replaced blanks": lambda: _of_template(bpe(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]), byte_fallback=True)),
    "T5: unigram, precompiled": lambda: _with_post(
        unigram(normalizers.Precompiled(charsmap()), _metaspace("always"), decoders.Metaspace()),
        processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])),
    "XLM-R: unigram, NMT and NFKC": lambda: unigram(
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        SEQUENCE([pre_tokenizers.WhitespaceSplit(), _metaspace("always")]), decoders.Metaspace()),
    "unigram without words": lambda: unigram(None, _metaspace("first", False), decoders.Metaspace(prepend_scheme="first")),
    "BERT": lambda: _with_post(wordpiece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
                               processors.BertProcessing((EOS, 1), (BOS, 0))),
    "WordPiece of whitespace": lambda: wordpiece(normalizers.Lowercase(), pre_tokenizers.Whitespace()),
    "WordPiece without accents": lambda: wordpiece(
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), pre_tokenizers.WhitespaceSplit()),
    "RoBERTa": lambda: _with_post(_bytes(), processors.RobertaProcessing((EOS, 1), (BOS, 0), add_prefix_space=False)),
    "words": lambda: wordlevel(None, pre_tokenizers.Whitespace()),
    "words of a delimiter": lambda: wordlevel(normalizers.NFKD(), pre_tokenizers.CharDelimiterSplit(" ")),
    "punctuation apart": lambda: bpe(normalizers.NFKC(), SEQUENCE([pre_tokenizers.Punctuation(), _metaspace("first")]),
                                     decoders.Metaspace(prepend_scheme="first")),
    "scripts apart": lambda: unigram(normalizers.NFD(), SEQUENCE([pre_tokenizers.UnicodeScripts(), _metaspace("always")]),
                                     decoders.Metaspace()),
    "fixed length": lambda: bpe(None, pre_tokenizers.FixedLength(4), decoders.Fuse()),
    "stripped": lambda: bpe(normalizers.Strip(), _metaspace("always"), decoders.Metaspace()),
    "stripped on the right": lambda: _bytes(normalizers.Strip(left=False, right=True)),
    "CLIP: suffixes": lambda: bpe(
        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
        SEQUENCE([pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.Punctuation()]),
        decoders.BPEDecoder("</w>"), end_of_word_suffix="</w>"),
    "prefixes within words": lambda: bpe(None, pre_tokenizers.WhitespaceSplit(), decoders.WordPiece(),
                                         continuing_subword_prefix="##"),
    "characters, CTC": lambda: bpe(normalizers.Replace(" ", "|"), pre_tokenizers.Split("", "isolated"),
                                   decoders.CTC(pad_token=UNKNOWN, word_delimiter_token="|")),
    "no decoder": lambda: bpe(None, _metaspace("first")),
    "no pre-tokenizer": lambda: bpe(None, None, decoders.Fuse()),
}
# Their tokens cannot spell what follows the middle of a word: words have no parts, or an end of their own.
WHOLE_WORDS = {"words", "words of a delimiter", "CLIP: suffixes"}


def make(kind, special_tokens):
    """(tokenizer, the special tokens that it has)."""
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special_tokens])
    return tokenizer
