"""LeNet, whose loader initialize() makes."""

import argparse

import forebay.deepspeed as deepspeed
import torch
from published_data import pictures
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--epochs", type=int, default=2)
args = deepspeed.add_config_arguments(parser).parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv2(self.pool(F.relu(self.conv1(x))))))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.view(-1, 400))))))


torch.manual_seed(0)
net = Net()
engine, optimizer, loader, _ = deepspeed.initialize(
    args=args, model=net, model_parameters=filter(lambda p: p.requires_grad, net.parameters()),
    training_data=pictures(480, 3, 32))
for epoch in range(args.epochs):
    for images, labels in loader:
        images, labels = images.to(engine.device), labels.to(engine.device)
        loss = nn.CrossEntropyLoss()(engine(images.half() if engine.fp16_enabled() else images), labels)
        engine.backward(loss)
        engine.step()
    print(f"[{epoch + 1}] loss: {loss.item():.3f}")
right = total = 0
with torch.no_grad():
    for images, labels in torch.utils.data.DataLoader(pictures(200, 3, 32, seed=1), batch_size=50):
        right += (engine(images.half() if engine.fp16_enabled() else images).argmax(1) == labels).sum().item()
        total += len(labels)
print(f"Accuracy of the network: {100 * right / total:.0f} %")
