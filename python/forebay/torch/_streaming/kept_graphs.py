"""Tensors that a module keeps from one step to the next together with the graph that made them, and with it weights."""

from __future__ import annotations

from typing import Any

import torch

_OWN = {"_parameters", "_modules"}  # of torch.nn.Module


def detach_graphs(root: torch.nn.Module) -> list[str]:
    """Detaches them: the backward pass of their graph is over, or had it computed again. Returns the names
    of the attributes."""
    names: list[str] = []
    for name, part in root.named_modules():
        attributes: dict[str, Any]
        for attributes in (vars(part), part._buffers):
            for key in [key for key in attributes if key not in _OWN and _has_graph(attributes[key])]:
                attributes[key] = _detached(attributes[key])
                names.append(f"{name}.{key}" if name else key)
    return names


def _has_graph(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not isinstance(value, torch.nn.Parameter) and value.grad_fn is not None
    if isinstance(value, (list, tuple)):
        return any(map(_has_graph, value))
    return type(value) is dict and any(map(_has_graph, value.values()))


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach() if _has_graph(value) else value
    if not _has_graph(value):
        return value
    if isinstance(value, dict):
        return {key: _detached(each) for key, each in value.items()}
    values = [_detached(each) for each in value]
    return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
