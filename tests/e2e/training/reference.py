"""The training run that forebay must reproduce, written with PyTorch and transformers."""

import contextlib
import fnmatch
import math

import torch
from transformers import AutoModelForCausalLM


def learning_rate(step, num_steps, lr, warmup, schedule):
    """Step counts from 1. The rule of docs/options.md, --schedule."""
    if warmup > 0 and step <= warmup:
        return lr * step / warmup
    if schedule == "constant":
        return lr
    p = (step - 1 - warmup) / (num_steps - warmup)
    return lr * (1 - p) if schedule == "linear" else lr * (1 + math.cos(math.pi * p)) / 2


def philox(index, stream, seed):
    """The first 64 bits of Philox4x32-10 (Salmon et al. 2011), as base/counter_rng.h."""
    mask = 0xFFFFFFFF
    x = [index & mask, index >> 32, stream & mask, stream >> 32]
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k0, b & mask, (a >> 32) ^ x[3] ^ k1, a & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return x[1] << 32 | x[0]


def epoch_order(num_rows, seed=0, epoch=0):
    """The order in which an epoch visits the rows: Fisher and Yates with counted random numbers (docs/formats.md)."""
    order = list(range(num_rows))
    for i in range(num_rows - 1, 0, -1):
        j = philox(i, epoch, seed) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def epoch_batches(tokens, flags, rows_per_step):
    """The rows of each step of the first epoch under --seed=0."""
    rows = list(zip(tokens.tolist(), flags.tolist()))
    order = epoch_order(len(rows))
    return [[rows[i] for i in order[s : s + rows_per_step]] for s in range(0, len(rows), rows_per_step)]


def decay_groups(model, weight_decay):
    """As transformers.Trainer: norms and biases are not decayed."""
    decayed, undecayed = [], []
    for parameter in model.parameters():
        (decayed if parameter.dim() > 1 else undecayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]


def segments_of(row_flags):
    """(begin, end) of each segment of a row; padding belongs to none."""
    begin, segments = None, []
    for i, flags in enumerate(row_flags):
        if flags & 4 or flags & 2:
            if begin is not None:
                segments.append((begin, i))
            begin = None
        if not flags & 4 and flags & 2:
            begin = i
    if begin is not None:
        segments.append((begin, len(row_flags)))
    return segments


def segments_by_length(rows):
    """The (tokens, trained) of all segments of `rows` that train anything, those of one length together."""
    by_length = {}
    for tokens, flags in rows:
        for begin, end in segments_of(flags):
            trained = [bool(f & 1) for f in flags[begin + 1 : end]]
            if any(trained):
                by_length.setdefault(end - begin, []).append((tokens[begin:end], trained))
    return by_length.values()


def loss_sum(model, segments):
    """Sum of -log p(target) over the trained tokens of segments of one length. Each is a sequence of its own, which is what
    packing must be equal to."""
    tokens = torch.tensor([tokens for tokens, _ in segments], dtype=torch.long)
    trained = torch.tensor([trained for _, trained in segments])
    logits = model(input_ids=tokens).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses[trained.flatten()].sum()


def cpu_multiplies_bf16():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return "avx512_bf16" in file.read()


@contextlib.contextmanager
def autocast(model):
    """torch.autocast to bf16. Where the CPU has no bf16 products it takes minutes a step for all but toy models, which then
    get an emulation: linear layers and attention compute in fp32 from operands rounded to bf16, and their results are
    rounded. Sums inside are then exact to fp32, where PyTorch's kernels may round between."""
    small = sum(parameter.numel() for parameter in model.parameters()) < 10_000_000
    if cpu_multiplies_bf16() or small:
        with torch.autocast("cpu", torch.bfloat16):
            yield
        return
    functional = torch.nn.functional
    originals = {name: getattr(functional, name) for name in ("linear", "scaled_dot_product_attention")}

    def rounded(x):
        return x.bfloat16().float() if torch.is_tensor(x) and x.is_floating_point() else x

    def emulated(function):
        def call(*arguments, **named):
            return rounded(function(*map(rounded, arguments), **{key: rounded(value) for key, value in named.items()}))

        return call

    for name, function in originals.items():
        setattr(functional, name, emulated(function))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(functional, name, function)


def load(model_directory, attention="eager"):
    model = AutoModelForCausalLM.from_pretrained(
        model_directory, dtype=torch.float32, attn_implementation=attention
    )
    model.eval()  # forebay has no dropout
    return model


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023."""

    def __init__(self, params, lr, betas, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = (beta1 * m + (1 - beta1) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def own_groups(model, settings):
    """--param_groups and --optimizer_args=decay_all: one group for each parameter."""
    groups = []
    for name, parameter in model.named_parameters():
        own = next((group for group in settings["param_groups"] if fnmatch.fnmatchcase(name, group["match"])), {})
        decays = parameter.dim() > 1 or settings["decay_all"]
        groups.append({"params": [parameter], "scale": own.get("lr", settings["lr"]) / settings["lr"],
                       "weight_decay": own.get("weight_decay", settings["weight_decay"] if decays else 0.0)})
    return groups


def make_optimizer(name, model, settings):
    groups = own_groups(model, settings) if "param_groups" in settings else decay_groups(model, settings["weight_decay"])
    lr = settings["lr"]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=settings["momentum"], nesterov=settings["nesterov"])
    if name == "lion":
        return Lion(groups, lr=lr, betas=settings["betas"])
    if name == "adagrad":
        return torch.optim.Adagrad(groups, lr=lr, eps=settings["eps"])
    adam = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[name]
    return adam(groups, lr=lr, betas=settings["betas"], eps=settings["eps"])


@torch.no_grad()
def put(model, values):
    for parameter, value in zip(model.parameters(), values):
        parameter.copy_(value)


def values_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def train(model, batches, settings, bf16=False, fp16_scale=None, optimizer="adamw", delay_update_from=None, commit_every=1):
    """`batches[s]`: the (tokens, flags) rows of step s. `fp16_scale`: autocast to fp16 with this fixed loss scale.
    `delay_update_from`: from this step on loss and gradients are of the weights without the update of the step before, if
    that is none of the steps that are committed: one in `commit_every`.
    Returns one dict per step: loss, grad_norm, lr."""
    in_fp16 = torch.autocast("cpu", torch.float16, enabled=fp16_scale is not None)
    optimizer = make_optimizer(optimizer, model, settings)
    history = []
    for step, rows in enumerate(batches, start=1):
        lr = learning_rate(
            step, len(batches), settings["lr"], settings["warmup"], settings["schedule"]
        )
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("scale", 1)
        optimizer.zero_grad(set_to_none=True)
        trained = sum(
            sum(bool(f & 1) for f in flags[begin + 1 : end])
            for _, flags in rows
            for begin, end in segments_of(flags)
        )
        loss = 0.0
        newest = values_of(model)
        if delay_update_from is not None and step >= delay_update_from and (step - 1) % commit_every:
            put(model, before)
        for segments in segments_by_length(rows):
            with autocast(model) if bf16 else in_fp16:
                segments_loss = loss_sum(model, segments)
            (segments_loss * (fp16_scale or 1) / trained).backward()
            loss += float(segments_loss.detach()) / trained
        for parameter in model.parameters():
            if fp16_scale is not None:
                parameter.grad /= fp16_scale
        norm = torch.nn.utils.clip_grad_norm_(
            model.parameters(), settings["clip"] if settings["clip"] > 0 else float("inf")
        )
        put(model, newest)
        before = newest
        optimizer.step()
        history.append({"step": step, "loss": loss, "grad_norm": float(norm), "lr": lr})
    return history


def relative_l2(model, other):
    """Relative L2 distance of all parameters together."""
    difference, norm = 0.0, 0.0
    theirs = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        a, b = parameter.detach().double(), theirs[name].detach().double()
        difference += float(((a - b) ** 2).sum())
        norm += float((b**2).sum())
    return math.sqrt(difference / norm)
