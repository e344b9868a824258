"""Several peers on this machine, for a first try and for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional, Sequence

from dnode._native import Error

#: Tell a process which of the peers it is, of how many, and where their folders are.
RANK = "DNODE_LAUNCH_RANK"
SIZE = "DNODE_LAUNCH_SIZE"
FOLDER = "DNODE_LAUNCH_FOLDER"

#: Seconds that the processes get to leave after one has failed.
_GRACE = 20.0
#: Seconds that a peer waits for the address of the first one, which may have a large model to load; where that
#: one has failed, :func:`launch` ends the others.
_ADDRESS = 1800.0


def launch(
    n: int,
    script: str,
    args: Sequence[str] = (),
    *,
    folder: Optional[str] = None,
    python: str = sys.executable,
    timeout: Optional[float] = None,
) -> Path:
    """Runs ``script`` in ``n`` processes whose calls of :func:`dnode.join` make one swarm.

    In each of them ``join`` waits for the others, listens on this machine alone, and keeps its data in
    ``folder/0`` and so on; ``bootstrap`` need not be given. A script may join one swarm after the other: the data of
    the second one are in ``folder/0-2``. Returns the folder when all have ended.

    :param folder: where their data are; a new temporary folder if it is not given.
    :param timeout: seconds after which the processes are ended.
    :raises subprocess.CalledProcessError: when one of them fails; the others are ended then.
    :raises subprocess.TimeoutExpired: when they have not ended in time.
    """
    if n < 1:
        raise ValueError(f"launch {n} processes: at least 1")
    root = Path(folder if folder is not None else tempfile.mkdtemp(prefix="dnode-launch-"))
    command = [python, script, *args]
    peers: list[subprocess.Popen[bytes]] = []
    until = None if timeout is None else time.monotonic() + timeout
    try:
        for rank in range(n):
            own = root / str(rank)
            own.mkdir(parents=True, exist_ok=True)
            for stale in [own, *root.glob(f"{rank}-*")]:
                (stale / "address").unlink(missing_ok=True)
            place = {RANK: str(rank), SIZE: str(n), FOLDER: str(root)}
            peers.append(subprocess.Popen(command, env={**os.environ, **place}))
        _wait(peers, command, until, timeout)
    except KeyboardInterrupt:
        # A terminal has interrupted the processes, too. A second time would end them while they leave.
        heard = time.monotonic() + _GRACE
        while time.monotonic() < heard and any(peer.poll() is None for peer in peers):
            time.sleep(0.02)
        raise
    finally:
        _end(peers)
    return root


def _wait(
    peers: list[subprocess.Popen[bytes]],
    command: list[str],
    until: Optional[float],
    timeout: Optional[float],
) -> None:
    running = list(peers)
    while running:
        for peer in list(running):
            status = peer.poll()
            if status is None:
                continue
            running.remove(peer)
            if status != 0:
                raise subprocess.CalledProcessError(status, command)
        if until is not None and time.monotonic() >= until:
            raise subprocess.TimeoutExpired(command, timeout or 0.0)
        time.sleep(0.05)


def _end(peers: list[subprocess.Popen[bytes]]) -> None:
    for peer in peers:
        if peer.poll() is None:
            peer.send_signal(signal.SIGINT)
    until = time.monotonic() + _GRACE
    for peer in peers:
        try:
            peer.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            peer.kill()
            peer.wait()


#: Swarms that this process has joined where :func:`launch` has started it, from 1, by their runs.
_numbers: "dict[str, int]" = {}


def joined(run: str, resumes: bool) -> None:
    """This process has joined; the next swarm that it joins and does not resume has folders of its own."""
    _numbers[run] = _number(run, resumes)


def _number(run: str, resumes: bool) -> int:
    if resumes and run in _numbers:
        return _numbers[run]
    return max(_numbers.values(), default=0) + 1


def folder(run: str, resumes: bool) -> Optional[Path]:
    """The folder of this process where :func:`launch` has started it, else ``None``; for the second swarm that it
    joins ``0-2`` and so on. ``resumes``: whether it goes on with the last one of this run."""
    rank = os.environ.get(RANK)
    return None if rank is None else _of(rank, run, resumes)


def _of(rank: str, run: str, resumes: bool) -> Path:
    number = _number(run, resumes)
    return Path(os.environ[FOLDER]) / (rank if number == 1 else f"{rank}-{number}")


def left(data_dir: Path) -> None:
    """The peer has left: where :func:`launch` has started this process, nobody looks for it there any more."""
    if RANK in os.environ:
        (data_dir / "address").unlink(missing_ok=True)


def place(run: str, resumes: bool) -> Optional[dict[str, Any]]:
    """The settings of this process where :func:`launch` has started it, else ``None``."""
    own = folder(run, resumes)
    if own is None:
        return None
    found: dict[str, Any] = {
        "data_dir": str(own),
        "require_peers": int(os.environ[SIZE]) - 1,
        "listen": ["/ip4/127.0.0.1/udp/0/quic-v1"],
        "mdns": False,
        "open": True,
    }
    if os.environ[RANK] != "0":
        found["bootstrap"] = [_address(_of("0", run, resumes) / "address")]
    return found


def _address(file: Path) -> str:
    until = time.monotonic() + _ADDRESS
    while time.monotonic() < until:
        lines = file.read_text().split() if file.exists() else []
        if lines:
            return lines[0]
        time.sleep(0.02)
    raise Error(
        f"join where dnode.launch has started this process: the first peer has not written {file}; "
        "leave data_dir out of dnode.join there, or look at what that process says"
    )


def main() -> int:
    """``python -m dnode.launch -n 2 script.py …``"""
    words = sys.argv[1:]
    if len(words) < 3 or words[0] != "-n" or not words[1].isdecimal() or int(words[1]) < 1:
        print("usage: python -m dnode.launch -n N script.py [argument …]", file=sys.stderr)
        return 2
    try:
        root = launch(int(words[1]), words[2], words[3:])
        print(f"what the processes have written is in {root}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        return error.returncode if error.returncode > 0 else 1
    except KeyboardInterrupt:
        return 130
    return 0
