"""Brings the log of the Rust side to Python's ``logging``, under the logger ``dnode``."""

import logging
import threading
from typing import Optional

from dnode import _native

LOGGER = logging.getLogger("dnode")
#: Seconds between two looks at whether to go on.
_LOOK = 0.2

_pump: Optional[threading.Thread] = None
_lock = threading.Lock()


def _run() -> None:
    while True:
        line = _native.next_log(_LOOK)
        if line is not None:
            level, where, text = line
            logger = LOGGER if where == "dnode" else LOGGER.getChild(where)
            logger.log(level, "%s", text)
        if _pump is not threading.current_thread():
            return


def start(show: bool) -> None:
    """Starts the thread that forwards the log, once in a process.

    ``show``: where the program has configured no logging at all, lines from ``INFO`` on are shown on
    standard error.
    """
    global _pump
    with _lock:
        if show and not LOGGER.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            LOGGER.addHandler(handler)
            LOGGER.propagate = False
            if LOGGER.level == logging.NOTSET:
                LOGGER.setLevel(logging.INFO)
        if _pump is None or not _pump.is_alive():
            _pump = threading.Thread(target=_run, name="dnode-log", daemon=True)
            _pump.start()


def drain() -> None:
    """Ends the thread and forwards what waits, for the last lines of a process."""
    global _pump
    thread, _pump = _pump, None
    if thread is not None:
        thread.join(1.0)
    while True:
        line = _native.next_log(0.0)
        if line is None:
            return
        LOGGER.log(line[0], "%s", line[2])


def forget() -> bool:
    """In a forked child, which has no such thread: its lines are the parent's. Whether the parent had one."""
    global _pump, _lock
    had, _pump, _lock = _pump is not None, None, threading.Lock()
    return had
