"""Tests of the package run real processes; this finds the built module and starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, Optional

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "python"
ROOT = HERE.parents[2]
#: Longest wait for anything, seconds.
DEADLINE = 90.0


#: What a process does at its start. Python 3.11 refuses a class of PyTorch 1.13 that Lightning imports: its
#: default has no hash.
OLD_PYTORCH = '''
import dataclasses
from importlib import metadata
dataclass = dataclasses.dataclass
def hashed(kind=None, /, **words):
    if kind is not None and kind.__name__ == "TensorProperties":
        words["unsafe_hash"] = True
    return dataclass(kind, **words)
if metadata.version("torch").startswith("1."):
    dataclasses.dataclass = hashed
'''


def _built() -> Path:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "libdnode_python.so"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and the module of the workspace's build."""
    folder = tmp_path_factory.mktemp("package")
    own = folder / "dnode"
    own.mkdir()
    for file in (PACKAGE / "dnode").iterdir():
        if file.suffix in (".py", ".pyi", ".typed"):
            (own / file.name).symlink_to(file)
    assert _built().is_file(), f"build the workspace first: {_built()} is not there"
    (folder / "sitecustomize.py").write_text(OLD_PYTORCH)
    # A copy, because the test of the wheel has cargo look at the other one.
    shutil.copy(_built(), own / "_native.abi3.so")
    return folder


class Script:
    """A Python process with a peer."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait(self, status: Optional[int] = 0) -> str:
        """Waits for its end; returns what it has written."""
        ended = self.process.wait(DEADLINE)
        assert status is None or ended == status, f"status {ended}\n{self.log()}"
        return self.log()

    def until(self, text: str) -> str:
        """Waits until it has written ``text``; returns the rest of that line."""

        def found() -> Optional[str]:
            for line in self.log().splitlines():
                if text in line:
                    return line.split(text, 1)[1].strip()
            assert self.process.poll() is None, f"ended before {text!r}\n{self.log()}"
            return None

        return wait_for(found, f"{text!r} in the log\n{self.log()}")

    def address(self) -> str:
        file = self.folder / "data" / "address"

        def found() -> Optional[str]:
            assert self.process.poll() is None, self.log()
            return (file.read_text().split() or [None])[0] if file.exists() else None

        return wait_for(found, "the peer listens")


def wait_for(condition: Callable[[], Optional[str]], what: str) -> str:
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        found = condition()
        if found is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what}")


def environment(package: Path, **more: str) -> dict[str, str]:
    """What a process needs that imports the package; it joins no run of whoever runs the tests."""
    given = {name: text for name, text in os.environ.items() if name != "DNODE_SECRET"}
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    return {**given, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


Start = Callable[..., Script]


@pytest.fixture
def start(package: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts peers by the text of a script; they are killed when the test ends."""
    running: list[Script] = []

    def begin(name: str, text: str, *words: str) -> Script:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(PRELUDE + text)
        log = (folder / "log").open("a")
        process = subprocess.Popen(
            [sys.executable, "script.py", *words],
            cwd=folder,
            env=environment(package, PYTHONUNBUFFERED="1"),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        script = Script(process, folder)
        running.append(script)
        return script

    yield begin
    for script in running:
        if script.process.poll() is None:
            script.process.kill()
        script.process.wait()


#: What every script begins with: a small regression that two peers learn from different samples.
PRELUDE = '''
import os, sys, time
import torch
import dnode


def print(*words, flush=True):
    # In one write: lines of the log come from another thread, and may be of another process.
    sys.stdout.write(" ".join(str(word) for word in words) + "\\n")
    sys.stdout.flush()


torch.manual_seed(0)
torch.set_num_threads(1)
LOCAL = dict(data_dir="data", listen=["/ip4/127.0.0.1/udp/0/quic-v1"], mdns=False, open=True, local_steps=5, balance="off")
TRUTH = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
# Where models are: `testnet/scripts/gpu.sh` names another device.
DEVICE = os.environ.get("DNODE_TEST_DEVICE", "cpu")


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float32, device=DEVICE):
        super().__init__()
        self.first = torch.nn.Linear(4, 16)
        self.second = torch.nn.Linear(16, 1)
        self.to(device, dtype)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def batch(generator, n=32):
    x = torch.rand((n, 4), generator=generator) - 0.5
    return x.to(DEVICE), (x @ TRUTH.T).to(DEVICE)


def one_step(model, optimizer, generator):
    x, y = batch(generator)
    p = next(model.parameters())
    loss = torch.nn.functional.mse_loss(model(x.to(p.device, p.dtype)).float(), y.to(p.device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss


def peers(words):
    return {"bootstrap": words} if words else {}
'''
