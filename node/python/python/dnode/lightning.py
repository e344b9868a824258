"""A callback by which a ``Trainer`` of Lightning trains in a swarm.

>>> from dnode.lightning import SwarmCallback
>>> trainer = Trainer(max_steps=1000, callbacks=[SwarmCallback(run="my-run")])
>>> trainer.fit(module, data)

It is for ``lightning.pytorch`` and for ``pytorch_lightning``: the one that the program has imported before.
"""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any, Optional, Union

import torch

from dnode._host import Accumulated, Host, samples_of, unused
from dnode._native import ConfigError
from dnode._swarm import Swarm

#: Names of the package, the newer one first.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ModuleNotFoundError(
        "dnode.lightning needs a package that is not there: pip install lightning", name="lightning"
    )


_Callback: Any = _callback_class()


class SwarmCallback(_Callback):
    """Trains the module of a Lightning ``Trainer`` in the swarm of this name.

    It joins when training begins, and takes a step of the swarm after each batch in which the optimizer
    stepped: the mean loss of its batches and their number of samples, accumulated ones included. A step
    that a gradient scaler has skipped counts, as ``global_step`` counts it. The swarm's figures are in the
    logs as ``swarm_peers`` and so on, its checkpoint is written when the Trainer saves, and it is left when
    training ends, also by an error. Of a process group rank 0 joins, and shares weights that were moved.

    When the steps of the run are done the Trainer stops, also before its own ``max_steps``: a peer that
    came late begins where the others stand. A swarm that fails does not end training, which goes on alone;
    a wrong setting or another run is refused when training begins.

    With manual optimization the loss is ``loss`` of what ``training_step`` returns.

    :param run: the run's name.
    :param optimizer: which one of the module's optimizers, from 0: its parameters are exchanged, and its
        steps are those of the swarm. ``"all"`` exchanges the parameters of all, and a batch in which any of
        them stepped is a step; their states are not in the swarm's checkpoints then.
    :param monitor: the name of the metric that is told to the swarm as held-out loss, for example
        ``"val_loss"``.
    :param settings: what else :func:`dnode.join` takes. ``steps`` is what the Trainer will do of them unless
        given. Its ``max_steps`` counts the steps of every optimizer: of two the swarm has half as many, as
        each is to step once in a batch. ``data_dir`` is ``dnode`` in its ``log_dir``, or ``dnode-2`` and so on where an
        earlier training has left its checkpoints there, and ``resume`` follows its ``ckpt_path``.
    """

    def __init__(
        self,
        run: str,
        *,
        optimizer: Union[int, str, None] = None,
        monitor: Optional[str] = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if isinstance(optimizer, str) and optimizer != "all":
            raise ConfigError(f'optimizer = "{optimizer}" is not legal: must be a number or "all"')
        self._host = Host(run, settings)
        self._which, self._monitor = optimizer, monitor
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._batches = Accumulated()
        self._stepped = False
        self._saved: Optional[str] = None

    @property
    def swarm(self) -> Optional[Swarm]:
        """The swarm, from the beginning of training on; ``None`` where another rank speaks."""
        return self._host.swarm

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Joins."""
        strategy = type(trainer.strategy).__name__
        if any(word in strategy for word in ("FSDP", "DeepSpeed", "ModelParallel")):
            raise ConfigError(f'join with {strategy}: its ranks have parts of the weights; take strategy="ddp"')
        self._optimizer = self._chosen(trainer.optimizers)
        self._batches, self._stepped = Accumulated(), False
        steps = self._steps(trainer)
        root = trainer.log_dir or trainer.default_root_dir
        self._host.join(
            pl_module,
            self._optimizer,
            speaks=bool(trainer.is_global_zero),
            steps=steps,
            data_dir=Path(self._saved) if self._saved is not None else unused(Path(root) / "dnode"),
            resume=self._saved is not None,
        )

    def _steps(self, trainer: Any) -> Optional[int]:
        """Steps of the swarm that the Trainer will do, where there is an end."""
        steps: float = trainer.estimated_stepping_batches
        if trainer.max_steps > 0:
            # It stops when the steps of all its optimizers together are so many.
            steps = min(steps, math.ceil(trainer.max_steps / max(1, len(trainer.optimizers))))
        return int(steps) if 0 < steps < math.inf else None

    def _chosen(self, optimizers: list[torch.optim.Optimizer]) -> Optional[torch.optim.Optimizer]:
        if self._which == "all":
            return None
        count = len(optimizers)
        if self._which is None and count != 1:
            raise ConfigError(
                f'join with a module that has {count} optimizers: say which by optimizer=0, or optimizer="all"'
            )
        index = int(self._which or 0)
        if not 0 <= index < count:
            raise ConfigError(f"optimizer = {index} is not legal: the module has {count}")
        return optimizers[index]

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any, *rest: Any) -> None:
        """Notes that a step is about to be taken."""
        inner = getattr(optimizer, "optimizer", optimizer)
        ours = self._optimizer is None or optimizer is self._optimizer or inner is self._optimizer
        self._stepped = self._stepped or ours

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *rest: Any) -> None:
        """Takes a step of the swarm, if the optimizer has stepped."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            # Of automatic optimization each loss has been divided by the number of batches of a step.
            times = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._batches.add(loss.reshape(()) * times, max(1, samples_of(batch)))
        if not self._stepped:
            return
        self._stepped = False
        mean, samples = self._batches.take()
        if self._host.step(mean, max(1, samples)) == "finished":
            trainer.should_stop = True
        if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            figures = self._host.figures()
            if figures:
                pl_module.log_dict(figures, batch_size=1, rank_zero_only=True)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Tells the swarm what was measured, if ``monitor`` names it."""
        loss = trainer.callback_metrics.get(self._monitor) if self._monitor is not None else None
        if loss is not None and not trainer.sanity_checking:
            self._host.evaluate(float(loss), None, 1)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Writes the swarm's checkpoint beside the Trainer's."""
        self._host.checkpoint()

    def state_dict(self) -> dict[str, Any]:
        """Where the swarm's checkpoints are, for a Trainer that goes on from its own."""
        swarm = self._host.swarm
        return {} if swarm is None else {"data_dir": str(swarm.data_dir)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from the swarm's newest checkpoint there."""
        self._saved = state_dict.get("data_dir")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leaves."""
        self._host.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leaves after an error, which stays the Trainer's."""
        self._host.leave(quietly=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leaves what was not left."""
        self._host.leave(quietly=True)
