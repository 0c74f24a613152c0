#!/usr/bin/env python3
"""A language model on paragraphs: a small random GPT-2, in a script that is written for DeepSpeed, but for one import.

  examples/gpt2_paragraphs.py --stage 1                 weights and state in RAM
  examples/gpt2_paragraphs.py --stage 3 --offload nvme  both on the disk of --nvme_path
  examples/gpt2_paragraphs.py --deepspeed_config FILE   a configuration of yours

fp16 with a dynamic loss scale from 2^32: steps that overflow are skipped until it has come down. Prints losses and
scales; with --baseline beside them the losses of PyTorch in fp32, which skips the same steps.
"""

import argparse

import forebay.deepspeed as deepspeed
import torch
from example_data import batches_of_bytes
from transformers import GPT2Config, GPT2LMHeadModel


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, default=1, choices=[0, 1, 2, 3])
    parser.add_argument("--offload", default="none", choices=["none", "cpu", "nvme"])
    parser.add_argument("--nvme_path", default="nvme", help="a folder on the disk to use")
    parser.add_argument("--precision", default="fp16", choices=["fp16", "bf16", "fp32"])
    parser.add_argument("--scale_power", type=int, default=32)
    parser.add_argument("--hysteresis", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--baseline", action="store_true", help="train with PyTorch too")
    parser.add_argument("--quick", action="store_true", help="40 batches and a smaller model")
    args = deepspeed.add_config_arguments(parser).parse_args(argv)
    args.width, args.length = (64, 32) if args.quick else (128, 64)
    args.steps = min(args.steps, 40 // args.accumulation) if args.quick else args.steps
    return args


def config_of(args):
    if args.deepspeed_config:
        return None  # the engine reads it from args
    config = {
        "train_batch_size": 16 * args.accumulation,
        "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": args.clip,
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "total_num_steps": 300,
                "warmup_min_lr": 0,
                "warmup_max_lr": args.lr,
                "warmup_num_steps": 30,
            },
        },
        "fp16": {
            "enabled": args.precision == "fp16",
            "initial_scale_power": args.scale_power,
            "loss_scale_window": 1000,
            "hysteresis": args.hysteresis,
            "min_loss_scale": 1,
        },
        "bf16": {"enabled": args.precision == "bf16"},
        "zero_optimization": {"stage": args.stage},
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        "steps_per_print": 9999999999,
    }
    if args.offload != "none":
        place = {"device": args.offload, "pin_memory": True}
        if args.offload == "nvme":
            place["nvme_path"] = args.nvme_path
        config["zero_optimization"]["offload_optimizer"] = place
        if args.stage == 3:
            config["zero_optimization"]["offload_param"] = place
    return config


def make_model(args):
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=256, n_positions=args.length, n_embd=args.width, n_layer=4, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def train(args, batches):
    """Returns the losses of the micro-batches; of each step whether it was skipped, the scale after it, the rate."""
    model = make_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    engine, optimizer, _, _ = deepspeed.initialize(
        args=args, model=model, optimizer=optimizer, model_parameters=model.parameters(), config=config_of(args))
    losses, steps = [], []
    for tokens in batches:
        rate = optimizer.param_groups[0]["lr"]
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        is_boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        losses.append(loss.item())
        if is_boundary:
            steps.append((not engine.was_step_applied(), optimizer.cur_scale, rate))
    engine.destroy()
    return losses, steps


def train_with_pytorch(args, batches, steps):
    """The same in fp32, with the rates of `steps`, without those that were skipped."""
    model = make_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    losses = []
    for number, tokens in enumerate(batches):
        loss = model(input_ids=tokens, labels=tokens).loss
        (loss / args.accumulation).backward()
        losses.append(loss.item())
        if (number + 1) % args.accumulation == 0:
            skipped, _, optimizer.param_groups[0]["lr"] = steps[number // args.accumulation]
            if args.clip > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            if not skipped:
                optimizer.step()
            optimizer.zero_grad()
    return losses


def main(argv=None):
    args = parse(argv)
    batches = batches_of_bytes(args.steps * args.accumulation, 16, args.length)
    losses, steps = train(args, batches)
    plain = train_with_pytorch(args, batches, steps) if args.baseline else None
    for step in sorted({*range(0, args.steps, 10), args.steps - 1}):
        at = step * args.accumulation
        beside = f"   PyTorch {plain[at]:.4f}" if plain else ""
        print(f"step {step:4}   loss {losses[at]:.4f}{beside}   scale {steps[step][1]:.0f}")
    print(f"{sum(skipped for skipped, _, _ in steps)} of {args.steps} steps overflowed and were skipped")
    return {"losses": losses, "plain_losses": plain, "steps": steps}


if __name__ == "__main__":
    main()
