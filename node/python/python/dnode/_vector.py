"""Weights of a model on a CUDA device as one vector, so that exchanges mix them there and only codes cross to
the host."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch

from dnode import _native, _torch
from dnode._logging import LOGGER

if TYPE_CHECKING:
    from dnode._torch import Tensor

_OutOfMemory: Any = torch.cuda.OutOfMemoryError
#: Bytes of which the addresses are multiples that compiled code takes tensors to have.
_ALIGNED = 16


class Vector:
    """One tensor of f32 that the exchanged tensors are views of until the swarm is left, in their order."""

    def __init__(self, tensors: "Sequence[Tensor]") -> None:
        self._device = tensors[0].tensor.device
        total = sum(it.tensor.numel() for it in tensors)
        self._numbers = torch.empty(total, dtype=torch.float32, device=self._device)
        self.take(tensors)
        compiler = sys.modules.get("torch._dynamo")
        if compiler is not None and any(it.tensor.data_ptr() % _ALIGNED for it in tensors):
            # What was compiled for weights that begin at such a multiple may not read these.
            compiler.reset()

    def take(self, tensors: "Sequence[Tensor]") -> None:
        """Takes over the numbers of tensors that are elsewhere, and makes them views again."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.no_grad(), contextlib.ExitStack() as order:
            for device in devices:
                # As all that the node does with them.
                order.enter_context(_torch.in_order([device]))
                order.enter_context(torch.cuda.stream(torch.cuda.default_stream(device)))
            start = 0
            for it in tensors:
                part = self._numbers[start : start + it.tensor.numel()].view(it.tensor.shape)
                if it.tensor.data_ptr() != part.data_ptr():
                    part.copy_(it.tensor)
                    it.tensor.data = part
                start += it.tensor.numel()

    def release(self, tensors: "Sequence[Tensor]") -> None:
        """Gives each tensor that is a view its own memory, as far as the device has it."""
        begins = self._numbers.data_ptr()
        try:
            if self._numbers.is_cuda:
                # What is copied by the loop's stream is not given to others before.
                stream: Any = torch.cuda.current_stream(self._device)
                self._numbers.record_stream(stream)
            for it in tensors:
                if begins <= it.tensor.data_ptr() < begins + 4 * self._numbers.numel():
                    it.tensor.data = it.tensor.data.clone()
        except RuntimeError as error:
            # No memory; or the device has failed, and the loop tells that.
            LOGGER.warning("weights stay views of one tensor: %s", error)

    @property
    def place(self) -> "tuple[int, int]":
        """Number of the device, and where the vector begins."""
        return self._device.index or 0, self._numbers.data_ptr()


def of(tensors: "Sequence[Tensor]") -> Optional[Vector]:
    """The vector of these tensors; ``None`` where they are not all whole f32 tensors of one CUDA device with
    memory of their own, or where the device cannot mix."""
    if not all(it.tensor.is_cuda and not it.in_parts for it in tensors):
        return None
    devices = {it.tensor.device.index or 0 for it in tensors}
    others = [it.name for it in tensors if not _is_alone(it)]
    if others or len(devices) > 1 or len({it.tensor.data_ptr() for it in tensors}) < len(tensors):
        what = f"{others[0]} is not" if others else "they are not all"
        LOGGER.info(
            "weights cross to the host to be mixed: %s a contiguous f32 tensor with memory of its own on one device", what
        )
        return None
    with _torch.current_device(list(devices)):
        problem = _native.device_problem(devices.pop())
    if problem is not None:
        LOGGER.warning("weights cross to the host to be mixed: %s", problem)
        return None
    try:
        return Vector(tensors)
    except _OutOfMemory as error:
        # At the beginning it needs as much as the weights once more.
        LOGGER.warning("weights cross to the host to be mixed: %s", error)
        return None


def _is_alone(it: "Tensor") -> bool:
    """Whether nothing else is in the tensor's memory, and its numbers are mixed as they are."""
    tensor = it.tensor
    plain = tensor.dtype == torch.float32 and tensor.is_contiguous() and not it.nonnegative
    # PyTorch 1.13 has it by this name alone.
    storage: Any = getattr(tensor, "untyped_storage", tensor.storage)()
    return plain and not it.is_tied and bool(storage.nbytes() == 4 * tensor.numel())
