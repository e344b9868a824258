"""What the package is given, in whatever form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import environment


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
