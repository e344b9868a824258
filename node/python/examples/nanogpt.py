"""A small GPT learns the bytes of a text, each peer on its own draws of windows.

    python -m dnode.launch -n 2 node/python/examples/nanogpt.py
    python node/python/examples/nanogpt.py --text FILE --layers 6 --heads 6 --width 384 --context 256

Without `--text` the text is the repository's documentation, docs/*.md. Its last tenth is held out.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Optional

import torch
import torch.nn.functional as F

import dnode

DOCS = Path(__file__).resolve().parents[3] / "docs"
BYTES = 256


def load(file: Optional[Path]) -> torch.Tensor:
    """The bytes of a text as a vector of numbers."""
    files = sorted(DOCS.glob("*.md")) if file is None else [file]
    print("data: the repository's documentation; --text FILE reads another" if file is None else f"data: {file}")
    text = b"\n".join(one.read_bytes() for one in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def windows(text: torch.Tensor, batch: int, context: int, draws: torch.Generator) -> torch.Tensor:
    """`batch` windows of `context` + 1 bytes."""
    starts = torch.randint(len(text) - context, (batch,), generator=draws)
    return text[starts[:, None] + torch.arange(context + 1)]


class Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(torch.nn.Module):
    """Bytes in, logits of the next byte out; the embedding and the head share their weights."""

    def __init__(self, layers: int, heads: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(BYTES, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.tokens.weight
        torch.nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Mean loss, nats a token."""
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def arguments(described: Optional[str]) -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(description=described, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--text", type=Path)
    words.add_argument("--ticket", help="that of a run which another peer has begun")
    words.add_argument("--steps", type=int, default=100)
    words.add_argument("--batch", type=int, default=8)
    words.add_argument("--layers", type=int, default=2)
    words.add_argument("--heads", type=int, default=2)
    words.add_argument("--width", type=int, default=48)
    words.add_argument("--context", type=int, default=32)
    words.add_argument("--learning-rate", type=float, default=3e-3)
    return words


def train(
    model: torch.nn.Module, text: torch.Tensor, given: argparse.Namespace, run: str
) -> tuple[float, float, dnode.Swarm]:
    """Trains what requires a gradient; held-out loss before and after, and the swarm that was left."""
    held_out = text[-len(text) // 10 :]
    text = text[: -len(held_out)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=given.learning_rate)
    draws = torch.Generator().manual_seed(int(os.environ.get("DNODE_LAUNCH_RANK", os.getpid())))
    test = windows(held_out, 16, given.context, torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = loss_of(model, test).item()
    with dnode.join(
        model, optimizer, run=run, ticket=given.ticket, steps=given.steps, local_steps=10
    ) as swarm:
        while swarm.membership == "joined":
            loss = loss_of(model, windows(text, given.batch, given.context, draws))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            swarm.step(loss=loss, samples=given.batch)
    with torch.no_grad():
        after = loss_of(model, test).item()
    return before, after, swarm


def main() -> None:
    given = arguments(__doc__).parse_args()
    torch.manual_seed(0)
    model = GPT(given.layers, given.heads, given.width, given.context)
    before, after, swarm = train(model, load(given.text), given, "nanogpt")
    exchanges = swarm.leave()["exchanges"]
    print(f"END before={before:.4f} after={after:.4f} exchanges={exchanges} reason={swarm.membership}")


if __name__ == "__main__":
    main()
