"""Optimizer state as tensors in RAM, in `optimizer.state`, updated in place by the kernels."""

from __future__ import annotations

import array
import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from forebay.errors import NotSupportedError, NumericalError, UsageError
from forebay.kernels import Kernels, Run
from forebay.ranks import Ranks
from forebay.torch._groups import Groups
from forebay.torch._tensors import DTYPES, gradient_of, memory_of, on_host
from forebay.torch._under_way import whole

# Types of the state's tensors, whatever the parameter's type, to which torch would cast them when it loads a state.
STATE_DTYPES = {"exp_avg": torch.float32, "exp_avg_sq": torch.float32, "sum": torch.float32,
                "momentum_buffer": torch.float32, "master": torch.float32, "remainder": torch.int16}


Gradients = list[tuple[torch.Tensor, torch.Tensor]]  # parameters with theirs


def _offsets(tensor: torch.Tensor, num_ranks: int, unit: int = 1) -> list[int]:
    """Of the ranks' parts in its elements, which are equal but for a remainder, times `unit`."""
    each, more = divmod(tensor.numel(), num_ranks)
    return [unit * (each * rank + min(rank, more)) for rank in range(num_ranks + 1)]


def _difference(own: list[str], ranks: Ranks) -> str:
    """What rank 0 says and another says otherwise, of what each says in its order."""
    text = "\n".join(own).encode()
    lengths = array.array("f", [len(text) if rank == ranks.rank else 0 for rank in range(ranks.size)])
    ranks.sum(lengths)
    offsets = [0, *itertools.accumulate(map(int, lengths))]
    texts = bytearray(offsets[-1])
    texts[offsets[ranks.rank]:offsets[ranks.rank + 1]] = text
    ranks.gather_parts(texts, offsets)
    first, *others = (texts[begin:end].decode().split("\n") for begin, end in zip(offsets, offsets[1:]))
    for rank, other in enumerate(others, 1):
        for mine, its in itertools.zip_longest(first, other, fillvalue="nothing"):
            if mine != its:
                return f"{mine} on rank 0, and {its} on rank {rank}"
    return "nothing that is known here"


class InRam:
    """State of a parameter p: "step", the moments by torch's names, and "remainder" where p is bfloat16 (p has the
    upper halves of the fp32 masters, this the lower ones) or "master" where it is float16. Where ranks divide it
    (is_divided), it is of this rank's part of p, a vector; all have the whole weights."""

    def __init__(self, optimizer: Groups, threads: int, clip: float, backward_update: bool, ranks: Ranks | None,
                 is_divided: bool) -> None:
        self._kernels = Kernels(threads)
        self._ranks = ranks
        self._divides = None if ranks is None or not is_divided else ranks  # those that divide the state
        self._clip = clip
        # With clipping no gradient can be applied before all are there.
        self._updates_in_backward = backward_update and clip == 0
        self._sum = 0.0  # of squares of gradients that were applied in backward
        # The gradients that backward has taken from their parameters. They wait for step() until one has said that
        # gradients are not scaled.
        self._taken: dict[torch.Tensor, torch.Tensor] = {}
        self._are_scaled: bool | None = None  # None: no step has said it yet
        self._shared: set[torch.Tensor] = set()  # parameters that all ranks have with the same weights

    @whole
    def take_gradient(self, optimizer: Groups, parameter: torch.Tensor) -> None:
        """Called in backward, when a gradient is complete."""
        if not self._updates_in_backward:
            return
        gradient = gradient_of(parameter, optimizer.name_of(parameter))
        if self._are_scaled is False:
            self._sum += self._update(optimizer, [(parameter, gradient)], 1.0)
        elif parameter in self._taken:
            self._taken[parameter] += gradient
        else:
            self._taken[parameter] = gradient
        parameter.grad = None

    def step(self, optimizer: Groups, loss_scale: float) -> None:
        if loss_scale != 1 and self._sum > 0:
            raise UsageError(f"forebay: step_scaled({loss_scale:g}) after steps without a scale: the gradients of "
                             "this step were applied in backward, as unscaled as theirs. Scale from the first step on, "
                             "or leave backward_update out.")
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.numel() > 0]
        if self._ranks is None:
            taken = {**self._taken, **dict(self._own_gradients(optimizer, parameters))}
            gradients = [(p, taken[p]) for p in parameters if p in taken]
        else:
            self._check_settings(optimizer, loss_scale, self._ranks)
            self._share_weights(parameters, self._ranks)
            gradients = list(self._mean_gradients(optimizer, parameters, self._ranks))
        self._taken = {}
        self._are_scaled = bool(self._are_scaled) or loss_scale != 1
        total = self._update(optimizer, gradients, loss_scale) + self._sum
        self._sum = 0.0
        optimizer.grad_norm = math.sqrt(total) / loss_scale

    def _own_gradients(self, optimizer: Groups, parameters: list[torch.Tensor]) -> Gradients:
        return [(p, gradient_of(p, optimizer.name_of(p))) for p in parameters if p.grad is not None]

    def _check_settings(self, optimizer: Groups, loss_scale: float, ranks: Ranks) -> None:
        """UsageError, on all ranks: they would make different updates."""
        said = [f"clip={self._clip}", f"loss_scale={loss_scale}", f"zero_stage={int(self._divides is not None)}"]
        for number, group in enumerate(optimizer.param_groups):
            settings = optimizer.settings_of(group)
            said += [f"{name}={getattr(settings, name)} of group {number}"
                     for name in ("lr", "weight_decay", "beta1", "beta2", "eps", "frozen")]
        hashed = hashlib.sha256("\n".join(said).encode()).digest()[:8]
        # Bytes are the same on all ranks where the sum of their squares is the least that it can be.
        sums = torch.tensor([*hashed, *(byte * byte for byte in hashed)], dtype=torch.float32)
        ranks.sum(memory_of(sums))
        if any(of * of != ranks.size * squares for of, squares in zip(*sums.double().view(2, -1).tolist())):
            raise UsageError("forebay: the ranks have different rates, clip=, loss scales, zero_stage= or settings of "
                             f"groups, and their weights would part: {_difference(said, ranks)}. Nothing has changed: "
                             "give all ranks the same.")

    def _share_weights(self, parameters: list[torch.Tensor], ranks: Ranks) -> None:
        """All ranks begin with the weights of the first, as with a store."""
        for parameter in parameters:
            if parameter in self._shared:
                continue
            weights = torch.zeros(parameter.shape, dtype=torch.float32)
            if ranks.rank == 0:
                weights.copy_(parameter)
            ranks.sum(memory_of(weights))
            parameter.data.copy_(weights)
            self._shared.add(parameter)

    def _mean_gradients(self, optimizer: Groups, parameters: list[torch.Tensor],
                        ranks: Ranks) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Those of all ranks, in fp32, or this rank's parts of them; a parameter of which no rank has one gets none."""
        num_with = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
        ranks.sum(memory_of(num_with))
        for parameter, count in zip(parameters, num_with.tolist()):
            if count == 0:
                continue
            mean = (torch.zeros(parameter.shape, dtype=torch.float32) if parameter.grad is None else
                    on_host(gradient_of(parameter, optimizer.name_of(parameter))).to(torch.float32, copy=True))
            if self._divides is None:
                ranks.sum(memory_of(mean))
            else:
                ranks.sum_parts(memory_of(mean), _offsets(mean, ranks.size))
                mean = self._own(mean).clone()  # the other parts are not kept
            yield parameter, mean.mul_(1 / ranks.size)

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        """What this rank has of it: all, or a part of its elements. A view."""
        if self._divides is None:
            return whole
        offsets = _offsets(whole, self._divides.size)
        return whole.view(-1)[offsets[self._divides.rank]:offsets[self._divides.rank + 1]]

    def _squares(self, gradients: list[torch.Tensor]) -> list[float]:
        """Of each, the sum over the whole gradient: with ranks that of their parts' sums, also where each has all of
        them, so that the norm has the same bits."""
        if self._ranks is None:
            return [self._squares_of(gradient) for gradient in gradients]
        size = self._ranks.size
        sums = torch.zeros((size, len(gradients)), dtype=torch.float64)
        for number, gradient in enumerate(gradients):
            if self._divides is None:
                offsets = _offsets(gradient, size)
                for rank in range(size):
                    sums[rank, number] = self._squares_of(gradient.view(-1)[offsets[rank]:offsets[rank + 1]])
            else:
                sums[self._divides.rank, number] = self._squares_of(gradient)
        if self._divides is not None:
            self._divides.gather_parts(memory_of(sums), [8 * len(gradients) * rank for rank in range(size + 1)])
        return [sum(of_parts) for of_parts in sums.T.tolist()]

    def _squares_of(self, gradient: torch.Tensor) -> float:
        if gradient.numel() == 0:
            return 0.0
        return self._kernels.sum_of_squares(DTYPES[gradient.dtype], memory_of(gradient))

    def _update(self, optimizer: Groups, given: Gradients, loss_scale: float) -> float:
        """Returns the sum of squares of the gradients."""
        parameters, gradients = [parameter for parameter, _ in given], [gradient for _, gradient in given]
        total = 0.0
        for parameter, squares in zip(parameters, self._squares(gradients)):
            total += squares
            if not math.isfinite(total):
                raise NumericalError(f"forebay: the gradient of {optimizer.name_of(parameter)} is not finite. Its "
                                     "weights are what they were. Skip this step, or scale the loss "
                                     "(torch.amp.GradScaler).")
        factor = 1.0
        if self._clip > 0:
            factor = min(1.0, self._clip / (math.sqrt(total) / loss_scale + 1e-6))
        weights = [on_host(p) for p in parameters]
        runs = [self._run(optimizer, *each, factor / loss_scale) for each in zip(parameters, weights, gradients)
                if each[2].numel() > 0]
        if runs:
            self._kernels.update(runs)
        for parameter, host in zip(parameters, weights):
            self._state_of(optimizer, parameter)["step"] += 1
            if self._divides is not None:
                self._divides.gather_parts(memory_of(host), _offsets(host, self._divides.size, host.element_size()))
            if host.data_ptr() != parameter.data_ptr():
                parameter.data.copy_(host)
        return total

    def _run(self, optimizer: Groups, parameter: torch.Tensor, weights: torch.Tensor, gradient: torch.Tensor,
             scale: float) -> Run:
        state, own = self._state_of(optimizer, parameter), self._own(weights)
        group = optimizer.group_of(parameter)
        names = optimizer.moments_of(group)
        buffers: dict[str, Any] = {
            plane: memory_of(state[name])
            for plane, name in (*names.items(), ("remainder", "remainder"), ("master", "master"))
            if state.get(name) is not None}
        return Run(optimizer.kind, optimizer.settings_of(group), weight_dtype=DTYPES[weights.dtype],
                   weights=memory_of(own), gradient_dtype=DTYPES[gradient.dtype], gradient=memory_of(gradient),
                   step=int(state["step"]) + 1, gradient_scale=scale, nesterov=bool(group.get("nesterov")), **buffers)

    def _state_of(self, optimizer: Groups, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = optimizer.state[parameter]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
        for name in optimizer.moments_of(optimizer.group_of(parameter)).values():
            if state.get(name) is None:
                state[name] = torch.zeros(self._own_shape(parameter))
        if parameter.dtype == torch.bfloat16 and "remainder" not in state:
            state["remainder"] = torch.zeros(self._own_shape(parameter), dtype=torch.int16)
        if parameter.dtype == torch.float16 and "master" not in state:
            state["master"] = self._own(on_host(parameter)).float()
        return state

    def _own_shape(self, parameter: torch.Tensor) -> list[int]:
        if self._divides is None:
            return list(parameter.shape)
        offsets = _offsets(parameter, self._divides.size)
        return [offsets[self._divides.rank + 1] - offsets[self._divides.rank]]

    # ---- What is the same call for a store

    def commit(self, optimizer: Groups, user: dict[str, Any] | None) -> None:
        raise NotSupportedError("forebay: commit() makes a store durable, and this optimizer keeps its state in RAM. "
                                "Save optimizer.state_dict(), or give the optimizer a folder: nvme=FOLDER.")

    def resume(self, optimizer: Groups) -> dict[str, Any] | None:
        raise NotSupportedError("forebay: resume() opens a store, and this optimizer keeps its state in RAM. Use "
                                "optimizer.load_state_dict(), or give the optimizer a folder: nvme=FOLDER.")

    def reference(self, optimizer: Groups) -> dict[str, Any] | None:
        return None

    def load(self, optimizer: Groups, state_dict: dict[str, Any]) -> None:
        if "forebay" in state_dict:
            raise NotSupportedError(f"forebay: this state dict has no state: that lies in {state_dict['forebay']}. "
                                    "Make the optimizer with nvme= of these folders; or save full_state_dict() of "
                                    "that one.")

    def full_state(self, optimizer: Groups) -> dict[int, dict[str, torch.Tensor]] | None:
        """None: this rank has all of it."""
        if self._divides is None:
            return None
        parameters = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
        return {number: {name: self._whole(name, value, parameter, self._divides)
                         for name, value in sorted(optimizer.state[parameter].items())}
                for number, parameter in enumerate(parameters) if parameter in optimizer.state}

    def _whole(self, name: str, value: Any, parameter: torch.Tensor, ranks: Ranks) -> Any:
        if name not in STATE_DTYPES or value is None:
            return value
        whole = torch.empty(parameter.shape, dtype=value.dtype)
        self._own(whole).copy_(value)
        ranks.gather_parts(memory_of(whole), _offsets(whole, ranks.size, whole.element_size()))
        return whole

    def own_part_of(self, value: torch.Tensor) -> torch.Tensor:
        """Of a state's tensor that is loaded, which is whole."""
        return self._own(value.contiguous())

    def reload(self, optimizer: Groups) -> None:
        for parameter, state in optimizer.state.items():
            if "remainder" in state:
                state["remainder"].zero_()
            if "master" in state:
                state["master"].copy_(self._own(on_host(parameter)))

    def forget_gradients(self) -> None:
        self._sum = 0.0
        self._taken = {}

    def check_new_group(self) -> None:
        pass

    def close(self) -> None:
        self._kernels.close()
