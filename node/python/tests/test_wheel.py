"""The wheel: it is made of the workspace's build, and installs into an empty virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE

#: A process without PyTorch: what the wheel brings is there, and what needs PyTorch says so.
ALONE = """
import dnode
assert dnode.__version__ and issubclass(dnode.RunMismatch, dnode.Error)
try:
    dnode.join(None, run="x")
except ModuleNotFoundError as error:
    print("NEEDS", error)
"""


@pytest.mark.skipif(shutil.which("cargo") is None, reason="the wheel is built by cargo")
def test_the_wheel_installs_into_an_empty_environment(tmp_path: Path) -> None:
    environment = {
        **{name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        "CARGO": str(HERE / "cargo-of-the-workspace"),
    }
    # Where pip has installed to a folder, the programs are in its `bin`.
    folders = [str(Path(folder) / "bin") for folder in sys.path if (Path(folder) / "bin").is_dir()]
    path = os.pathsep.join([*folders, environment["PATH"]])
    paths = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": path}
    manifest = HERE.parent / "Cargo.toml"
    maturin = shutil.which("maturin", path=path)
    assert maturin is not None, "pip install maturin"
    build = [maturin, "build", "--interpreter", sys.executable, "--release", "--locked", "--manifest-path", str(manifest)]
    subprocess.run([*build, "--out", str(tmp_path)], env=paths, check=True)
    (wheel,) = tmp_path.glob("dnode-*.whl")
    assert "-cp39-abi3-" in wheel.name, wheel.name
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], env=environment, check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    pip += ["--quiet", "--no-index", str(wheel)]
    subprocess.run(pip, env=environment, check=True)
    python = [str(home / "bin" / "python"), "-c", ALONE]
    said = subprocess.run(python, env=environment, check=True, capture_output=True, text=True)
    assert "NEEDS No module named 'torch'" in said.stdout, said.stdout
    program = [str(home / "bin" / "dnode"), "id", "--data-dir", str(tmp_path / "data")]
    named = subprocess.run(program, env=environment, check=True, capture_output=True, text=True)
    assert named.stdout.startswith("12D3Koo"), named.stdout
    wrong = subprocess.run([program[0], "join", "--steps", "0"], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: "), wrong.stderr
