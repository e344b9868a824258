"""Models of the benches, with made-up data: what is measured is time and memory, not learning."""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F

Batch = Callable[[], "tuple[torch.Tensor, torch.Tensor]"]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        later = torch.ones(context, context, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = x.shape
        parts = self.attention(self.before_attention(x)).view(samples, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mixed = scores.masked_fill(self.later, float("-inf")).softmax(-1) @ v
        x = x + self.projection(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.contract(F.gelu(self.expand(self.before_inner(x))))


class Gpt(nn.Module):
    """10.7 M parameters: 6 layers of width 384, a vocabulary of characters."""

    VOCABULARY, CONTEXT, WIDTH = 65, 64, 384

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.positions = nn.Parameter(torch.zeros(self.CONTEXT, self.WIDTH))
        self.blocks = nn.Sequential(*[Block(self.WIDTH, 6, self.CONTEXT) for _ in range(6)])
        self.norm, self.head = nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, self.VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions[: x.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def cnn() -> "tuple[nn.Module, Batch]":
    """105 k parameters: two convolutions and two matrices on 28 × 28 pixels; 32 samples."""
    model = nn.Sequential(
        *[nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Flatten(), nn.Linear(16 * 49, 128), nn.ReLU(), nn.Linear(128, 10)],
    )
    pixels, labels = torch.rand(32, 1, 28, 28), torch.randint(0, 10, (32,))
    return model, lambda: (pixels, labels)


def gpt() -> "tuple[nn.Module, Batch]":
    """The gpt and 4 texts of 64 characters."""
    text = torch.randint(0, Gpt.VOCABULARY, (4, Gpt.CONTEXT + 1))
    return Gpt(), lambda: (text[:, :-1], text[:, 1:].flatten())


def make(name: str) -> "tuple[nn.Module, torch.optim.Optimizer, Batch]":
    """A model with equal weights in all processes, its optimizer, and a batch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = {"cnn": cnn, "gpt": gpt}[name]()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch


def train(model: nn.Module, optimizer: "torch.optim.Optimizer", batch: Batch) -> torch.Tensor:
    """One step of the bare loop; its loss."""
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
