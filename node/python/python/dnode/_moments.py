"""First moments of a PyTorch optimizer, as peers average them beside the weights (``gossip.moments``)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch

from dnode._logging import LOGGER
from dnode._native import ConfigError

if TYPE_CHECKING:
    from dnode._torch import Tensor

#: Where optimizers keep the mean of gradients: Adam and those like it, then SGD, RMSprop and Muon.
_KEYS = ("exp_avg", "momentum_buffer")
#: Optimizers of which the log has said that their moments are not found.
_told: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
#: Where the correction of Adam's first moment differs from 1 by less, it is taken for 1.
_CORRECTED = 1e-4


class Moment:
    """The first moment of one tensor, and the mirror in host memory by which it is reached.

    Adam's are exchanged as it uses them, divided by ``1 − β₁ᵗ``: so a moment of a peer that has taken many steps
    is right for one that has taken few. Until the optimizer has made a moment, which it does in the first step
    with a gradient, its place is held by zeros, and what others have added to them is forgotten then.
    """

    def __init__(self, tensor: torch.Tensor, group: "dict[str, Any]", optimizer: torch.optim.Optimizer) -> None:
        self.mirror = torch.zeros(tensor.shape, dtype=torch.float32, device="cpu", pin_memory=tensor.is_cuda)
        #: The tensor that the moment is of.
        self.parameter = tensor
        self._group, self._optimizer = group, optimizer
        self._stream: Any = torch.cuda.Stream(tensor.device) if tensor.is_cuda else None
        # The state whose moment needs no correction any more; an optimizer that begins anew has another.
        self._done: Any = None

    def fetch(self) -> None:
        """Copies the moment to its mirror."""
        kept = self._kept()
        if kept is None:
            return
        with torch.no_grad():
            if self._stream is None:
                torch.div(kept.detach(), self._correction(), out=self.mirror)
                return
            # The stream of the loop does not wait for this one; the thread that reads the mirror does.
            self._stream.wait_stream(torch.cuda.default_stream(kept.device))
            with torch.cuda.stream(self._stream):
                kept.record_stream(self._stream)
                self.mirror.copy_(kept.detach().to(torch.float32) / self._correction(), non_blocking=True)
                done = torch.cuda.Event()
                done.record(self._stream)
            done.synchronize()

    def store(self) -> None:
        """Copies the mirror back to the moment, on the stream of the loop."""
        kept = self._kept()
        if kept is None:
            return
        with torch.no_grad():
            if self._stream is None:
                kept.copy_(self.mirror * self._correction())
                return
            stream = torch.cuda.default_stream(kept.device)
            with torch.cuda.stream(stream):
                kept.copy_(self.mirror.to(kept.device, non_blocking=True) * self._correction())

    def _kept(self) -> Optional[torch.Tensor]:
        state = self._optimizer.state.get(self.parameter, {})
        for key in _KEYS:
            kept = state.get(key)
            if isinstance(kept, torch.Tensor) and kept.shape == self.parameter.shape:
                return kept
        if state and all(state.get(key) is None for key in _KEYS) and self._optimizer not in _told:
            _told.add(self._optimizer)
            LOGGER.warning(
                "gossip.moments: %s keeps neither %s for a parameter of %s, but %s: zeros are exchanged in their place; "
                "leave gossip.moments out",
                type(self._optimizer).__name__,
                " nor ".join(f"`{key}`" for key in _KEYS),
                list(self.parameter.shape),
                ", ".join(f"`{key}`" for key in sorted(state, key=str)),
            )
        return None

    def _correction(self) -> float:
        """By which the optimizer divides the moment before it uses it."""
        state = self._optimizer.state.get(self.parameter, {})
        if state is self._done or "exp_avg" not in state or "step" not in state:
            return 1.0
        # A step that is counted on a device is waited for, in the first hundred or so alone.
        correction: float = 1.0 - float(self._betas()[0]) ** max(float(state["step"]), 1.0)
        if 1.0 - correction > _CORRECTED:
            return correction
        self._done = state
        return 1.0

    def _betas(self) -> Any:
        """Those of the parameter's group, which is another one after ``load_state_dict``."""
        if all(group is not self._group for group in self._optimizer.param_groups):
            mine = (it for it in self._optimizer.param_groups if any(self.parameter is p for p in it["params"]))
            self._group = next(mine, self._group)
        return self._group["betas"]


def of(tensors: "Sequence[Tensor]", optimizer: Optional[torch.optim.Optimizer], is_group: bool) -> "list[Moment]":
    """The moments of these tensors, in their order.

    :raises ConfigError: where there are none that can be averaged.
    """
    doing = "gossip.moments averages the optimizer's first moments"
    if optimizer is None:
        raise ConfigError(f"{doing}: give dnode.join the optimizer, or leave gossip.moments out")
    if is_group:
        raise ConfigError(f"{doing}, which the processes of a process_group cannot share yet: leave one of both out")
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    moments = []
    for tensor in tensors:
        # An averaged buffer has no moment: its place stays zero.
        group = groups.get(id(tensor.tensor), {})
        if group and "betas" not in group and not group.get("momentum"):
            raise ConfigError(
                f"{doing}, and {type(optimizer).__name__} has none for {tensor.name}: give it momentum, or leave "
                "gossip.moments out"
            )
        moments.append(Moment(tensor.tensor, group, optimizer))
    return moments
