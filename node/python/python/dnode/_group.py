"""The processes of a host as one peer: rank 0 of their group has the node, the others have what it tells."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any, Callable, Generator, Optional, Sequence

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
#: Or it waits for others of the swarm, and the group with it.
_WAITS = _REFUSED + len(_ASKS) + 1
#: Numbers in what is told.
_WORDS = 5
#: Seconds after which it says that it waits, and again: less than the time-outs that people give to groups.
_SAYS_EVERY_S = 5.0


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
        self._whole: list[_torch.Tensor] = []
        self._device = torch.device("cpu")
        #: Held by whoever tells something, also while what it asks for is done.
        self.telling = threading.RLock()
        # Since when rank 0 is at work, and has said nothing.
        self._silent_since: Optional[float] = None
        self._says: Optional[threading.Thread] = None

    def bind(self, callbacks: _torch.Callbacks) -> object:
        """Shares the tensors of these callbacks from now on; returns what the Rust side is to call."""
        tensors = callbacks.tensors
        self._whole = [it for it in tensors if not it.in_parts]
        backend = str(group.get_backend(self._group))
        if "nccl" in backend and "gloo" not in backend:
            # Numbers that are told on a device make the loop wait for it.
            self._device = tensors[0].tensor.device
        if not any(it.in_parts for it in [*tensors, *callbacks.local]):
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
            self.share(self._whole)
        return told

    def _lead(self, work: Callable[[], Told]) -> Told:
        self._begin_to_say()
        try:
            told = work()
        except BaseException as error:
            # Nobody may wait for what never comes. Others that are not there any more change nothing.
            with contextlib.suppress(RuntimeError), self._last_word():
                self._tell([_REFUSED] + [0] * (_WORDS - 1))
                known = isinstance(error, Error)
                self.same((type(error).__name__, str(error)) if known else ("Error", _named(error)))
            raise
        membership, *numbers = told
        with self._last_word():
            self._tell([_MEMBERSHIPS.index(membership), *map(int, numbers)])
        return told

    @contextlib.contextmanager
    def _last_word(self) -> Generator[None, None, None]:
        """Nothing is told after what is told in it, until rank 0 works again."""
        with self.telling:
            self._silent_since = None
            yield

    def _begin_to_say(self) -> None:
        with self.telling:
            self._silent_since = time.monotonic()
        if self._says is None:
            self._says = threading.Thread(target=_say, args=(weakref.ref(self),), name="dnode-group", daemon=True)
            self._says.start()

    def say(self) -> None:
        """Says that rank 0 waits, if it has said nothing for long: so the group's time-out does not end the others."""
        with self.telling:
            now = time.monotonic()
            if self._silent_since is not None and now - self._silent_since >= _SAYS_EVERY_S:
                self._silent_since = now
                self._tell([_WAITS] + [0] * (_WORDS - 1))

    def _follow(self) -> Told:
        while True:
            what, *numbers = self._tell([0] * _WORDS)
            if what < _REFUSED:
                index, position, until_commit, moved = numbers
                return _MEMBERSHIPS[what], index, position, until_commit, bool(moved)
            if what == _REFUSED:
                kind, text = self.same(None)
                raise getattr(_native, kind)(f"{text} (told by rank 0)")
            if what == _WAITS:
                continue
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
        device = self._device if self._device.type == "cuda" else None
        group.broadcast_object_list(things, self._first, group=self._group, device=device)
        return things[0]

    def share(self, tensors: "Sequence[_torch.Tensor]") -> None:
        """All ranks get the numbers that rank 0 has in these tensors, of which each has the whole."""
        sent: list[tuple[torch.Tensor, torch.Tensor]] = []
        works: list[Any] = []
        for tensor in [it.tensor for it in tensors]:
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


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(link: "weakref.ref[Link]") -> None:
    """Lets a link say that it waits, until it is closed."""
    while True:
        time.sleep(_SAYS_EVERY_S / 4)
        speaker = link()
        if speaker is None or speaker.closed:
            return
        try:
            speaker.say()
        except RuntimeError:
            # The others are gone, which the loop finds itself.
            return
        del speaker
