#!/usr/bin/env python3
"""The convolutional network of MNIST tutorials, on Fashion-MNIST, in a plain PyTorch loop. The optimizer is forebay's.

  examples/fashion_cnn.py               masters and moments in RAM
  examples/fashion_cnn.py --nvme state  on the disk: in a new folder "state"

Prints loss and accuracy after each epoch; with --baseline then those with torch.optim.AdamW.
"""

import argparse

import forebay.torch
import torch
from example_data import fashion_mnist
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images):
        hidden = F.relu(self.conv2(F.relu(self.conv1(images))))
        hidden = self.dropout1(F.max_pool2d(hidden, 2)).flatten(1)
        hidden = self.dropout2(F.relu(self.fc1(hidden)))
        return F.log_softmax(self.fc2(hidden), dim=1)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvme", help="a new folder on the disk; everything in RAM if it is left out")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.7, help="the rate's factor after each epoch")
    parser.add_argument("--baseline", action="store_true", help="train with torch.optim.AdamW too")
    parser.add_argument("--quick", action="store_true", help="one epoch of 640 images")
    return parser.parse_args(argv)


def train(args, make_optimizer):
    """Returns the losses of all batches, and the accuracy in percent after the last epoch."""
    torch.manual_seed(1)
    train_data = fashion_mnist("train", 640 if args.quick else None)
    test_data = fashion_mnist("t10k", 1000 if args.quick else None)
    train_loader = torch.utils.data.DataLoader(train_data, batch_size=args.batch_size, shuffle=True)
    test_loader = torch.utils.data.DataLoader(test_data, batch_size=1000)
    model = Net()
    optimizer = make_optimizer(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    losses = []
    for epoch in range(1 if args.quick else args.epochs):
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        accuracy = test(model, test_loader)
        print(f"epoch {epoch + 1}   loss {sum(losses[-100:]) / len(losses[-100:]):.4f}   accuracy {accuracy:.2f} %")
    return losses, accuracy


@torch.no_grad()
def test(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return 100 * right / len(loader.dataset)


def main(argv=None):
    args = parse(argv)
    print("forebay.torch.AdamW:")
    losses, accuracy = train(args, lambda parameters, lr: forebay.torch.AdamW(parameters, lr=lr, nvme=args.nvme))
    found = {"losses": losses, "accuracy": accuracy}
    if args.baseline:
        print("torch.optim.AdamW:")
        found["plain_losses"], found["plain_accuracy"] = train(args, torch.optim.AdamW)
    return found


if __name__ == "__main__":
    main()
