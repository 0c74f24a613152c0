#!/usr/bin/env python3
"""Times PyTorch's operators at the shapes of cuda_ops, by its names for them, and prints {"torch": version, "ms": {name: ms}}.

  torch_ops.py cuda|cpu SHAPE    SHAPE: the JSON object "shape" of cuda_ops

Medians, bf16. Not compiled: what people have who do nothing about it; attention is scaled_dot_product_attention, by the backend
that PyTorch chooses and by each that it has, the update a fused AdamW on fp32 masters and moments. On the CPU each runs once, to
see that it does.
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEATS = 15
LEAST_SECONDS = 5e-3


class Clock:
    """Median times of what a device does."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"

    def once(self, run, times):
        """Seconds of one of `times` calls."""
        if not self.on_gpu:
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / times

    def milliseconds(self, run):
        """The median."""
        if not self.on_gpu:
            return self.once(run, 1) * 1e3
        self.once(run, 1)
        times = max(1, min(1000, round(LEAST_SECONDS / self.once(run, 3))))
        return statistics.median(self.once(run, times) for _ in range(REPEATS)) * 1e3


class Operators:
    """Closures by name."""

    def __init__(self, device, shape):
        self.device, self.shape, self.runs = device, shape, {}

    def random(self, *sizes, dtype=torch.bfloat16, grad=False):
        """From -1 to 1."""
        return (torch.rand(*sizes, device=self.device) * 2 - 1).to(dtype).requires_grad_(grad)

    def pair(self, name, function, inputs, dy):
        """A forward pass, and the backward pass of the same graph alone."""
        def forward():
            with torch.no_grad():
                function(*inputs)

        out = function(*inputs)
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        self.runs[f"{name} forward"] = forward
        self.runs[f"{name} backward"] = lambda: torch.autograd.grad(out, wanted, dy, retain_graph=True)

    def add_linear(self, name, inner, outer):
        """y = x W^T; gradients of weights are summed in fp32, as ours are."""
        tokens = self.shape["tokens"]
        x, weight, dy = self.random(tokens, inner), self.random(outer, inner), self.random(tokens, outer)
        total = torch.zeros(outer, inner, device=self.device)
        self.runs[f"{name} forward"] = lambda: F.linear(x, weight)
        self.runs[f"{name} backward of the input"] = lambda: dy @ weight
        self.runs[f"{name} backward of the weight"] = lambda: total.add_(dy.t() @ x)

    def add_rows(self):
        """Norms and activations."""
        tokens, hidden, wide = (self.shape[key] for key in ("tokens", "hidden", "intermediate"))
        x, dy = self.random(tokens, hidden, grad=True), self.random(tokens, hidden)
        weight, bias = self.random(hidden, grad=True), self.random(hidden, grad=True)
        self.pair("rms_norm", lambda x, w: F.rms_norm(x, (hidden,), w, 1e-5), (x, weight), dy)
        self.pair("layer_norm", lambda x, w, b: F.layer_norm(x, (hidden,), w, b, 1e-5), (x, weight, bias), dy)
        gate, up, dout = self.random(tokens, wide, grad=True), self.random(tokens, wide, grad=True), self.random(tokens, wide)
        self.pair("swiglu", lambda gate, up: F.silu(gate) * up, (gate, up), dout)
        self.pair("gelu", lambda gate: F.gelu(gate, approximate="tanh"), (gate,), dout)

    def add_attention(self):
        """Causal, sequence by sequence; RoPE as transformers has it."""
        shape = self.shape
        size = (shape["tokens"] // shape["seq"], shape["heads"], shape["seq"], shape["head_dim"])
        of_keys = (size[0], shape["kv_heads"], *size[2:])
        q, k, v = self.random(*size, grad=True), self.random(*of_keys, grad=True), self.random(*of_keys, grad=True)
        grouped = {} if size[1] == of_keys[1] else {"enable_gqa": True}
        dy = self.random(*size)

        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)

        self.pair("attention", attend, (q, k, v), dy)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):

            def attend_by(q, k, v, backend=backend):
                with sdpa_kernel(backend):
                    return attend(q, k, v)

            try:
                self.pair(f"attention [{backend.name.lower()}]", attend_by, (q, k, v), dy)
            except RuntimeError:  # none on this device, or none of this shape
                continue
        cos, sin = self.random(*size[2:]), self.random(*size[2:])

        def rope(x):
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        self.pair("rope", rope, (q,), self.random(*size))

    def add_vocabulary(self):
        """Embedding and loss."""
        tokens, hidden, vocab = (self.shape[key] for key in ("tokens", "hidden", "vocab"))
        ids, weight = torch.randint(vocab, (tokens,), device=self.device), self.random(vocab, hidden, grad=True)
        x = self.random(tokens, hidden, grad=True)
        self.pair("embedding", lambda weight: F.embedding(ids, weight), (weight,), self.random(tokens, hidden))

        def loss():
            return F.cross_entropy(F.linear(x, weight).float(), ids, reduction="sum")

        def forward():
            with torch.no_grad():
                loss()

        self.runs["cross_entropy forward"] = forward
        self.runs["cross_entropy forward and backward"] = lambda: torch.autograd.grad(loss(), (x, weight))

    def add_update(self):
        """AdamW on an fp32 master, behind which the bf16 weight is written."""
        master = self.random(self.shape["update_elems"], dtype=torch.float32, grad=True)
        master.grad = torch.full_like(master, 1e-3)
        weight = master.detach().bfloat16()
        optimizer = torch.optim.AdamW([master], lr=1e-4, fused=True)

        def update():
            optimizer.step()
            weight.copy_(master.detach())

        self.runs["adamw update"] = update


def main():
    """The command line."""
    device, shape = sys.argv[1], json.loads(sys.argv[2])
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} sees no GPU")
    clock, milliseconds = Clock(device), {}
    projections = (("linear q", shape["hidden"], shape["heads"] * shape["head_dim"]),
                   ("linear up", shape["hidden"], shape["intermediate"]),
                   ("linear down", shape["intermediate"], shape["hidden"]))
    parts = [lambda made, part=part: made.add_linear(*part) for part in projections]
    parts += [Operators.add_rows, Operators.add_attention, Operators.add_vocabulary, Operators.add_update]
    for add in parts:  # one after another, so that the tensors of one part are gone before the next
        made = Operators(device, shape)
        add(made)
        milliseconds.update({name: clock.milliseconds(run) for name, run in made.runs.items()})
    print(json.dumps({"torch": torch.__version__, "ms": milliseconds}))


if __name__ == "__main__":
    main()
