"""Real processes: peers in Python exchange, come late, leave, are killed, resume, and fail alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from conftest import Start

#: The four lines, with as many steps as an argument says.
LOOP = '''
steps = int(sys.argv[1])
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(int(sys.argv[2]))
with dnode.join(model, optimizer, run="test", **peers(sys.argv[3:]), **LOCAL) as swarm:
    swarm.wait_for_peers(1)
    first = None
    for _ in range(steps):
        loss = one_step(model, optimizer, generator)
        first = first if first is not None else loss.item()
        swarm.step(loss=loss, samples=32)
print("LOSS", first, loss.item())
print("EXCHANGES", swarm.leave()["exchanges"])
'''

#: A loop without an end.
ENDLESS = '''
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(len(sys.argv))
swarm = dnode.join(model, optimizer, run="endless", **peers(sys.argv[1:]), **LOCAL)
seen = 0
while True:
    time.sleep(0.001)
    step = swarm.step(loss=one_step(model, optimizer, generator), samples=32)
    if step.index % 100 == 0:
        print("AT", step.index, flush=True)
    seen += step.moved
    if seen == 3:
        print("MOVED", flush=True)
'''


def test_two_peers_of_the_four_lines_exchange_and_both_losses_fall(start: Start) -> None:
    first = start("0", LOOP, "2000", "1")
    second = start("1", LOOP, "2000", "2", first.address())
    for peer in (first, second):
        log = peer.wait()
        before, after = (float(it) for it in log.split("LOSS ")[1].split()[:2])
        assert after < 0.1 * before, log
        assert int(log.split("EXCHANGES ")[1].split()[0]) > 0, log


def test_launch_makes_one_swarm_of_several_processes(package: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    from conftest import PRELUDE, environment

    script = tmp_path / "script.py"
    script.write_text(PRELUDE + '''
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with dnode.join(model, optimizer, run="launched", local_steps=5, steps=300) as swarm:
    while swarm.membership == "joined":
        swarm.step(one_step(model, optimizer, torch.default_generator), samples=32)
print("ENDED", swarm.membership, swarm.leave()["exchanges"])
''')
    caller = tmp_path / "caller.py"
    caller.write_text(
        f"import dnode; print(dnode.launch(3, {str(script)!r}, folder={str(tmp_path)!r}, timeout=80))"
    )
    done = subprocess.run([sys.executable, str(caller)], env=environment(package), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = [line.split() for line in done.stdout.splitlines() if line.startswith("ENDED")]
    assert len(ends) == 3 and all(end[1] == "finished" and int(end[2]) > 0 for end in ends), done.stdout


def test_a_joiner_takes_the_weights_and_a_killed_peer_holds_nobody_up(start: Start) -> None:
    first = start("0", ENDLESS)
    second = start("1", ENDLESS, first.address())
    for peer in (first, second):
        peer.until("MOVED")
    third = start("2", ENDLESS, second.address())
    third.until("MOVED")
    second.process.kill()
    at = int(first.log().split("AT ")[-1].split()[0])
    first.until(f"AT {at + 300}")
    third.until("AT 300")


def test_processes_of_a_launch_that_cannot_start_all_are_ended(start: Start) -> None:
    log = start("0", '''
import pathlib, subprocess
pathlib.Path("sleeps.py").write_text("import time; time.sleep(60)")
pathlib.Path("1").write_text("in the way")
started, Popen = [], subprocess.Popen
subprocess.Popen = lambda *words, **more: started.append(Popen(*words, **more)) or started[-1]
try:
    dnode.launch(3, "sleeps.py", folder=".")
except FileExistsError:
    print("ENDED", [it.poll() is not None for it in started])
''').wait()
    assert "ENDED [True]" in log, log


def test_the_others_reach_the_end_when_one_of_three_is_killed(start: Start, tmp_path: Path) -> None:
    text = '''
import pathlib
name, *others = sys.argv[1:]
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(len(others))
swarm = dnode.join(model, optimizer, run="killed", steps=400, require_peers=2, **peers(others), **LOCAL)
seen, losses = 0, []
while swarm.membership == "joined":
    loss = one_step(model, optimizer, generator)
    losses.append(loss.item())
    step = swarm.step(loss=loss, samples=32)
    seen += step.moved
    if seen == 3:
        print("MOVED")
    # Nobody ends before one was killed; exchanges go on meanwhile.
    while step.position >= 200 and (name == "killed" or not pathlib.Path("../was-killed").exists()):
        swarm.wait_for_peers(99, timeout=0.02)
ended = swarm.leave()
print("ENDED", ended["reason"], losses[-1] < 0.3 * losses[0], ended["exchanges"])
'''
    first = start("0", text, "first")
    second = start("1", text, "second", first.address())
    killed = start("2", text, "killed", second.address())
    for peer in (first, second, killed):
        peer.until("MOVED")
    killed.process.kill()
    assert killed.process.wait() == -signal.SIGKILL
    (tmp_path / "was-killed").touch()
    for peer in (first, second):
        log = peer.wait()
        assert "ENDED steps done True" in log and int(log.split("ENDED ")[1].split()[3]) > 0, log


def test_interrupt_leaves_in_good_order_and_resume_goes_on(start: Start) -> None:
    text = ENDLESS.replace("**LOCAL)", "**LOCAL, resume=len(sys.argv) > 1 and sys.argv[1] == 'again')")
    text = text.replace("peers(sys.argv[1:])", "{}") + "\n"
    text = text.replace("seen = 0", "print('BEGINS', swarm.last_step.index, optimizer.state != {}, flush=True); seen = 0")
    first = start("0", text)
    first.until("AT 300")
    first.process.send_signal(signal.SIGINT)
    log = first.wait(status=None)
    assert "KeyboardInterrupt" in log and "checkpoint written" in log, log
    again = start("0", text, "again")
    line = again.until("BEGINS 3")
    assert line.endswith("True"), again.log()
    again.process.send_signal(signal.SIGTERM)
    again.wait(status=None)


def test_interrupt_while_it_waits_for_peers_ends_soon(start: Start) -> None:
    waits = '''
model = Net()
try:
    dnode.join(model, run="waits", require_peers=1, **LOCAL)
except KeyboardInterrupt:
    print("STOPPED")
'''
    peer = start("0", waits)
    peer.address()
    peer.process.send_signal(signal.SIGINT)
    assert "STOPPED" in peer.wait()


def test_after_an_interrupt_in_a_call_the_swarm_has_been_left(start: Start) -> None:
    peer = start("0", '''
swarm = dnode.join(Net(), run="waits", **LOCAL)
print("JOINED", flush=True)
try:
    swarm.wait_for_peers(1)
except KeyboardInterrupt:
    print("NOW", swarm.membership, list(swarm.events(follow=True))[-1:] != [])
''')
    peer.until("JOINED")
    peer.process.send_signal(signal.SIGINT)
    assert "NOW left True" in peer.wait()


def test_a_swarm_that_is_forgotten_leaves_and_its_temporary_folder_goes(start: Start) -> None:
    log = start("0", '''
swarm = dnode.join(Net(), run="forgotten", **{**LOCAL, "data_dir": None})
folder = swarm.data_dir
swarm.step(0.0)
print("FOLDER", folder.exists())
del swarm
print("FOLDER", folder.exists())
''').wait()
    assert log.count("FOLDER True") == 1 and log.count("FOLDER False") == 1, log
    assert "checkpoint written" in log, log


def test_another_model_is_refused_by_name_and_a_wrong_setting_by_what_is_wrong(start: Start) -> None:
    first = start("0", ENDLESS)
    other = '''
model = Net(); model.second = torch.nn.Linear(16, 2)
try:
    dnode.join(model, run="endless", **peers(sys.argv[1:]), **LOCAL)
except dnode.RunMismatch as error:
    print("REFUSED", error)
try:
    dnode.join(model, run="endless", **{**LOCAL, "local_steps": 0})
except dnode.ConfigError as error:
    print("WRONG", error)
try:
    dnode.join(model, run="endless", colour="red")
except dnode.ConfigError as error:
    print("UNKNOWN", error)
'''
    log = start("1", other, first.address()).wait()
    refused = log.split("REFUSED ")[1].splitlines()[0]
    assert "model.tensors.00" in refused and "second.weight [2, 16]" in refused, log
    assert "gossip.local_steps = 0" in log.split("WRONG ")[1].splitlines()[0], log
    assert "join has no argument colour" in log, log


def test_a_node_that_fails_leaves_the_loop_alone_and_says_so_once(start: Start) -> None:
    # The data directory of a node that has begun disappears: nothing can be saved at the end.
    fails = '''
import shutil
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
swarm = dnode.join(model, optimizer, run="fails", **LOCAL)
swarm.step(one_step(model, optimizer, torch.default_generator))
shutil.rmtree("data/checkpoints", ignore_errors=True)
open("data/checkpoints", "w").write("in the way")
try:
    swarm.leave()
except dnode.CheckpointError as error:
    print("FAILED", error)
for _ in range(3):
    step = swarm.step(one_step(model, optimizer, torch.default_generator))
print("GOES ON", step.membership)
print("ASKS", swarm.checkpoint(), swarm.wait_for_peers(1))
'''
    log = start("0", fails).wait()
    assert "FAILED save the end of the run" in log, log
    assert "ASKS None 0" in log and "the swarm's checkpoint was not written: save the end of the run" in log, log
    assert "GOES ON alone" in log and log.count("training goes on alone") == 1, log


def test_a_block_that_cannot_save_its_end_raises_only_where_that_was_asked_for(start: Start) -> None:
    fails = '''
import shutil
model = Net()
try:
    with dnode.join(model, run="fails", errors=sys.argv[1], **LOCAL) as swarm:
        swarm.step(0.0)
        shutil.rmtree("data/checkpoints", ignore_errors=True)
        open("data/checkpoints", "w").write("in the way")
    print("SAVES ITS MODEL", swarm.membership)
except dnode.CheckpointError as error:
    print("RAISED", error)
'''
    log = start("0", fails, "alone").wait()
    assert "SAVES ITS MODEL" in log and "the swarm was not left in good order: save the end of the run" in log, log
    assert "RAISED save the end of the run" in start("1", fails, "raise").wait()


def test_what_join_and_wait_are_given_is_checked(start: Start) -> None:
    text = '''
def refused(what, **given):
    try:
        dnode.join(Net(), run="given", **{**LOCAL, **given})
    except dnode.ConfigError as error:
        print(what, error)
refused("RESUME", resume="state.pt")
refused("BOOTSTRAP", bootstrap="/ip4/127.0.0.1")
swarm = dnode.join(Net(), run="given", resume=None, **LOCAL)
begun = time.monotonic()
print("PEERS", [swarm.wait_for_peers(3, timeout) for timeout in (-1.0, 0.0, 0.05)], swarm.wait_for_peers(0, 1e19), time.monotonic() - begun < 5.0)
other = dnode.join(Net(), run="given", bootstrap=swarm.address, **{**LOCAL, "data_dir": "other"})
print("ONE ADDRESS", other.wait_for_peers(1))
other.leave()
swarm.leave()
'''
    log = start("0", text).wait()
    assert "RESUME resume = 'state.pt' is not legal: must be True, False or what state_dict() returned" in log, log
    assert "BOOTSTRAP" in log and "/ip4/127.0.0.1" in log.split("BOOTSTRAP ")[1].splitlines()[0], log
    assert "PEERS [0, 0, 0] 0 True" in log and "ONE ADDRESS 1" in log, log


def test_a_forked_child_is_told_so_and_ends(start: Start) -> None:
    forks = '''
import os
# CUDA is for no forked child.
model = Net(device="cpu")
swarm = dnode.join(model, run="forks", **LOCAL)
child = os.fork()
if child == 0:
    try:
        swarm.step(0.0)
    except dnode.Error as error:
        print("CHILD", error, flush=True)
    try:
        dnode.join(model, run="forks", **{**LOCAL, "data_dir": "child"})
    except dnode.Error as error:
        print("JOINS", error, flush=True)
    sys.exit(7)
_, status = os.waitpid(child, 0)
print("STATUS", os.waitstatus_to_exitcode(status))
swarm.step(0.0)
print("PARENT", swarm.membership, swarm.leave()["reason"])
'''
    log = start("0", forks).wait()
    assert "CHILD use the swarm in a forked child" in log and "STATUS 7" in log, log
    assert "JOINS join in a process that was forked from one that had joined" in log, log
    assert "PARENT joined interrupted" in log, log


def test_a_forked_child_that_ends_a_block_leaves_its_parents_folder(start: Start) -> None:
    log = start("0", '''
import os
settings = {name: it for name, it in LOCAL.items() if name != "data_dir"}
with dnode.join(Net(device="cpu"), run="forks", steps=3, **settings) as swarm:
    while swarm.membership == "joined":
        swarm.step(0.0)
    child = os.fork()
    if child == 0:
        swarm.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    print("FOLDER", swarm.data_dir.exists())
print("GONE", not swarm.data_dir.exists())
''').wait()
    assert "FOLDER True" in log and "GONE True" in log, log


def test_what_is_told_of_a_swarm(start: Start) -> None:
    tells = '''
import json, logging, pathlib
lines = []
class Keeps(logging.Handler):
    def emit(self, record): lines.append((record.name, record.levelname, record.getMessage()))
logging.getLogger().addHandler(Keeps()); logging.getLogger().setLevel(logging.INFO)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
swarm = dnode.join(model, optimizer, run="tells", ui="127.0.0.1:0", **LOCAL)
for _ in range(20):
    swarm.step(one_step(model, optimizer, torch.default_generator), samples=32)
swarm.evaluate(0.25, accuracy=0.5, count=7)
file = swarm.checkpoint()
end = time.monotonic() + 30
told = []
while not swarm.stats["commits"] or "evaluate" not in pathlib.Path("data/metrics.jsonl").read_text() or "checkpoint" not in dict(told):
    assert time.monotonic() < end
    swarm.step(one_step(model, optimizer, torch.default_generator), samples=32)
    told += [(event.name, event.number) for event in swarm.events()]
print("STATS", json.dumps(swarm.stats))
numbers = [number for _, number in told]
print("EVENTS", [name for name, _ in told], "in order" if numbers == sorted(set(numbers)) else numbers)
print("PAGE", swarm.page, "<table>" in swarm._repr_html_(), repr(swarm))
torch.save({"swarm": swarm.state_dict()}, "state")
state = torch.load("state")["swarm"]
swarm.load_state_dict(state)
try:
    swarm.load_state_dict({**state, "index": 10**6})
except dnode.CheckpointError as error:
    print("STATE", error)
from safetensors.torch import load_file
missing, unexpected = model.load_state_dict(load_file(file), strict=False)
print("SAVED", missing, unexpected)
swarm.leave()
print("LOGGED", any(name == "dnode" and "listening" in text for name, _, text in lines))
try:
    swarm.checkpoint()
except dnode.NotJoined as error:
    print("LEFT", error)
'''
    log = start("0", tells).wait()
    stats = json.loads(log.split("STATS ")[1].splitlines()[0])
    assert stats["step"] >= 20 and stats["membership"] == "joined" and stats["commits"] > 0, log
    assert "'training'" in log and "'checkpoint'" in log and "] in order" in log, log
    assert "PAGE http://127.0.0.1:" in log and " True <dnode.Swarm joined" in log, log
    assert "STATE load the state of a swarm: it is of step 1000000" in log, log
    assert "SAVED [] []" in log, log
    assert "LOGGED True" in log and "LEFT ask the swarm" in log, log


def test_events_are_followed_in_another_thread_than_the_one_that_steps(start: Start) -> None:
    log = start("0", '''
import threading
swarm = dnode.join(Net(), run="follows", steps=200, **LOCAL)
seen = []
other = threading.Thread(target=lambda: seen.extend(event.name for event in swarm.events(follow=True)))
other.start()
swarm.step(0.0)
try:
    for event in swarm.events(follow=True):
        pass
except dnode.Error as error:
    print("REFUSED", error)
while swarm.membership == "joined":
    swarm.step(0.0)
other.join(60)
print("FOLLOWED", not other.is_alive(), len(list(swarm.events(follow=True))) >= 0)
''').wait()
    assert "REFUSED follow the events in the thread that steps" in log and "FOLLOWED True True" in log, log


def test_logging_that_is_configured_after_join_has_all_later_lines_at_its_level(start: Start) -> None:
    log = start("0", '''
import logging
def messages():
    return pathlib.Path("own").read_text()
import pathlib
swarm = dnode.join(Net(), run="logs", **LOCAL)
swarm.step(0.0)
# The first file that is written is said on standard error; what comes then goes to the file alone.
logging.basicConfig(filename="own", level=sys.argv[1], format="%(name)s %(levelname)s %(message)s")
print("CONFIGURED")
swarm.checkpoint()
dnode._logging.LOGGER.warning("a warning of %s", "its own")
swarm.leave()
dnode._logging.drain()
print("OWN", messages().count("dnode INFO checkpoint written"), messages().count("dnode WARNING a warning of its own"))
''', "INFO")
    text = log.wait()
    assert " INFO an open run" in text.split("CONFIGURED")[0], text
    assert " INFO " not in text.split("CONFIGURED")[1] and " WARNING " not in text.split("CONFIGURED")[1], text
    counts = text.split("OWN ")[1].split()
    assert int(counts[0]) > 0 and int(counts[1]) == 1, text


def test_a_closed_run_lets_in_who_has_its_ticket(start: Start) -> None:
    closed = ENDLESS.replace("**LOCAL)", "**{**LOCAL, 'open': False})").replace(
        "seen = 0",
        "print('TICKET', swarm.ticket, flush=True)\nseen = 0",
    )
    first = start("0", closed)
    ticket = first.until("TICKET dnode1")
    start("1", closed, "dnode1" + ticket).until("MOVED")
    stranger = '''
try:
    dnode.join(Net(), run="endless", bootstrap=sys.argv[1:], **{**LOCAL, "open": False})
except dnode.ConfigError as error:
    print("REFUSED", error)
'''
    assert "REFUSED" in start("2", stranger, first.address()).wait()


def test_a_second_run_in_a_folder_tells_its_own_address_and_ticket(start: Start) -> None:
    log = start("0", '''
import pathlib
told = []
for again in (False, True):
    with dnode.join(Net(), run="twice", resume=again, **{**LOCAL, "open": False}) as swarm:
        told.append((swarm.address, swarm.ticket))
    for name in ("address", "ticket"):
        pathlib.Path("data", name).write_text("what an earlier start has told\\n")
print("TOLD", all(text and "earlier" not in text for pair in told for text in pair), told[0] != told[1])
''').wait()
    assert "TOLD True True" in log, log
