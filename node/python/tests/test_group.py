"""Processes of a group are one peer."""

from __future__ import annotations

from pathlib import Path

from conftest import Script, Start

#: A rank of a group.
RANK = '''
import os
import torch.distributed as group
rank, size, meeting, rest = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
group.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=size)
part = None


def end():
    # The threads of a process group of PyTorch 1.13 may abort a process whose interpreter ends.
    group.barrier()
    os._exit(0)


def parallel(model):
    return torch.nn.parallel.DistributedDataParallel(model, process_group=part)


def weights(model):
    return [p.flatten().tolist() for p in model.parameters()]


WORLD = group.group.WORLD
'''

#: A rank whose loop is the one of a single process.
LOOP = RANK + '''
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
wrapped = parallel(model)
generator = torch.Generator().manual_seed(rank)
moved = 0
with dnode.join(wrapped, optimizer, run="hosts", steps=300, require_peers=1, process_group=WORLD, **LOCAL) as swarm:
    assert swarm.membership == "joined"
    while swarm.membership == "joined":
        moved += swarm.step(loss=one_step(wrapped, optimizer, generator), samples=32).moved
print("WEIGHTS", weights(model))
print("MOVED", moved, swarm)
ended = swarm.leave()
print("ENDED", swarm.membership, ended["reason"], ended["step"], ended["samples"], ended["exchanges"])
end()
'''

#: A peer of one process, whose model is not wrapped.
SINGLE = '''
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(7)
with dnode.join(model, optimizer, run="hosts", bootstrap=sys.argv[1:], steps=300, require_peers=1, **LOCAL) as swarm:
    while swarm.membership == "joined":
        swarm.step(loss=one_step(model, optimizer, generator), samples=32)
print("EXCHANGES", swarm.leave()["exchanges"])
'''


def ranks_of(start: Start, tmp_path: Path, text: str, *words: str, size: int = 2) -> list[Script]:
    meeting = tmp_path / "meeting"
    meeting.unlink(missing_ok=True)
    return [start(f"rank-{rank}", text, str(rank), str(size), str(meeting), *words) for rank in range(size)]


def test_ranks_of_a_group_run_one_loop_and_are_one_peer(start: Start, tmp_path: Path) -> None:
    ranks = ranks_of(start, tmp_path, LOOP)
    single = start("single", SINGLE, ranks[0].address())
    logs = [peer.wait() for peer in (*ranks, single)]
    told = [{line.split()[0]: line for line in log.splitlines() if line} for log in logs]
    assert told[0]["WEIGHTS"] == told[1]["WEIGHTS"], logs
    assert all(int(it["MOVED"].split()[1]) > 1 for it in told[:2]), logs
    assert "peers>" in told[0]["MOVED"] and told[1]["MOVED"].endswith("joined by rank 0>"), logs
    ended = told[0]["ENDED"].split()
    assert told[0]["ENDED"] == told[1]["ENDED"] and ended[1:4] == ["finished", "steps", "done"], logs
    assert int(ended[5]) == 2 * 32 * int(ended[4]) and int(ended[6]) > 0, logs
    assert int(told[2]["EXCHANGES"].split()[1]) > 0, logs
    assert not (ranks[1].folder / "data").exists(), "rank 1 has no folder of its own"


def test_a_part_of_all_processes_is_a_peer_and_its_first_one_speaks(start: Start, tmp_path: Path) -> None:
    text = RANK + '''
part, model, steps = group.new_group([1, 2]), Net(), 200
address = [None]
if rank == 0:
    swarm = dnode.join(model, run="parts", steps=steps, **LOCAL)
    address = [swarm.address]
group.broadcast_object_list(address, 0)
if rank > 0:
    model = parallel(model)
    swarm = dnode.join(model, run="parts", steps=steps, bootstrap=address, process_group=part, **LOCAL)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if rank < 2:
    swarm.wait_for_peers(1)
while swarm.membership == "joined":
    swarm.step(one_step(model, optimizer, torch.Generator().manual_seed(rank)))
print("WEIGHTS", weights(model))
print("ENDED", swarm.leave()["exchanges"])
end()
'''
    logs = [rank.wait() for rank in ranks_of(start, tmp_path, text, size=3)]
    told = [{line.split()[0]: line for line in log.splitlines() if line} for log in logs]
    assert told[1]["WEIGHTS"] == told[2]["WEIGHTS"], logs
    assert all(int(it["ENDED"].split()[1]) > 0 for it in told), logs


def test_an_error_of_rank_0_is_one_of_all(start: Start, tmp_path: Path) -> None:
    text = RANK + '''
model = parallel(Net())
try:
    dnode.join(model, run="errors", process_group=WORLD, **{**LOCAL, "local_steps": 0})
except dnode.ConfigError as error:
    print("WRONG", error)
swarm = dnode.join(model, run="errors", process_group=WORLD, errors="raise", **LOCAL)
swarm.step(0.0)
print("ASKS", rank)
for ask in (swarm.checkpoint, lambda: swarm.stats, swarm.state_dict):
    try:
        ask()
    except dnode.Error as error:
        print("ASKED", error)
group.barrier()
if rank == 0:
    import shutil
    shutil.rmtree("data/checkpoints", ignore_errors=True)
    open("data/checkpoints", "w").write("in the way")
try:
    swarm.leave()
except dnode.CheckpointError as error:
    print("FAILED", error)
print("STANDS", swarm.membership, swarm.step(0.0).membership)
end()
'''
    first, second = ranks_of(start, tmp_path, text)
    for rank in (first, second):
        log = rank.wait()
        assert "gossip.local_steps = 0" in log.split("WRONG ")[1].splitlines()[0], log
        assert "FAILED save the end of the run" in log and "STANDS alone alone" in log, log
    assert "ASKED" not in first.log() and "(told by rank 0)" in second.log()
    assert second.log().count("ASKED ask the swarm: rank 0 of the process group") == 3, second.log()


def test_a_group_resumes_with_what_rank_0_has_saved(start: Start, tmp_path: Path) -> None:
    text = RANK + '''
torch.manual_seed(rank)
model = Net(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
again = bool(rest)
state = torch.load("state.pt") if again and rank == 0 else None
swarm = dnode.join(model, optimizer, run="again", resume=state or False, process_group=WORLD, **{**LOCAL, "data_dir": "again" if again else "data"})
print("BEGINS", weights(model))
if not again:
    for _ in range(5):
        loss = one_step(model, optimizer, torch.Generator().manual_seed(3))
        swarm.step(loss)
    if rank == 0:
        torch.save(swarm.state_dict(), "state.pt")
print("STATE", [sorted((key, value.flatten().tolist()) for key, value in optimizer.state[p].items()) for p in model.parameters()])
print("WEIGHTS", weights(model))
swarm.leave()
print("LEFT", swarm.membership)
end()
'''
    logs = [rank.wait() for rank in ranks_of(start, tmp_path, text)]
    before = [{line.split()[0]: line for line in log.splitlines() if line} for log in logs]
    # Their seeds were different.
    assert before[0]["BEGINS"] == before[1]["BEGINS"] and before[0]["WEIGHTS"] == before[1]["WEIGHTS"], logs
    logs = [rank.wait() for rank in ranks_of(start, tmp_path, text, "again")]
    for log in logs:
        after = {line.split()[0]: line for line in log.splitlines() if line}
        assert after["STATE"] == before[0]["STATE"] and after["WEIGHTS"] == before[0]["WEIGHTS"], logs
        assert after["LEFT"] == "LEFT left", logs


def test_an_exception_of_rank_0_is_no_wait_without_end_for_others(start: Start, tmp_path: Path) -> None:
    text = RANK + '''
model = parallel(Net())
swarm = dnode.join(model, run="errors", process_group=WORLD, **LOCAL)
try:
    swarm.state_dict()
    print("ASKED 0")
except dnode.Error as error:
    print("ASKED", error)
try:
    swarm.step("no number")
except Exception as error:
    print("RAISED", type(error).__name__, error)
print("STANDS", swarm.membership, swarm.step(0.0).membership)
end()
'''
    first, second = [rank.wait() for rank in ranks_of(start, tmp_path, text)]
    assert "ASKED 0" in first and "RAISED ValueError" in first, first
    assert "ASKED ask the swarm: rank 0 of the process group" in second, second
    assert "RAISED Error ValueError: could not convert" in second and "(told by rank 0)" in second, second
    assert all("STANDS alone alone" in log for log in (first, second)), (first, second)


def test_others_wait_for_rank_0_longer_than_the_time_out_of_their_group(start: Start, tmp_path: Path) -> None:
    text = RANK + '''
import datetime
from dnode import _group
_group._SAYS_EVERY_S = 0.4
short = group.new_group([0, 1], timeout=datetime.timedelta(seconds=3))
link = _group.Link(short)
group.barrier()
def work():
    time.sleep(7)
    return "joined", 1, 2, 3, False
print("TOLD", link.run(work), link.run(lambda: ("left", 4, 5, 6, False)))
link.closed = True
end()
'''
    for rank in ranks_of(start, tmp_path, text):
        assert "TOLD ('joined', 1, 2, 3, False) ('left', 4, 5, 6, False)" in rank.wait(), rank.log()
