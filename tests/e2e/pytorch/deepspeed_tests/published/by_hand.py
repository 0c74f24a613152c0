"""Mixed precision by hand: two linear layers in fp16, fp32 masters, a fixed loss scale."""

import forebay.torch
import torch

SCALE = 1024
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 1)).cuda().half()
masters = [parameter.detach().clone().float().requires_grad_() for parameter in model.parameters()]
optimizer = forebay.torch.SGD(masters, lr=1e-3)
inputs, targets = torch.randn(64, 512).cuda().half(), torch.randn(64, 1).cuda().half()
for step in range(30):
    loss = torch.nn.functional.mse_loss(model(inputs).float(), targets.float())
    (loss * SCALE).backward()
    for master, parameter in zip(masters, model.parameters()):
        master.grad = parameter.grad.float() / SCALE
        parameter.grad = None
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters()):
            parameter.copy_(master)
    if step % 10 == 9:
        print(f"step:{step}, loss:{loss.item()}")
