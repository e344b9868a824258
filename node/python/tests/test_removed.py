"""A failure in mid-loop: an owner removes a peer from the run while its loop trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import Start, environment, wait_for

#: A loop that goes on until a file says that it is enough, and for some steps after it is alone.
LOOP = '''
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(len(sys.argv))
swarm = dnode.join(model, optimizer, run="removed", errors=sys.argv[1], ticket=sys.argv[2], **{**LOCAL, "open": False})
alone = 0
try:
    while alone < 50 and not os.path.exists("enough"):
        loss = one_step(model, optimizer, generator)
        before = [p.tolist() for p in model.parameters()]
        step = swarm.step(loss=loss, samples=32)
        if step.index == 1:
            print("PEER", swarm.stats["peer"])
        if step.membership == "alone":
            assert [p.tolist() for p in model.parameters()] == before or not alone, "weights are moved by nobody"
            alone += 1
        time.sleep(0.001)
except dnode.Error as error:
    print("RAISED", type(error).__name__, error)
print("ENDS", swarm.membership, alone)
'''


def test_a_peer_that_is_removed_while_it_trains_goes_on_alone_or_raises(
    start: Start, package: Path, tmp_path: Path
) -> None:
    def command(*words: str) -> str:
        line = [sys.executable, "-m", "dnode._cli", *words]
        done = subprocess.run(line, cwd=tmp_path, env=environment(package), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    (tmp_path / "owner").mkdir()
    command("run", "create", "--data-dir", "owner/data")
    owner = start("owner", LOOP.replace("ticket=sys.argv[2], ", ""), "alone")
    owner.until("PEER")
    # An invitation holds the address, once the peer listens.
    wait_for(lambda: "yes" if (tmp_path / "owner/data/ticket").exists() else None, "a ticket")
    for kind in ("alone", "raise"):
        # One invitation for one machine.
        file = tmp_path / f"invitation-{kind}"
        file.write_text(command("invite", "--data-dir", "owner/data"))
        member = start(kind, LOOP, kind, f"@{file}")
        command("revoke", "--data-dir", "owner/data", member.until("PEER "))
        log = member.wait()
        said = "leave the run: "
        if kind == "alone":
            assert "RAISED" not in log and "ENDS alone 50" in log, log
            (line,) = [line for line in log.splitlines() if "training goes on alone" in line]
            assert said in line and "was removed by" in line, log
        else:
            raised = log.split("RAISED ")[1].splitlines()[0]
            assert raised.startswith(f"ConfigError {said}") and "was removed by" in raised, log
            assert "ENDS alone 0" in log and "training goes on alone" not in log, log
    (tmp_path / "owner" / "enough").touch()
    assert "ENDS joined 0" in owner.wait()
