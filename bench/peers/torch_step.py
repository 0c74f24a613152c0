"""One peer run for bench/compare_step and bench/ranks: PyTorch with everything in RAM, or DeepSpeed ZeRO-3 on NVMe
(deepspeed) or in RAM, there with as many ranks as RANK and WORLD_SIZE say (deepspeed_in_ram).

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


def run_torch(arguments, dtype):
    model = make_model(arguments, dtype)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(tokens):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def run_deepspeed(arguments, on_nvme):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for name, value in dict(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517"
    ).items():
        os.environ.setdefault(name, value)
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": arguments.batch,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {"stage": 3},
        "aio": {"block_size": 1048576, "queue_depth": 32, "intra_op_parallelism": 1},
    }
    if on_nvme:
        nvme = {"device": "nvme", "nvme_path": arguments.nvme, "pin_memory": False}
        config["zero_optimization"].update(
            sub_group_size=30_000_000,
            offload_optimizer=dict(nvme, pipeline_read=True, pipeline_write=True, buffer_count=12),
            offload_param=dict(nvme, buffer_count=16, buffer_size=35_000_000),
        )
    else:
        # Its own Adam on a CPU is the one that offloads.
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
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
    parser.add_argument("who", choices=["torch_bf16", "torch_fp32", "deepspeed", "deepspeed_in_ram"])
    parser.add_argument("--config", required=True, help="folder with a config.json")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nvme", default="")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    if arguments.who.startswith("deepspeed"):
        step = run_deepspeed(arguments, on_nvme=arguments.who == "deepspeed")
    else:
        step = run_torch(arguments, torch.bfloat16 if arguments.who == "torch_bf16" else torch.float32)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    # The first step warms up and is not counted, unless it is the only one that there is time for.
    warmup_steps = 1 if arguments.steps > 1 else 0
    for _ in range(arguments.steps + warmup_steps):
        tokens = torch.randint(0, 49152, (arguments.batch, arguments.seq), generator=generator)
        start = time.monotonic()
        step(tokens)
        seconds.append(time.monotonic() - start)
    seconds = seconds[warmup_steps:]
    median = sorted(seconds)[len(seconds) // 2]
    json.dump(
        {
            "who": arguments.who,
            "step_s": seconds,
            "tokens_per_s": arguments.batch * arguments.seq / median,
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
