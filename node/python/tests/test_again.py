"""Loops that join more than once in a process: a cell that runs again, one training after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PRELUDE, Start, environment
from test_callbacks import DATA, LIGHTNING, TRANSFORMERS


def test_a_cell_that_runs_again_leaves_the_swarm_that_it_had_joined(start: Start) -> None:
    log = start("0", '''
import pathlib
def cell(resume=None, **where):
    swarm = dnode.join(model, optimizer, run="again", steps=10**6, resume=resume, bootstrap=None, exclude=None, **{**LOCAL, **where})
    for _ in range(7):
        swarm.step(one_step(model, optimizer, torch.default_generator))
    return swarm
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
# What a cell has shown is kept by IPython, whatever becomes of its name.
shown = [cell()]
shown.append(cell(resume=True))
print("SAME FOLDER", shown[0].membership, shown[1].membership, shown[1].last_step.index)
shown.append(cell(data_dir="other"))
print("SAME MODEL", [it.membership for it in shown], shown[2].last_step.index)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
shown.append(cell(data_dir="third"))
print("ANOTHER", [it.membership for it in shown])
try:
    cell(data_dir="other")
except dnode.ConfigError as error:
    print("REFUSED", str(error).partition(": ")[2], [it.membership for it in shown])
''').wait()
    assert "SAME FOLDER left joined 14" in log, log
    assert "SAME MODEL ['left', 'left', 'joined'] 7" in log, log
    assert "ANOTHER ['left', 'left', 'joined', 'joined']" in log, log
    # Who is refused is still where it was.
    said = "REFUSED give resume=True to go on from it, or another data_dir ['left', 'left', 'joined', 'joined']"
    assert said in log, log


def test_a_launched_script_joins_one_swarm_after_the_other(package: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + '''
def train(run, **more):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with dnode.join(model, optimizer, run=run, local_steps=5, steps=200, **more) as swarm:
        while swarm.membership == "joined":
            swarm.step(one_step(model, optimizer, torch.default_generator), samples=32)
        ended = swarm.leave()
        print("ENDED", run, swarm.data_dir.name, ended["exchanges"] > 0)
train("first")
train("second")
train("first", resume=True)
''')
    caller = tmp_path / "caller.py"
    caller.write_text(
        f"import dnode; print(dnode.launch(2, {str(script)!r}, folder={str(tmp_path)!r}, timeout=80))"
    )
    done = subprocess.run([sys.executable, str(caller)], env=environment(package), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ENDED"))
    folders = [(run, folder) for run, folder, *_ in ends]
    first, second = [("first", "0")] * 2 + [("first", "1")] * 2, [("second", "0-2"), ("second", "1-2")]
    assert folders == first + second, done.stdout
    assert sum(end[-1] == "True" for end in ends) >= 4, done.stdout


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_training_twice_has_a_folder_for_each(start: Start, framework: str) -> None:
    text = '''
callback = SwarmCallback(run="twice", **{key: it for key, it in LOCAL.items() if key != "data_dir"})
for _ in range(2):
    module, trainer = fit(0, callback, 20)
found = sorted(path.parent.name for path in Path("out").glob("dnode*/checkpoints"))
print("FOUND", found)
'''
    head = "from pathlib import Path\n"
    log = start("0", head + DATA + (LIGHTNING if framework == "lightning" else TRANSFORMERS) + text).wait(None)
    assert "FOUND ['dnode', 'dnode-2']" in log, log


def test_the_last_of_several_folders_is_the_one_to_go_on_from(start: Start) -> None:
    log = start("0", '''
import shutil
from pathlib import Path
from dnode._host import newest, unused
base = Path("out/dnode")
print("NONE", unused(base), newest(base))
for name in ("dnode", "dnode-2"):
    Path("out", name, "checkpoints", "7").mkdir(parents=True)
    print("THEN", unused(base), newest(base))
shutil.rmtree(base)
print("GAP", unused(base), newest(base))
''').wait()
    assert "NONE out/dnode out/dnode" in log, log
    assert "THEN out/dnode-2 out/dnode\nTHEN out/dnode-3 out/dnode-2" in log, log
    assert "GAP out/dnode-3 out/dnode-2" in log, log


def test_a_backward_pass_of_weights_that_were_moved_is_refused(start: Start) -> None:
    text = '''
model = Net(device="cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
with torch.no_grad():
    [p.add_(float(sys.argv[1])) for p in model.parameters()]
swarm = dnode.join(model, optimizer, run="backward", require_peers=1, **peers(sys.argv[2:]), **LOCAL)
moved = refused = 0
end = time.monotonic() + 60
# The other one goes on for as long, so that none waits for who is gone.
for _ in range(10**6):
    loss = model(torch.ones(1, 4)).sum()
    step = swarm.step(0.0)
    moved += step.moved
    if step.moved:
        try:
            loss.backward()
        except RuntimeError as error:
            refused += "modified by an inplace operation" in str(error)
    else:
        loss.backward()
    if moved >= 3 or time.monotonic() > end:
        break
    time.sleep(0.001)
print("REFUSED", moved, refused)
'''
    first = start("0", text, "0.0")
    second = start("1", text, "0.25", first.address())
    for peer in (first, second):
        assert "REFUSED 3 3" in peer.wait(), peer.log()


def test_an_optimizer_whose_moments_have_other_names_is_told(start: Start) -> None:
    log = start("0", '''
import logging
logging.basicConfig()
from dnode._moments import of
from dnode._torch import collect
class Odd(torch.optim.SGD):
    pass
model = Net(device="cpu")
optimizer = Odd(model.parameters(), lr=0.1, momentum=0.9)
moments = of(collect(model, optimizer, "keep").exchanged, optimizer, False)
for moment in moments:
    moment.fetch()
print("QUIET")
for p in model.parameters():
    optimizer.state[p] = {"state1": torch.ones_like(p)}
for moment in moments:
    moment.fetch()
''').wait()
    quiet, told = log.split("QUIET")
    assert "gossip.moments" not in quiet, log
    assert told.count("Odd keeps neither `exp_avg` nor `momentum_buffer`") == 1 and "but `state1`" in told, log
