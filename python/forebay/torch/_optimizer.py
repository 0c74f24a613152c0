"""The base of forebay's optimizers: torch's interface, over state in RAM or in a store."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Literal, overload

import torch

from forebay._forks import check_process
from forebay._given import Path, bytes_of, json_of, real
from forebay._given import folders as all_folders
from forebay._given import whole as whole_number
from forebay._library import DURABILITIES, index_of
from forebay.errors import NotSupportedError, UsageError
from forebay.layers import Layers
from forebay.ranks import Ranks
from forebay.torch._files.loading import Source
from forebay.torch._groups import Groups, User
from forebay.torch._in_ram import STATE_DTYPES, InRam
from forebay.torch._in_store import InStore, StoreOptions, folders_of
from forebay.torch._run.loader import ResumableLoader
from forebay.torch._streaming.device import Device
from forebay.torch._streaming.streamed import Streamed
from forebay.torch._tensors import DTYPES
from forebay.torch._under_way import is_inside, refusal, whole

_MOST_THREADS = 4096

StateDict = dict[str, Any]


class Optimizer(Groups):
    """The base of AdamW, Adam, Adagrad, Lion and SGD: not to be made itself.

    Parameters are float32, bfloat16 or float16. Each has an fp32 master weight and fp32 moments, whatever its type.

    nvme: a folder, or one for each disk, where masters and moments lie; None: they lie in RAM.
    ram: all that the store may take of it, as bytes or "8GiB": what fits into it stays in RAM too. None: what it needs
      to read ahead, and room for the gradients that wait, within 80 % of what is available. With nvme only.
    clip: the norm that all gradients together are clipped to, exactly; 0: none. `grad_norm` has the norm of the last
    step. durability: what a crash leaves of the store: "auto", "none" or "step" (the last commit). With nvme only.
    backward_update: gradients are taken in backward() and p.grad becomes None, so that not all are there at one time.
    ranks: `forebay.Ranks`, the processes that train together, each with data of its own: a step has the mean of their
    gradients. All of them make the same calls, state_dict() too. zero_stage: as ZeRO has it: 1 to 3: each rank has its
      part of the state, with nvme in folders of its own there; 0: each has all of it.
    reduce_bucket: with nvme, memory for the gradients that are being summed over ranks, as bytes or "256MiB"; None: 1
      GiB, or as much as the largest layer. reduce_dtype: with nvme, of gradients on their way between ranks:
      torch.bfloat16 and torch.float16 halve the bytes. Each rank's gradients are rounded to it, and added in fp32; the
      sums are rounded too.
    threads: of the update; 0: as many as there are cores. module, device, update_in_backward: for `stream`, which fills
      them in.

    Gradients that are not finite: step() raises NumericalError, and nothing changes; under a GradScaler it is skipped.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler then gives step() grad_scale and found_inf

    def __init__(self, params: Any, defaults: dict[str, Any], *, nvme: None | Path | Sequence[Path] = None,
                 ram: None | int | str = None, clip: float = 0.0, durability: str = "auto",
                 backward_update: bool = False, ranks: Ranks | None = None, zero_stage: int = 1,
                 reduce_bucket: None | int | str = None, reduce_dtype: torch.dtype = torch.float32,
                 threads: int = 0, module: torch.nn.Module | None = None,
                 device: Device | None = None, update_in_backward: bool = False) -> None:
        ranks = ranks if ranks is not None and ranks.size > 1 else None
        if ranks is not None and backward_update and module is None:
            raise UsageError("forebay: backward_update=True uses gradients as they come, and ranks add them up in one "
                             "order. Leave it out.")
        clip = real(clip, "clip (the most that the norm may be; 0: no clipping)", 0)
        threads = whole_number(threads, "threads", 0, _MOST_THREADS)
        zero_stage = whole_number(zero_stage, "zero_stage", 0, 3)
        index_of(DURABILITIES, durability, "durability")
        if nvme is None and (ram is not None or durability != "auto"):
            raise UsageError("forebay: ram= and durability= are about a store on disk. Give it a folder: nvme=FOLDER.")
        if reduce_dtype not in DTYPES:
            raise UsageError(f"forebay: reduce_dtype is {reduce_dtype}. Use torch.float32, bfloat16 or float16.")
        if nvme is None and (reduce_bucket is not None or reduce_dtype is not torch.float32):
            raise UsageError("forebay: reduce_bucket= and reduce_dtype= are about a store on disk. Give it a folder: "
                             "nvme=FOLDER.")
        self._process = os.getpid()
        self._put_off: list[User | None] = []  # commit()s that wait for the end of the step; the last one counts
        self._state_of_all: InRam | InStore  # use `_backend`
        if nvme is None:
            self._state_of_all = InRam(self, threads, clip, backward_update, ranks, is_divided=zero_stage > 0)
        else:
            options = StoreOptions(folders_of(nvme), None if ram is None else bytes_of(ram, "ram"), clip, durability,
                                   backward_update, update_in_backward, threads, ranks,
                                   zero_stage if ranks is not None else 0,
                                   None if reduce_bucket is None else bytes_of(reduce_bucket, "reduce_bucket"),
                                   DTYPES[reduce_dtype])
            self._state_of_all = InStore(self, options) if module is None else Streamed(self, options, module, device)
        self.ranks = ranks  # None: this process is alone
        self._takes_in_backward = backward_update
        self.resumed: User | None = None
        super().__init__(params, defaults)

    @property
    def _backend(self) -> InRam | InStore:
        """All calls go through it. UsageError: this process is a fork of that which made the optimizer."""
        check_process(self._process, f"the {type(self).__name__}")
        return self._state_of_all

    def _is_inside(self, call: FrameType) -> bool:
        """Whether the call of this frame was made during another call; for a streamed module also during a pass, as
        hooks of passes must not call the optimizer."""
        is_streamed = isinstance(self._backend, Streamed)
        return is_inside(call, forward=is_streamed, backward=is_streamed)

    def _refuse_inside(self, call: str) -> None:
        if self._is_inside(sys._getframe(1)):
            raise refusal(call)

    # ---- torch's interface

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch has it. UsageError: with nvme, and behind the first step."""
        self._refuse_inside("add_param_group()")
        self._backend.check_new_group()
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_group(group)
        except UsageError:
            self.param_groups.pop()
            raise
        names = group.get("param_names") or [f"param.{len(self._names) + i}" for i in range(len(group["params"]))]
        for name, parameter in zip(names, group["params"]):
            if parameter.dtype not in DTYPES:
                self.param_groups.pop()
                raise UsageError(f"forebay: {name} is {parameter.dtype}. Use float32, bfloat16 or float16.")
            self._names[parameter] = name
            self._groups[parameter] = len(self.param_groups) - 1
            if self._takes_in_backward and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_hook_of(weakref.ref(self)))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of all parameters that have a gradient; the others are left alone, moments too."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._step_scaled(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        except BaseException:
            # The scaler takes them away after a step that was made. Left there, they would scale the next one.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        return loss

    @whole
    def _step_scaled(self, scale: torch.Tensor | None, found_inf: torch.Tensor | None) -> None:
        self._refuse_inside("step()")
        if scale is not None and self._takes_in_backward and not isinstance(self._backend, Streamed):
            raise UsageError("forebay: a GradScaler looks for gradients in p.grad, and backward_update=True has taken "
                             "them. Train in bfloat16, which needs no scaler, or leave backward_update out.")
        if scale is not None and self.ranks is not None and not isinstance(self._backend, Streamed):
            raise UsageError("forebay: a GradScaler looks for gradients that are not finite on each rank alone, and "
                             "ranks that skip different steps have different weights. Train in bfloat16, or call "
                             "step_scaled(loss_scale), which raises NumericalError on all ranks.")
        if found_inf is None or float(found_inf) == 0:
            self._backend.step(self, 1.0 if scale is None else float(scale))
            self._end_step()
        elif isinstance(self._backend, Streamed):
            self._backend.skip_step()

    @torch.no_grad()
    @whole
    def step_scaled(self, loss_scale: float) -> None:
        """step() of gradients that were multiplied by `loss_scale`. NumericalError, and nothing changed: one of them is
        not finite. UsageError: backward_update has applied them already, as the steps before had no scale."""
        self._refuse_inside("step_scaled()")
        self._backend.step(self, loss_scale)
        self._end_step()

    @whole
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch has it; gradients that backward_update has taken, and step() has not used, are forgotten too."""
        self._refuse_inside("zero_grad()")
        self._backend.forget_gradients()
        super().zero_grad(set_to_none)

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Under backward_update: around each backward() of a step but its last. Gradients add up in p.grad."""
        before, self.accumulates = self.accumulates, True
        try:
            yield
        finally:
            self.accumulates = before

    @whole
    def state_dict(self) -> StateDict:
        """As torch has it, of all ranks together. With nvme the state stays in the store: the last step is committed,
        and "forebay" says which folders and step it is."""
        self._refuse_inside("state_dict()")
        reference = self._backend.reference(self)
        return self._full_state_dict() if reference is None else {**super().state_dict(), "forebay": reference}

    @whole
    def full_state_dict(self) -> StateDict:
        """All state as tensors, by torch's names, also with nvme: 12 bytes for each parameter in RAM. An optimizer
        without nvme loads it."""
        self._refuse_inside("full_state_dict()")
        return self._full_state_dict()

    def _full_state_dict(self) -> StateDict:
        document = super().state_dict()
        state = self._backend.full_state(self)
        return document if state is None else {**document, "state": state}

    @whole
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Loads what state_dict() or full_state_dict() gave, or torch's optimizer of this name. With nvme: what
        state_dict() gave for the store's last commit; it opens the store."""
        self._refuse_inside("load_state_dict()")
        self._backend.load(self, state_dict)
        super().load_state_dict(state_dict)
        numbers = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        for number, parameter in zip(numbers, parameters):
            # torch has cast these to the parameter's type.
            for name, value in state_dict["state"].get(number, {}).items():
                if name in STATE_DTYPES and value is not None:
                    own = self._backend.own_part_of(value)
                    self.state[parameter][name] = own.detach().to("cpu", STATE_DTYPES[name], copy=True).contiguous()
            if parameter in self.state and "step" in self.state[parameter]:
                self.state[parameter]["step"] = torch.tensor(float(self.state[parameter]["step"]))

    # ---- A store

    @whole
    def commit(self, user: User | None = None) -> None:
        """With nvme: makes the last step durable. user: what resume() gives back; at most some 2 KiB as JSON.

        While a step is under way (from its first gradient on; of a streamed module from the begin of a pass on, or in
        the middle of any call, as a signal handler comes) it is put off, and made when step() ends."""
        json_of(user)
        backend = self._backend
        if isinstance(backend, Streamed) and backend.is_interrupted() and not self._is_inside(sys._getframe()):
            self._put_off.clear()
            backend.commit_boundary(self, user)
            return
        if isinstance(backend, InStore) and (self._is_inside(sys._getframe()) or backend.is_under_way()):
            self._put_off.append(user)
            return
        self._put_off.clear()
        backend.commit(self, user)

    def _end_step(self) -> None:
        # A tracked schedule moves after the step, so the next pass makes the commit, or close().
        if not (isinstance(self._backend, Streamed) and self._backend.run_state.has_others):
            self.commit_what_was_put_off()

    def commit_what_was_put_off(self) -> None:
        if self._put_off:
            user = self._put_off[-1]
            self._put_off.clear()
            self._backend.commit(self, user)

    @whole
    def resume(self, start_from: None | Path | Sequence[Path] = None, *, must: bool = False) -> User | None:
        """With nvme, before the first step: goes on with the last commit of a store that is there: its weights into the
        parameters, its settings into the groups. Returns its `user`, or {}; None: there is no store.

        start_from: where there is none, one is made with the state of the store in this folder (or these), to the bit.
        That may have been made by another number of ranks, with any zero_stage, and stays as it is.

        must: BadInputError if there is no store. For a run that has been started before: its disk may not be mounted,
        and then a new run would begin in silence."""
        self._refuse_inside("resume()")
        if isinstance(self._backend, InStore):
            self._backend.must_resume = must
            self._backend.start_from = None if start_from is None else all_folders(start_from, "start_from")
        with torch.no_grad():
            return self._backend.resume(self)

    def track(self, **objects: Any) -> None:
        """With nvme: every commit has the state of these objects (state_dict and load_state_dict: schedulers, scalers,
        a ResumableLoader), by name. Behind resume() they get that of the commit. Once, before the first step.

        UsageError: an object has no such methods, or its state more than numbers, texts and tensors. NotSupportedError:
        without nvme.
        """
        if not isinstance(self._backend, InStore):
            raise NotSupportedError("forebay: track() puts objects into the commits of a store, and this optimizer "
                                    "keeps its state in RAM. Save their state dicts, or give it a folder: nvme=FOLDER.")
        self._backend.track(self, objects)
        to = weakref.ref(self)
        for each in objects.values():
            if isinstance(each, ResumableLoader):
                each.before_next = lambda: _commit_if_due(to())
                each.after_begin = self._backend.run_state.restore_generators
                each.at_end = lambda: _finish_commit(to())

    def commit_if_due(self) -> None:
        """With nvme and commit_every: before the next batch is asked for."""
        if isinstance(self._backend, InStore):
            if not self._backend.is_under_way():
                self.commit_what_was_put_off()
            self._backend.commit_if_due(self, before_batch=True)

    def finish_commit(self) -> None:
        """The same, at the end of an epoch: a commit that would wait for the next pass is made."""
        if isinstance(self._backend, InStore):
            self._backend.finish_commit()

    def start(self, resume: bool | Literal["must"], start_from: None | Path | Sequence[Path], accumulation_steps: int,
              commit_every: int, source: Callable[[], Source] | None) -> None:
        """For stream(): makes the store, or goes on with one. UsageError: `resume` is none of its values."""
        assert isinstance(self._backend, Streamed)
        self._backend.accumulation_steps = accumulation_steps
        self._backend.commit_every = commit_every
        self._backend.source = source
        if resume not in (False, True, "must"):
            raise UsageError(f"forebay: resume={resume!r} is not known. Give False, True (go on with a store that is "
                             'there) or "must" (and refuse to start without one).')
        if resume or start_from is not None:
            self.resumed = self.resume(start_from, must=resume == "must")
        if self.resumed is None:
            with torch.no_grad():
                self._backend.start(self, None)

    def move_store(self, folders: list[str]) -> None:
        """With nvme, between steps: the store is, or will be, in other folders. What is not committed is lost."""
        assert isinstance(self._backend, InStore)
        self._put_off.clear()
        self._backend.move(folders)

    def streamed(self) -> Streamed:
        """For stream()."""
        assert isinstance(self._backend, Streamed)
        return self._backend

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """For stream(), around a backward pass: autograd keeps no weights, and nothing stays leased behind it."""
        if not isinstance(self._backend, Streamed):
            yield
            return
        try:
            with self._backend.saving():
                yield
        finally:
            self._backend.end_backward()

    @property
    def layers(self) -> Layers | None:
        """With nvme, from the first step on: the store, for its plan() and stats()."""
        return self._backend.open_layers() if isinstance(self._backend, InStore) else None

    @whole
    def close(self) -> None:
        """Ends threads and files. Steps that are not committed are lost; a commit that waits for an update, or was put
        off, is made, and may fail."""
        self._refuse_inside("close()")
        try:
            if self._put_off:  # for a step that has not ended, so that the one before it is the last
                self._backend.forget_gradients()
            self.commit_what_was_put_off()
        finally:
            self._backend.close()

    # ---- Megatron's names

    def step_with_ready_grads(self) -> bool:
        """step(), with gradients that are clipped already."""
        self.step()
        return True

    def reload_model_params(self) -> None:
        """Takes the parameters as they are for new fp32 masters, after they were changed from outside. UsageError: a
        store has made a step, or has the weights of a streamed module."""
        self._backend.reload(self)

    def sharded_state_dict(self, model_sharded_state_dict: StateDict | None = None,
                           is_loading: bool = False) -> StateDict:
        """The state dict, of all ranks together: all of it."""
        return self.state_dict()

    def _take_gradient(self, parameter: torch.Tensor) -> None:
        if not self.accumulates:
            with torch.no_grad():
                self._backend.take_gradient(self, parameter)


def _hook_of(optimizer: weakref.ref[Optimizer]) -> Callable[[torch.Tensor], None]:
    """A parameter does not keep its optimizer."""
    def take(parameter: torch.Tensor) -> None:
        to = optimizer()
        if to is not None:
            to._take_gradient(parameter)

    take.takes_gradient = True  # type: ignore[attr-defined]
    return take


def _commit_if_due(optimizer: Optimizer | None) -> None:
    if optimizer is not None:
        optimizer.commit_if_due()


def _finish_commit(optimizer: Optimizer | None) -> None:
    if optimizer is not None:
        optimizer.finish_commit()


def _check_group(group: dict[str, Any]) -> None:
    """UsageError: a setting that no group can begin with."""
    for name in ("lr", "weight_decay", "momentum"):
        if name in group:
            real(group[name], name, 0)
    if "eps" in group and real(group["eps"], "eps", 0) == 0:
        raise UsageError("forebay: eps is 0, and an update divides by it where the moments are 0. Give 1e-8, say.")
    if "betas" in group:
        betas = tuple(group["betas"])
        if len(betas) != 2:
            raise UsageError(f"forebay: betas is {betas!r}, and has to be two numbers.")
        for number, beta in enumerate(betas):
            real(beta, f"betas[{number}]", 0, 1)
