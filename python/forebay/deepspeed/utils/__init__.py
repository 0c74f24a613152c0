"""deepspeed.utils: what scripts import from there."""

from forebay.deepspeed.runtime.dataloader import RepeatingLoader
from forebay.deepspeed.utils import logging
from forebay.deepspeed.utils.logging import log_dist, logger

__all__ = ["RepeatingLoader", "log_dist", "logger", "logging"]
