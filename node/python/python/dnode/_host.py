"""What the callbacks of training frameworks share: the processes of one loop are one peer of a swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Union

import torch
import torch.distributed as group

from dnode import _launch, _logging, _options, _parts
from dnode._native import ConfigError, Error, RunMismatch
from dnode._step import Membership
from dnode._swarm import Swarm, join

#: Figures of :attr:`Swarm.stats` that go to a framework's logs, as ``swarm_peers`` and so on.
_FIGURES = ("peers", "exchanges", "commits", "position", "staleness", "distance")


def unused(folder: Path) -> Path:
    """``folder``, or where an earlier training has left checkpoints there ``folder-2``, ``folder-3`` …: behind the
    last that has some."""
    return _numbered(folder, _last_with_checkpoints(folder) + 1)


def newest(folder: Path) -> Path:
    """The last of ``folder``, ``folder-2`` … that has checkpoints; ``folder`` if none has."""
    return _numbered(folder, _last_with_checkpoints(folder))


def _numbered(folder: Path, number: int) -> Path:
    return folder if number <= 1 else folder.with_name(f"{folder.name}-{number}")


def _last_with_checkpoints(folder: Path) -> int:
    """The number of the last folder that has some; 0 where none has."""
    told = (other.name[len(folder.name) + 1 :] for other in folder.parent.glob(f"{folder.name}-*"))
    numbers = [1, *(int(number) for number in told if number.isdecimal() and int(number) > 1)]
    return max((it for it in numbers if any(_numbered(folder, it).glob("checkpoints/*"))), default=0)


class Host:
    """One peer: a process, or a process group whose rank 0 joins."""

    def __init__(self, run: str, settings: dict[str, Any]) -> None:
        #: Where the peer stands; the same at all ranks.
        self.membership: Membership = "left"
        self._run, self._settings = run, settings
        self._raises = settings.get("errors") == "raise"
        self._joined: Optional[Swarm] = None
        self._speaks = True
        #: The loss that was told last.
        self.loss: Union[float, torch.Tensor] = float("nan")

    @property
    def swarm(self) -> Optional[Swarm]:
        """The swarm, once it was joined; ``None`` where another rank speaks."""
        return self._joined if self._speaks else None

    def join(
        self,
        model: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer],
        *,
        speaks: bool,
        steps: Optional[int],
        data_dir: Path,
        resume: bool,
    ) -> None:
        """Joins with the model; in a group all ranks call it, and have the weights of rank 0 then.

        :param speaks: whether this is rank 0, which joins.
        :param steps: steps of the run where the settings do not have them.
        :param data_dir: the folder where the settings have none, and no launcher gives one.
        :param resume: whether to go on from the swarm's newest checkpoint in it, if there is one.
        :raises ConfigError, RunMismatch: which only a person can put right.
        """
        self.leave(quietly=True)
        self._joined = None
        self.loss, self._speaks, self.membership = float("nan"), speaks, "alone"
        given = self._given(steps, data_dir, resume)
        in_parts = any(_parts.is_part(it) for it in model.parameters())
        if group.is_available() and group.is_initialized() and (group.get_world_size() > 1 or in_parts):
            given.setdefault("process_group", group.group.WORLD)
        try:
            self._joined = join(model, optimizer, run=self._run, **given)
            self.membership = self._joined.membership
        except Error as error:
            if self._raises or isinstance(error, (ConfigError, RunMismatch)):
                raise
            _logging.LOGGER.error("the swarm was not joined, training goes on alone: %s", error)

    def _given(self, steps: Optional[int], data_dir: Path, resume: bool) -> dict[str, Any]:
        """The settings, with what the framework knows where they say nothing."""
        config = self._settings.get("config") or {}
        defaults: dict[str, Any] = {} if steps is None else {"steps": steps}
        launched = _launch.folder(self._run, resume)
        if launched is None:
            defaults["data_dir"] = str(data_dir)
        given = _options.with_defaults(self._settings, config, defaults)
        known = _options.said(given, config)
        folder = Path(known.get("node.data_dir") or launched or data_dir)
        if resume and any(folder.glob("checkpoints/*")):
            given.setdefault("resume", True)
        return given

    def step(self, loss: Union[float, torch.Tensor, None], samples: int) -> Membership:
        """The loop has taken a step; where the peer stands after it.

        :param loss: mean loss of the step, nats; ``None`` where none is known or the step was skipped, for
            which that of the step before is told.
        :param samples: samples of the step at each rank.
        :raises Error: the swarm's, with ``errors="raise"``; at all ranks.
        """
        if loss is not None:
            self.loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        if self._joined is not None and self.membership == "joined":
            try:
                self.membership = self._joined.step(loss=self.loss, samples=samples).membership
            except Error as error:
                if self._raises:
                    raise
                _logging.LOGGER.error("training goes on alone: %s", error)
                self._joined._leave_quietly()
                self.membership = "alone"
        return self.membership

    def evaluate(self, loss: float, accuracy: Optional[float], count: int) -> None:
        """The loop has measured the model on held-out data."""
        if self.swarm is not None and self.membership == "joined":
            self.swarm.evaluate(loss, accuracy, max(1, count))

    def checkpoint(self) -> None:
        """Writes a checkpoint of the swarm; one that cannot be written is told in the log."""
        # Of a model in parts all processes have a part to give.
        swarm = self._joined if self._joined is not None and self._joined._in_parts else self.swarm
        if swarm is not None and self.membership == "joined":
            swarm.checkpoint()

    def leave(self, quietly: bool = False) -> None:
        """Leaves in good order; in a group all ranks call it, but after an error, ``quietly``."""
        if self.membership == "left":
            return
        swarm, self.membership = self._joined, "left"
        if swarm is None:
            return
        try:
            if quietly:
                swarm._leave_quietly()
            else:
                swarm.leave()
        except Error as error:
            if self._raises:
                raise
            _logging.LOGGER.warning("leave the swarm: %s", error)

    def figures(self) -> dict[str, float]:
        """What is known of the swarm, for the logs of a framework; nothing after it was left."""
        if self.swarm is None or self.membership != "joined":
            return {}
        stats = self.swarm.stats
        known = {name: stats[name] for name in _FIGURES if isinstance(stats[name], (int, float))}
        return {f"swarm_{name}": float(value) for name, value in known.items()}


class Accumulated:
    """Losses and samples of the batches since the last step; losses on a device are not waited for."""

    def __init__(self) -> None:
        self._batches: list[tuple[torch.Tensor, int]] = []

    def add(self, loss: torch.Tensor, samples: int) -> None:
        # A graph that is replayed writes the next loss where this one is.
        self._batches.append((loss.detach().float().clone(), samples))

    def take(self, summed: bool = False) -> tuple[Optional[torch.Tensor], int]:
        """Their mean loss, or its sum where each is a part of the step's, and their samples."""
        batches, self._batches = self._batches, []
        if not batches:
            return None, 0
        device = batches[0][0].device
        losses = torch.stack([loss.to(device, non_blocking=True) for loss, _ in batches])
        return losses.sum() if summed else losses.mean(), sum(samples for _, samples in batches)


def samples_of(batch: Any) -> int:
    """The first dimension of the first tensor in a batch of whatever nesting; 0 if there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() > 0 else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, (list, tuple)):
        return 0
    return next((count for count in map(samples_of, batch) if count > 0), 0)
