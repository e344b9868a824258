"""A convolutional network learns digits, each peer on its own draws of the images.

    python -m dnode.launch -n 2 node/python/examples/mnist_cnn.py
    python node/python/examples/mnist_cnn.py --data FOLDER --ticket dnode1…

`--data` names a folder with the four IDX files of MNIST, packed by gzip or not. Without it the images are
the repository's 1,797 digits of 8 × 8 pixels (trainer/data/README.md), of which every fifth is held out.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path
from typing import Optional

import torch
import torch.nn.functional as F

import dnode

DIGITS = Path(__file__).resolve().parents[3] / "trainer" / "data" / "digits.bin.gz"
Images = tuple[torch.Tensor, torch.Tensor]


def idx(folder: Path, name: str) -> torch.Tensor:
    """The numbers of an IDX file of unsigned bytes, in its shape."""
    packed, plain = folder / f"{name}.gz", folder / name
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
    if data[:3] != b"\x00\x00\x08":
        raise SystemExit(f"error: {name} in {folder} is no IDX file of bytes")
    dimensions = data[3]
    shape = [int.from_bytes(data[4 + 4 * at : 8 + 4 * at], "big") for at in range(dimensions)]
    return torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


def load(folder: Optional[Path]) -> tuple[Images, Images]:
    """Images to train on and held-out ones: pixels in [0, 1] as [n, 1, side, side], and labels."""
    if folder is None:
        print("data: 1,797 digits of the repository; --data FOLDER reads MNIST")
        records = torch.frombuffer(bytearray(gzip.decompress(DIGITS.read_bytes())), dtype=torch.uint8)
        records = records.reshape(-1, 65)
        pixels, labels = records[:, :64].reshape(-1, 1, 8, 8) / 16.0, records[:, 64].long()
        held_out = torch.arange(len(labels)) % 5 == 0
        return (pixels[~held_out], labels[~held_out]), (pixels[held_out], labels[held_out])
    print(f"data: MNIST in {folder}")
    sets = []
    for name in ("train", "t10k"):
        pixels = idx(folder, f"{name}-images-idx3-ubyte").unsqueeze(1) / 255.0
        sets.append((pixels, idx(folder, f"{name}-labels-idx1-ubyte").long()))
    return sets[0], sets[1]


def cnn(side: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * (side // 2) ** 2, 10),
    )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--data", type=Path)
    words.add_argument("--ticket", help="that of a run which another peer has begun")
    words.add_argument("--steps", type=int, default=300)
    words.add_argument("--batch", type=int, default=32)
    given = words.parse_args()

    torch.manual_seed(0)
    (pixels, labels), (test_pixels, test_labels) = load(given.data)
    model = cnn(pixels.shape[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draws = torch.Generator().manual_seed(int(os.environ.get("DNODE_LAUNCH_RANK", os.getpid())))
    run = "mnist-cnn" if given.data else "digits-cnn"
    with dnode.join(
        model, optimizer, run=run, ticket=given.ticket, steps=given.steps, local_steps=10
    ) as swarm:
        while swarm.membership == "joined":
            chosen = torch.randint(len(labels), (given.batch,), generator=draws)
            loss = F.cross_entropy(model(pixels[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            swarm.step(loss=loss, samples=given.batch)
        outcome = swarm.leave()
    with torch.no_grad():
        scores = model(test_pixels)
    right = (scores.argmax(1) == test_labels).float().mean().item()
    print(f"END accuracy={right:.4f} exchanges={outcome['exchanges']} reason={swarm.membership}")


if __name__ == "__main__":
    main()
