"""Which parameters of a module stream together."""

from __future__ import annotations

from typing import NamedTuple

import torch

from forebay.errors import UsageError
from forebay.torch._tensors import DTYPES


class Unit(NamedTuple):
    """Its parameters, by their names in the whole module. `modules` hold some of them, and lie in no other unit."""

    name: str
    module: torch.nn.Module
    parameters: dict[str, torch.nn.Parameter]
    is_block: bool  # and has those of the modules in it too


def units_of(root: torch.nn.Module) -> list[Unit]:
    """The elements of a ModuleList or Sequential whose elements are of one class, else every module with parameters of
    its own, or of TorchScript, which calls its modules itself. A parameter that several have belongs to the first."""
    units: list[Unit] = []
    seen: set[int] = set()

    def add(name: str, module: torch.nn.Module, recurse: bool) -> None:
        own = {f"{name}.{key}" if name else key: parameter
               for key, parameter in module.named_parameters(recurse=recurse)
               if id(parameter) not in seen and parameter.numel() > 0}
        seen.update(map(id, own.values()))
        if own:
            units.append(Unit(name or "the module", module, own, recurse))

    def walk(name: str, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            add(name, module, recurse=True)
            return
        add(name, module, recurse=False)
        for key, child in module.named_children():
            path = f"{name}.{key}" if name else key
            if _is_list_of_blocks(child):
                for number, block in child.named_children():
                    add(f"{path}.{number}", block, recurse=True)
            else:
                walk(path, child)

    if _is_list_of_blocks(root):
        for number, block in root.named_children():
            add(number, block, recurse=True)
    else:
        walk("", root)
    return units


def containers_of(root: torch.nn.Module, units: list[Unit]) -> list[torch.nn.Module]:
    """The modules that are no unit, nor lie in a block that is one. They may use weights of units themselves."""
    inside = {part for unit in units if unit.is_block for part in unit.module.modules()}
    inside.update(unit.module for unit in units)
    return [module for module in root.modules() if module is not root and module not in inside]


def _is_list_of_blocks(module: torch.nn.Module) -> bool:
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) or len(module) < 2:
        return False
    children = list(module.children())
    # A layer such as Linear is no block: a list of blocks has modules with modules.
    return all(type(child) is type(children[0]) and next(child.children(), None) is not None for child in children)


def check_types(units: list[Unit]) -> None:
    """UsageError: there are no parameters, or they are of several types, or of one that there are no kernels for."""
    parameters = [parameter for unit in units for parameter in unit.parameters.values()]
    if not parameters:
        raise UsageError("forebay: the module has no parameters, so there is nothing to stream.")
    dtypes = sorted({str(parameter.dtype) for parameter in parameters})
    if len(dtypes) > 1 or parameters[0].dtype not in DTYPES:
        raise UsageError(f"forebay: the parameters are {', '.join(dtypes)}. Give all of them one type before: "
                         "model.to(torch.bfloat16), or float32, or float16.")
