"""What a joined swarm costs a loop: time of a step and memory, against the same loop without it.

    python node/python/benches/step.py --peers 4 --model gpt --seconds 60

starts the peers on this machine, each with one thread of PyTorch. All train without a swarm and joined by turns,
each time for so many seconds and together. Prints a line of JSON a peer and one of all.
`--set section.key=value` is a setting of the swarm. Needs the package `dnode` to be importable.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Optional

import dnode
import models
import torch

#: Longest wait of a peer for the others between two phases, seconds.
MEETS_WITHIN_S = 300.0
#: Seconds that are not counted at the start of a phase: how often peers mix has to settle.
WARM_S = 6.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--model", choices=list(models.MODELS), default="cnn")
    parser.add_argument("--device", default="cpu", help="where the model is, for example cuda:0, shared by all peers")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3, help="times that it joins")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def meet(name: str) -> None:
    """Waits until all processes are here."""
    folder, size = Path(os.environ["DNODE_LAUNCH_FOLDER"]), int(os.environ["DNODE_LAUNCH_SIZE"])
    (folder / f"{name}-{os.environ['DNODE_LAUNCH_RANK']}").touch()
    until = time.monotonic() + MEETS_WITHIN_S
    while len(list(folder.glob(f"{name}-*"))) < size:
        assert time.monotonic() < until, f"the others never came to {name}"
        time.sleep(0.005)


def resident_mb() -> float:
    """Memory that this process holds, after the allocator has given back what is free, MB."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def wait_for_device() -> None:
    """Until a device, if there is one, has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def phase(seconds: float, step: Callable[[], None]) -> "dict[str, float]":
    """Milliseconds of a step in the mean and the median, and of processor time, while all train."""
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        step()
    wait_for_device()
    took: "list[float]" = []
    begun, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        at = time.perf_counter()
        step()
        took.append(time.perf_counter() - at)
    wait_for_device()
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    each = 1e3 / len(took)
    return dict(mean=wall * each, median=statistics.median(took) * 1e3, cpu=cpu * each, steps=len(took))


def worker(given: argparse.Namespace) -> None:
    model, optimizer, batch = models.make(given.model, given.device)
    samples = len(batch()[0])
    parameters = sum(it.numel() for it in model.parameters())
    inside: "list[float]" = []
    swarm: Optional[dnode.Swarm] = None

    def step() -> None:
        loss = models.train(model, optimizer, batch)
        if swarm is not None:
            at = time.perf_counter()
            swarm.step(loss=loss, samples=samples)
            inside.append(time.perf_counter() - at)

    bare: "list[dict[str, float]]" = []
    joined: "list[dict[str, float]]" = []
    settings = dict(text.split("=", 1) for text in given.set)
    meet("bare-0")
    bare.append(phase(given.seconds, step))
    memory = [resident_mb()]
    for turn in range(given.turns):
        meet(f"join-{turn}")
        swarm = dnode.join(model, optimizer, run="bench", steps=10**9, config=settings, verbose=False)
        meet(f"joined-{turn}")
        inside.clear()
        joined.append(phase(given.seconds, step))
        memory.append(resident_mb())
        stats = swarm.stats
        meet(f"leave-{turn}")
        outcome = swarm.leave()
        swarm = None
        meet(f"bare-{turn + 1}")
        bare.append(phase(given.seconds, step))
    meet("end")
    line: "dict[str, Any]" = {
        "parameters": parameters,
        "bare_ms": bare,
        "joined_ms": joined,
        "in_swarm_step_us": {
            "median": statistics.median(inside) * 1e6,
            "mean": statistics.fmean(inside) * 1e6,
            "longest": max(inside) * 1e6,
        },
        "bytes_per_parameter": (memory[1] - memory[0]) * 1e6 / parameters,
        "exchanges": outcome["exchanges"],
        "sent_bytes": stats["sent_bytes"],
    }
    Path(os.environ["DNODE_LAUNCH_FOLDER"], f"result-{os.environ['DNODE_LAUNCH_RANK']}").write_text(
        json.dumps(line)
    )


def main() -> None:
    given = arguments()
    if given.worker:
        return worker(given)
    words = ["--worker", "--model", given.model, "--device", given.device]
    words += ["--seconds", str(given.seconds), "--turns", str(given.turns)]
    words += [word for text in given.set for word in ("--set", text)]
    folder = dnode.launch(given.peers, __file__, words)
    lines = [json.loads(it.read_text()) for it in sorted(folder.glob("result-*"))]
    for line in lines:
        print(json.dumps(line))

    def rate(kind: str, index: int, key: str) -> float:
        """Milliseconds a step of all peers: harmonic, as those of their common rate."""
        return len(lines) / sum(1 / line[kind][index][key] for line in lines)

    def ratios(key: str) -> "list[float]":
        """Of each turn: a step while joined over one of before and after."""
        bare = [rate("bare_ms", index, key) for index in range(given.turns + 1)]
        return [
            rate("joined_ms", turn, key) / statistics.fmean(bare[turn : turn + 2]) for turn in range(given.turns)
        ]

    print(
        json.dumps({
            "model": given.model,
            "peers": given.peers,
            "bare_ms": [rate("bare_ms", index, "mean") for index in range(given.turns + 1)],
            "joined_ms": [rate("joined_ms", turn, "mean") for turn in range(given.turns)],
            "step_ratios": ratios("mean"),
            "step_ratio": statistics.median(ratios("mean")),
            "cpu_ratio": statistics.median(ratios("cpu")),
            "bytes_per_parameter": statistics.median(it["bytes_per_parameter"] for it in lines),
        })
    )


if __name__ == "__main__":
    main()
