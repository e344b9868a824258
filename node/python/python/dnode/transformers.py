"""A callback by which a ``Trainer`` of Hugging Face ``transformers`` trains in a swarm.

>>> from dnode.transformers import SwarmCallback
>>> trainer = Trainer(model, args, train_dataset=data, callbacks=[SwarmCallback(run="my-run")])
>>> trainer.train()
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Sized

import torch

from dnode._host import Accumulated, Host, newest, samples_of, unused
from dnode._native import ConfigError
from dnode._swarm import Swarm

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"dnode.transformers needs a package that is not there ({error}): pip install 'transformers[torch]'",
        name=error.name,
    ) from None


class SwarmCallback(TrainerCallback):
    """Trains the model of a ``Trainer`` in the swarm of this name.

    It joins when training begins, and takes a step of the swarm with each of the Trainer's: the mean loss
    of its batches and their number of samples, accumulated ones included. A step that a gradient scaler
    has skipped counts, as the Trainer counts it. The swarm's figures are in the logs as ``swarm_peers`` and
    so on, results of evaluations are told to the swarm, its checkpoint is written when the Trainer saves,
    and it is left when training ends. Of a process group rank 0 joins, and shares weights that were moved.

    When the steps of the run are done the Trainer stops, also before its own ``max_steps``: a peer that
    came late begins where the others stand. A swarm that fails does not end training, which goes on alone;
    a wrong setting or another run is refused when training begins.

    The loss is the one that the model returns in training. A loss that is computed outside of the model
    (``compute_loss``, label smoothing) is told from the Trainer's logs.

    After an error in training the swarm is left when the process ends, the next training begins, or the
    ``with`` statement ends in which the callback was made.

    :param run: the run's name.
    :param settings: what else :func:`dnode.join` takes. ``steps`` is the Trainer's ``max_steps`` unless given,
        ``data_dir`` is ``dnode`` in its ``output_dir``, or ``dnode-2`` and so on where an earlier training has left its
        checkpoints there, and ``resume`` follows its ``resume_from_checkpoint``.
    """

    def __init__(self, run: str, **settings: Any) -> None:
        self._host = Host(run, settings)
        self._batches = Accumulated()
        self._hook: Any = None
        # Whether the model returns a loss; whether that is a part of the step's, else the batch's mean.
        self._told = self._parts = False

    @property
    def swarm(self) -> Optional[Swarm]:
        """The swarm, from the beginning of training on; ``None`` where another rank speaks."""
        return self._host.swarm

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Joins."""
        if getattr(args, "deepspeed", None):
            raise ConfigError("join with a Trainer whose ranks have parts of the weights: leave deepspeed out")
        self._unhook()
        optimizer, resume = given["optimizer"], state.global_step > 0
        self._host.join(
            given["model"],
            getattr(optimizer, "optimizer", optimizer),
            speaks=bool(state.is_world_process_zero),
            steps=state.max_steps if state.max_steps > 0 else None,
            data_dir=(newest if resume else unused)(Path(args.output_dir) / "dnode"),
            resume=resume,
        )
        self._hook_on(given["model"])

    def _hook_on(self, model: torch.nn.Module) -> None:
        self._batches, self._told = Accumulated(), False
        # PyTorch 1.13 has no words with names there.
        hook: Any = model.register_forward_hook
        if "with_kwargs" in inspect.signature(hook).parameters:
            self._hook = hook(self._after_forward, with_kwargs=True)
        else:
            self._hook = hook(
                lambda model, words, output: self._after_forward(model, words, {}, output)
            )

    def _after_forward(self, model: torch.nn.Module, words: Any, named: dict[str, Any], output: Any) -> None:
        loss = output.get("loss") if hasattr(output, "get") else None
        if loss is None and isinstance(output, (tuple, list)) and output:
            loss = output[0]
        # Named words are seen from PyTorch 2 on; before it what the model returns has the size of the batch.
        if model.training and isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._told, self._parts = True, named.get("num_items_in_batch") is not None
            values = getattr(output, "values", None)
            rest = list(output if values is None else values())[1:]
            self._batches.add(loss.reshape(()), samples_of([*words, *named.values(), *rest]))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """Takes a step of the swarm."""
        loss, samples = self._batches.take(self._parts)
        if loss is not None and self._parts and getattr(args, "average_tokens_across_devices", False):
            # The model has divided by the items of all ranks. The Trainer makes up for that outside of it.
            loss = loss * max(1, args.world_size)
        if getattr(given.get("optimizer"), "step_was_skipped", False):
            loss = None
        samples = samples or args.train_batch_size * args.gradient_accumulation_steps
        if self._host.step(loss, samples) == "finished":
            control.should_training_stop = True
        return self._leave_if_over(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """Leaves, if another callback has stopped training."""
        return self._leave_if_over(state, control)

    def _leave_if_over(self, state: Any, control: Any) -> Any:
        # Before the last evaluation, the last save and the loading of the best model.
        if control.should_training_stop:
            self._leave()
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[dict[str, Any]] = None, **given: Any) -> None:
        """Adds the swarm's figures to the logs."""
        if logs is None or "loss" not in logs:
            return
        if not self._told:
            self._host.loss = float(logs["loss"])
        figures = self._host.figures()
        logs.update(figures)
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(figures)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Optional[dict[str, float]] = None, **given: Any) -> None:
        """Tells the swarm what was measured."""
        loss = (metrics or {}).get("eval_loss")
        if metrics is not None and loss is not None:
            data = getattr(given.get("eval_dataloader"), "dataset", None)
            count = len(data) if isinstance(data, Sized) else 1
            accuracy = metrics.get("eval_accuracy")
            self._host.evaluate(float(loss), None if accuracy is None else float(accuracy), count)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Writes the swarm's checkpoint beside the Trainer's."""
        self._host.checkpoint()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leaves."""
        self._leave()

    def _leave(self) -> None:
        self._unhook()
        self._host.leave()

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> "SwarmCallback":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._unhook()
        self._host.leave(quietly=True)
