"""Figures that a loop tells of its steps."""

from __future__ import annotations

from typing import Any, Optional

import torch


class Figure:
    """A figure of the loop as a number, without waiting for a device: its loss, for one.

    One on a device is told one step later, or as soon as it has arrived; ``unknown`` until then.
    """

    def __init__(self, unknown: float = float("nan")) -> None:
        self._last = unknown
        self._pending: Optional[tuple[torch.Tensor, Any]] = None

    def number(self, figure: object) -> float:
        if not isinstance(figure, torch.Tensor):
            return float(figure)  # type: ignore[arg-type]
        if not figure.is_cuda:
            return float(figure.detach())
        if self._pending is not None and self._pending[1].query():
            self._last = float(self._pending[0])
            self._pending = None
        if self._pending is None:
            host = torch.empty((), dtype=torch.float32, device="cpu", pin_memory=True)
            host.copy_(figure.detach().reshape(()), non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(figure.device))
            self._pending = (host, event)
        return self._last
