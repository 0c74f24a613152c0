"""A training run of ranks that goes on wherever one of them was killed. test_torch_ranks_crash.py starts it."""

import os
import time

import forebay
import forebay.torch
import torch
import torch.utils.data
from crash_run import Average, Model, exact, finish, write
from forked_ranks import LATE_S, digest_of
from torch.nn import functional as F

EPOCHS = 2
SAMPLES = 48
STEPS = 24


class Held(torch.utils.data.Dataset):
    """Its workers write their number, and are busy from then on."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 4

    def __getitem__(self, _):
        (self.folder / str(os.getpid())).touch()
        time.sleep(1000)


def meet_beside_workers(folder):
    """Meets the other ranks again and again while the rank's workers are busy."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    own = folder / f"rank-{ranks.rank}"
    own.mkdir()
    loader = torch.utils.data.DataLoader(Held(own), num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)  # which starts them
    while batches is not None:
        ranks.barrier()


def run(folder, **options):
    """Writes a line for each step of this rank; at the end, the weights."""
    ranks = forebay.Ranks(timeout_s=LATE_S)
    torch.manual_seed(5 + ranks.rank)  # ranks draw other numbers, and the weights of the first count
    engine = forebay.torch.stream(Model(), nvme=folder / "store", lr=1e-2, commit_every=1, resume=True, ranks=ranks,
                                  **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(engine.optimizer, 2e-2, total_steps=STEPS + 1)
    average = Average()
    loader = forebay.torch.ResumableLoader(torch.arange(SAMPLES), 2, shuffle=True, seed=3, ranks=ranks)
    engine.track(scheduler=scheduler, average=average, loader=loader)
    own = folder / f"rank-{ranks.rank}"
    own.mkdir(exist_ok=True)
    with open(own / "losses", "a") as file:
        for epoch in range(loader.epoch, EPOCHS):
            for samples in loader:
                tokens = samples.clone() % 40
                loss = F.cross_entropy(engine(tokens), tokens)
                engine.backward(loss)
                engine.step()
                scheduler.step()
                average.value = 0.9 * average.value + 0.1 * loss.item()
                rate = engine.optimizer.param_groups[0]["lr"]
                write(file, [engine.steps, epoch, samples.tolist(), exact(loss.item()), exact(rate),
                             exact(float(average.value))])
    state = engine.state_dict()
    # Buffers are those of a rank's own data.
    trained = {name: state[name] for name, _ in engine.module.named_parameters()}
    finish(own, state)
    engine.close()
    return digest_of(trained)
