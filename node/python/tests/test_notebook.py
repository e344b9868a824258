"""A notebook's kernel: a cell that trains is interrupted, and the next one joins again."""

from __future__ import annotations

import importlib
import os
import queue
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from conftest import DEADLINE, PRELUDE, Start, environment

#: Set where the packages must be there; elsewhere a machine without them leaves these tests out.
MUST = "DNODE_TEST_PACKAGES" in os.environ
need = importlib.import_module if MUST else pytest.importorskip
manager = need("jupyter_client.manager")
need("ipykernel")

#: Trains with the peer of the other process until it is interrupted.
TRAINS = '''
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
moved = 0
with dnode.join(model, optimizer, run="notebook", bootstrap=[ADDRESS], **LOCAL) as swarm:
    while True:
        moved += swarm.step(loss=one_step(model, optimizer, torch.default_generator), samples=32).moved
        if moved == 3:
            print("MOVED")
        time.sleep(0.001)
'''
#: The other process.
OTHER = TRAINS.replace("bootstrap=[ADDRESS]", "bootstrap=[]").replace('print("MOVED")', "print('AT', moved)")
#: What the cell after the interrupt does: the swarm was left, and takes the peer back.
AGAIN = '''
print("LEFT", swarm.membership, swarm.leave()["reason"])
swarm = dnode.join(model, optimizer, run="notebook", bootstrap=[ADDRESS], resume=True, **LOCAL)
print("PEERS", swarm.wait_for_peers(1, timeout=60))
before = swarm.last_step.index
for _ in range(20):
    swarm.step(loss=one_step(model, optimizer, torch.default_generator), samples=32)
print("STEPS", before > 0, swarm.last_step.index - before)
swarm
'''
#: The table of a swarm follows it, also while the cell that shows it is at work.
SHOWS = '''
from IPython.display import display
display(swarm)
for _ in range(3):
    time.sleep(0.7)
    swarm.step(loss=one_step(model, optimizer, torch.default_generator), samples=32)
swarm.leave()
time.sleep(2.5)
'''


class Kernel:
    """The kernel of a notebook, as Jupyter starts it."""

    def __init__(self, package: Path, folder: Path) -> None:
        folder.mkdir()
        self._process, self._client = manager.start_new_kernel(cwd=str(folder), env=environment(package))

    def run(self, cell: str, during: Callable[[str], None] = lambda said: None) -> tuple[str, dict[str, Any]]:
        """Runs a cell; what it has written and shown, and how it ended. ``during`` sees what was written."""
        request, said, until = self._client.execute(cell), "", time.monotonic() + DEADLINE
        while time.monotonic() < until:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return said, self._reply(request)
            said += content.get("text", "") + content.get("data", {}).get("text/html", "") + "\n"
            during(said)
        raise AssertionError(f"a cell has not ended:\n{cell}\n{said}")

    def _reply(self, request: str) -> dict[str, Any]:
        # Those to what was asked while the kernel started come first.
        while True:
            message = self._client.get_shell_msg(timeout=DEADLINE)
            if message["parent_header"].get("msg_id") == request:
                return message["content"]

    def interrupt(self) -> None:
        self._process.interrupt_kernel()

    def end(self) -> None:
        self._client.stop_channels()
        self._process.shutdown_kernel(now=True)


@pytest.fixture
def kernel(package: Path, tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(package, tmp_path / "notebook")
    yield kernel
    kernel.end()


def test_an_interrupted_cell_leaves_and_the_next_one_trains_on(start: Start, kernel: Kernel) -> None:
    other = start("other", OTHER)
    interrupted = False

    def once(said: str) -> None:
        nonlocal interrupted
        if "MOVED" in said and not interrupted:
            interrupted = True
            kernel.interrupt()

    said, ended = kernel.run(f"{PRELUDE}\nADDRESS = {other.address()!r}")
    assert ended["status"] == "ok", ended
    said, ended = kernel.run(TRAINS, during=once)
    assert interrupted and ended.get("ename") == "KeyboardInterrupt", (said, ended)
    said, ended = kernel.run(AGAIN)
    assert ended["status"] == "ok" and "LEFT left interrupted" in said, (said, ended)
    assert "PEERS 1" in said and "STEPS True 20" in said and "<table>" in said, said
    said, ended = kernel.run(SHOWS)
    tables = [line for line in said.splitlines() if "<table>" in line]
    assert ended["status"] == "ok" and len(tables) > 2 and len(set(tables)) > 1, (said, ended)
    assert "joined" in tables[0] and "left" in tables[-1], said
    assert other.process.poll() is None, other.log()
