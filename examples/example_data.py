"""The data of the examples, from two packages of Debian: Fashion-MNIST (images) and the King James Bible (text)."""

from __future__ import annotations

import gzip
import os
import pathlib
import shutil
import subprocess
import sys

import torch

IMAGES = "/usr/share/datasets/fashion-mnist"
GAMES = "/usr/games"  # where Debian has the program, which a PATH of root lacks


def fashion_mnist(part: str, count: int | None = None) -> torch.utils.data.TensorDataset:
    """part: "train" (60,000 images) or "t10k" (10,000). Images [count, 1, 28, 28] float32 around 0, labels [count]
    int64. The folder is that of the package, or $FASHION_MNIST."""
    folder = pathlib.Path(os.environ.get("FASHION_MNIST", IMAGES))
    if not (folder / f"{part}-images-idx3-ubyte.gz").exists():
        sys.exit(f"There is no Fashion-MNIST in {folder}. Install the package: apt-get install dataset-fashion-mnist. "
                 "Or put its four .gz files into a folder, and name that in FASHION_MNIST.")
    pixels = _numbers(folder / f"{part}-images-idx3-ubyte.gz", 16)[:count and count * 28 * 28]
    labels = _numbers(folder / f"{part}-labels-idx1-ubyte.gz", 8)[:count]
    return torch.utils.data.TensorDataset((pixels.view(-1, 1, 28, 28) / 255 - 0.2860) / 0.3530, labels.long())


def fashion_mnist_as_cifar(part: str, count: int | None = None) -> torch.utils.data.TensorDataset:
    """The same images in the shape of CIFAR-10: [count, 3, 32, 32]."""
    images, labels = fashion_mnist(part, count).tensors
    return torch.utils.data.TensorDataset(torch.nn.functional.pad(images, (2, 2, 2, 2)).repeat(1, 3, 1, 1), labels)


def paragraphs() -> list[str]:
    """The 1,189 chapters of the Bible, each one paragraph."""
    program = shutil.which("bible", path=os.environ["PATH"] + os.pathsep + GAMES)
    if program is None:
        sys.exit("There is no program 'bible', which has the text. Install the package: apt-get install bible-kjv.")
    printed = subprocess.run([program, "-f", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True).stdout.decode()
    chapters: dict[str, list[str]] = {}
    for line in printed.splitlines():  # "Ge1:1 In the beginning God created the heaven and the earth."
        place, verse = line.split(" ", 1)
        chapters.setdefault(place.split(":")[0], []).append(verse)
    return [" ".join(verses) for verses in chapters.values()]


def batches_of_bytes(num_batches: int, batch: int, length: int) -> list[torch.Tensor]:
    """The beginnings of paragraphs as bytes, in batches [batch, length] of int64: tokens from 0 to 255."""
    texts = [text.encode()[:length] for text in paragraphs()]
    rows = torch.tensor([list(text) for text in texts if len(text) == length])
    order = torch.randperm(num_batches * batch, generator=torch.Generator().manual_seed(0)) % len(rows)
    return list(rows[order].split(batch))


def _numbers(path: pathlib.Path, header: int) -> torch.Tensor:
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)
