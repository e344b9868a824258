"""A swarm as a training loop in Python sees it."""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import sys
import threading
import time
import weakref
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

from dnode import _launch, _logging, _native, _state, _view
from dnode._native import ConfigError
from dnode._joining import Joining, Told
from dnode._step import Event, Membership, Step

if TYPE_CHECKING:
    import torch
    import torch.distributed

    from dnode._exclude import Excluded
    from dnode._group import Link
    from dnode._moments import Moment

T = TypeVar("T")

#: A node that does not listen by then does not listen at all.
_LISTENS_WITHIN_S = 5.0
#: Between two looks at what the node has written.
_LOOK_EVERY_S = 0.02
#: For how long a thread that has joined may follow events before another one has stepped.
_FIRST_STEP_S = 10.0
#: Between two looks for events.
_EVENTS_EVERY_S = 0.2


def join(
    model: "torch.nn.Module",
    optimizer: "Optional[torch.optim.Optimizer]" = None,
    *,
    run: str,
    bootstrap: Union[str, Sequence[str], None] = (),
    ticket: Optional[str] = None,
    resume: Union[None, bool, Mapping[str, Any]] = None,
    buffers: str = "keep",
    exclude: "Union[str, torch.Tensor, Iterable[Union[str, torch.Tensor]], None]" = (),
    agreed: Optional[dict[str, str]] = None,
    errors: str = "alone",
    process_group: "Optional[torch.distributed.ProcessGroup]" = None,
    verbose: bool = True,
    config: Optional[dict[str, Any]] = None,
    **settings: Any,
) -> "Swarm":
    """Joins the run of this name with a model, and waits until the first step may be taken.

    A swarm that this process has joined before with some of these parameters, or in this ``data_dir``, is left.
    Where the swarm has trained already, the model then has its weights. Peers that begin together
    should begin with equal weights: call ``torch.manual_seed`` before the model is made, or load one
    file everywhere.

    :param model: any module. Its trained parameters are exchanged: those that require a gradient and,
        with an ``optimizer``, are among its parameters, but for those in ``exclude``; tied ones once. Their
        names and shapes are part of the run's identity. Where all of them are f32 on one CUDA device they are
        views of one vector there until the swarm is left, but for ``gossip.moments``.
    :param optimizer: its learning rate is reported, its state is part of checkpoints, and ``gossip.moments``
        averages its first moments.
    :param run: the run's name; peers of other runs are refused.
    :param bootstrap: addresses of live members, or a ticket; one of them, or a list; none for the first peer.
    :param ticket: the ticket of a closed run, or ``@`` and the file that holds it; without one, what the
        variable ``DNODE_SECRET`` holds. The peer that begins a run draws a secret, unless ``open=True``
        lets anybody join; the ticket for others is :attr:`Swarm.ticket`.
    :param resume: ``True`` goes on from the newest checkpoint in ``data_dir``; what
        :meth:`Swarm.state_dict` returned, from that. ``None`` and ``False`` begin anew.
    :param buffers: ``"keep"`` leaves buffers alone; ``"average"`` exchanges those of floating-point
        numbers like parameters (running means of batch normalisation).
    :param exclude: what is trained and stays with this peer, for example a head of its own: names of parameters,
        of buffers or of parts (``"head"`` has all of ``head.…``), and parameters (``model.head.parameters()``, a
        group's ``params``). Checkpoints have such parameters and the optimizer's state of them, other peers do
        not. All peers exclude the same: what is exchanged is part of the run's identity.
    :param agreed: more that all peers must agree on, by name: at most 16, for example ``{"loss": "l2"}``.
    :param errors: ``"alone"``: when the node fails, the loop goes on alone and the log says so once, also
        where it fails at the end of a ``with`` block; ``"raise"``: :meth:`Swarm.step` and the end of the
        block raise.
    :param process_group: processes that are one peer together (``torch.distributed.group.WORLD``), with
        the same weights. All of them call ``join``, :meth:`Swarm.step` and :meth:`Swarm.leave`; rank 0
        joins, and the others get the weights that it has then. What else they ask, they ask at rank 0.
    :param verbose: whether log lines are shown on standard error for as long as the program configures no
        logging.
    :param config: a dictionary of ``section.key`` to value.
    :param settings: settings by their short names (``local_steps=25``, ``data_dir="a"``, ``steps=1000``)
        or sections as dictionaries (``gossip={"rule": "pairwise"}``). Without ``data_dir`` a temporary
        folder is used, which is removed at the end.
    :raises ConfigError: when a setting is wrong.
    :raises RunMismatch: when all members that answer are of another run; it names the first tensor or
        setting that differs.
    :raises CheckpointError: when it cannot go on from ``resume``.
    :raises Error: when the peer cannot take part for another reason.
    """
    if errors not in ("alone", "raise"):
        raise ConfigError(f'errors = "{errors}" is not legal: must be "alone" or "raise"')
    given: Any = resume
    if not isinstance(given, (type(None), bool, Mapping)):
        raise ConfigError(f"resume = {resume!r} is not legal: must be True, False or what state_dict() returned")
    if _forked:
        raise _native.Error(
            "join in a process that was forked from one that had joined: it has none of the threads that it needs; "
            'start it with "spawn", or fork before the first join'
        )
    from dnode._exclude import Excluded

    _logging.start(verbose)
    addresses = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap or ())
    resumed = resume if isinstance(resume, Mapping) else bool(resume)
    joining = Joining(run, settings, config or {}, addresses, ticket, resumed, agreed or {}, errors == "raise")
    return Swarm(model, optimizer, joining, (buffers, Excluded(model, exclude), process_group))


#: Swarms that have not been left; they leave at the end of the process.
_open: "weakref.WeakSet[Swarm]" = weakref.WeakSet()


#: The process that the swarms are of.
_process = os.getpid()
#: Whether this process was forked from one whose threads of dnode it lacks.
_forked = False


@atexit.register
def _leave_all() -> None:
    if os.getpid() == _process:
        for swarm in list(_open):
            try:
                swarm._leave_quietly()
            except Exception as error:
                # The others are left all the same.
                _logging.LOGGER.error("a swarm was not left: %s", error)
        _logging.drain()


def _leave_before(tensors: "set[int]", joining: Joining) -> None:
    """Leaves the swarms of this process that have some of these tensors, or this folder: a notebook's cell that joins
    has run again, before Python has freed what it made the last time.

    :raises ConfigError: where the new one would be refused for the last checkpoint of the old one.
    """
    folder = joining.folder
    same = [it for it in _open if it._held is not None and folder is not None and it.data_dir.resolve() == folder]
    if same and not joining.resumes:
        raise ConfigError(
            f"{folder} is that of a swarm which this process has joined: give resume=True to go on from it, or another "
            "data_dir"
        )
    for swarm in list(_open):
        if swarm in same or any(id(it.tensor) in tensors for it in swarm._tensors):
            _logging.LOGGER.info("leaves the swarm that this process had joined before: it joins again")
            swarm._leave_quietly()


def _in_child() -> None:
    """A forked child has none of the threads of its parent's swarms."""
    global _process, _forked
    _process = os.getpid()
    _forked = _logging.forget() or _forked
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Swarm:
    """This peer's place in a swarm; made by :func:`join`.

    The model's weights change in calls of its methods and at no other time. Use it from one thread. In a
    process group rank 0 has the place; at the others :meth:`step`, :meth:`evaluate`, :meth:`leave`,
    :meth:`load_state_dict`, :attr:`membership` and :attr:`last_step` work. Where each process has a part of
    the model, all of them also call :meth:`checkpoint`, :meth:`state_dict` and :meth:`wait_for_peers`.
    """

    def __init__(
        self,
        model: "torch.nn.Module",
        optimizer: "Optional[torch.optim.Optimizer]",
        joining: Joining,
        rest: "tuple[str, Excluded, Optional[torch.distributed.ProcessGroup]]",
    ) -> None:
        from dnode import _moments, _torch, _vector
        from dnode._figure import Figure

        buffers, excluded, process_group = rest
        self._run, self._raises = joining.run, joining.raises
        self._optimizer = optimizer
        self._link: "Optional[Link]" = None
        if process_group is not None:
            from dnode._group import Link

            self._link = Link(process_group)
        host = _torch.Host() if self._link is None else _torch.Host(self._link.size, self._link.speaks)
        collected = _torch.collect(model, optimizer, buffers, host, excluded)
        self._tensors, self._local = collected.exchanged, collected.local
        _leave_before({id(it.tensor) for it in self._tensors}, joining)
        self._moments: "list[Moment]" = []
        if joining.moments:
            self._moments = _moments.of(self._tensors, optimizer, self._link is not None)
        self._vector = _vector.of(self._tensors) if host.speaks and not self._moments else None
        if self._vector is None:
            for tensor in self._tensors:
                tensor.reflect()
        self._losses, self._norms, self._rates = Figure(), Figure(0.0), Figure(0.0)
        self._on_device = bool(_torch.devices(self._tensors))
        # Where the tensors began when the node was last told, and whether it is to be told again.
        self._begins, self._elsewhere = [tensor.begins for tensor in self._tensors], False
        self._seen = 0
        # The thread that has stepped last, and the one that has joined.
        self._steps_in: Optional[int] = None
        self._joined_in = threading.get_ident()
        self._outcome: Optional[dict[str, Any]] = None
        self._callbacks = _torch.Callbacks(self._tensors, optimizer, host.speaks, self._moments, self._local)
        # What the node reaches is kept, whatever the loop puts into the model in its place.
        self._callbacks.lent = [tensor.reached.detach() for tensor in self._tensors]
        callbacks = self._callbacks if self._link is None else self._link.bind(self._callbacks)
        self._held: Optional[_native.Node] = None
        self._temporary: Optional[str] = None
        self._made_in = os.getpid()
        self._last = Step("alone", 0, 0, 0, False)
        try:
            self._together(lambda: self._begin(joining, callbacks))
        except BaseException:
            # The next join finds the model as this one did.
            self._release()
            raise
        if self._link is not None and not self._link.in_parts:
            # What rank 0 has resumed, and the others cannot have.
            self._link.share(self._local)
            resumed = optimizer is not None and joining.resumes and self._link.speaks
            # As numbers of the host: each rank puts them where its own parameters are.
            saved = self._link.same(self._callbacks.save() if resumed else None)
            if saved is not None and not self._link.speaks:
                self._callbacks.restore([(name, bytearray(data)) for name, data in saved])
        _open.add(self)

    def _begin(self, joining: Joining, callbacks: object) -> Told:
        described = [
            (it.name, it.shape, it.form, it.reached.data_ptr(), it.tensor.numel()) for it in self._tensors
        ]
        place = None if self._vector is None else self._vector.place
        mirrors = [it.mirror.data_ptr() for it in self._moments]
        from dnode import _torch

        with _torch.current_device(_torch.devices(self._tensors)):
            self._held, self._temporary = joining.node((described, place, mirrors, callbacks))
        membership, index, position, until_commit, moved = self._held.next_step()
        # Ranks may have begun with other weights than rank 0.
        return membership, index, position, until_commit, moved or self._link is not None

    def _look(self) -> None:
        """Finds out whether the loop has put other weights in the place of some; the model's ones count."""
        followed = [tensor for tensor in self._tensors if tensor.follow()]
        if followed:
            for moment, tensor in zip(self._moments, self._tensors):
                moment.parameter = tensor.tensor
        if [tensor for tensor in self._local if tensor.follow()] or followed:
            self._callbacks.follow()
        if followed or any(tensor.begins != begins for tensor, begins in zip(self._tensors, self._begins)):
            self._elsewhere = True
            self._on_device = any(tensor.tensor.is_cuda for tensor in self._tensors)

    def _lend(self) -> None:
        """Tells the node where the weights are, if the loop has put others in their place.

        :raises Error: where they are of another type or shape; the node has those of before.
        """
        if self._held is None or not self._elsewhere:
            return
        for tensor in self._tensors:
            tensor.check()
        if self._vector is not None:
            self._vector.take(self._tensors)
        lent = [tensor.reached.detach() for tensor in self._tensors]
        self._held.set_addresses([tensor.data_ptr() for tensor in lent])
        self._callbacks.lent = lent
        self._begins, self._elsewhere = [tensor.begins for tensor in self._tensors], False

    def __del__(self) -> None:
        # What no `with` block and no `leave` has ended. A half-made one has no node.
        held = getattr(self, "_held", None) is not None and self._outcome is None
        if held and os.getpid() == self._made_in and not sys.is_finalizing():
            self._leave_quietly()

    def _in_order(self) -> AbstractContextManager[None]:
        """Around all that lets the node reach weights on a device."""
        from dnode import _torch

        return _torch.in_order(_torch.devices(self._tensors) if self._on_device else [])

    def _learn(self) -> None:
        """Finds out where the node stands after a call that has not ended well."""
        if self._held is not None:
            self._last = Step(*self._held.next_step())

    @property
    def _node(self) -> _native.Node:
        if self._held is None:
            raise _native.Error("ask the swarm: rank 0 of the process group has joined for this process; ask there")
        return self._held

    @property
    def _in_parts(self) -> bool:
        """Whether all ranks ask the swarm, as each has a part of the model."""
        return self._link is not None and self._link.in_parts

    def _ordered(self, work: Callable[[], Told]) -> Callable[[], Told]:
        def ordered() -> Told:
            with self._in_order():
                return work()

        return ordered

    def _together(self, work: Callable[[], Told]) -> None:
        """Does ``work`` at the process that has the node; in a group, which are told of it, all call this."""
        link, ordered = self._link, self._ordered(work)
        self._look()
        if link is None:
            try:
                self._last = Step(*ordered())
            except BaseException:
                self._learn()
                raise
        else:
            try:
                if not link.closed:
                    self._last = Step(*link.run(ordered))
                elif link.speaks:
                    self._last = Step(*ordered())
            except BaseException:
                link.closed = True
                self._last = replace(self._last, membership="alone")
                raise
        if self._last.moved:
            from dnode import _torch

            _torch.changed(self._tensors)

    def _ask(self, ask: Callable[[_native.Node], T]) -> T:
        """Asks the node; of a model in parts, which all ranks must gather, all ranks ask."""
        link = self._link
        self._look()
        if link is None or not link.in_parts or link.closed or self.membership != "joined":
            try:
                with self._in_order():
                    self._lend()
                    return ask(self._node)
            except BaseException:
                if link is None:
                    self._learn()
                raise
        answers: list[T] = []

        def work() -> Told:
            self._lend()
            answers.append(ask(self._node))
            return self._node.next_step()

        self._last = Step(*link.run(self._ordered(work)))
        answer: T = link.same(answers[0] if answers else None)
        return answer

    def _goes_on(self) -> bool:
        """Whether a loop goes on after an error of what it has asked: unless it asks after it has left, or at
        another rank than 0."""
        asks_elsewhere = self._held is None and not self._in_parts
        has_left = self._outcome is not None or self.membership == "left"
        return not (self._raises or asks_elsewhere or has_left)

    def step(
        self,
        loss: "Union[float, torch.Tensor]",
        samples: int = 1,
        gradient_norm: "Union[float, torch.Tensor]" = 0.0,
    ) -> Step:
        """The loop has taken a step: call it after each ``optimizer.step()``.

        Exchanged weights are moved in this call. It returns at once as a rule; it waits when a bound of
        staleness holds back a commit, and when the steps of the run are done and all peers mix a last
        time. After the run it does nothing. A backward pass of what was computed before this call is refused by
        PyTorch where weights were moved, as after ``optimizer.step()``.

        :param loss: mean training loss of the step, nats; a tensor on a device is not waited for.
        :param samples: samples of this process's step, over all its accumulated batches. Processes of a
            group have equally many.
        :param gradient_norm: Euclidean norm of the gradient before clipping, 0 if not known; a tensor on a
            device is not waited for.
        :raises Error: the node's, after ``errors="raise"``; :class:`ConfigError` where an owner of the run has
            removed this peer.
        :raises KeyboardInterrupt: after Ctrl-C while it waited; the swarm has been left then.
        """
        self._steps_in = threading.get_ident()
        if self._link is None or self.membership == "joined":
            self._together(lambda: self._step(loss, samples, gradient_norm))
        return self._last

    def _step(
        self,
        loss: "Union[float, torch.Tensor]",
        samples: int,
        gradient_norm: "Union[float, torch.Tensor]",
    ) -> Told:
        self._lend()
        # Some optimizers have a rate of their own, and none to tell.
        rate = self._optimizer.param_groups[0].get("lr") if self._optimizer is not None else None
        rate = 0.0 if rate is None else self._rates.number(rate)
        number, norm = self._losses.number(loss), self._norms.number(gradient_norm)
        processes = 1 if self._link is None else self._link.size
        return self._node.step((number, processes * samples, rate, norm))

    def evaluate(self, loss: float, accuracy: Optional[float] = None, count: int = 1) -> None:
        """The loop has measured the model on held-out data; told to the swarm with the next step. In a process group
        what rank 0 has measured counts.

        :param loss: mean loss, nats per sample or token.
        :param accuracy: share of right answers, in [0, 1]; ``None`` where it is not known.
        :param count: samples or tokens measured.
        """
        if self._held is not None:
            self._held.evaluate(float(loss), math.nan if accuracy is None else float(accuracy), count)

    def wait_for_peers(self, n: int, timeout: Optional[float] = None) -> int:
        """Waits until ``n`` other peers are connected, at most ``timeout`` seconds; returns how many are: 0
        where the node has failed or the run is done. Where the weights are being replaced meanwhile, that is
        finished first, whatever the time.

        :raises NotJoined: when the swarm has been left.
        :raises Error: the node's, after ``errors="raise"``.
        """
        # What is left until a deadline may be less than nothing.
        seconds = None if timeout is None else max(0.0, timeout)
        try:
            return self._ask(lambda node: node.wait_for_peers(n, seconds))
        except _native.Error as error:
            if not self._goes_on():
                raise
            _logging.LOGGER.error("there are no peers to wait for: %s", error)
            return 0

    def checkpoint(self) -> Optional[Path]:
        """Writes a checkpoint now; returns the file of the parameters, which ``safetensors`` opens.

        Where none can be written, for example after the node has failed, the log says why, and it is ``None``;
        with ``errors="raise"`` that is raised.

        :raises CheckpointError: when it cannot be written, with ``errors="raise"``.
        :raises NotJoined: when the swarm has been left.
        """
        try:
            return self._write_checkpoint()
        except _native.Error as error:
            if not self._goes_on():
                raise
            _logging.LOGGER.error("the swarm's checkpoint was not written: %s", error)
            return None

    def _write_checkpoint(self) -> Path:
        return Path(self._ask(lambda node: node.checkpoint()))

    def leave(self) -> dict[str, Any]:
        """Leaves the swarm in good order; returns how the run ended for this peer.

        Ends open exchanges, writes a last checkpoint and says goodbye. Once left, returns the same again.

        :raises Error: when the run did not end well.
        """
        if self._outcome is None:
            ended: dict[str, Any] = {}

            def end() -> Told:
                try:
                    self._lend()
                except _native.Error as error:
                    _logging.LOGGER.error("the last checkpoint has the weights of the last step: %s", error)
                ended.update(self._node.leave())
                return self._node.next_step()

            try:
                self._together(end)
                if self._link is not None and not self._link.closed:
                    ended = self._link.same(ended)
                self._outcome = ended
            finally:
                self._end()
        return dict(self._outcome)

    def _end(self) -> None:
        if self._link is not None:
            self._link.closed = True
        if os.getpid() != self._made_in:
            # A forked child: node, folder and weights are its parent's.
            _open.discard(self)
            return
        told = replace(self._last, membership="left") if self._held is None else Step(*self._held.next_step())
        if self.membership == "joined":
            self._last = told
        if told.membership == "joined":
            # Interrupted before the node has left: it still uses the folder, and is left at the end of the process.
            return
        _open.discard(self)
        self._release()
        if self._held is not None:
            _launch.left(self.data_dir)
        self._remove_temporary()

    def _release(self) -> None:
        """The node reaches weights no more: what was made for it goes."""
        if self._vector is not None:
            self._vector.release(self._tensors)
            self._vector = None
        self._callbacks.lent = ()

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._outcome is None and (error is not None or self.membership == "alone"):
            # The loop's own error is what its caller should see; the node's is in the log.
            self._leave_quietly()
            return
        try:
            self.leave()
        except _native.Error as error:
            if self._raises:
                raise
            _logging.LOGGER.error("the swarm was not left in good order: %s", error)

    def _leave_quietly(self) -> None:
        if self._link is not None:
            # Other processes of the group may be elsewhere.
            self._link.closed = True
            if self._link.in_parts and self._link.speaks and self.membership == "joined":
                _logging.LOGGER.warning(
                    "the parts of the model cannot be gathered any more: a resume takes the checkpoint before the last one"
                )
        try:
            self.leave()
        except _native.Error as error:
            _logging.LOGGER.warning("leave the swarm: %s", error)

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    @property
    def membership(self) -> Membership:
        """``joined``, ``alone``, ``finished`` or ``left``."""
        return self._last.membership

    @property
    def last_step(self) -> Step:
        """What the last step was told."""
        return self._last

    @property
    def data_dir(self) -> Path:
        """The folder of identity, checkpoints and metrics."""
        return Path(self._node.data_dir)

    @property
    def address(self) -> Optional[str]:
        """Where others reach this peer: a value for their ``bootstrap``. ``None`` if it does not listen."""
        lines = self._written("address").split()
        return lines[0] if lines else None

    @property
    def ticket(self) -> Optional[str]:
        """What lets others join this closed run: keep it secret. ``None`` for an open run."""
        closed = (self.data_dir / "secret").exists()
        return (self._written("ticket") or None) if closed else None

    def _written(self, name: str) -> str:
        """What the node has written to this file, which it does as soon as it listens; empty if it does
        not."""
        file, until = self.data_dir / name, time.monotonic() + _LISTENS_WITHIN_S
        while self._outcome is None and not file.exists() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
        return file.read_text().strip() if file.exists() else ""

    @property
    def page(self) -> Optional[str]:
        """The link to the page of this peer, if ``ui`` was given."""
        file = self.data_dir / "ui"
        text = file.read_text().strip() if file.exists() else ""
        return f"http://{text}/" if text else None

    @property
    def snapshot(self) -> dict[str, Any]:
        """All that this peer knows of itself and the swarm, at most about a second old, as the page has
        it."""
        found: dict[str, Any] = json.loads(self._node.snapshot())
        return found

    @property
    def stats(self) -> dict[str, Any]:
        """The figures that a loop logs: losses in nats, times in seconds, staleness in commits."""
        shot = self.snapshot
        return {
            "membership": self.membership,
            "peer": shot["node"]["peer"],
            "step": self._last.index,
            "position": self._last.position,
            "until_commit": self._last.until_commit,
            **_view.figures(shot),
        }

    def events(self, follow: bool = False) -> Iterator[Event]:
        """The events that were not iterated over yet, oldest first; the last 100 are kept.

        :param follow: whether to wait for more, until the run ends for this peer. That is for another thread
            than the one that steps: a loop that waits takes no step, and so its run has no end.
        :raises Error: when the thread that steps would wait; before the first step after ten seconds, in the one
            that has joined.
        """
        begun = time.monotonic()
        while True:
            # Asked before the events: the last of them come when it ends.
            joined = self.membership == "joined"
            for event in self.snapshot["events"]:
                if event["number"] > self._seen:
                    self._seen = event["number"]
                    yield Event(event["number"], event["time_s"], event["name"], event["detail"])
            if not follow or not joined or os.getpid() != self._made_in:
                return
            steps_in = self._steps_in
            if steps_in is None and time.monotonic() - begun > _FIRST_STEP_S:
                # Nobody else steps, it seems.
                steps_in = self._joined_in
            if steps_in == threading.get_ident():
                raise _native.Error(
                    "follow the events in the thread that steps, which takes none while it waits: "
                    "follow them in another thread, or leave follow out"
                )
            time.sleep(_EVENTS_EVERY_S)

    def state_dict(self) -> dict[str, Any]:
        """All that another start of this loop needs to go on, for ``torch.save``.

        It has the run's name, the position (``index``, ``position``) and a checkpoint as tensors of bytes:
        the trained parameters in f32 (masters of those of 16 bits, averaged buffers), the optimizer's state
        and learning rates, and where the rule keeps them weights that are exchanged beside those that are
        trained, and their momentum. ``dnode.join(…, resume=state)`` goes on from it, in any folder and on
        any machine. It has neither the peer's key nor the run's secret.

        Where no checkpoint can be written, for example after the node has failed, ``checkpoint`` is ``None``
        and the log says why; with ``errors="raise"`` that is raised.

        :raises Error: when no checkpoint can be written, with ``errors="raise"``; at another rank than 0, unless
            each process has a part of the model.
        """
        if not self._in_parts:
            _ = self._node
        parameters: Optional[Path] = None
        try:
            parameters = self._newest_checkpoint()
        except _native.Error as error:
            if self._raises:
                raise
            _logging.LOGGER.error("the state of the swarm has no checkpoint: %s", error)
        if self._held is None:
            # Each process would have the whole of it.
            parameters = None
        at = (self._last.index, self._last.position)
        return _state.described(self._run, at, parameters)

    def _newest_checkpoint(self) -> Optional[Path]:
        if self.membership == "joined":
            return self._write_checkpoint()
        if self._held is None:
            return None
        last = (self._outcome or self._node.leave())["parameters"]
        if last is None or not Path(last).is_file():
            raise _native.CheckpointError("write a checkpoint: the swarm was left, and its last one is not there")
        return Path(last)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Checks that this peer goes on from ``state``, which ``dnode.join(…, resume=state)`` does: weights
        of a peer that has joined are its swarm's.

        :raises CheckpointError: when it is of another run or a later step.
        """
        doing = "load the state of a swarm"
        _state.check(state, self._run, doing)
        if self._last.index < int(state["index"]):
            raise _native.CheckpointError(
                f"{doing}: it is of step {state['index']}, and this peer stands at step {self._last.index}; "
                "join with resume=state"
            )

    def __repr__(self) -> str:
        last = self._last
        known = "joined by rank 0" if self._held is None else f"{self.stats['peers']} peers"
        return f"<dnode.Swarm {last.membership}, step {last.index}, {known}>"

    def _ipython_display_(self) -> None:
        _view.show(self)

    def _repr_html_(self) -> str:
        if self._held is None:
            return repr(self).strip("<>")
        return _view.table(self.stats, self.snapshot["peers"], self.page)
