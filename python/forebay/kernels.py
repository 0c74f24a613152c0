"""The update kernels over arrays of the caller's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_void_p
from typing import ClassVar

from forebay import _library
from forebay._library import DTYPE_BYTES, DTYPES, Buffer, Group, KernelRun, Owned, Pinned, call, lib
from forebay.errors import UsageError


class Run:
    """One step over arrays of [num_elems] each, row-major; see `forebay_kernel_run` in forebay/c.h.

    weights: `weight_dtype`, changed in place. remainder: int16, of bf16 weights: the lower halves of their fp32
    masters. master: fp32, of f16 weights. m, v: `moment_dtype`, the moments that the optimizer has. gradient:
    `gradient_dtype`. step: of updates, from 1. gradient_scale: multiplies every gradient. round_weights: 16-bit weights
    have neither remainder nor master; the update is computed in fp32 and rounded to the nearest, ties to even.
    UsageError: an array is of another size.
    """

    def __init__(self, optimizer: str, group: Group, *, weight_dtype: str, weights: Buffer, gradient_dtype: str,
                 gradient: Buffer, step: int, remainder: Buffer | None = None, master: Buffer | None = None,
                 m: Buffer | None = None, v: Buffer | None = None, gradient_scale: float = 1.0,
                 nesterov: bool = False, round_weights: bool = False, moment_dtype: str = "f32") -> None:
        self._pinned: list[Pinned] = []
        first = Pinned(weights, writable=True)
        self._pinned.append(first)
        weight = _library.index_of(DTYPES, weight_dtype, "weight_dtype")
        of_gradient = _library.index_of(DTYPES, gradient_dtype, "gradient_dtype")
        size = DTYPE_BYTES[weight_dtype]
        moment = _library.index_of(DTYPES, moment_dtype, "moment_dtype")
        num_elems = first.num_bytes // size
        if num_elems * size != first.num_bytes:
            raise UsageError(f"forebay: weights are {first.num_bytes} bytes, which is no number of {weight_dtype}.")

        def address(name: str, buffer: Buffer | None, elem_bytes: int, writable: bool = True) -> int | None:
            if buffer is None:
                return None
            pinned = Pinned(buffer, writable)
            if pinned.num_bytes != num_elems * elem_bytes:
                raise UsageError(f"forebay: {name} is {pinned.num_bytes} bytes, and for {num_elems} weights it has to "
                                 f"be {num_elems * elem_bytes}.")
            self._pinned.append(pinned)
            return pinned.address

        self.struct = KernelRun(
            struct_size=ctypes.sizeof(KernelRun),
            optimizer=_library.index_of(_library.OPTIMIZERS, optimizer, "optimizer"), nesterov=nesterov,
            weight_dtype=weight, gradient_dtype=of_gradient, num_elems=num_elems,
            weights=first.address, remainder=address("remainder", remainder, 2), master=address("master", master, 4),
            m=address("m", m, DTYPE_BYTES[moment_dtype]), v=address("v", v, DTYPE_BYTES[moment_dtype]),
            gradient=address("gradient", gradient, DTYPE_BYTES[gradient_dtype], False), group=group, step=step,
            gradient_scale=gradient_scale, round_weights=round_weights, moment_dtype=moment)


class Kernels(Owned):
    """A pool of threads that computes updates. `num_threads` 0: as many as there are cores.

    Its calls compute, and wait for nothing: Ctrl-C is seen when they return. Thread-safe; one call at a time.
    EnvironmentProblem: no threads are to be had.
    """

    _closed: ClassVar[str] = "forebay: these Kernels are closed. Make others."

    def __init__(self, num_threads: int = 0) -> None:
        handle = c_void_p()
        call(lib.forebay_kernels_create, num_threads, ctypes.byref(handle))
        self._handle = handle
        self._end_with(lib.forebay_kernels_destroy, handle)

    def update(self, runs: Sequence[Run]) -> None:
        """Updates all `runs`: the same bits as `Layers.update`, whatever the number of threads."""
        structs = (KernelRun * len(runs))(*[run.struct for run in runs])
        call(lib.forebay_kernels_update, self._use(), structs, len(runs))

    def split(self, master: Buffer, weights: Buffer, remainder: Buffer) -> None:
        """fp32 `master` into bf16 `weights` and int16 `remainder`, [num_elems] each. Exact."""
        self._convert(lib.forebay_kernels_split, master, weights, remainder, splits=True)

    def join(self, weights: Buffer, remainder: Buffer, master: Buffer) -> None:
        """Undoes `split`: joins weights and remainder into fp32 `master`, [num_elems] each. Exact."""
        self._convert(lib.forebay_kernels_join, master, weights, remainder, splits=False)

    def _convert(self, function: object, master: Buffer, weights: Buffer, remainder: Buffer, splits: bool) -> None:
        with Pinned(master, not splits) as whole, Pinned(weights, splits) as upper, Pinned(remainder, splits) as lower:
            num_elems = whole.num_bytes // 4
            if not (whole.num_bytes == 4 * num_elems and upper.num_bytes == lower.num_bytes == 2 * num_elems):
                raise UsageError(f"forebay: master, weights and remainder are {whole.num_bytes}, {upper.num_bytes} and "
                                 f"{lower.num_bytes} bytes; they have to be 4, 2 and 2 for each element.")
            if splits:
                call(function, self._use(), whole.address, num_elems, upper.address, lower.address)
            else:
                call(function, self._use(), upper.address, lower.address, num_elems, whole.address)

    def sum_of_squares(self, dtype: str, gradient: Buffer) -> float:
        """Sums the squares of `gradient` ([num_elems] of `dtype`) in fp64: NaN or infinite where an element is."""
        total = c_double()
        number = _library.index_of(DTYPES, dtype, "dtype")
        with Pinned(gradient) as pinned:
            call(lib.forebay_kernels_sum_of_squares, self._use(), number, pinned.address,
                 pinned.num_bytes // DTYPE_BYTES[dtype], ctypes.byref(total))
        return total.value
