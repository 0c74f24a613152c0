"""Tensors as the library takes them."""

from __future__ import annotations

import torch

from forebay.errors import UsageError

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it lies in host memory, row-major; else a copy that does, in pinned memory if it comes
    from a GPU."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return copy.copy_(tensor)


def memory_of(tensor: torch.Tensor) -> tuple[int, int, object]:
    """A buffer of the library's, which keeps the tensor. The tensor is row-major."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor


def gradient_of(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """Its gradient, on the host. UsageError: as of checked_gradient_of."""
    return on_host(checked_gradient_of(parameter, name))


def checked_gradient_of(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """Its gradient. UsageError: it is sparse, or of a type that there are no kernels for."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout != torch.strided:
        raise UsageError(f"forebay: the gradient of {name} is sparse, and every update here reads all of it. Make it "
                         "dense: nn.Embedding(..., sparse=False).")
    if gradient.dtype not in DTYPES:
        raise UsageError(f"forebay: the gradient of {name} is {gradient.dtype}. Use float32, bfloat16 or float16.")
    return gradient
