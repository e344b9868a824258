"""How long it takes from `pip install` of the wheel until two processes have exchanged.

    python node/python/benches/install.py dist/dnode-….whl

Makes a virtual environment that sees the machine's PyTorch, installs the wheel into it, and starts two
processes there. Prints a line of JSON: the size of the wheel, and the seconds since `pip install` began at
which it was done, both processes had imported dnode, both had joined, and both had weights moved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: The clock counts alike in all processes of a machine.
TRAIN = """
import time
import torch, dnode
imported = time.monotonic()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with dnode.join(model, optimizer, run="install", verbose=False) as swarm:
    joined, moved = time.monotonic(), False
    while not moved:
        loss = (model(torch.rand(32, 4)) - 1).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        moved = swarm.step(loss=loss, samples=32).moved
    moved = time.monotonic()
print(f"AT {imported} {joined} {moved}\\n", end="", flush=True)
"""


def main() -> None:
    wheel = Path(sys.argv[1])
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "DNODE_SECRET")}
    with tempfile.TemporaryDirectory(prefix="dnode-install-") as folder:
        home, script = Path(folder) / "environment", Path(folder) / "train.py"
        script.write_text(TRAIN)
        words = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", home]
        subprocess.run(words, env=environment, check=True)
        python = str(home / "bin" / "python")
        begins = time.monotonic()
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
        subprocess.run([*pip, "--ignore-installed", wheel], env=environment, check=True)
        installed = time.monotonic()
        launch = [python, "-m", "dnode.launch", "-n", "2", script]
        said = subprocess.run(launch, env=environment, check=True, capture_output=True, text=True).stdout
    ends = [[float(at) for at in line.split()[1:]] for line in said.splitlines() if line.startswith("AT ")]
    last = [max(times) for times in zip(*ends)]
    names = ("installed_s", "imported_s", "joined_s", "moved_s")
    took = {name: round(at - begins, 2) for name, at in zip(names, [installed, *last])}
    print(json.dumps({"wheel_bytes": wheel.stat().st_size, **took}))


if __name__ == "__main__":
    main()
