#!/usr/bin/env python3
"""A BERT-like encoder that learns to fill in masked letters, with activation checkpointing of its layers. Its weights
lie on the disk, and each layer is read when its forward pass, the one that checkpointing repeats, or its backward pass
begins.

  examples/bert_checkpointing.py              torch.utils.checkpoint as it is recommended
  examples/bert_checkpointing.py --reentrant  its older form

Prints losses; with --baseline beside them those of PyTorch with everything in RAM.
"""

import argparse
import tempfile

import forebay.torch
import torch
from example_data import batches_of_bytes
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

MASK = 256  # the token after the 256 bytes


class Encoder(torch.nn.Module):
    def __init__(self, width, length, num_layers, reentrant):
        super().__init__()
        config = BertConfig(hidden_size=width, num_attention_heads=4, intermediate_size=4 * width)
        config._attn_implementation = "sdpa"
        self.tokens = torch.nn.Embedding(MASK + 1, width)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = torch.nn.ModuleList(BertLayer(config) for _ in range(num_layers))
        self.head = torch.nn.Linear(width, 256)
        self.reentrant = reentrant

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.positions
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=self.reentrant)
        return self.head(hidden if isinstance(hidden, torch.Tensor) else hidden[0])


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reentrant", action="store_true")
    parser.add_argument("--nvme", help="a new folder on the disk to use; a scratch folder if it is left out")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--baseline", action="store_true", help="train with PyTorch too")
    parser.add_argument("--quick", action="store_true", help="12 steps of a smaller model")
    args = parser.parse_args(argv)
    args.width, args.length = (64, 32) if args.quick else (128, 64)
    args.steps = 12 if args.quick else args.steps
    return args


def make_model(args):
    torch.manual_seed(0)
    return Encoder(args.width, args.length, 6, args.reentrant)


def loss_of(model, tokens):
    """The loss of 15 % of the letters, which the model does not see."""
    is_masked = torch.rand(tokens.shape) < 0.15
    found = model(tokens.masked_fill(is_masked, MASK))
    return torch.nn.functional.cross_entropy(found[is_masked], tokens[is_masked])


def train(args, batches, nvme):
    model = make_model(args)
    engine = forebay.torch.stream(model, nvme=nvme, lr=args.lr)
    losses = []
    for tokens in batches:
        loss = loss_of(engine, tokens)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.close()
    return losses


def train_with_pytorch(args, batches):
    model = make_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    losses = []
    for tokens in batches:
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(argv=None):
    args = parse(argv)
    batches = batches_of_bytes(args.steps, 16, args.length)
    with tempfile.TemporaryDirectory() as scratch:
        losses = train(args, batches, args.nvme or scratch + "/store")
    plain = train_with_pytorch(args, batches) if args.baseline else None
    for step in sorted({*range(0, args.steps, 10), args.steps - 1}):
        print(f"step {step:4}   loss {losses[step]:.5f}" + (f"   PyTorch {plain[step]:.5f}" if plain else ""))
    return {"losses": losses, "plain_losses": plain}


if __name__ == "__main__":
    main()
