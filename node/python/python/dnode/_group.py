"""The processes of a host as one peer: rank 0 of their group has the node, the others have what it tells."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.distributed as group
from torch.distributed import distributed_c10d

from dnode import _native, _parts, _torch
from dnode._joining import Told
from dnode._native import ConfigError, Error

#: How rank 0 tells the others where it stands.
_MEMBERSHIPS = ("joined", "alone", "finished", "left")
#: In place of one of them: rank 0 has an error for all.
_REFUSED = len(_MEMBERSHIPS)
#: Or it does this with a tensor of a model in parts, and the others must, too.
_ASKS = ("fetch", "store", "save", "restore")
#: Numbers in what is told.
_WORDS = 5


class Link:
    """What one process shares with the others of its group.

    All of them call :meth:`run` for the same things in the same order.
    """

    def __init__(self, process_group: Any) -> None:
        if not group.is_available() or not group.is_initialized():
            raise ConfigError("process_group: call torch.distributed.init_process_group before dnode.join")
        rank = group.get_rank(process_group)
        if rank < 0:
            raise ConfigError("process_group: this process is not in it")
        #: Whether this is rank 0, which has the node.
        self.speaks = rank == 0
        self.size: int = group.get_world_size(process_group)
        #: Whether nothing is told any more: the peer has left or was refused, or this process has failed.
        self.closed = False
        self._group = process_group
        self._first: int = distributed_c10d.get_global_rank(process_group, 0)
        self._callbacks: Optional[_parts.Callbacks] = None
        # Tensors that each process has as a whole.
        self._whole: list[torch.Tensor] = []
        self._device = torch.device("cpu")

    def bind(self, callbacks: _torch.Callbacks) -> object:
        """Shares the tensors of these callbacks from now on; returns what the Rust side is to call."""
        tensors = callbacks.tensors
        self._whole = [it.tensor for it in tensors if not it.in_parts]
        backend = str(group.get_backend(self._group))
        if "nccl" in backend and "gloo" not in backend:
            # Numbers that are told on a device make the loop wait for it.
            self._device = tensors[0].tensor.device
        if len(self._whole) == len(tensors):
            return callbacks
        self._callbacks = _parts.Callbacks(self, callbacks)
        return self._callbacks

    @property
    def in_parts(self) -> bool:
        """Whether processes have parts of tensors. Then all of them take part in all that reads weights."""
        return self._callbacks is not None

    def run(self, work: Callable[[], Told]) -> Told:
        """Rank 0 does ``work``; the others are told how it ended and what it has moved.

        :raises Error: what it has raised, at all ranks.
        """
        told = self._lead(work) if self.speaks else self._follow()
        if told[4]:
            self._share()
        return told

    def _lead(self, work: Callable[[], Told]) -> Told:
        try:
            told = work()
        except Error as error:
            self._tell([_REFUSED] + [0] * (_WORDS - 1))
            self.same((type(error).__name__, str(error)))
            raise
        membership, *numbers = told
        self._tell([_MEMBERSHIPS.index(membership), *map(int, numbers)])
        return told

    def _follow(self) -> Told:
        while True:
            what, *numbers = self._tell([0] * _WORDS)
            if what < _REFUSED:
                index, position, until_commit, moved = numbers
                return _MEMBERSHIPS[what], index, position, until_commit, bool(moved)
            if what == _REFUSED:
                kind, text = self.same(None)
                raise getattr(_native, kind)(f"{text} (told by rank 0)")
            assert self._callbacks is not None
            self._callbacks.do(_ASKS[what - _REFUSED - 1], numbers[0])

    def ask(self, what: str, index: int) -> None:
        """Rank 0 does this with a tensor, and the others do the same."""
        self._tell([_REFUSED + 1 + _ASKS.index(what), index] + [0] * (_WORDS - 2))

    def _tell(self, words: list[int]) -> list[int]:
        """The words of rank 0."""
        told = torch.tensor(words, dtype=torch.int64, device=self._device)
        group.broadcast(told, self._first, group=self._group)
        return words if self.speaks else [int(word) for word in told.tolist()]

    def same(self, thing: Any) -> Any:
        """What rank 0 has given; anything that can be pickled."""
        things = [thing]
        group.broadcast_object_list(things, self._first, group=self._group)
        return things[0]

    def _share(self) -> None:
        """All ranks get the weights of rank 0."""
        sent: list[tuple[torch.Tensor, torch.Tensor]] = []
        works: list[Any] = []
        for tensor in self._whole:
            whole = tensor.data.contiguous()
            # As bytes: not all backends know all types of numbers.
            data = whole.reshape(-1).view(torch.uint8)
            works.append(group.broadcast(data, self._first, group=self._group, async_op=True))
            sent.append((tensor, whole))
        for work in works:
            work.wait()
        for tensor, whole in sent:
            if not self.speaks and whole.data_ptr() != tensor.data_ptr():
                tensor.data.copy_(whole)
