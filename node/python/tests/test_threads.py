"""Python's lock is not held while a thread waits in the swarm."""

from __future__ import annotations

from conftest import Start


def test_other_threads_run_while_one_waits_for_peers_at_a_gate_and_in_leave(start: Start) -> None:
    # What each call waits for is done by another thread of the process: with the lock held none would return.
    log = start("0", '''
import threading
from dnode._torch import Callbacks
settings = {**LOCAL, "local_steps": 1, "gossip": {"progress_gap": 2, "gate_timeout": "1h"}}
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
swarm = dnode.join(model, optimizer, run="threads", **settings)
address, has_left, saving, seen = swarm.address, threading.Event(), threading.Event(), threading.Event()
def second():
    other = dnode.join(Net(), run="threads", bootstrap=address, **{**settings, "data_dir": "other"})
    # It steps where the main one has not for a while, mostly because that one waits for it.
    at, since = 0, time.monotonic()
    while not has_left.is_set():
        if swarm.last_step.index != at:
            at, since = swarm.last_step.index, time.monotonic()
        elif time.monotonic() - since > 1.0:
            since = time.monotonic()
            other.step(0.0)
        time.sleep(0.02)
    other.leave()
thread = threading.Thread(target=second)
thread.start()
threading.Thread(target=lambda: (saving.wait(), seen.set()), daemon=True).start()
print("PEERS", swarm.wait_for_peers(1))
while swarm.last_step.index < 6 or not swarm.stats["wait_s"] > 0.0:
    swarm.step(one_step(model, optimizer, torch.default_generator))
print("GATES", swarm.membership)
save = Callbacks.save
def slow_save(self):
    # Called by a thread of the node while this one waits in leave.
    if self is swarm._callbacks:
        saving.set()
        print("SEEN", seen.wait(60), threading.current_thread() is not threading.main_thread())
    return save(self)
Callbacks.save = slow_save
print("LEFT", swarm.leave()["reason"])
has_left.set()
thread.join(60)
print("ENDED", not thread.is_alive())
''').wait()
    for said in ("PEERS 1", "GATES joined", "SEEN True True", "LEFT interrupted", "ENDED True"):
        assert said in log, log
