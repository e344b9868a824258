"""A Lightning `Trainer` trains a convolutional network in a swarm, by a callback.

    pip install lightning
    python -m dnode.launch -n 2 node/python/examples/lightning_cnn.py
    python node/python/examples/lightning_cnn.py --data FOLDER --ticket dnode1…

Model and data are those of mnist_cnn.py: the files of MNIST in `--data`, else digits of the repository.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

try:
    from lightning.pytorch import LightningModule, Trainer  # pyright: ignore
except ModuleNotFoundError:
    from pytorch_lightning import LightningModule, Trainer

from dnode.lightning import SwarmCallback

import mnist_cnn


class Classifier(LightningModule):  # pyright: ignore
    def __init__(self, side: int) -> None:
        super().__init__()
        self.model = mnist_cnn.cnn(side)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        pixels, labels = batch
        return F.cross_entropy(self.model(pixels), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        pixels, labels = batch
        scores = self.model(pixels)
        self.log("val_loss", F.cross_entropy(scores, labels))
        self.log("val_accuracy", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--data", type=Path)
    words.add_argument("--ticket", help="that of a run which another peer has begun")
    words.add_argument("--steps", type=int, default=300)
    words.add_argument("--batch", type=int, default=16)
    words.add_argument("--accumulate", type=int, default=2, help="batches of a step")
    words.add_argument("--output", type=Path, help="a folder for checkpoints; a temporary one if not given")
    given = words.parse_args()

    torch.manual_seed(0)
    train, test = (TensorDataset(*images) for images in mnist_cnn.load(given.data))
    module = Classifier(train.tensors[0].shape[-1])
    # Each peer has its own order of the images.
    draws = torch.Generator().manual_seed(int(os.environ.get("DNODE_LAUNCH_RANK", os.getpid())))
    batches = DataLoader(train, batch_size=given.batch, shuffle=True, drop_last=True, generator=draws)
    held_out = DataLoader(test, batch_size=len(test))
    callback = SwarmCallback(run="lightning", monitor="val_loss", ticket=given.ticket, local_steps=10)
    trainer = Trainer(
        max_steps=given.steps, accumulate_grad_batches=given.accumulate, callbacks=[callback], logger=False,
        default_root_dir=str(given.output or tempfile.mkdtemp(prefix="dnode-lightning-")),
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module, batches, held_out)
    measured = trainer.validate(module, held_out, verbose=False)[0]
    swarm = callback.swarm
    assert swarm is not None
    outcome = swarm.leave()
    print(
        f"END accuracy={measured['val_accuracy']:.4f} exchanges={outcome['exchanges']} reason={swarm.membership} "
        f"steps={swarm.last_step.index} samples={outcome['samples']} taken={trainer.global_step}"
    )


if __name__ == "__main__":
    main()
