#!/usr/bin/env python3
"""LeNet of the CIFAR-10 tutorial, in a script that is written for DeepSpeed (its arguments, configuration and data
loader), but for one import. The data is Fashion-MNIST in the shape of CIFAR-10.

  examples/lenet.py                    fp16 with a dynamic loss scale, weights in RAM
  examples/lenet.py --precision fp32

Prints the loss as it goes, steps that overflowed, and accuracy; with --baseline then those of PyTorch in fp32,
which skips the same steps.
"""

import argparse
import math

import forebay.deepspeed as deepspeed
import torch
from example_data import fashion_mnist_as_cifar
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images):
        hidden = F.max_pool2d(F.relu(self.conv1(images)), 2)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(hidden)))))


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--precision", default="fp16", choices=["fp16", "fp32"])
    parser.add_argument("--baseline", action="store_true", help="train with PyTorch too")
    parser.add_argument("--quick", action="store_true", help="one epoch of 800 images")
    return deepspeed.add_config_arguments(parser).parse_args(argv)


def config_of(args):
    return None if args.deepspeed_config else {
        "train_batch_size": 16,
        "steps_per_print": 2000,
        "optimizer": {
            "type": "Adam",
            "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000},
        },
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "fp16": {
            "enabled": args.precision == "fp16",
            "fp16_master_weights_and_grads": False,
            "loss_scale": 0,
            "loss_scale_window": 500,
            "hysteresis": 2,
            "min_loss_scale": 1,
            "initial_scale_power": 15,
        },
        "wall_clock_breakdown": False,
        "zero_optimization": {"stage": 0},
    }


def train(args, train_data, test_data):
    """Returns losses, of each step whether it was skipped and the scale after it, and the accuracy in percent."""
    torch.manual_seed(0)
    net = Net()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    engine, optimizer, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=train_data, config=config_of(args))
    losses, steps = [], []
    for epoch in range(args.epochs):
        torch.manual_seed(epoch)  # so that PyTorch gets the same batches
        for images, labels in loader:
            images = images.half() if engine.fp16_enabled() else images
            loss = F.cross_entropy(engine(images), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            steps.append((not engine.was_step_applied(), optimizer.cur_scale))
            report(losses)
    engine.eval()
    accuracy = accuracy_of(lambda images: engine(images.half() if engine.fp16_enabled() else images), test_data)
    engine.destroy()
    return losses, steps, accuracy


def train_with_pytorch(args, train_data, test_data, steps):
    """The same in fp32, without the steps that were skipped."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001, betas=(0.8, 0.999), eps=1e-8, weight_decay=3e-7)
    # As WarmupLR: it grows with the logarithm of the step; the first two have a rate of 0.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, math.log(max(step, 1)) / math.log(1000)))
    losses = []
    for epoch in range(args.epochs):
        torch.manual_seed(epoch)
        for images, labels in torch.utils.data.DataLoader(train_data, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if not steps[len(losses)][0]:
                optimizer.step()
                schedule.step()
            losses.append(loss.item())
            report(losses)
    return losses, accuracy_of(net.eval(), test_data)


def report(losses):
    if len(losses) % 2000 == 0:
        print(f"step {len(losses)}   loss of the last 2,000 batches {sum(losses[-2000:]) / 2000:.4f}")


@torch.no_grad()
def accuracy_of(model, data):
    loader = torch.utils.data.DataLoader(data, batch_size=1000)
    return 100 * sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader) / len(data)


def main(argv=None):
    args = parse(argv)
    args.epochs = 1 if args.quick else args.epochs
    data = [fashion_mnist_as_cifar("train", 800 if args.quick else None),
            fashion_mnist_as_cifar("t10k", 1000 if args.quick else None)]
    losses, steps, accuracy = train(args, *data)
    print(f"{args.precision}: accuracy {accuracy:.2f} %, {sum(skipped for skipped, _ in steps)} of {len(steps)} steps "
          f"skipped, scale {steps[-1][1]:.0f}")
    found = {"losses": losses, "steps": steps, "accuracy": accuracy}
    if args.baseline:
        found["plain_losses"], found["plain_accuracy"] = train_with_pytorch(args, *data, steps)
        print(f"PyTorch, fp32: accuracy {found['plain_accuracy']:.2f} %")
    return found


if __name__ == "__main__":
    main()
