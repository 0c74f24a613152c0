"""The ConvNet, in one of three ways: --deepspeed with --deepspeed_config, --data_parallel, or --ddp under torchrun."""

import argparse
import os

import forebay.deepspeed as deepspeed
import forebay.torch
import torch
from published_data import pictures
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(2304, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        return self.fc2(self.relu(self.fc1(torch.flatten(x, 1))))


parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--way", choices=["deepspeed", "data_parallel", "ddp"])
parser.add_argument("--by_torch", action="store_true", help="its optimizer, to compare")
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
adam = torch.optim.Adam if args.by_torch else forebay.torch.Adam

torch.manual_seed(0)
data, model, criterion = pictures(512, 3, 32), ConvNet(), nn.CrossEntropyLoss()
sampler, batch_size = None, 64
if args.way == "deepspeed":
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    batch_size, device = 32, engine.device
elif args.way == "ddp":
    torch.distributed.init_process_group("gloo")
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    batch_size, device = 64 // torch.distributed.get_world_size(), "cpu"
    model = nn.parallel.DistributedDataParallel(model.cuda())
    optimizer = adam(model.parameters(), lr=0.001)
else:
    model, device = nn.DataParallel(model).cuda(), "cpu"
    optimizer = adam(model.parameters(), lr=0.001)

loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=sampler is None, sampler=sampler)
for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for batch, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        if args.way == "deepspeed":
            loss = criterion(engine(images), labels)
            engine.backward(loss)
            engine.step()
        else:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"Epoch {epoch + 1}, Batch {batch}, Loss: {loss.item()}")
if args.way == "ddp":
    torch.distributed.destroy_process_group()
