"""What the package is given, in whatever form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import Start, environment


def test_what_was_given_by_section_or_key_is_no_place_for_a_default(start: Start) -> None:
    log = start("0", '''
import pathlib
from dnode._host import Host
from dnode._joining import Joining
def host(**settings):
    return Host("run", settings)._given(7, pathlib.Path("default"), False)
print("HOST", host(), host(run={"steps": 3}, node={"data_dir": "own"}), host(config={"run.steps": 3}, data_dir="own"))
def joining(settings, config={}):
    options, ticket = Joining("run", settings, config, [], None, False, {}, False)._options()
    return sorted(options.texts), ticket
os.environ["DNODE_SECRET"] = "dnode1secret"
for given in ({"open": True}, {"network": {"open": True}}, {}):
    print("TICKET", joining({**given, "data_dir": "own"}))
print("TICKET", joining({"data_dir": "own"}, {"network.open": True}))
os.environ.update(DNODE_LAUNCH_RANK="0", DNODE_LAUNCH_SIZE="3", DNODE_LAUNCH_FOLDER="launched")
print("LAUNCHED", joining({"network": {"require_peers": 0, "mdns": True}, "node": {"data_dir": "own"}}))
''').wait()
    assert (
        "HOST {'steps': 7, 'data_dir': 'default'} {'run': {'steps': 3}, 'node': {'data_dir': 'own'}}"
        " {'config': {'run.steps': 3}, 'data_dir': 'own'}"
    ) in log, log
    told = [line for line in log.splitlines() if line.startswith("TICKET")]
    assert [line.endswith("None)") for line in told] == [True, True, False, True], log
    assert 'network.require_peers=0' in log and 'network.mdns=true' in log and "/0/own'" in log, log
    assert "require_peers=2" not in log and "node.data_dir=launched" not in log, log


def test_the_command_of_the_package_has_its_log(package: Path, tmp_path: Path) -> None:
    words = ["join", "--open", "--no-mdns", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--steps", "2", "--data-dir", "data"]
    done = subprocess.run(
        [sys.executable, "-m", "dnode._cli", *words],
        cwd=tmp_path,
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0 and "INFO" in done.stderr and "checkpoint written" in done.stderr, done.stderr
