#!/usr/bin/env python3
"""A small vision transformer (4 blocks of width 32) on Fashion-MNIST in the shape of CIFAR-10. Its weights lie on the
disk, and each block is read when its forward or backward pass begins.

  examples/vit.py
  examples/vit.py --precision bf16

Prints loss and accuracy after each epoch; with --baseline then those of PyTorch in fp32, with everything in RAM.
"""

import argparse
import tempfile

import forebay.torch
import torch
from example_data import fashion_mnist_as_cifar
from torch import nn
from torch.nn import functional as F


class VisionTransformer(nn.Module):
    def __init__(self, width=32, num_blocks=4, patch=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (32 // patch) ** 2 + 1, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.blocks = nn.TransformerEncoder(block, num_blocks, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.class_token.expand(len(images), -1, -1), hidden], dim=1) + self.positions
        return self.head(self.norm(self.blocks(hidden)[:, 0]))


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--nvme", help="a new folder on the disk to use; a scratch folder if it is left out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--baseline", action="store_true", help="train with PyTorch too")
    parser.add_argument("--quick", action="store_true", help="one epoch of 640 images")
    return parser.parse_args(argv)


def run(args, model, train_step, dtype):
    """Trains epoch by epoch. train_step(loss): a backward pass and an update. Returns the losses of all batches, and
    the accuracy in percent after the last epoch."""
    train_data = fashion_mnist_as_cifar("train", 640 if args.quick else None)
    test_data = fashion_mnist_as_cifar("t10k", 1000 if args.quick else None)
    test_loader = torch.utils.data.DataLoader(test_data, batch_size=1000)
    losses = []
    for epoch in range(1 if args.quick else args.epochs):
        torch.manual_seed(epoch)
        model.train()
        for images, labels in torch.utils.data.DataLoader(train_data, batch_size=64, shuffle=True):
            loss = F.cross_entropy(model(images.to(dtype)).float(), labels)
            train_step(loss)
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            right = sum((model(images.to(dtype)).argmax(1) == labels).sum().item() for images, labels in test_loader)
        accuracy = 100 * right / len(test_data)
        print(f"epoch {epoch + 1}   loss {sum(losses[-100:]) / len(losses[-100:]):.4f}   accuracy {accuracy:.2f} %")
    return losses, accuracy


def train(args, nvme):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    engine = forebay.torch.stream(VisionTransformer().to(dtype), nvme=nvme, lr=args.lr)

    def train_step(loss):
        engine.backward(loss)
        engine.step()

    result = run(args, engine, train_step, dtype)
    engine.close()
    return result


def train_with_pytorch(args):
    torch.manual_seed(0)
    model = VisionTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    def train_step(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run(args, model, train_step, torch.float32)


def main(argv=None):
    args = parse(argv)
    found = {}
    print(f"forebay.torch.stream, {args.precision}:")
    with tempfile.TemporaryDirectory() as scratch:
        found["losses"], found["accuracy"] = train(args, args.nvme or scratch + "/store")
    if args.baseline:
        print("PyTorch, fp32:")
        found["plain_losses"], found["plain_accuracy"] = train_with_pytorch(args)
    return found


if __name__ == "__main__":
    main()
