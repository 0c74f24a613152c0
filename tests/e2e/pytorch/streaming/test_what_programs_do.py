"""What programs do with a model between and inside of steps: the same values as in RAM, or an error that says why not."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import forebay
import forebay.torch

DIM, WORDS = 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(DIM, WORDS)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Program:
    """optimizer: has step() and zero_grad()."""

    def __init__(self, folder=None):
        torch.manual_seed(3)
        self.model = Model()
        if folder is None:
            self.optimizer = forebay.torch.AdamW(self.model.parameters(), lr=1e-2)
            self.backward = torch.Tensor.backward
        else:
            self.optimizer = forebay.torch.stream(self.model, nvme=folder, lr=1e-2)
            self.backward = self.optimizer.backward

    def loss(self, number, model=None):
        tokens = tokens_of(number)
        return F.cross_entropy((model or self.model)(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())

    def step(self, number=0, before_update=lambda: None):
        loss = self.loss(number)
        self.backward(loss)
        before_update()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def tokens_of(number):
    return torch.randint(0, WORDS, (2, 6), generator=torch.Generator().manual_seed(number))


def value(tensor):
    return None if tensor is None else (tuple(tensor.shape), tensor.detach().double().sum().item())


def state_that_is_saved(program):
    file = io.BytesIO()
    torch.save(program.model.state_dict(), file)
    file.seek(0)
    return [value(tensor) for tensor in torch.load(file).values()]


def average_by_hand(program):
    averages = {name: p.detach().clone() for name, p in program.model.named_parameters()}
    for number in range(3):
        program.step(number)
        with torch.no_grad():
            for name, p in program.model.named_parameters():
                averages[name].mul_(0.9).add_(p, alpha=0.1)
    return [value(average) for average in averages.values()]


def copied_into_another(copy_weight):
    def act(program):
        program.step()
        other = Model()
        with torch.no_grad():
            for to, p in zip(other.parameters(), program.model.parameters()):
                copy_weight(to, p)
        return program.loss(5, other).item()

    return act


def after_a_step(read):
    def act(program):
        program.step()
        return read(program)

    return act


def of_each(read):
    return after_a_step(lambda program: [read(p) for p in program.model.parameters()])


def seen_by_a_hook(register):
    def act(program):
        seen = []
        register(program.model.head.bias, seen)
        program.step()
        return seen

    return act


def with_a_hook_that_scales(program):
    program.model.blocks[1].a.weight.register_hook(lambda gradient: gradient * 0.5)
    return [program.step(), program.step(1)]


def freeze_and_unfreeze(program):
    for number, is_trained in enumerate((True, False, True)):
        program.model.blocks[0].requires_grad_(is_trained)
        program.step(number)
    return program.loss(5).item()


def penalty_of_a_gradient(program):
    loss = program.loss(0)
    gradient, = torch.autograd.grad(loss, [program.model.head.bias], create_graph=True)
    program.backward(loss + gradient.pow(2).sum())
    program.optimizer.step()
    return program.loss(1).item()


def in_inference_mode(program):
    program.step()
    with torch.inference_mode():
        loss = program.loss(5).item()
    return [loss, program.step(1)]


def in_another_thread(program):
    losses = []
    thread = threading.Thread(target=lambda: losses.append(program.step()))
    thread.start()
    thread.join()
    return [*losses, program.loss(1).item()]


def backward_in_another_thread(program):
    loss = program.loss(0)
    thread = threading.Thread(target=lambda: program.backward(loss))
    thread.start()
    thread.join()
    program.optimizer.step()
    return program.loss(1).item()


def go_on_after_an_exception(program):
    hook = program.model.blocks[2].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        program.loss(0)
    hook.remove()
    return program.step(1)


def workers_that_load(program):
    loader = torch.utils.data.DataLoader([tokens_of(number)[0] for number in range(4)], batch_size=2, num_workers=1)
    losses = []
    for tokens in loader:
        loss = F.cross_entropy(program.model(tokens).flatten(0, 1), tokens.flatten())
        program.backward(loss)
        program.optimizer.step()
        program.optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def generate(program):
    tokens = tokens_of(1)[:, :2]
    with torch.no_grad():
        for _ in range(4):
            tokens = torch.cat([tokens, program.model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens.tolist()


def under_anomaly_detection(program):
    with torch.autograd.detect_anomaly(check_nan=True):
        program.step()
    return program.loss(1).item()


def through_parts(call):
    """Training that never calls the whole model, as for a loss of its own."""
    def act(program):
        losses, model = [], program.model
        for number in range(3):
            tokens = tokens_of(number)
            x = model.embedding(tokens)
            for block in model.blocks:
                x = call(block, x)
            loss = F.cross_entropy(F.linear(x, model.head.weight, model.head.bias).flatten(0, 1), tokens.flatten())
            program.backward(loss)
            program.optimizer.step()
            program.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    return act


SAME = {
    "parts": through_parts(lambda block, x: block(x)),
    "parts, reentrant": through_parts(lambda block, x: checkpoint(block, x, use_reentrant=True)),
    "parts, not reentrant": through_parts(lambda block, x: checkpoint(block, x, use_reentrant=False)),
    "functions": through_parts(lambda block, x: x + F.linear(x, block.a.weight).mean()),
    "state is saved": after_a_step(state_that_is_saved),
    "average by hand": average_by_hand,
    "weights are copied": copied_into_another(lambda to, p: to.copy_(p)),
    "data is copied": copied_into_another(lambda to, p: to.data.copy_(p.data)),
    "data is cloned": copied_into_another(lambda to, p: setattr(to, "data", p.data.clone())),
    "numpy": of_each(lambda p: float(np.asarray(p.detach()).sum())),
    "dlpack": of_each(lambda p: value(torch.from_dlpack(p.detach()))),
    "bytes": of_each(lambda p: sum(bytes(p.detach().untyped_storage())[:40])),
    "logarithm": of_each(lambda p: torch.logsumexp(p.flatten(), 0).item()),
    "histogram": of_each(lambda p: torch.histc(p.detach(), 5).tolist()),
    "is it NaN": of_each(lambda p: bool(torch.isnan(p).any())),
    "repr": of_each(repr),
    "format": after_a_step(lambda program: f"{program.model.head.bias[0]:.6f} {program.model.head.bias.max().item()}"),
    "sizes": lambda program: [(p.shape, p.numel(), p.nbytes, p.dtype) for p in program.model.parameters()],
    "identity": lambda program: (program.model.head.bias in set(program.model.parameters()),
                                 program.model.head.weight is program.model.embedding.weight),
    "all gradients": after_a_step(lambda program: [value(gradient) for gradient in torch.autograd.grad(
        program.loss(1), list(program.model.parameters()))]),
    "functional call": after_a_step(lambda program: value(torch.func.functional_call(
        program.model, {name: p.detach() * 2 for name, p in program.model.named_parameters()}, (tokens_of(1),)))),
    "a block by itself": after_a_step(lambda program: value(program.model.blocks[1](torch.ones(1, 2, DIM)))),
    "state of a block": after_a_step(lambda program: [value(p) for p in program.model.blocks[1].state_dict().values()]),
    "hook of a gradient": seen_by_a_hook(lambda p, seen: p.register_hook(lambda g: seen.append(value(g)))),
    "hook after it": seen_by_a_hook(
        lambda p, seen: p.register_post_accumulate_grad_hook(lambda p: seen.append(value(p.grad)))),
    "hook that scales": with_a_hook_that_scales,
    "penalty of a gradient": penalty_of_a_gradient,
    "frozen and not": freeze_and_unfreeze,
    "inference mode": in_inference_mode,
    "another thread": in_another_thread,
    "backward in another thread": backward_in_another_thread,
    "exception": go_on_after_an_exception,
    "workers": workers_that_load,
    "generation": generate,
    "anomaly detection": under_anomaly_detection,
    "no backward": lambda program: [program.loss(0).item(), program.step(1)],
    "to the same type": after_a_step(lambda program: (program.model.to("cpu").float(), program.step(1))[1]),
    "shared memory": after_a_step(lambda program: (program.model.share_memory(), program.step(1))[1]),
}


@pytest.mark.parametrize("what", SAME)
def test_values_are_those_of_ram(tmp_path, what):
    assert repr(SAME[what](Program(tmp_path / "store"))) == repr(SAME[what](Program()))


def assign_data(program):
    program.model.head.bias.data = torch.ones(WORDS)


def assign_data_in_forward(program):
    program.model.head.register_forward_pre_hook(lambda *_: assign_data(program))
    program.step()


def write(program):
    with torch.no_grad():
        program.model.head.bias.copy_(torch.ones(WORDS))


REFUSED = {
    "deepcopy": (lambda program: copy.deepcopy(program.model), "cannot be copied"),
    "average": (lambda program: torch.optim.swa_utils.AveragedModel(program.model), "cannot be copied"),
    "pickle": (lambda program: pickle.dumps(program.model), "cannot be pickled"),
    "trace": (lambda program: torch.jit.trace(program.model, tokens_of(1)), "cannot be traced or exported"),
    "export": (lambda program: torch.export.export(program.model, (tokens_of(1),)), "cannot be traced or exported"),
    "write": (write, "writes to a parameter of head"),
    "assignment": (assign_data, "assignment to .data writes to a parameter of head"),
    "assignment in forward": (assign_data_in_forward, "weights of head were written to"),
    "initialization": (lambda program: nn.init.zeros_(program.model.head.bias), "writes to a parameter of head"),
    "other type": (lambda program: program.model.half(), "stays torch.float32"),
    "all views": (lambda program: nn.utils.parameters_to_vector(program.model.parameters()), "are kept. Keep weight.clone"),
    "clip of values": (lambda program: program.step(before_update=lambda: nn.utils.clip_grad_value_(
        program.model.parameters(), 0.01)), "asks for the elements of gradients"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_possible_is_refused(tmp_path, what):
    act, message = REFUSED[what]
    with pytest.raises(forebay.ForebayError, match=message):
        act(Program(tmp_path / "store"))
