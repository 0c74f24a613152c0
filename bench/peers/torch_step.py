"""One peer run for bench/compare_step: PyTorch bf16 with everything in RAM, or DeepSpeed ZeRO-3 on NVMe.

Prints one JSON object: {"who", "step_s": [...], "tokens_per_s", "rss_bytes"}. Reads the peak RSS of its own process.
"""

import argparse
import json
import os
import resource
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig


def make_model(arguments, dtype):
    config = LlamaConfig.from_pretrained(arguments.config)
    config.use_cache = False
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def run_torch(arguments):
    model = make_model(arguments, torch.bfloat16)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(tokens):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def run_deepspeed(arguments):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for name, value in dict(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517"
    ).items():
        os.environ.setdefault(name, value)
    import deepspeed

    nvme = {"device": "nvme", "nvme_path": arguments.nvme, "pin_memory": False}
    config = {
        "train_micro_batch_size_per_gpu": arguments.batch,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 30_000_000,
            "offload_optimizer": dict(
                nvme, pipeline_read=True, pipeline_write=True, buffer_count=12
            ),
            "offload_param": dict(nvme, buffer_count=16, buffer_size=35_000_000),
        },
        "aio": {"block_size": 1048576, "queue_depth": 32, "intra_op_parallelism": 1},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=make_model(arguments, torch.bfloat16), config=config
    )

    def step(tokens):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=["torch", "deepspeed"])
    parser.add_argument("--config", required=True, help="folder with a config.json")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nvme", default="")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    step = (run_torch if arguments.who == "torch" else run_deepspeed)(arguments)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(arguments.steps + 1):  # the first one warms up and is not counted
        tokens = torch.randint(0, 49152, (arguments.batch, arguments.seq), generator=generator)
        start = time.monotonic()
        step(tokens)
        seconds.append(time.monotonic() - start)
    median = sorted(seconds[1:])[len(seconds[1:]) // 2]
    json.dump(
        {
            "who": arguments.who,
            "step_s": seconds[1:],
            "tokens_per_s": arguments.batch * arguments.seq / median,
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
