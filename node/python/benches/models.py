"""Models of the benches, with made-up data: what is measured is time and memory, not learning."""

from __future__ import annotations

import os
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
    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*[Block(width, heads, context) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions[: x.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def cnn(device: str) -> "tuple[nn.Module, Batch]":
    """105 k parameters: two convolutions and two matrices on 28 × 28 pixels; 32 samples."""
    model = nn.Sequential(
        *[nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Flatten(), nn.Linear(16 * 49, 128), nn.ReLU(), nn.Linear(128, 10)],
    )
    own = _own_numbers()

    def batch() -> "tuple[torch.Tensor, torch.Tensor]":
        pixels, labels = torch.rand(32, 1, 28, 28, generator=own), torch.randint(0, 10, (32,), generator=own)
        return pixels.to(device), labels.to(device)

    return model, batch


def _own_numbers() -> torch.Generator:
    """Every process draws samples of its own, new ones in every step: a batch that is known by heart leaves gradients
    next to nothing, and numbers so small take processors longer."""
    return torch.Generator().manual_seed(os.getpid())


def gpt(device: str) -> "tuple[nn.Module, Batch]":
    """10.7 M parameters: 6 layers of width 384, a vocabulary of characters; 4 texts of 64 characters."""
    return _gpt(device, 4, vocabulary=65, context=64, width=384, layers=6, heads=6)


def large(device: str) -> "tuple[nn.Module, Batch]":
    """111 M parameters: 12 layers of width 768; 8 texts of 512 tokens. A size for devices."""
    return _gpt(device, 8, vocabulary=16384, context=512, width=768, layers=12, heads=12)


def _gpt(device: str, texts: int, vocabulary: int, context: int, **sizes: int) -> "tuple[nn.Module, Batch]":
    own = _own_numbers()

    def batch() -> "tuple[torch.Tensor, torch.Tensor]":
        text = torch.randint(0, vocabulary, (texts, context + 1), generator=own).to(device)
        return text[:, :-1], text[:, 1:].flatten()

    return Gpt(vocabulary, context, **sizes), batch


MODELS = {"cnn": cnn, "gpt": gpt, "large": large}


def make(name: str, device: str = "cpu") -> "tuple[nn.Module, torch.optim.Optimizer, Batch]":
    """A model with equal weights in all processes, its optimizer, and a batch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = MODELS[name](device)
    model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch


def train(model: nn.Module, optimizer: "torch.optim.Optimizer", batch: Batch) -> torch.Tensor:
    """One step of the bare loop; its loss. Products are in bf16 on a device."""
    x, y = batch()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
