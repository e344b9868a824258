"""What :func:`dnode.join` is given, as the Rust side reads it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Optional

from dnode._native import ConfigError

#: Sections of the configuration; a dictionary may be given for each.
_SECTIONS = ("run", "gossip", "network", "node", "data", "model", "optimizer")
#: Arguments that stand for a key of the configuration, as the flags of ``dnode join`` do.
_SHORT = {
    "bootstrap": "network.bootstrap",
    "listen": "network.listen",
    "mdns": "network.mdns",
    "open": "network.open",
    "require_peers": "network.require_peers",
    "max_upload": "network.max_upload",
    "max_download": "network.max_download",
    "rule": "gossip.rule",
    "local_steps": "gossip.local_steps",
    "mix_every": "gossip.mix_every",
    "fragments": "gossip.fragments",
    "balance": "gossip.balance",
    "steps": "run.steps",
    "batch": "run.batch",
    "data_dir": "node.data_dir",
    "name": "node.name",
    "ui": "node.ui",
    "metrics": "node.metrics",
    "tensorboard": "node.tensorboard",
    "checkpoint_every": "node.checkpoint_every",
    "checkpoint_interval": "node.checkpoint_interval",
}


def keys(settings: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What was given, by ``section.key``.

    :raises ConfigError: where an argument is not known.
    """
    given: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _SECTIONS and isinstance(value, dict):
            given.update({f"{name}.{key}": it for key, it in value.items() if it is not None})
        elif name in _SHORT:
            given.update({} if value is None else {_SHORT[name]: value})
        else:
            known = ", ".join(sorted([*_SHORT, *_SECTIONS]))
            raise ConfigError(f"join has no argument {name}; there are: {known}, and config")
    given.update({key: value for key, value in config.items() if value is not None})
    return given


def said(settings: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """As :func:`keys`, of what settings there are among the arguments of :func:`dnode.join`."""
    return keys({name: it for name, it in settings.items() if name in _SHORT or name in _SECTIONS}, config)


def with_defaults(settings: dict[str, Any], config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The settings, and those of the defaults, by their short names, that were not given in any form."""
    known = said(settings, config)
    given = {name: it for name, it in settings.items() if it is not None}
    return {**{name: it for name, it in defaults.items() if _SHORT[name] not in known}, **given}


def is_true(value: object) -> bool:
    """Whether a setting is true, as it was given."""
    return str(value).lower() == "true"


class Options:
    """Settings as the Rust side reads them, and the temporary folder if there is one."""

    def __init__(self, settings: dict[str, Any], config: dict[str, Any]) -> None:
        given = keys(settings, config)
        #: Whether the run lets anybody join.
        self.is_open = is_true(given.get("network.open", False))
        self.temporary: Optional[str] = None
        folder = given.pop("node.data_dir", None)
        self.texts = [f"{key}={_toml(key, value)}" for key, value in given.items()]
        if folder is None:
            folder = self.temporary = tempfile.mkdtemp(prefix="dnode-")
        #: The folder, wherever the loop goes.
        self.data_dir = Path(os.path.abspath(folder))
        self.texts.append(f"node.data_dir={self.data_dir}")


def _toml(key: str, value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    try:
        # Numbers of NumPy and tensors of one number have `item`.
        return value if isinstance(value, str) else json.dumps(value, default=lambda it: it.item())
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{key} = {value!r} is not legal: must be a text, a number, a list or true or false") from None
