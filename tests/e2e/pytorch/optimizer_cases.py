"""A small model, its data, and a run of an optimizer over both."""

import forebay.torch
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Settings that differ from every default.
OPTIMIZERS = {
    "AdamW": {"lr": 2e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    "Adam": {"lr": 2e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    "Adagrad": {"lr": 2e-2, "eps": 1e-8, "weight_decay": 0.01},
    "Lion": {"lr": 1e-3, "betas": (0.8, 0.95), "weight_decay": 0.1},
    "SGD": {"lr": 2e-2, "momentum": 0.8, "weight_decay": 0.01, "nesterov": True},
}


def make_model(dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(60, 40), torch.nn.GELU(), torch.nn.LayerNorm(40),
                               torch.nn.Linear(40, 24)).to(dtype)


def make_optimizer(name, model, **options):
    return getattr(forebay.torch, name)(model.parameters(), **{**OPTIMIZERS[name], **options})


def loss_of(model, step, micro_batch=0):
    torch.manual_seed(1000 * step + micro_batch)
    inputs = torch.randn(16, 60, dtype=next(model.parameters()).dtype)
    return model(inputs).float().square().mean()


def train(model, optimizer, steps, scheduler=None):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
