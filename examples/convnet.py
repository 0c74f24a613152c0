#!/usr/bin/env python3
"""A convolutional network with batch normalisation, on Fashion-MNIST in the shape of CIFAR-10, as scripts for several
GPUs have it: in torch.nn.DataParallel with an optimizer of its own, or written for DeepSpeed.

  examples/convnet.py                               DataParallel, forebay.torch.Adam
  examples/convnet.py --deepspeed                   ZeRO stage 2 in fp16 with a dynamic loss scale
  examples/convnet.py --deepspeed --precision fp32

Prints loss and accuracy after each epoch; with --baseline then those of PyTorch in fp32,
which skips the same steps.
"""

import argparse

import forebay.deepspeed as deepspeed
import forebay.torch
import torch
from example_data import fashion_mnist_as_cifar
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
    },
    "fp16": {
        "enabled": True, "auto_cast": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "zero_optimization": {
        "stage": 2, "allgather_partitions": True, "allgather_bucket_size": 200000000, "overlap_comm": True,
        "reduce_scatter": True, "reduce_bucket_size": 200000000, "contiguous_gradients": True,
    },
}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width in (16, 32, 64):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(64 * 4 * 4, 10)

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=60000, help="to train with")
    parser.add_argument("--precision", default="fp16", choices=["fp16", "fp32"], help="with --deepspeed")
    parser.add_argument("--baseline", action="store_true", help="train with PyTorch too")
    parser.add_argument("--quick", action="store_true", help="one epoch of 320 images")
    args = deepspeed.add_config_arguments(parser).parse_args(argv)
    args.epochs, args.images = (1, 320) if args.quick else (args.epochs, args.images)
    return args


def run(args, model, train_step):
    """Trains epoch by epoch. train_step(images, labels): one step, whose loss it returns. Returns the losses of all
    batches, and the accuracy in percent after the last epoch."""
    train_data = fashion_mnist_as_cifar("train", args.images)
    test_data = fashion_mnist_as_cifar("t10k", 1000 if args.quick else None)
    test_loader = torch.utils.data.DataLoader(test_data, batch_size=500)
    losses = []
    for epoch in range(args.epochs):
        torch.manual_seed(epoch)
        model.train()
        for images, labels in torch.utils.data.DataLoader(train_data, batch_size=32, shuffle=True):
            losses.append(train_step(images, labels))
        model.eval()
        with torch.no_grad():
            right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test_loader)
        accuracy = 100 * right / len(test_data)
        print(f"epoch {epoch + 1}   loss {sum(losses[-100:]) / len(losses[-100:]):.4f}   accuracy {accuracy:.2f} %")
    return losses, accuracy


def train_with_deepspeed(args):
    torch.manual_seed(0)
    model = ConvNet()
    config = {**CONFIG, "fp16": {**CONFIG["fp16"], "enabled": args.precision == "fp16"}}
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(),
                                                   config=None if args.deepspeed_config else config)
    steps = []

    def train_step(images, labels):
        loss = F.cross_entropy(engine(images), labels)
        engine.backward(loss)
        engine.step()
        steps.append((not engine.was_step_applied(), optimizer.cur_scale))
        return loss.item()

    losses, accuracy = run(args, engine, train_step)
    print(f"{sum(skipped for skipped, _ in steps)} of {len(steps)} steps skipped, scale {steps[-1][1]:.0f}")
    engine.destroy()
    return losses, accuracy, steps


def train_data_parallel(args, optimizer_class, steps=(), **settings):
    """steps: those of train_with_deepspeed, of which this leaves out the same."""
    torch.manual_seed(0)
    model = nn.DataParallel(ConvNet())
    optimizer = optimizer_class(model.parameters(), lr=0.001, **settings)
    skipped = iter([each for each, _ in steps])

    def train_step(images, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        if not next(skipped, False):
            optimizer.step()
        return loss.item()

    return run(args, model, train_step)


def main(argv=None):
    args = parse(argv)
    found = {}
    if args.deepspeed:
        print(f"forebay.deepspeed, {args.precision}:")
        found["losses"], found["accuracy"], found["steps"] = train_with_deepspeed(args)
        # DeepSpeed's "Adam" is AdamW.
        plain, settings = torch.optim.AdamW, {"betas": (0.8, 0.999), "eps": 1e-8, "weight_decay": 3e-7}
    else:
        print("forebay.torch.Adam:")
        found["losses"], found["accuracy"] = train_data_parallel(args, forebay.torch.Adam)
        plain, settings = torch.optim.Adam, {}
    if args.baseline:
        print(f"torch.optim.{plain.__name__}, fp32:")
        found["plain_losses"], found["plain_accuracy"] = train_data_parallel(
            args, plain, found.get("steps", ()), **settings)
    return found


if __name__ == "__main__":
    main()
