"""The learning rates (and betas) that the schedulers of PyTorch, transformers and DeepSpeed give, update by update.

Run as a program it writes schedule_sequences.json, which the unit tests compare with (lr_schedule_test.cc); the test beside
PyTorch (tests/e2e/pytorch) compares the file with what is installed. DeepSpeed is imported as far as its schedulers alone.
"""

import os
import sys

import peers

FILE = os.path.join(peers.HERE, "schedule_sequences.json")
BETAS = (0.9, 0.999)
NUM_UPDATES = 40

# Name, whose it is, --lr, arguments of --schedule_args.
CASES = [
    ("one_cycle", "torch", 2e-3, {}),
    ("one_cycle", "torch", 2e-3, {"pct_start": 0.25, "anneal_strategy": "linear", "div_factor": 10,
                                     "final_div_factor": 100, "base_momentum": 0.7, "max_momentum": 0.99}),
    ("one_cycle", "torch", 2e-3, {"cycle_momentum": False, "pct_start": 0.01}),
    ("polynomial", "transformers", 2e-3, {"power": 2, "end_lr": 1e-7}),
    ("inverse_sqrt", "transformers", 2e-3, {"timescale": 20}),
    ("inverse_sqrt", "transformers", 2e-3, {}),
    ("WarmupLR", "deepspeed", 2e-3, {}),
    ("WarmupLR", "deepspeed", 2e-3, {"warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3, "warmup_num_steps": 7}),
    ("WarmupLR", "deepspeed", 2e-3, {"warmup_num_steps": 10, "warmup_type": "linear"}),
    ("WarmupLR", "deepspeed", 2e-3, {"warmup_num_steps": 1}),
    ("WarmupDecayLR", "deepspeed", 2e-3, {"total_num_steps": 30, "warmup_num_steps": 10}),
    ("WarmupDecayLR", "deepspeed", 2e-3, {"total_num_steps": 40, "warmup_min_lr": 1e-6, "warmup_max_lr": 5e-4,
                                             "warmup_num_steps": 5, "warmup_type": "linear"}),
    ("WarmupCosineLR", "deepspeed", 2e-3, {"total_num_steps": 40, "warmup_num_steps": 8}),
    ("WarmupCosineLR", "deepspeed", 2e-3, {"total_num_steps": 25, "warmup_num_steps": 6, "warmup_min_ratio": 0.1,
                                              "cos_min_ratio": 0.05, "warmup_type": "linear"}),
    ("OneCycle", "deepspeed", 2e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10}),
    ("OneCycle", "deepspeed", 2e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 7,
                                        "cycle_second_step_size": 12, "decay_step_size": 4, "decay_lr_rate": 0.5,
                                        "decay_mom_rate": 0.01, "cycle_min_mom": 0.75, "cycle_max_mom": 0.95}),
    ("OneCycle", "deepspeed", 2e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 9,
                                        "cycle_second_step_size": 15, "cycle_first_stair_count": 3,
                                        "cycle_second_stair_count": 5, "cycle_momentum": False}),
    ("OneCycle", "deepspeed", 2e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10,
                                        "cycle_second_step_size": 0}),
    ("LRRangeTest", "deepspeed", 2e-3, {}),
    ("LRRangeTest", "deepspeed", 2e-3, {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 5,
                                           "lr_range_test_step_rate": 3, "lr_range_test_staircase": True}),
]


def optimizer_at(lr):
    import torch
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr, betas=BETAS)


def scheduler_of(name, whose, optimizer, lr, args, deepspeed):
    if whose == "torch":
        import torch
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=NUM_UPDATES, **args)
    if whose == "transformers":
        from transformers import optimization
        if name == "polynomial":
            return optimization.get_polynomial_decay_schedule_with_warmup(
                optimizer, num_warmup_steps=0, num_training_steps=NUM_UPDATES, lr_end=args["end_lr"], power=args["power"])
        return optimization.get_inverse_sqrt_schedule(optimizer, num_warmup_steps=0, timescale=args.get("timescale"))
    return getattr(deepspeed, name)(optimizer, **args)


def sequence(case, deepspeed):
    """[[lr, beta1, beta2] for each update], as the optimizer has them when it makes the update."""
    name, whose, lr, args = case
    optimizer = optimizer_at(lr)
    scheduler = scheduler_of(name, whose, optimizer, lr, args, deepspeed)
    rates = []
    for update in range(NUM_UPDATES):
        group = optimizer.param_groups[0]
        rates.append([float(group["lr"]), *(float(beta) for beta in group["betas"])])
        if update + 1 < NUM_UPDATES:
            optimizer.step()
            scheduler.step()
    return rates


def all_sequences(deepspeed, whose=("torch", "transformers", "deepspeed")):
    return [{"schedule": case[0], "of": case[1], "lr": case[2], "args": case[3],
             "rates": sequence(case, deepspeed)} for case in CASES if case[1] in whose]


if __name__ == "__main__":
    peers.write(FILE, all_sequences(peers.deepspeed_module("runtime/lr_schedules.py", sys.argv[1:])))
