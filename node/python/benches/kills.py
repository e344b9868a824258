"""How long the others stand still when a peer is killed.

    python node/python/benches/kills.py --peers 4 --kills 20

Peers train the cnn on this machine. One after the other is killed with SIGKILL and started again with
`resume=True`. Prints a line of JSON a kill: the longest time between two steps of each survivor in the
seconds before and after, and its mean loss in those before; and one of all. A peer that hangs or does not
come back ends it with an error. Needs the package `dnode` to be importable.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dnode
import models

#: Looked at before and after a kill, seconds.
WINDOW_S = 3.0
#: A peer that is not in the swarm by then will never be, seconds.
JOINS_WITHIN_S = 60.0


def worker(folder: Path, rank: int, size: int, resume: bool) -> None:
    """Trains until it is killed; writes of each step the time, which all processes count alike, and the loss."""
    model, optimizer, batch = models.make("cnn")
    others = [folder / str(it) / "address" for it in range(size) if it != rank]
    bootstrap = [word for file in others if file.exists() for word in file.read_text().split()[:1]]
    swarm = dnode.join(
        model,
        optimizer,
        run="kills",
        bootstrap=bootstrap,
        data_dir=folder / str(rank),
        listen=["/ip4/127.0.0.1/udp/0/quic-v1"],
        mdns=False,
        open=True,
        steps=10**9,
        resume=resume,
        checkpoint_every=200,
        verbose=False,
    )
    with (folder / f"steps-{rank}").open("a", buffering=1) as steps:
        while True:
            loss = models.train(model, optimizer, batch)
            swarm.step(loss=loss, samples=32)
            peers = len(swarm.snapshot["peers"]) if swarm.last_step.index % 20 == 0 else -1
            steps.write(f"{time.monotonic()} {peers} {loss.item()}\n")


class Peers:
    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.processes = [self._start(rank, resume=False) for rank in range(size)]

    def _start(self, rank: int, resume: bool) -> "subprocess.Popen[bytes]":
        words = [sys.executable, __file__, "--worker", str(self.folder), str(rank), str(self.size), str(int(resume))]
        return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def steps(self, rank: int) -> "list[tuple[float, int, float]]":
        file = self.folder / f"steps-{rank}"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [(float(at), int(peers), float(loss)) for at, peers, loss in (line.split() for line in lines[-2000:])]

    def wait_for_all(self, since: float) -> None:
        """Until each peer says that it knows all the others."""
        until = time.monotonic() + JOINS_WITHIN_S
        missing = set(range(self.size))
        while missing:
            assert time.monotonic() < until, f"peers {missing} are not in the swarm"
            time.sleep(0.2)
            for rank in list(missing):
                told = [peers for at, peers, _ in self.steps(rank) if at > since and peers >= 0]
                if told and told[-1] >= self.size - 1:
                    missing.remove(rank)

    def kill(self, rank: int) -> float:
        at = time.monotonic()
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait()
        return at

    def start_again(self, rank: int) -> None:
        self.processes[rank] = self._start(rank, resume=True)

    def longest(self, rank: int, begin: float, end: float) -> "tuple[float, int]":
        """The longest time between two steps, milliseconds, and the number of steps."""
        inside = [at for at, _, _ in self.steps(rank) if begin <= at <= end]
        gaps = [1e3 * (b - a) for a, b in zip([begin, *inside], [*inside, end])]
        return max(gaps), len(inside)

    def loss(self, rank: int, begin: float, end: float) -> float:
        """Its mean between these times."""
        return statistics.mean(loss for at, _, loss in self.steps(rank) if begin <= at <= end)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory(prefix="dnode-kills-") as folder:
        peers = Peers(Path(folder), given.peers)
        try:
            since = time.monotonic()
            for number in range(given.kills):
                peers.wait_for_all(since)
                time.sleep(WINDOW_S)
                victim = number % given.peers
                at = peers.kill(victim)
                time.sleep(WINDOW_S)
                survivors = [rank for rank in range(given.peers) if rank != victim]
                before = [peers.longest(rank, at - WINDOW_S, at) for rank in survivors]
                after = [peers.longest(rank, at, at + WINDOW_S) for rank in survivors]
                lines.append(
                    {
                        "victim": victim,
                        "longest_before_ms": [round(gap, 1) for gap, _ in before],
                        "longest_after_ms": [round(gap, 1) for gap, _ in after],
                        "loss_before": [round(peers.loss(rank, at - WINDOW_S, at), 4) for rank in survivors],
                        "rate": round(sum(n for _, n in after) / max(1, sum(n for _, n in before)), 3),
                    }
                )
                print(json.dumps(lines[-1]), flush=True)
                since = time.monotonic()
                peers.start_again(victim)
        finally:
            peers.end()
    before = [gap for line in lines for gap in line["longest_before_ms"]]
    after = [gap for line in lines for gap in line["longest_after_ms"]]
    of = lambda gaps: {"median": statistics.median(gaps), "longest": max(gaps)}
    print(json.dumps({"kills": len(lines), "before_ms": of(before), "after_ms": of(after)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1")
    else:
        main()
