"""How long a rack of three stands still when one of its ranks is killed, over and over.

Four processes train on digits, three of rack `a` and one of rack `b`; a rank of `a` is killed with SIGKILL
while it trains, nearly always within an all-reduce, which takes most of so small a step.
Prints for each survivor the time from the kill to its first step in the new group, in seconds.

Arguments by position: the dnode program, the number of runs, and settings for all peers, for example
`network.collective=tcp`.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

FLAGS = ["join", "--open", "--no-mdns", "--exit-with-stdin", "--rule", "gossip-outer", "--listen",
         "/ip4/127.0.0.1/udp/0/quic-v1"]
SETTINGS = ["run.steps=100000000", "run.batch=16", "gossip.balance=off", "node.metrics_every=1",
            "node.evaluate_every=0", "node.threads=1", "data.kind=digits",
            "data.shards=4", "network.require_peers=3"]
RACKS = ["a", "a", "a", "b"]
MEMBERS = range(3)
FORM_S, AFTER_S, POLL_S = 30, 6, 0.05


def address(home):
    path = os.path.join(home, "address")
    while not os.path.exists(path) or not open(path).read().strip():
        time.sleep(POLL_S)
    return open(path).read().split("\n")[0].strip()


def lines(home):
    """The whole lines of a peer's metrics; times become those of the wall clock."""
    path = os.path.join(home, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    found = [json.loads(line) for line in open(path) if line.endswith("}\n")]
    began = next((line["unix_s"] for line in found if line["kind"] == "start"), 0.0)
    return [dict(line, at=began + line.get("time_s", 0.0)) for line in found]


def groups(home):
    return [line for line in lines(home) if line["kind"] == "event" and line["name"] == "rack"]


def start(program, homes, flags, given):
    peers, bootstrap = [], []
    for index, (home, more) in enumerate(zip(homes, flags)):
        os.makedirs(home)
        settings = [*SETTINGS, f"data.shard={index}", *given]
        sets = [word for setting in settings for word in ("--set", setting)]
        command = [program, *FLAGS, "--data-dir", home, *more, *sets, *bootstrap]
        log = open(os.path.join(home, "out"), "w")
        peers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log))
        bootstrap = bootstrap or ["--bootstrap", address(home)]
    return peers


def run(program, folder):
    homes = [os.path.join(folder, str(index)) for index in range(len(RACKS))]
    peers = start(program, homes, [["--rack", rack] for rack in RACKS], sys.argv[3:])
    try:
        deadline = time.time() + FORM_S
        whole = lambda home: any("of 3" in event["detail"] for event in groups(home)[-1:])
        while not all(whole(homes[index]) for index in MEMBERS):
            if time.time() > deadline:
                sys.exit("the rack has not got together")
            time.sleep(POLL_S)
        time.sleep(1 + random.random())
        victim = random.choice(MEMBERS)
        peers[victim].kill()
        killed = time.time()
        time.sleep(AFTER_S)
        return [pause(homes[index], killed) for index in MEMBERS if index != victim]
    finally:
        for peer in peers:
            peer.kill()
        for peer in peers:
            peer.wait()


def pause(home, killed):
    anew = [event["at"] for event in groups(home) if event["at"] > killed]
    steps = [line["at"] for line in lines(home) if line["kind"] == "train"]
    after = [step for step in steps if anew and step > anew[0]]
    return after[0] - killed if after else float(AFTER_S)


def main():
    program, worst = os.path.abspath(sys.argv[1]), []
    for number in range(int(sys.argv[2])):
        with tempfile.TemporaryDirectory() as folder:
            pauses = run(program, folder)
        worst.append(max(pauses))
        print(number, " ".join(f"{pause:.3f}" for pause in pauses), flush=True)
    print(f"the survivor that waited longer: median {statistics.median(worst):.3f}, worst {max(worst):.3f}")


if __name__ == "__main__":
    main()
