"""One rank of a training run of PyTorch DDP or DeepSpeed ZeRO over gloo, for test_ranks_beside_torch.py.

  torch_ranks.py WHO MODEL ROWS SETTINGS   WHO: of ddp, zero1, zero2 and zero3 those that are to train, one after another: a,b.
                                           ROWS: an .npz file with tokens and flags, all rows of which are in every step.
                                           SETTINGS: JSON.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which rank it is. The first prints for each of WHO a list of {"loss",
"grad_norm"}, as JSON.
"""

import json
import os
import sys

import numpy as np
import reference
import torch


class StepLoss(torch.nn.Module):
    """The loss of rows: as the average over ranks is taken, that times their number."""

    def __init__(self, model, num_trained, num_ranks):
        super().__init__()
        self.model = model
        self.scale = num_ranks / num_trained

    def forward(self, rows):
        return self.scale * sum(reference.loss_sum(self.model, segments) for segments in reference.segments_by_length(rows))


def run_ddp(module, optimizer, settings):
    parallel = torch.nn.parallel.DistributedDataParallel(module)

    def step(rows):
        optimizer.zero_grad(set_to_none=True)
        loss = parallel(rows)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), settings["clip"])
        optimizer.step()
        return loss, norm

    return step


def run_deepspeed(module, optimizer, settings, stage):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": settings["clip"], "zero_optimization": zero,
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    engine, _, _, _ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)

    def step(rows):
        loss = engine(rows)
        engine.backward(loss)
        engine.step()
        return loss, engine.get_global_grad_norm()

    return step


def train(who, model_directory, rows, settings):
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    num_trained = sum(sum(map(sum, (trained for _, trained in segments))) for segments in reference.segments_by_length(rows))
    model = reference.load(model_directory)
    optimizer = reference.make_optimizer("adamw", model, settings)
    module = StepLoss(model, num_trained, num_ranks)
    step = run_ddp(module, optimizer, settings) if who == "ddp" else run_deepspeed(module, optimizer, settings, int(who[-1]))
    history = []
    for number in range(1, settings["steps"] + 1):
        for group in optimizer.param_groups:
            group["lr"] = reference.learning_rate(number, settings["steps"], settings["lr"], settings["warmup"], "cosine")
        loss, norm = step(rows[rank::num_ranks])
        loss = loss.detach() / num_ranks
        torch.distributed.all_reduce(loss)
        history.append({"loss": float(loss), "grad_norm": float(norm)})
    return history


def main():
    peers, model_directory, rows, settings = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    arrays = np.load(rows)
    rows = list(zip(arrays["tokens"].tolist(), arrays["flags"].tolist()))
    histories = {who: train(who, model_directory, rows, json.loads(settings)) for who in peers.split(",")}
    if torch.distributed.get_rank() == 0:
        print(json.dumps(histories))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
