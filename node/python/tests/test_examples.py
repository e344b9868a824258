"""Each example runs in two processes, with the small sizes that it has by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, environment

EXAMPLES = HERE.parent / "examples"
#: Longest run of an example, seconds.
DEADLINE = 180.0

#: What is launched: an example whose words go to a file of its own, so that no two lines run together.
ALONE = """
import os, runpy, sys
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
place = os.path.join(os.environ["DNODE_LAUNCH_FOLDER"], "said-" + os.environ["DNODE_LAUNCH_RANK"])
with open(place, "w") as sys.stdout:
    runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout = sys.__stdout__
"""


def _ends(
    package: Path, folder: Path, name: str, *words: str, reasons: tuple[str, ...] = ("finished",)
) -> list[dict[str, str]]:
    """Runs two peers of an example; what each of them says at its end, `key=value` words."""
    (folder / "alone.py").write_text(ALONE)
    launch = f"import dnode, sys; dnode.launch(2, 'alone.py', sys.argv[2:], folder=sys.argv[1], timeout={DEADLINE})"
    command = [sys.executable, "-c", launch, str(folder), str(EXAMPLES / f"{name}.py"), *words]
    given = environment(package, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = []
    for rank in (0, 1):
        said = (folder / f"said-{rank}").read_text()
        assert said.count("END ") == 1, said
        ends.append(dict(re.findall(r"(\w+)=(\S+)", said.split("END ")[1])))
        assert ends[-1]["reason"] in reasons and int(ends[-1]["exchanges"]) > 0, said + done.stderr
    return ends


def _learned(ends: list[dict[str, str]]) -> bool:
    return all(float(end["after"]) < float(end["before"]) - 1.0 for end in ends)


def test_the_cnn_learns_the_digits(package: Path, tmp_path: Path) -> None:
    ends = _ends(package, tmp_path, "mnist_cnn")
    assert all(float(end["accuracy"]) > 0.9 for end in ends), ends


def test_the_cnn_reads_files_of_mnist(package: Path, tmp_path: Path) -> None:
    import gzip

    for name, count in (("train", 64), ("t10k", 10)):
        header = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
        images = b"\x00\x00\x08\x03" + header + bytes(at % 251 for at in range(count * 784))
        labels = b"\x00\x00\x08\x01" + count.to_bytes(4, "big") + bytes(at % 10 for at in range(count))
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    ends = _ends(package, tmp_path, "mnist_cnn", "--data", str(tmp_path), "--steps", "20", "--batch", "4")
    assert all(0.0 <= float(end["accuracy"]) <= 1.0 for end in ends), ends


def test_the_gpt_learns_a_text(package: Path, tmp_path: Path) -> None:
    ends = _ends(package, tmp_path, "nanogpt")
    assert _learned(ends), ends


def test_adapters_alone_are_averaged(package: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    ends = _ends(package, tmp_path, "lora")
    assert _learned(ends) and all(end["base"] == "True" for end in ends), ends
    (file, *_) = sorted(tmp_path.glob("0/checkpoints/*/parameters.safetensors"))
    with safe_open(file, "pt") as saved:
        exchanged = list(saved.keys())
    assert len(exchanged) == 18 and all(name.endswith((".a", ".b")) for name in exchanged), exchanged


def test_a_trainer_of_transformers_trains_in_a_swarm_by_a_callback(package: Path, tmp_path: Path) -> None:
    # Who has taken its own `max_steps` before those of the run are done leaves.
    ends = _ends(package, tmp_path, "transformers_gpt2", reasons=("finished", "left"))
    assert _learned(ends), ends
    for rank, end in enumerate(ends):
        taken, samples = int(end["taken"]), int(end["samples"])
        # Two batches of eight in each step; the Trainer's figures have those of the swarm.
        assert 50 < taken <= 100 and samples == 16 * taken and int(end["peers"]) == 1, ends
        # At the Trainer's saves, and at the end.
        assert len(list(tmp_path.glob(f"{rank}/checkpoints/*/parameters.safetensors"))) > 1


def test_a_trainer_of_lightning_trains_in_a_swarm_by_a_callback(package: Path, tmp_path: Path) -> None:
    ends = _ends(package, tmp_path, "lightning_cnn", reasons=("finished", "left"))
    for end in ends:
        taken, samples = int(end["taken"]), int(end["samples"])
        # Two batches of sixteen in each step, but for the last one of a pass over the data.
        assert float(end["accuracy"]) > 0.9 and 0 < taken <= 300 and 31 * taken < samples <= 32 * taken, ends


@pytest.mark.parametrize(
    ("module", "missing", "command"),
    [
        ("transformers", ["transformers"], "pip install 'transformers[torch]'"),
        ("lightning", ["lightning", "pytorch_lightning"], "pip install lightning"),
    ],
)
def test_a_callback_without_its_library_says_what_to_install(
    package: Path, module: str, missing: list[str], command: str
) -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({missing})); import dnode.{module}"
    done = subprocess.run([sys.executable, "-c", script], env=environment(package), capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(command), done.stderr


def test_a_wrong_setting_of_a_callback_is_refused_when_training_begins(package: Path, tmp_path: Path) -> None:
    script = """
import torch, dnode
from transformers import Trainer, TrainingArguments
from dnode.transformers import SwarmCallback

class Model(torch.nn.Linear):
    def forward(self, x):
        return {"loss": super().forward(x).square().mean()}

args = TrainingArguments(output_dir="out", max_steps=2, report_to=[], disable_tqdm=True)
data = [{"x": torch.ones(4)}] * 8
trainer = Trainer(Model(4, 1), args, train_dataset=data, callbacks=[SwarmCallback(run="r", local_steps=0)])
try:
    trainer.train()
except dnode.ConfigError as error:
    print("refused:", error)
"""
    given = environment(package, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=given, capture_output=True, text=True)
    assert "refused: " in done.stdout and "local_steps" in done.stdout, done.stdout + done.stderr


def test_weights_of_gpt2_are_saved_under_the_names_that_they_had(package: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    # As the published files have them: no prefix, and masks beside the weights.
    shapes = {"wte.weight": [256, 48], "wpe.weight": [32, 48], "ln_f.weight": [48], "ln_f.bias": [48]}
    for layer in ("h.0", "h.1"):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{layer}.{norm}.weight": [48], f"{layer}.{norm}.bias": [48]}
        for name, inputs, outputs in (
            ("attn.c_attn", 48, 144), ("attn.c_proj", 48, 48), ("mlp.c_fc", 48, 192), ("mlp.c_proj", 192, 48),
        ):
            shapes |= {f"{layer}.{name}.weight": [inputs, outputs], f"{layer}.{name}.bias": [outputs]}
    tensors = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 32, 32).tril() for layer in (0, 1)}
    file = tmp_path / "model.safetensors"
    save_file({**tensors, **masks}, file)
    ends = _ends(package, tmp_path, "gpt2_safetensors", "--weights", str(file), "--heads", "2")
    assert _learned(ends), ends
    for end in ends:
        saved = load_file(end["saved"])
        assert {name: list(it.shape) for name, it in saved.items() if name not in masks} == shapes
        assert all(torch.equal(saved[name], mask) for name, mask in masks.items())
        assert not any(torch.equal(saved[name], it) for name, it in tensors.items())
