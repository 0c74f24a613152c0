"""Times PyTorch's fused AdamW, DeepSpeed's cpu_adam and DeepSpeed's whole optimizer phase; prints ns a parameter as JSON.
Run by bench/optimizer."""

import argparse
import contextlib
import io
import json
import os
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch  # noqa: E402

NUM_ELEMS = 16 << 20


def ns_per_param(function, seconds):
    """The mean of as many calls as take `seconds`, after one that warms up."""
    function()
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        function()
        calls += 1
    return (time.perf_counter() - begin) / calls / NUM_ELEMS * 1e9


def torch_fused():
    parameter = torch.nn.Parameter(torch.full((NUM_ELEMS,), 0.01))
    parameter.grad = torch.full((NUM_ELEMS,), 1e-3)
    optimizer = torch.optim.AdamW([parameter], lr=1e-4, weight_decay=0.01, fused=True)
    return optimizer.step


def cpu_adam():
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    parameter = torch.nn.Parameter(torch.full((NUM_ELEMS,), 0.01))
    parameter.grad = torch.full((NUM_ELEMS,), 1e-3)
    optimizer = DeepSpeedCPUAdam([parameter], lr=1e-4, weight_decay=0.01, adamw_mode=True)
    return optimizer.step


def deepspeed_phase():
    """What stage 3 does with one sub-group whose optimizer is on the CPU, gradient clipping on."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    weights = torch.full((NUM_ELEMS,), 0.01, dtype=torch.bfloat16)
    gradients = torch.full((NUM_ELEMS,), 1e-3, dtype=torch.bfloat16)
    master = torch.nn.Parameter(weights.float())
    fp32_gradients = torch.empty(NUM_ELEMS)
    optimizer = DeepSpeedCPUAdam([master], lr=1e-4, weight_decay=0.01, adamw_mode=True)

    def phase():
        fp32_gradients.copy_(gradients.to(dtype=torch.float32))
        norm = fp32_gradients.norm(2)
        if torch.isinf(norm) or torch.isnan(norm):
            raise ArithmeticError
        master.grad = fp32_gradients
        clip = ((norm / 1.0) + 1e-6) / 1.0
        fp32_gradients.mul_(1.0 / torch.clamp(clip, min=1.0))
        optimizer.step()
        master.grad = None
        weights.data.copy_(master.data)

    return phase


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    times = {"torch_fused": ns_per_param(torch_fused(), arguments.seconds)}
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            import deepspeed  # noqa: F401
        except ImportError:
            pass
        else:
            for contender in (cpu_adam, deepspeed_phase):
                times[contender.__name__] = ns_per_param(contender(), arguments.seconds)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
