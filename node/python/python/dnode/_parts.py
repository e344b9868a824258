"""Models of which each process of a group has a part (FSDP2, tensor parallelism): their tensors are gathered
at rank 0 where an exchange reads them, and scattered from there where it has moved them.

Functions of tensors here are collective: all processes that have a part call them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

import torch

if TYPE_CHECKING:
    from dnode import _torch
    from dnode._group import Link


def is_part(tensor: object) -> bool:
    """Whether this process has a part of the tensor's numbers, which :func:`whole` can gather."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def processes(tensor: Any) -> int:
    """How many processes have a part."""
    return int(tensor.device_mesh.size())


def whole(tensor: Any) -> torch.Tensor:
    """All numbers of a tensor."""
    gathered: torch.Tensor = tensor.full_tensor()
    return gathered.detach()


def part_of(numbers: torch.Tensor, like: Any) -> Any:
    """A tensor of these numbers of rank 0, in parts as ``like``."""
    from torch.distributed.tensor import distribute_tensor  # type: ignore[import-not-found,unused-ignore]

    return distribute_tensor(numbers.to(like.device, like.dtype), like.device_mesh, like.placements)


def put(numbers: torch.Tensor, tensor: Any) -> None:
    """Makes the tensor these numbers of rank 0."""
    tensor.to_local().copy_(part_of(numbers, tensor).to_local())


class Callbacks:
    """The callbacks of a model in parts. At rank 0 the Rust side calls them, and the others are told of it and
    do the same."""

    def __init__(self, link: Link, inner: _torch.Callbacks) -> None:
        self._link, self._inner = link, inner

    def fetch(self, index: int) -> None:
        tensor = self._inner.tensors[index]
        if tensor.in_parts and self._link.closed:
            # The others may be elsewhere. Nobody takes such numbers, and no resume does.
            tensor.forget()
            return
        with self._link.telling:
            if tensor.in_parts:
                self._ask("fetch", index)
            self._inner.fetch(index)

    def store(self, index: int) -> None:
        in_parts = self._inner.tensors[index].in_parts
        if in_parts and self._link.closed:
            return
        with self._link.telling:
            if in_parts:
                self._ask("store", index)
            self._inner.store(index)

    def save(self) -> list[tuple[str, bytes]]:
        if self._link.closed:
            return []
        with self._link.telling:
            self._ask("save")
            return self._inner.save()

    def restore(self, saved: Iterable[tuple[str, bytearray]]) -> None:
        with self._link.telling:
            self._ask("restore")
            self._inner.restore(self._link.same(list(saved) if self._link.speaks else None))

    def _ask(self, what: str, index: int = 0) -> None:
        if self._link.speaks:
            self._link.ask(what, index)

    def do(self, what: str, index: int) -> None:
        """What rank 0 does at this moment."""
        if what == "fetch":
            self.fetch(index)
        elif what == "store":
            self.store(index)
        elif what == "save":
            self.save()
        else:
            self.restore([])
