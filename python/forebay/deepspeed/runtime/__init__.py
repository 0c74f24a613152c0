"""deepspeed.runtime: what scripts import from there."""

from forebay.deepspeed.runtime import utils

__all__ = ["utils"]
