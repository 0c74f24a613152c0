#!/usr/bin/env python3
"""Times a training step of transformers' own Llama, and prints {"transformers", "torch", "steps": [{"name", "step_s", ...}]}.

  transformers_step.py cuda|cpu CONFIG RUN    RUN: a JSON object with batch, seq, accum and steps

What people have who do nothing about it: fp32 parameters under autocast to bf16, scaled_dot_product_attention, a fused AdamW,
and clipping. With and without gradient checkpointing; a mode that does not fit has an "error" in place of its times.
"""

import json
import statistics
import sys
import time

import torch
import transformers


def train(model, run, device):
    """Seconds of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(run["steps"]):
        tokens = torch.randint(256, (run["accum"], run["batch"], run["seq"]), generator=generator).to(device)
        begin = time.perf_counter()
        for batch in tokens:
            with torch.autocast(device, torch.bfloat16):
                loss = model(input_ids=batch, labels=batch).loss / run["accum"]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for all of it
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds


def main():
    """The command line."""
    device, run = sys.argv[1], json.loads(sys.argv[3])
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} sees no GPU")
    with open(sys.argv[2], encoding="utf-8") as file:
        config = transformers.LlamaConfig(**{key: value for key, value in json.load(file).items() if key != "torch_dtype"})
    steps = []
    for name, checkpoints in (("all activations", False), ("with checkpointing", True)):
        try:
            with torch.device(device):
                model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
            model.config.use_cache = False
            if checkpoints:
                model.gradient_checkpointing_enable()
            step_s = statistics.median(train(model.train(), run, device)[1:])
            tokens = run["batch"] * run["seq"] * run["accum"]
            steps.append({"name": name, "step_s": step_s, "tokens_per_s": tokens / step_s})
        except torch.OutOfMemoryError as error:
            steps.append({"name": name, "step_s": None, "tokens_per_s": None, "error": str(error)})
        model = None
        if device == "cuda":
            torch.cuda.empty_cache()
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "steps": steps}))


if __name__ == "__main__":
    main()
