"""Adapters of a streamed PEFT model: they are saved as PEFT saves them, without the weights of the model below."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

import torch

from forebay.torch._run.state import persistent_buffers


def has_adapters(module: torch.nn.Module) -> bool:
    """Whether PEFT made the module."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def names_in(module: torch.nn.Module, adapters: Iterable[str] | None) -> list[str]:
    """The parameters and buffers that PEFT saves of these adapters; None: of all of them. It is asked with tensors that
    have no elements."""
    from peft import get_peft_model_state_dict
    model: Any = module
    named = itertools.chain(module.named_parameters(remove_duplicate=False), persistent_buffers(module).items())
    asked = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    name_of = {id(tensor): name for name, tensor in asked.items()}
    picked = [tensor for adapter in adapters or model.peft_config
              for tensor in get_peft_model_state_dict(model, state_dict=dict(asked), adapter_name=adapter).values()]
    if all(id(tensor) in name_of for tensor in picked):
        return list(dict.fromkeys(name_of[id(tensor)] for tensor in picked))
    # PEFT has made other tensors of some: all that it trains, then.
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


__all__ = ["has_adapters", "names_in"]
