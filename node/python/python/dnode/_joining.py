"""How a process joins: settings from wherever they come, a state to go on from, and the node."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from dnode import _launch, _native, _state
from dnode._native import ConfigError
from dnode._options import Options, is_true, keys, with_defaults

#: A tensor as the Rust side is told it: name, shape, form of its numbers, address, number of elements.
Described = tuple[str, Sequence[int], str, int, int]
#: What the Rust side is told of a model: its tensors; where they are parts of one vector on a CUDA device, its
#: number and the vector's address; where the mirrors of their first moments are, if those are averaged; what it may
#: call.
Model = tuple[Sequence[Described], Optional[tuple[int, int]], Sequence[int], object]
#: What a step is told: membership, own steps, steps of the run, steps until the next commit, whether a weight
#: was moved.
Told = tuple[str, int, int, int, bool]


@dataclass(frozen=True)
class Joining:
    """What :func:`dnode.join` was given, beside model and optimizer."""

    run: str
    settings: dict[str, Any]
    config: dict[str, Any]
    bootstrap: Sequence[str]
    ticket: Optional[str]
    resume: Union[bool, Mapping[str, Any]]
    agreed: dict[str, str]
    #: Whether a failure of the node ends the loop.
    raises: bool

    @property
    def resumes(self) -> bool:
        """Whether it goes on from a checkpoint."""
        return self.resume is not False

    @property
    def moments(self) -> bool:
        """Whether the optimizer's first moments are averaged (``gossip.moments``)."""
        return is_true(keys(self.settings, self.config).get("gossip.moments", False))

    @property
    def folder(self) -> Optional[Path]:
        """The folder where the peer's data are to be, if one was named."""
        given = keys(self.settings, self.config).get("node.data_dir")
        return None if given is None else Path(str(given)).resolve()

    def node(self, model: Model) -> tuple[_native.Node, Optional[str]]:
        """Joins; returns the node and its temporary folder, if it has one.

        :raises Error: when it cannot; nothing is left then.
        """
        options, ticket = self._options()
        placed: Optional[Path] = None
        try:
            if self.resume is True and options.temporary is not None:
                raise ConfigError("resume=True needs data_dir: a temporary folder holds no checkpoint")
            if not isinstance(self.resume, bool):
                placed = _state.place(self.resume, self.run, options.data_dir)
            rest = (ticket, sorted(self.agreed.items()), self.resumes, self.raises)
            node = _native.Node(self.run, options.texts, model, rest)
            _launch.joined(self.run, self.resume is True)
            return node, options.temporary
        except BaseException:
            # A checkpoint that was refused would be in the way of the next start.
            for folder in (placed, options.temporary):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
            raise

    def _options(self) -> tuple[Options, Optional[str]]:
        given = dict(self.settings)
        addresses = [word for word in self.bootstrap if not word.startswith(("dnode1", "@"))]
        tickets = [word for word in self.bootstrap if word not in addresses]
        if addresses:
            given["bootstrap"] = addresses
        given = with_defaults(given, self.config, _launch.place(self.run, self.resume is True) or {})
        options = Options(given, self.config)
        ticket = self.ticket or next(iter(tickets), None)
        if ticket is None and not options.is_open and "network.secret_file" not in keys(given, self.config):
            ticket = os.environ.get("DNODE_SECRET") or None
        return options, ticket
