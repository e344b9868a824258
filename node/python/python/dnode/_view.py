"""What a swarm shows: its figures, and its table in a notebook."""

from __future__ import annotations

import html
import importlib
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from dnode._swarm import Swarm

#: Between two updates of a table that is shown.
_UPDATE_EVERY_S = 1.0


def show(swarm: "Swarm") -> None:
    """Shows the table of a swarm in a notebook's cell, and keeps it up to date while it is joined.

    :raises NotImplementedError: where there is no notebook; IPython then shows the swarm as anything else.
    """
    # It need not be there, and has no types for all that it has.
    shell: Any = importlib.import_module("IPython.core.getipython").get_ipython()
    if not hasattr(shell, "kernel"):
        raise NotImplementedError("a terminal cannot change what it has shown")
    shown: Any = importlib.import_module("IPython.display").display(_bundle(swarm), raw=True, display_id=True)
    if shown is not None and swarm.membership == "joined":
        words = (weakref.ref(swarm), shown)
        threading.Thread(target=_update, args=words, name="dnode-table", daemon=True).start()


def _bundle(swarm: "Swarm") -> dict[str, str]:
    return {"text/html": swarm._repr_html_(), "text/plain": repr(swarm)}


def _update(shown: "weakref.ref[Swarm]", handle: Any) -> None:
    joined = True
    while joined:
        time.sleep(_UPDATE_EVERY_S)
        swarm = shown()
        if swarm is None:
            return
        joined = swarm.membership == "joined"
        handle.update(_bundle(swarm), raw=True)
        del swarm


def figures(shot: dict[str, Any]) -> dict[str, Any]:
    """The figures of a snapshot that a loop logs."""
    progress, traffic, exchanges = shot["progress"], shot["traffic"], shot["exchanges"]
    consensus = shot["consensus"] or {}
    return {
        "commits": progress["commits"],
        "samples": progress["samples"],
        "loss": progress["loss"],
        "samples_per_s": progress["samples_per_s"],
        "peers": len(shot["links"]),
        "exchanges": exchanges.get("completed", 0) + exchanges.get("answered", 0),
        "staleness": progress["staleness"],
        "wait_s": progress["wait_s"],
        "sent_bytes": traffic["sent_bytes"],
        "received_bytes": traffic["received_bytes"],
        "distance": consensus.get("distance"),
    }


def table(stats: dict[str, Any], peers: list[dict[str, Any]], page: Optional[str]) -> str:
    """Figures and at most 20 peers as HTML, with a link to the page if there is one."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(key)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for key, value in stats.items()
    )
    others = "".join(
        f"<tr><td>{html.escape(str(peer['label']))}</td><td>{html.escape(str(peer['state']))}</td>"
        f"<td>{peer['step']}</td><td>{html.escape(_shown(peer['loss']))}</td></tr>"
        for peer in peers[:20]
    )
    link = f"<a href='{html.escape(page)}'>page of this peer</a>" if page else ""
    return (
        f"<table>{rows}</table><table><tr><th>peer</th><th>state</th><th>step</th><th>loss</th></tr>"
        f"{others}</table>{link}"
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return "–" if value is None else str(value)
