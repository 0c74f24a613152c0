"""Weights for a new store, unit by unit: from files, or from a function that sets them. So a module can be made on the
meta device, and is never in memory as a whole."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, Union

import torch

from forebay._given import Path, folder
from forebay.errors import BadInputError, UsageError
from forebay.layers import Layers
from forebay.torch._files.safetensors import Folder
from forebay.torch._run.state import persistent_buffers
from forebay.torch._streaming.placeholder import Placeholder
from forebay.torch._tensors import DTYPES, memory_of, on_host

Weights = Union[Path, Callable[[torch.nn.Module], Any]]
Values = Mapping[torch.Tensor, torch.Tensor]


def is_hollow(module: torch.nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def make_placeholders(module: torch.nn.Module) -> None:
    """Parameters of the meta device become placeholders on the CPU, which take no memory, and stay the same objects."""
    parameters = [parameter for parameter in module.parameters() if parameter.is_meta]
    if not parameters:
        return
    placeholder = Placeholder(max(each.numel() * each.element_size() for each in parameters), parameters[0].dtype)
    for parameter in parameters:
        attributes = dict(parameter.__dict__)
        here = torch.nn.Parameter(placeholder.view(parameter.shape, parameter.dtype), parameter.requires_grad)
        torch.utils.swap_tensors(parameter, here)  # type: ignore[no-untyped-call]
        parameter.__dict__.update(attributes)


# ---- Buffers of the meta device

def make_buffers(module: torch.nn.Module) -> None:
    """Those that no file has are computed as transformers does it when it loads a model."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    holders = []
    for name, part in module.named_modules():
        for key, buffer in part._buffers.items():
            if buffer is None or not buffer.is_meta:
                continue
            if buffer not in made:
                made[buffer] = torch.empty_like(buffer, device="cpu")
            part._buffers[key] = made[buffer]
            if key in part._non_persistent_buffers_set:
                holders.append((f"{name}.{key}" if name else key, part))
    if not holders:
        return
    if not hasattr(module, "_init_weights"):
        raise UsageError(f"forebay: {holders[0][0]} is a buffer on the meta device that no file has "
                         "(persistent=False), so its values are nowhere. Set it on the CPU before stream().")
    _compute_buffers(module, list(dict.fromkeys(part for _, part in holders)))


def _compute_buffers(module: Any, parts: list[torch.nn.Module]) -> None:
    from transformers.initialization import guard_torch_init_functions
    parameters = [parameter for part in parts for parameter in part.parameters() if parameter is not None]
    with _marked(parameters), guard_torch_init_functions(), torch.no_grad():
        for part in parts:
            module._init_weights(part)


@contextlib.contextmanager
def _marked(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """transformers leaves what is marked alone."""
    before = [parameter.__dict__.get("_is_hf_initialized") for parameter in parameters]
    for parameter in parameters:
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for parameter, mark in zip(parameters, before):
            if mark is None:
                del parameter._is_hf_initialized  # type: ignore[attr-defined]


# ---- From files

class _Target(NamedTuple):
    """Tensors of the files that become one or several of the module's."""

    converter: Any  # of transformers; None: they are the same
    sources: list[tuple[str, str]]  # names, and the patterns that they match


class FromFolder:
    """Weights by their names in the folder; those of a module of transformers as from_pretrained reads them.

    UsageError, BadInputError: the folder is not one, or of another module.
    """

    def __init__(self, module: torch.nn.Module, path: str) -> None:
        self._module = module
        self._folder = Folder(path)
        # A tied parameter may be there under any of its names.
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._buffers = persistent_buffers(module)
        self._targets = self._targets_of()
        self._by_parameter = {self._parameters[name]: name for name in self._targets if name in self._parameters}

    def _targets_of(self) -> dict[str, _Target]:
        transformers = sys.modules.get("transformers")
        if transformers is None or not isinstance(self._module, transformers.PreTrainedModel):
            return {name: _Target(None, [(name, name)]) for name in self._folder.names}
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
        conversions = get_model_conversion_mapping(self._module)
        renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        converters = [each for each in conversions if isinstance(each, WeightConverter)]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        known = {**self._parameters, **self._buffers}
        targets: dict[str, _Target] = {}
        for name in sorted(self._folder.names, key=_natural):
            renamed, pattern = rename_source_key(name, renamings, converters, self._module.base_model_prefix, known)
            converter = None if pattern is None else copy.deepcopy(by_pattern[pattern])
            targets.setdefault(renamed, _Target(converter, [])).sources.append((name, pattern or name))
        return targets

    def __call__(self, parameters: Mapping[str, torch.nn.Parameter]) -> Values:
        """The values of a unit."""
        read: dict[torch.Tensor, torch.Tensor] = {}
        missing = {parameter: name for name, parameter in parameters.items()}
        targets = dict.fromkeys(self._by_parameter[each] for each in missing if each in self._by_parameter)
        for target in targets:
            for name, value in self._read(target).items():
                parameter = self._parameters.get(name)
                if parameter in missing:
                    read[parameter] = self._checked(name, value, parameter).contiguous()
                    del missing[parameter]
        if missing:
            self._refuse(sorted(missing.values()))
        return read

    def check(self) -> None:
        """Before anything is written: whether all of it is there. What is converted is found out as it is read."""
        converted = any(target.converter is not None for target in self._targets.values())
        missing = sorted(name for name, each in self._module.named_parameters() if each not in self._by_parameter)
        if missing and not converted:
            self._refuse(missing)

    def _refuse(self, missing: list[str]) -> NoReturn:
        raise BadInputError(f"forebay: {self._folder.path} has no {_some(missing)}: it is of another model, or a part "
                            "of one. Name another folder.")

    def _read(self, name: str) -> Mapping[str, torch.Tensor]:
        target = self._targets[name]
        if target.converter is None:
            return {name: self._folder.read(target.sources[0][0])}
        converter = copy.deepcopy(target.converter)
        for source, pattern in target.sources:
            converter.add_tensor(name, source, pattern, self._folder.read(source))
        model: Any = self._module
        made = converter.convert(name, model=model, config=model.config)
        return {key: value[0] if isinstance(value, list) else value for key, value in made.items()}

    def _checked(self, name: str, value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        _check_shape(name, value, like, self._folder.path)
        return value.to(like.dtype)

    def fill_buffers(self) -> None:
        for name, buffer in self._buffers.items():
            if name in self._targets:
                with torch.no_grad():
                    buffer.copy_(self._checked(name, self._read(name)[name], buffer))


def _natural(name: str) -> list[tuple[int, int, str]]:
    """layers.2 before layers.10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


# ---- From a function

class FromFunction:
    """Calls `function` with each module that has parameters of the unit, children first, as Module.apply() does."""

    def __init__(self, module: torch.nn.Module, function: Callable[[torch.nn.Module], Any]) -> None:
        self._module = module
        self._function = function

    def __call__(self, parameters: Mapping[str, torch.nn.Parameter]) -> Values:
        here = dict(parameters)
        placeholders = {parameter: parameter.data for parameter in here.values()}
        try:
            for parameter in here.values():
                parameter.data = torch.full_like(parameter, float("nan"))
            for part in self._holders(here):
                self._function(part)
            for name, parameter in here.items():
                if parameter.isnan().any():
                    raise UsageError(f"forebay: weights= has left {name} without values, or with NaN. Set all "
                                     "parameters of the module that it is called with.")
            return {parameter: parameter.data for parameter in here.values()}
        finally:
            for parameter, placeholder in placeholders.items():
                parameter.data = placeholder

    def _holders(self, parameters: Mapping[str, torch.nn.Parameter]) -> list[torch.nn.Module]:
        paths = dict.fromkeys(name.rpartition(".")[0] for name in parameters)
        deepest_first = sorted(paths, key=lambda path: -len(path.split(".")) if path else 0)
        return [self._module.get_submodule(path) for path in deepest_first]

    def check(self) -> None:
        pass

    def fill_buffers(self) -> None:
        pass


# ---- From a state dict

class FromState:
    """Weights by their names in a state dict: a tied parameter may be there under any of its names.

    UsageError: it lacks some, or has others.
    """

    def __init__(self, module: torch.nn.Module, state: Mapping[str, torch.Tensor], strict: bool) -> None:
        self._state = state
        self._names: dict[torch.Tensor, str] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if name in state:
                self._names[parameter] = name
        self._buffers = persistent_buffers(module)
        known = {*dict(module.named_parameters(remove_duplicate=False)), *self._buffers}
        self.unexpected = sorted(set(state) - known)
        self.missing = sorted(name for name in self._buffers if name not in state)
        lacking = sorted(name for name, parameter in module.named_parameters() if parameter not in self._names)
        if lacking or (strict and (self.missing or self.unexpected)):
            raise UsageError(f"forebay: this state dict lacks {_some(lacking + self.missing)}, and has "
                             f"{_some(self.unexpected)} too much. A streamed module takes all its weights at one time: "
                             "give a state dict of the same module, or load it before stream().")
        for each, name in self._names.items():
            _check_shape(name, state[name], each, "the state dict")

    def __call__(self, parameters: Mapping[str, torch.nn.Parameter]) -> Values:
        return {parameter: on_host(self._state[self._names[parameter]].to(parameter.dtype))
                for parameter in parameters.values()}

    def check(self) -> None:
        pass

    def fill_buffers(self) -> None:
        for name, buffer in self._buffers.items():
            if name in self._state:
                with torch.no_grad():
                    buffer.copy_(self._state[name])


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{', ...' * (len(names) > 3)}" or "nothing"


def _check_shape(name: str, value: torch.Tensor, like: torch.Tensor, where: str) -> None:
    if value.shape != like.shape:
        raise BadInputError(f"forebay: {name} is {tuple(value.shape)} in {where}, and {tuple(like.shape)} in the "
                            "module. Give that of this model, or make the model by the configuration that belongs to "
                            "it.")


Source = Union[FromFolder, FromFunction, FromState]


def source_of(module: torch.nn.Module, weights: Weights) -> Source:
    if callable(weights):
        return FromFunction(module, weights)
    return FromFolder(module, folder(weights, "weights"))


def fill_from(source: Source, units: Iterable[Mapping[str, torch.nn.Parameter]], layers: Layers,
              place: Mapping[torch.Tensor, tuple[int, int]]) -> None:
    """Fills a new store, unit by unit. place: of a parameter its layer, and its number in the inventory."""
    source.check()
    source.fill_buffers()
    for unit in units:
        values = source(unit)
        for parameter in unit.values():
            layers.fill(place[parameter][1], DTYPES[parameter.dtype], memory_of(on_host(values[parameter])))
