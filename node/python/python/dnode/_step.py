"""What a loop is told."""

from __future__ import annotations

from dataclasses import dataclass

#: Whether a step was taken with others: ``joined``, ``alone`` (the node has failed), ``finished``
#: (the steps of the run are done) or ``left``.
Membership = str


@dataclass(frozen=True)
class Step:
    """What the loop is told by :meth:`Swarm.step`."""

    #: Whether the step was taken with others.
    membership: Membership
    #: Local steps of this peer so far.
    index: int
    #: Where the swarm stands, in steps of the run.
    position: int
    #: Local steps until the next commit is due; a slow peer takes fewer for each commit.
    until_commit: int
    #: Whether weights of the model were moved by this call.
    moved: bool


@dataclass(frozen=True)
class Event:
    """Something that happened at this peer."""

    #: Number of the event, from 1.
    number: int
    #: Seconds since the peer started.
    time_s: float
    #: Its name, for example ``peer-up``.
    name: str
    #: What a person wants to know of it.
    detail: str
