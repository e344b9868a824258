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


#: What shows lines for as long as the program has no handler of its own.
_shown: "Optional[logging.Handler]" = None
#: Whether the level of the logger is the one that lines are shown from.
_sets_level = False


def _is_replaced() -> bool:
    """Whether the program has a handler of its own by now."""
    return bool(logging.getLogger().handlers) or any(it is not _shown for it in LOGGER.handlers)


def _forward(line: "tuple[int, str, str]") -> None:
    global _sets_level
    level, where, text = line
    if _sets_level and _is_replaced():
        # From now on the level that the program has configured counts.
        _sets_level = False
        LOGGER.setLevel(logging.NOTSET)
    logger = LOGGER if where == "dnode" else LOGGER.getChild(where)
    logger.log(level, "%s", text)


def _run() -> None:
    while True:
        line = _native.next_log(_LOOK)
        if line is not None:
            _forward(line)
        if _pump is not threading.current_thread():
            return


def start(show: bool) -> None:
    """Starts the thread that forwards the log, once in a process.

    ``show``: where the program has configured no logging at all, lines from ``INFO`` on are shown on
    standard error until it does.
    """
    global _pump, _shown, _sets_level
    with _lock:
        if show and not LOGGER.hasHandlers():
            _shown = logging.StreamHandler()
            _shown.addFilter(lambda _: not _is_replaced())
            _shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            LOGGER.addHandler(_shown)
            if LOGGER.level == logging.NOTSET:
                LOGGER.setLevel(logging.INFO)
                _sets_level = True
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
        _forward(line)


def forget() -> bool:
    """In a forked child, which has no such thread: its lines are the parent's. Whether the parent had one."""
    global _pump, _lock
    had, _pump, _lock = _pump is not None, None, threading.Lock()
    return had
