"""deepspeed.runtime: what scripts import from there."""

from forebay.deepspeed.runtime import dataloader, utils

__all__ = ["dataloader", "utils"]
