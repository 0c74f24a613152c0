"""An optimizer as the backends see it: its parameters with their names, its groups, and the words of a commit."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import torch

from forebay._given import check_json
from forebay._library import Group
from forebay.errors import CorruptError, UsageError

User = dict[str, Any]


class Groups(torch.optim.Optimizer, abc.ABC):
    """The backends (RAM, store, streamed module) know this class, and `Optimizer`, which is one, knows the backends."""

    kind: ClassVar[str]
    _moments: ClassVar[dict[str, str]]  # torch's names of the planes m and v

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.accumulates = False  # gradients stay in p.grad
        self.grad_norm: float | None = None  # of the last step
        self._names: dict[torch.Tensor, str] = {}
        self._groups: dict[torch.Tensor, int] = {}
        super().__init__(params, defaults)

    @abc.abstractmethod
    def commit_what_was_put_off(self) -> None:
        """Makes the commits that were asked for in a step. To be called between two steps."""

    def name_of(self, parameter: torch.Tensor) -> str:
        """The caller's name of it, or param.N for the N-th of all."""
        return self._names[parameter]

    def group_number_of(self, parameter: torch.Tensor) -> int | None:
        """None: it is in no group."""
        return self._groups.get(parameter)

    def group_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Its group, as param_groups has it."""
        return self.param_groups[self._groups[parameter]]

    def moments_of(self, group: dict[str, Any]) -> dict[str, str]:
        """The planes that the optimizer has, and torch's names of them."""
        return self._moments

    def settings_of(self, group: dict[str, Any]) -> Group:
        """UsageError: a setting of torch's that there are no kernels for, as a state dict of torch's may have it."""
        for name in ("amsgrad", "maximize", "dampening", "lr_decay"):
            if group.get(name):
                raise UsageError(f"forebay: {name}={group[name]} is not known to {type(self).__name__}. Train on with "
                                 "torch's optimizer, or set it to 0 in param_groups.")
        beta1, beta2 = group.get("betas") or (group.get("momentum", 0.0), 0.0)
        return Group(lr=float(group["lr"]), weight_decay=float(group["weight_decay"]), beta1=float(beta1),
                     beta2=float(beta2), eps=float(group.get("eps", 1e-8)))

    def words(self, user: User | None) -> User:
        """A commit carries the groups' settings, which a schedule has moved, and the caller's words."""
        groups = [{key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
                  for group in self.param_groups]
        check_json(groups, "param_groups")
        return {"torch": 1, "groups": groups, "user": user or {}}

    def take_words(self, words: User) -> User:
        """Sets the groups as a commit has them, and returns the caller's. CorruptError: they are of other groups."""
        if words.get("torch") != 1 or len(words["groups"]) != len(self.param_groups):
            raise CorruptError("forebay: the store was made by another program than these optimizers, or with other "
                               "groups. Give the same groups, or another folder.")
        for group, saved in zip(self.param_groups, words["groups"]):
            group.update({key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()})
        user: User = words["user"]
        return user


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy" else value
