"""The programs of each rank of test_deepspeed_ranks.py."""

import hashlib
import os
import pathlib
import sys

import torch

import forebay
import forebay.deepspeed as deepspeed
from forebay.deepspeed import _checkpoint

os.environ.setdefault("DS_ACCELERATOR", "cpu")

STEPS, SAVED_AT, BATCH, ACCUMULATION, CLIP, LR = 5, 3, 16, 2, 0.5, 1e-3


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, 2 * width)
        self.unused = torch.nn.BatchNorm1d(3)  # its parameters get no gradient
        self.outer = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))


def make_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Sequential(Block(16), Block(16)), torch.nn.Linear(16, 1))


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 1, generator=generator)


def config_of(zero, num_ranks, **more):
    return {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // ACCUMULATION // num_ranks,
            "optimizer": {"type": "AdamW", "params": {"lr": LR}}, "zero_optimization": zero, "gradient_clipping": CLIP,
            **more}


def digest_of(module_state):
    hashed = hashlib.sha256()
    for name, tensor in sorted(module_state.items()):
        hashed.update(name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def initialize(zero, **more):
    deepspeed.init_distributed()
    comm = deepspeed.comm
    # Ranks begin with other weights, and go on with those of the first.
    model = make_model(seed=comm.get_rank())
    return deepspeed.initialize(model=model, config=config_of(zero, comm.get_world_size(), **more))[0]


def sum_by_torch():
    """The rank of torch.distributed, and a sum over its ranks."""
    initialize({"stage": 1})
    # The sizes of a configuration are those of all ranks.
    deepspeed.checkpointing.configure(None, config_of({}, 2, gradient_accumulation_steps=ACCUMULATION))
    value = torch.tensor([float(deepspeed.comm.get_rank() + 1)])
    torch.distributed.all_reduce(value)
    return torch.distributed.get_rank(), value.item(), torch.distributed.get_backend()


def save_under_own_tag(folder, validation):
    engine = initialize({"stage": 1}, checkpoint={"tag_validation": validation})
    run(engine, range(1, 2))
    engine.save_checkpoint(folder, tag=f"tag-{engine.global_rank}")
    return sorted(name for name in os.listdir(folder) if name.startswith("tag-"))


def run(engine, steps, poison=None):
    """poison: (rank, step) whose data make gradients that are not finite."""
    for step in steps:
        inputs, targets = batch_of(step)
        per_rank = BATCH // ACCUMULATION // engine.world_size
        for part in range(ACCUMULATION):
            begin = part * (BATCH // ACCUMULATION) + engine.global_rank * per_rank
            rows = slice(begin, begin + per_rank)
            x = inputs[rows].to(engine.dtype)
            if poison == (engine.global_rank, step):
                x = x * float("inf")
            loss = (engine(x).float() - targets[rows]).square().mean()
            engine.backward(loss)
            engine.step()


def train(zero, folder, **more):
    """Returns the digest at the end, the digest and step of a checkpoint that was loaded, and that at the end again."""
    engine = initialize(zero, **more)
    run(engine, range(SAVED_AT))
    if not engine.scratch:
        share = 1 / engine.world_size if zero["stage"] > 0 else 1
        for parameter, state in engine.optimizer.state.items():
            assert abs(state["exp_avg"].numel() - share * parameter.numel()) < 1
    engine.save_checkpoint(folder, client_state={"said_by": engine.global_rank})
    run(engine, range(SAVED_AT, STEPS))
    weights = engine.module_state_dict()
    end, values = digest_of(weights), {name: value.numpy().copy() for name, value in weights.items()}
    _, client_state = engine.load_checkpoint(folder)
    loaded = engine.global_steps, client_state
    run(engine, range(SAVED_AT, STEPS))
    again = digest_of(engine.module_state_dict())
    assert engine.train_batch_size() == BATCH and engine.gradient_accumulation_steps() == ACCUMULATION
    engine.save_16bit_model(folder, "saved.bin")
    engine.destroy()
    return end, loaded, again, values


def load(zero, folder):
    engine = initialize(zero)
    try:
        engine.load_checkpoint(folder)
    finally:
        engine.destroy()
    return engine.global_steps


def save_without_room(zero, folder, rank_without):
    """Saves where one rank cannot, and then where all can. Returns what the first try raised."""
    engine = initialize(zero)
    run(engine, range(1))
    copy_store, error = _checkpoint.copy_store, None
    if engine.global_rank == rank_without:
        def refuse(*_):
            raise forebay.StorageError("the disk is full")
        _checkpoint.copy_store = refuse
    try:
        engine.save_checkpoint(folder, tag="first")
    except forebay.StorageError as its:
        error = str(its)
    _checkpoint.copy_store = copy_store
    engine.save_checkpoint(folder, tag="second")
    found, _ = engine.load_checkpoint(folder)
    engine.destroy()
    return error, os.path.basename(found)


def overflow(zero, folder):
    """The second rank's gradients are not finite in one step."""
    engine = initialize(zero, fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1})
    run(engine, range(2))
    before = digest_of(engine.module_state_dict())
    run(engine, [2], poison=(1, 2))
    after, scale, skipped = digest_of(engine.module_state_dict()), engine.optimizer.cur_scale, engine.skipped_steps
    run(engine, [3])
    moved = digest_of(engine.module_state_dict())
    engine.destroy()
    return before == after, scale, skipped, moved


def loader(folder):
    """The samples that the loader of initialize() gives."""
    data = [(torch.full((8,), float(number)), torch.zeros(1)) for number in range(50)]
    engine, _, batches, _ = deepspeed.initialize(
        model=make_model(0), training_data=data, config=config_of({"stage": 0}, deepspeed.comm.get_world_size()))
    given = [x[:, 0].tolist() for x, _ in batches]
    engine.destroy()
    return given


def wrong_batch():
    config = {**config_of({"stage": 0}, 1), "train_batch_size": 31}
    deepspeed.initialize(model=make_model(0), config=config)


def trainer(stage, offload, folder):
    """transformers' own, with a DeepSpeed configuration: trains, evaluates, saves; and goes on in the middle."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "deepspeed_tests"))
    import test_deepspeed_trainer as one_process

    folder, num_ranks = pathlib.Path(folder), int(os.environ["WORLD_SIZE"])
    config = one_process.config_of(folder / "nvme", stage, offload)
    sizes = {"per_device_train_batch_size": 4 // num_ranks, "per_device_eval_batch_size": 4 // num_ranks}

    def logs_of(made):
        return {key: one_process.values(made, key) for key in ("loss", "eval_loss", "grad_norm")}

    first = one_process.trainer_of(folder / "out", config, **sizes)
    first.train()
    first.save_model(str(folder / "final"))
    second = one_process.trainer_of(folder / "out", config, **sizes)
    second.train(resume_from_checkpoint=str(folder / "out" / f"checkpoint-{one_process.SAVED_AT}"))
    return logs_of(first), logs_of(second)
