"""How long a peer takes from its start to its first step, over and over.

Cases, each in fresh data directories on loopback, with the data set digits:
- `alone`: one peer.
- `fourth`: one more peer beside three that know each other and train.
- `large`: one more peer beside one that trains an mlp of 25 M parameters (100 MB).
- `dead`: one peer whose bootstrap address nobody answers at.
- `back`: one peer that remembers another from its start before, which is gone.

Prints medians, least and most in seconds from the start of the process: until it listens (`network`), to its first
step, to its first useful one (the first after the last model that it took over), to its first exchange, and until
all others are connected (`all`). Then how long it took over models (`took`), from the first to the last.

Arguments by position: the dnode program, the number of runs, the cases with commas between, and settings for all
peers, for example `network.direct=off`.
"""
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from datetime import datetime

FLAGS = ["join", "--open", "--no-mdns", "--exit-with-stdin", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"]
SETTINGS = ["run.steps=100000000", "gossip.balance=off", "node.metrics_every=1", "node.evaluate_every=0",
            "node.checkpoint_interval=1h", "node.log_format=json", "data.kind=digits"]
LARGE = ["model.hidden=[4900,4900]", "run.batch=1", "gossip.local_steps=2", "optimizer.kind=sgd"]
NAMES = ["network", "step", "useful", "exchange", "all", "took"]
READY_S, AFTER_S, POLL_S = 60, 1.0, 0.02


def lines(home):
    """The whole lines of a peer's metrics; `at` is their time by the wall clock."""
    path = os.path.join(home, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    found = [json.loads(line) for line in open(path) if line.endswith("}\n")]
    starts = [line for line in found if line["kind"] == "start"]
    if not starts:
        return []
    found = found[found.index(starts[-1]):]
    began = starts[-1]["unix_s"] - starts[-1]["time_s"]
    return [dict(line, at=began + line["time_s"]) for line in found]


def logged(home, wanted):
    """When the log says this for the first time, by the wall clock."""
    for line in open(os.path.join(home, "out"), errors="replace"):
        if f'"message":"{wanted}"' in line and line.startswith('{"timestamp"'):
            stamp = re.match(r'\{"timestamp":"([^"]*)Z"', line).group(1)
            return datetime.fromisoformat(stamp + "+00:00").timestamp()
    return None


def wait(what, condition):
    deadline = time.time() + READY_S
    while True:
        found = condition()
        if found:
            return found
        if time.time() > deadline:
            sys.exit(f"never happened: {what}")
        time.sleep(POLL_S)


def address(home):
    path = os.path.join(home, "address")
    return wait("an address", lambda: os.path.exists(path) and open(path).read().split("\n")[0].strip())


class Peer:
    def __init__(self, home, bootstrap, settings):
        os.makedirs(home, exist_ok=True)
        # A later setting of a key takes the place of an earlier one.
        chosen = dict(setting.split("=", 1) for setting in SETTINGS + settings)
        sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        joins = [word for place in bootstrap for word in ("--bootstrap", place)]
        self.home, self.log = home, open(os.path.join(home, "out"), "w")
        environment = dict(os.environ, RUST_LOG="warn,dnode=debug")
        self.began = time.time()
        command = [program, *FLAGS, "--data-dir", home, *sets, *joins]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log,
                                        env=environment)

    def steps(self):
        return [line["at"] for line in lines(self.home) if line["kind"] == "train"]

    def events(self, name):
        return [line["at"] for line in lines(self.home) if line["kind"] == "event" and line["name"] == name]

    def end(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait()
        self.log.close()


def figures(peer, others):
    """What the start of `peer` took; `None` where that did not happen."""
    steps, done, ups = peer.steps(), peer.events("catch-up-done"), peer.events("peer-up")
    begun = peer.events("catch-up-started")
    useful = [step for step in steps if not done or step > done[-1]]
    found = [logged(peer.home, "listening"), steps[:1], useful[:1],
             logged(peer.home, "mixed"), ups[others - 1:others] if others else None]
    found = [one[0] if isinstance(one, list) and one else one or None for one in found]
    times = [None if one is None else one - peer.began for one in found]
    return [*times, done[-1] - begun[0] if done and begun else None]


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(case, folder, given):
    peers, homes = [], [os.path.join(folder, str(index)) for index in range(4)]
    try:
        settings = [*given, *(LARGE if case == "large" else [])]
        standing = {"fourth": 3, "large": 1, "back": 1}.get(case, 0)
        bootstrap = []
        for home in homes[:standing]:
            peers.append(Peer(home, bootstrap, settings))
            bootstrap = bootstrap or [address(home)]
        if case == "dead":
            bootstrap = [f"/ip4/127.0.0.1/udp/{free_port()}/quic-v1"]
        for peer in peers:
            wait("steps", lambda: len(peer.steps()) > (6 if case == "large" else 60))
            wait("neighbours", lambda: len(peer.events("peer-up")) >= standing - 1)
        if case == "back":
            first = Peer(homes[3], bootstrap, settings)
            wait("a neighbour", lambda: first.events("peer-up"))
            wait("who was met", lambda: os.path.exists(os.path.join(homes[3], "peers")))
            first.end()
            peers.pop().end()
            os.remove(os.path.join(homes[3], "metrics.jsonl"))
            bootstrap = []
        time.sleep(AFTER_S)
        peer = Peer(homes[3], bootstrap, settings)
        peers.append(peer)
        wait("a step", peer.steps)
        if standing and case != "back":
            wait("an exchange", lambda: logged(peer.home, "mixed"))
            wait("all", lambda: len(peer.events("peer-up")) >= standing)
        time.sleep(AFTER_S)
        return figures(peer, 0 if case == "back" else standing)
    finally:
        for peer in peers:
            peer.end()


def main():
    for case in sys.argv[3].split(","):
        found = []
        for _ in range(int(sys.argv[2])):
            with tempfile.TemporaryDirectory() as folder:
                found.append(run(case, folder, sys.argv[4:]))
        for name, values in zip(NAMES, zip(*found)):
            known = [value for value in values if value is not None]
            if known:
                print(f"{case:7} {name:9} {statistics.median(known):.3f} "
                      f"({min(known):.3f}-{max(known):.3f}, {len(known)} runs)", flush=True)


program = os.path.abspath(sys.argv[1])
main()
