"""Decentralized training: a PyTorch model joins a swarm of equal peers in four lines.

>>> import dnode
>>> with dnode.join(model, optimizer, run="my-run", ticket="dnode1…") as swarm:
...     for batch in loader:
...         loss = model(batch).loss; loss.backward(); optimizer.step(); optimizer.zero_grad()
...         swarm.step(loss=loss, samples=len(batch))

There is no server: peers meet, exchange their weights two by two, come late, leave and die without
stopping the others. The weights of the model change inside of ``swarm.step`` and at no other time.
"""

from dnode._digest import digest
from dnode._launch import launch
from dnode._native import (
    CheckpointError,
    ConfigError,
    Error,
    NotJoined,
    RunMismatch,
    __version__,
)
from dnode._step import Event, Membership, Step
from dnode._swarm import Swarm, join

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Error",
    "Event",
    "Membership",
    "NotJoined",
    "RunMismatch",
    "Step",
    "Swarm",
    "__version__",
    "digest",
    "join",
    "launch",
]
