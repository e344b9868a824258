"""The wheel: it is made of the workspace's build, installs into an empty environment, and trains there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest
from conftest import DEADLINE, HERE, ROOT

pytestmark = pytest.mark.skipif(shutil.which("cargo") is None, reason="the wheel is built by cargo")

#: A process without PyTorch: what the wheel brings is there, and what needs PyTorch says so.
ALONE = """
import dnode
assert dnode.__version__ and issubclass(dnode.RunMismatch, dnode.Error)
try:
    dnode.join(None, run="x")
except ModuleNotFoundError as error:
    print("NEEDS", error)
"""

#: What a user has before and after the four lines.
BEFORE = """
import types, torch

class Model(torch.nn.Linear):
    def forward(self, x):
        return types.SimpleNamespace(loss=(super().forward(x) - x.sum(1, keepdim=True)).square().mean())

torch.manual_seed(0)
torch.set_num_threads(1)
model = Model(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.rand(32, 4) - 0.5 for _ in range(500)]
begins = model(loader[0]).loss.item()
"""
AFTER = """
ends, left = model(loader[0]).loss.item(), swarm.leave()
# In one write, as both processes have one output.
print(f"TRAINED {dnode.__file__} {left['exchanges']} {ends < 0.1 * begins}\\n", end="", flush=True)
"""

#: The variables of the tests that bring another package than that of the wheel.
OWN = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "DNODE_SECRET")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the script makes it, of what the build of the workspace has compiled."""
    # Where pip has installed to a folder, the programs are in its `bin`.
    folders = [str(Path(folder) / "bin") for folder in sys.path if (Path(folder) / "bin").is_dir()]
    path = os.pathsep.join([*folders, os.environ["PATH"]])
    made = {"PATH": path, "CARGO": str(HERE / "cargo-of-the-workspace"), "PYTHON": sys.executable}
    dist = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "testnet/scripts/wheel.sh", dist], env={**os.environ, **made}, check=True)
    (wheel,) = dist.glob("dnode-*.whl")
    return wheel


@pytest.fixture
def home(wheel: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The programs of a new virtual environment with the wheel, made with the words of the parameter."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *request.param, home], env=OWN, check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    # Another that the machine has stays where it is.
    pip += ["--quiet", "--no-index", "--ignore-installed", str(wheel)]
    subprocess.run(pip, env=OWN, check=True)
    yield home / "bin"


def test_its_name_says_what_it_is_for(wheel: Path) -> None:
    assert re.fullmatch(r"dnode-[\d.]+-cp39-abi3-manylinux_2_\d+_x86_64\.whl", wheel.name), wheel.name


@pytest.mark.parametrize("home", [[]], indirect=True)
def test_it_installs_into_an_empty_environment(home: Path, tmp_path: Path) -> None:
    python = [home / "python", "-c", ALONE]
    said = subprocess.run(python, env=OWN, check=True, capture_output=True, text=True)
    assert "NEEDS No module named 'torch'" in said.stdout, said.stdout
    program = [home / "dnode", "id", "--data-dir", tmp_path / "data"]
    named = subprocess.run(program, env=OWN, check=True, capture_output=True, text=True)
    assert named.stdout.startswith("12D3Koo"), named.stdout
    wrong = subprocess.run([home / "dnode", "join", "--steps", "0"], env=OWN, capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: "), wrong.stderr


@pytest.mark.parametrize("home", [["--system-site-packages"]], indirect=True)
def test_two_peers_train_with_the_four_lines_of_the_documentation(home: Path, tmp_path: Path) -> None:
    four = (ROOT / "docs/python.md").read_text().split("```python\n")[1].split("```")[0]
    # `launch` makes an open run, which has no ticket.
    script = tmp_path / "train.py"
    script.write_text(BEFORE + four.replace(', ticket="dnode1…"', "") + AFTER)
    command = [home / "python", "-m", "dnode.launch", "-n", "2", script]
    done = subprocess.run(command, env=OWN, capture_output=True, text=True, timeout=2 * DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"TRAINED (\S+) (\d+) (\w+)", done.stdout)
    assert len(ends) == 2, done.stdout + done.stderr
    for file, exchanges, falls in ends:
        assert file.startswith(str(home.parent)) and int(exchanges) > 0 and falls == "True", done.stdout
