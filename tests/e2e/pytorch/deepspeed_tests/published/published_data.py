"""Data of the published programs, made here: paragraphs, and pictures whose classes differ."""

import random

import torch

_WORDS = ("the river rose and bore a stone to king who said that all people of his house must go up from this land by night "
          "because word came out again").split()


def paragraphs(count):
    draw = random.Random(3)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(6, 14))) for _ in range(count)]


class Tokenizer:
    """Bytes as tokens. As tokenizers have it: padding with the end token, truncation, a mask."""

    eos_token_id, vocab_size = 256, 257

    def __call__(self, texts, padding, truncation, max_length, return_tensors):
        assert padding and truncation and return_tensors == "pt"
        rows = [list(text.encode()[:max_length]) for text in texts]
        length = max(map(len, rows))
        ids = torch.tensor([row + [self.eos_token_id] * (length - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": torch.tensor([[1] * len(row) + [0] * (length - len(row))
                                                                  for row in rows])}


def pictures(count, channels, size, seed=0):
    """Ten classes, each a pattern of its own under noise."""
    patterns = torch.randn(10, channels, size, size, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return torch.utils.data.TensorDataset(
        patterns[labels] + torch.randn(count, channels, size, size, generator=generator), labels)
