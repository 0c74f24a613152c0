"""PyTorch optimizers whose fp32 masters and moments lie on NVMe or in RAM, for float32, bfloat16 and float16
parameters.

    optimizer = forebay.torch.AdamW(model.parameters(), lr=1e-3, nvme="/mnt/nvme/state")

They are `torch.optim.Optimizer`s with the arguments of torch's own. docs/pytorch.md is their manual.
"""

from forebay.torch._activations import ActivationStore, checkpoint, offload_activations
from forebay.torch._cores import answer_for_the_kernel
from forebay.torch._optimizer import Optimizer
from forebay.torch._optimizers import SGD, Adagrad, Adam, AdamW, Lion
from forebay.torch._run.loader import ResumableLoader
from forebay.torch._stream import Engine, stream

__all__ = ["SGD", "ActivationStore", "Adagrad", "Adam", "AdamW", "Engine", "Lion", "Optimizer", "ResumableLoader",
           "checkpoint", "offload_activations", "stream"]

answer_for_the_kernel()
