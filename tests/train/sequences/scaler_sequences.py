"""The loss scales that DeepSpeed's two scalers and PyTorch's GradScaler give after sequences of overflows.

Run as a program (with the folder of the DeepSpeed package, where it is not installed) it writes scaler_sequences.json, which the
unit tests compare with (loss_scaler_test.cc); the test beside PyTorch compares the file with what is installed.
"""

import ast
import os
import random
import sys
import types

import peers

FILE = os.path.join(peers.HERE, "scaler_sequences.json")

# rules, initial_scale_power, window, hysteresis, consecutive_hysteresis, min_scale, share of overflows
SETTINGS = [
    ("zero", 16, 5, 2, False, 1.0, 0.2),
    ("zero", 16, 5, 2, True, 1.0, 0.2),
    ("zero", 8, 3, 1, False, 4.0, 0.3),
    ("zero", 10, 1, 4, False, 0.25, 0.4),
    ("zero", 4, 7, 3, True, 1.0, 0.5),
    ("zero", 3, 2, 2, False, 1.0, 0.9),
    ("stage0", 15, 5, 2, False, 1.0, 0.2),
    ("stage0", 3, 2, 2, False, 0.5, 0.6),
    ("torch", 16, 5, 2, False, 1.0, 0.2),
    ("torch", 120, 2, 2, False, 1.0, 0.05),
    ("torch", 3, 3, 2, False, 1.0, 0.7),
]
NUM_STEPS = 120


def stage0_update(folder):
    """FP16_Optimizer._update_scale as a function, taken out of its class, whose module imports all of DeepSpeed."""
    with open(os.path.join(folder, "runtime", "fp16", "fused_optimizer.py")) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "_update_scale":
            names = {"logger": peers.StandIn("utils").logger}
            exec(compile(ast.Module([node], []), "fused_optimizer.py", "exec"), names)
            return names["_update_scale"]
    raise LookupError("FP16_Optimizer._update_scale is not there any more")


def zero_scaler(setting, deepspeed, folder):
    _, power, window, hysteresis, consecutive, least, _ = setting
    scaler = deepspeed.DynamicLossScaler(2.0**power, window, least, hysteresis, consecutive)
    return scaler.update_scale, lambda: scaler.cur_scale


def stage0_scaler(setting, deepspeed, folder):
    _, power, window, _, _, least, _ = setting
    config = types.SimpleNamespace(dynamic_loss_scale=True, cur_scale=2.0**power, scale_factor=2.0, scale_window=window,
                                   min_loss_scale=least, last_overflow_iter=-1, cur_iter=0)
    optimizer = types.SimpleNamespace(loss_scale_config=config, verbose=False)
    update = stage0_update(folder)
    return lambda overflow: update(optimizer, overflow), lambda: config.cur_scale


def torch_scaler(setting, deepspeed, folder):
    import torch
    _, power, window, _, _, _, _ = setting
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, growth_interval=window)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)

    def update(overflow):
        scaler.scale(parameter.sum())
        parameter.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()

    return update, scaler.get_scale


SCALERS = {"zero": zero_scaler, "stage0": stage0_scaler, "torch": torch_scaler}


def overflows_of(number, share):
    """The same everywhere, so that the sequences can be made again."""
    generator = random.Random(number)
    return [generator.random() < share for _ in range(NUM_STEPS)]


def sequence(number, deepspeed, folder):
    setting = SETTINGS[number]
    update, scale = SCALERS[setting[0]](setting, deepspeed, folder)
    overflows = overflows_of(number, setting[6])
    scales, error_at = [], None
    for step, overflow in enumerate(overflows):
        try:
            update(overflow)
        except Exception as error:
            if "already at minimum" not in str(error):
                raise
            error_at = step
            break
        scales.append(scale())
    return {"rules": setting[0], "initial_scale_power": setting[1], "window": setting[2], "hysteresis": setting[3],
            "consecutive_hysteresis": setting[4], "min_scale": setting[5], "overflows": overflows[:len(scales) + 1],
            "scales": scales, "error_at": error_at}


def all_sequences(deepspeed, folder, rules=("zero", "stage0", "torch")):
    return [sequence(number, deepspeed, folder) for number, setting in enumerate(SETTINGS) if setting[0] in rules]


if __name__ == "__main__":
    module = peers.deepspeed_module("runtime/fp16/loss_scaler.py", sys.argv[1:])
    peers.write(FILE, all_sequences(module, peers.deepspeed_folder(sys.argv[1:])))
