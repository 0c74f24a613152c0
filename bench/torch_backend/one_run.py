"""One process of bench/torch_backend/run: steps of a Llama of transformers in bf16, with random weights and tokens.

  forebay  a module that forebay.torch.stream has moved to --nvme, with AdamW
  torch    everything in RAM, torch.optim.AdamW(fused=True)
  need     what PyTorch itself needs for such a step, whoever keeps weights and state: all blocks are one block, and the
           head is the embedding, so that there are all activations, and weights and gradients of one unit of a kind

Prints one JSON object: {"step_s": [...], "rss_bytes": ...}, where rss_bytes is the peak during the steps, the first
included, not that of making the model.
"""

import argparse
import json
import pathlib
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import workload

SHAPES = {
    "smollm2": {key: value for key, value in workload.CONFIG.items() if key not in ("architectures", "torch_dtype")},
    "llama_1_1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
                   "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": False},
}


def make_model(arguments):
    config = LlamaConfig(**SHAPES[arguments.shape])
    config.use_cache = False
    config.num_hidden_layers = arguments.layers or config.num_hidden_layers
    if arguments.who == "need":
        num_layers, config.num_hidden_layers, config.tie_word_embeddings = config.num_hidden_layers, 1, True
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    if arguments.who == "need":
        model.model.layers = torch.nn.ModuleList([model.model.layers[0]] * num_layers)
        model.config.num_hidden_layers = num_layers
    if arguments.checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def make_step(arguments, model):
    if arguments.who == "forebay":
        import forebay.torch
        engine = forebay.torch.stream(model, nvme=arguments.nvme, ram=arguments.ram, lr=1e-5,
                                      durability="step" if arguments.update_in_backward else arguments.durability,
                                      update_in_backward=arguments.update_in_backward)
        return engine, engine.backward, engine.step
    if arguments.who == "need":
        return model, torch.Tensor.backward, model.zero_grad
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return model, torch.Tensor.backward, step


def forget_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=["forebay", "torch", "need"])
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2")
    parser.add_argument("--layers", type=int, default=0, help="blocks; 0: those of the shape")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nvme", help="a new folder")
    parser.add_argument("--ram", help="of the store; everything on the disk if it is left out")
    parser.add_argument("--durability", default="auto")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--update_in_backward", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    forward, backward, step = make_step(arguments, make_model(arguments))
    forget_peak()
    generator, seconds = torch.Generator().manual_seed(0), []
    for _ in range(arguments.steps):
        tokens = torch.randint(0, 32000, (arguments.batch, arguments.seq), generator=generator)
        begin = time.perf_counter()
        backward(forward(input_ids=tokens, labels=tokens).loss)
        step()
        seconds.append(time.perf_counter() - begin)
    json.dump({"step_s": seconds, "rss_bytes": peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
