"""deepspeed.ops: the optimizers that scripts import from there."""

from forebay.deepspeed.ops import adagrad, adam, lion

__all__ = ["adagrad", "adam", "lion"]
