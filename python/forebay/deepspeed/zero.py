"""deepspeed.zero for one rank: models are made in RAM, and move into the store in initialize()."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from forebay.errors import NotSupportedError
from forebay.torch import Optimizer
from forebay.torch._streaming.streamed import Streamed

_STREAMED: weakref.WeakSet[Streamed] = weakref.WeakSet()


def streamed_of(optimizer: Optimizer | None) -> Streamed | None:
    """The owner of the weights of a streamed module."""
    backend = None if optimizer is None else optimizer._backend
    return backend if isinstance(backend, Streamed) else None


def register(optimizer: Optimizer) -> None:
    """For the engine: GatheredParameters looks for parameters in it."""
    streamed = streamed_of(optimizer)
    assert streamed is not None
    _STREAMED.add(streamed)


class Init:
    """Does nothing but say so, once: `with Init():`, or `Init(module=model)`."""

    _is_said: ClassVar[bool] = False

    def __init__(self, module: torch.nn.Module | None = None, *_: Any, enabled: bool = True, **__: Any) -> None:
        if enabled and not Init._is_said:
            Init._is_said = True
            print("forebay: zero.Init: the model is made in RAM, as without it, and moves into the store in "
                  "initialize()")

    def __enter__(self) -> Init:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class GatheredParameters:
    """Inside, parameters of a streamed module have their weights, as copies that are to be read. Parameters that are in
    RAM are what they always are, and can be changed.

    NotSupportedError, at the end: a parameter of a streamed module was written to with a `modifier_rank`; the store has
    what it had. Without one, writes are dropped, as in DeepSpeed.
    """

    def __init__(self, params: torch.nn.Parameter | Iterable[Any], modifier_rank: int | None = None,
                 fwd_module: torch.nn.Module | None = None, enabled: bool = True) -> None:
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        self._params = [each for each in given if isinstance(each, torch.Tensor)] if enabled else []
        self._modifies = modifier_rank is not None
        self._copies: list[tuple[Streamed, dict[torch.Tensor, torch.Tensor]]] = []

    def __enter__(self) -> None:
        self._copies = [(streamed, streamed.copies_of(self._params)) for streamed in _STREAMED]
        for streamed, copies in self._copies:
            streamed.lend(copies)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        gathered, self._copies = self._copies, []
        changed = 0
        for streamed, copies in gathered:
            for parameter in copies:
                streamed.show(parameter)
            if self._modifies and kind is None:
                for parameter, weights in streamed.copies_of(copies).items():
                    changed += not torch.equal(_bits(weights), _bits(copies[parameter]))
        if changed > 0:
            raise NotSupportedError(f"forebay: {changed} parameters of a streamed module were written to, and its "
                                    "weights change by steps alone. Change them before initialize(). The store has "
                                    "what it had.")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)  # NaN is itself


def register_external_parameter(_module: torch.nn.Module, _parameter: torch.nn.Parameter) -> None:
    """Nothing: a parameter that is used outside its module is brought in all the same."""


def unregister_external_parameter(_module: torch.nn.Module, _parameter: torch.nn.Parameter) -> None:
    """Nothing, as above."""


__all__ = ["GatheredParameters", "Init", "register_external_parameter", "unregister_external_parameter"]
