"""How long the others stand still when one of four peers is killed, over and over.

Four processes train on digits; one is killed with SIGKILL while they exchange.
Prints for each survivor its longest time between two steps in the second after the kill, beside that in the
second before, in seconds.
Then its steps in the first of these seconds over those in the other.

Arguments by position: the dnode program, the number of runs, and settings for all peers, for example
`network.direct=off`.
"""
import os
import random
import statistics
import sys
import tempfile
import time

from rack_kill import POLL_S, lines, start

PEERS = 4
SETTINGS = ["gossip.local_steps=25", "gossip.mix_every=25", "run.batch=32"]
READY_S, WARM_S, AFTER_S = 30, 2, 3


def steps(home):
    return [line["at"] for line in lines(home) if line["kind"] == "train"]


def longest(times, begin, end):
    """The longest time between two steps that lies at least in part between the two times."""
    around = [time for time in times if begin - AFTER_S <= time <= end + AFTER_S]
    gaps = [(a, b) for a, b in zip(around, around[1:]) if b > begin and a < end]
    return max((b - a for a, b in gaps), default=float(AFTER_S))


def count(times, begin, end):
    return sum(begin <= time < end for time in times)


def run(program, folder):
    homes = [os.path.join(folder, str(index)) for index in range(PEERS)]
    peers = start(program, homes, [[]] * PEERS, SETTINGS + sys.argv[3:])
    try:
        deadline = time.time() + READY_S
        while not all(steps(home) for home in homes):
            if time.time() > deadline:
                sys.exit("the peers do not train")
            time.sleep(POLL_S)
        time.sleep(WARM_S + random.random())
        victim = random.randrange(PEERS)
        killed = time.time()
        peers[victim].kill()
        time.sleep(AFTER_S)
        found = []
        for index in range(PEERS):
            if index != victim:
                times = steps(homes[index])
                after, before = longest(times, killed, killed + 1), longest(times, killed - 1, killed)
                rate = count(times, killed, killed + 1) / count(times, killed - 1, killed)
                found.append((after, before, rate))
        return sorted(found)
    finally:
        for peer in peers:
            peer.kill()
        for peer in peers:
            peer.wait()


def main():
    program, found = os.path.abspath(sys.argv[1]), []
    for number in range(int(sys.argv[2])):
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(program, folder))
        text = "  ".join(f"{after:.3f} ({before:.3f}) {rate:.2f}" for after, before, rate in found[-1])
        print(number, text, flush=True)
    for place, name in enumerate(["the one that waited least", "the next", "most"]):
        after, before, rate = zip(*[one[place] for one in found])
        print(f"{name}: median {statistics.median(after):.3f}, worst {max(after):.3f}; "
              f"before {statistics.median(before):.3f}; rate {statistics.median(rate):.2f}")


main()
