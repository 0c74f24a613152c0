"""The CNN of MNIST: a model and an AdamW, and no DeepSpeed."""

import forebay.torch
import torch
from published_data import pictures
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = self.dropout2(F.relu(self.fc1(torch.flatten(self.dropout1(x), 1))))
        return F.log_softmax(self.fc2(x), dim=1)


torch.manual_seed(1)
model = Net().cuda()
optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
test = torch.utils.data.DataLoader(pictures(200, 1, 28, seed=1), batch_size=200)
for epoch in range(2):
    model.train()
    for images, labels in torch.utils.data.DataLoader(pictures(640, 1, 28), batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = F.nll_loss(model(images.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(images.cuda()).argmax(1) == labels.cuda()).sum().item() for images, labels in test)
    print(f"Train Epoch: {epoch + 1} Loss: {loss.item():.6f} Accuracy: {100 * right / 200:.2f} %")
    scheduler.step()
