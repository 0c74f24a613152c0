"""The Trainer of transformers over a streamed model. docs/pytorch.md is its manual."""

from forebay.hf._trainer import Trainer

__all__ = ["Trainer"]
