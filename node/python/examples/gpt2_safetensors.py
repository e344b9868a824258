"""Weights of GPT-2 from a safetensors file are fine-tuned in a swarm, and saved under the same names.

    python -m dnode.launch -n 2 node/python/examples/gpt2_safetensors.py
    python node/python/examples/gpt2_safetensors.py --weights model.safetensors --tokens train.bin
    python -m dnode.launch -n 2 node/python/examples/gpt2_safetensors.py --shape small --steps 12 --batch 2

`--weights` names a file with the tensors of `transformers`' GPT-2 (`transformer.h.0.attn.c_attn.weight` …, or
without `transformer.`, as the published files have them); layers and width are those of the file. Without it a
file of that form is made from a seed: a tiny one, or with `--shape small` one of GPT-2 small's true shape, whose
124 million parameters take some 5 GB of memory a peer. `--tokens` names a file of token numbers in 16 bits, as nanoGPT
makes them; without it the tokens are the bytes of a text, which suits a tiny model only.
Needs `pip install safetensors`.
"""

from __future__ import annotations

import array
import math
import tempfile
from pathlib import Path
from typing import Optional

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import nanogpt

PREFIX = "transformer."
#: Layers, heads, width, context and vocabulary of a file that is made.
SHAPES = {"tiny": (2, 1, 48, 32, 256), "small": (12, 12, 768, 1024, 50257)}


class Conv1D(torch.nn.Module):
    """y = x W + b: a linear layer whose weight lies as [in, out], as GPT-2's files have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        query, key, value = (it.reshape(batch, length, self.heads, -1).transpose(1, 2) for it in parts)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Perceptron(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.c_fc(x)
        gelu = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return self.c_proj(gelu)


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads), Perceptron(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(torch.nn.Module):
    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        self.h = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)
        for table in (self.wte, self.wpe):
            torch.nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2(torch.nn.Module):
    """The modules have the names of the file; the head is the embedding."""

    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.transformer = Transformer(layers, heads, width, context, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.transformer(tokens), self.transformer.wte.weight)


def load(file: Path, heads: Optional[int]) -> tuple[GPT2, dict[str, torch.Tensor]]:
    """The model of a file, and all tensors of the file by their names there."""
    tensors = load_file(file)
    named = {name[len(PREFIX) :] if name.startswith(PREFIX) else name: it for name, it in tensors.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in named if name.startswith("h."))
    vocabulary, width = named["wte.weight"].shape
    model = GPT2(layers, heads or max(1, width // 64), width, named["wpe.weight"].shape[0], vocabulary)
    own = model.state_dict()
    missing = [name for name in own if name[len(PREFIX) :] not in named]
    if missing:
        raise SystemExit(f"error: {file} has no tensor {missing[0]}")
    model.load_state_dict({name: named[name[len(PREFIX) :]] for name in own})
    return model, tensors


def save(model: GPT2, loaded: dict[str, torch.Tensor], file: Path) -> None:
    """Writes the tensors under the names that they were loaded by; masks and the like as they were."""
    own = model.state_dict()
    saved = {}
    for name, before in loaded.items():
        trained = own.get(name if name.startswith(PREFIX) else PREFIX + name)
        if name == "lm_head.weight":
            trained = own[f"{PREFIX}wte.weight"]
        saved[name] = (before if trained is None else trained.to(before.dtype)).clone().contiguous()
    save_file(saved, file, metadata={"format": "pt"})


def main() -> None:
    words = nanogpt.arguments(__doc__)
    words.add_argument("--weights", type=Path)
    words.add_argument("--shape", choices=sorted(SHAPES), default="tiny", help="of the file that is made without --weights")
    words.add_argument("--tokens", type=Path)
    words.add_argument("--save", type=Path, help="else gpt2.safetensors in the folder of the peer")
    words.set_defaults(heads=None, learning_rate=1e-3)
    given = words.parse_args()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        if given.weights is None:
            print(f"weights: a {given.shape} file made from a seed; --weights FILE reads one")
            given.weights = Path(temporary) / "model.safetensors"
            save_file(GPT2(*SHAPES[given.shape]).state_dict(), given.weights, metadata={"format": "pt"})
        model, loaded = load(given.weights, given.heads)
    print(f"model: {sum(it.numel() for it in model.parameters())} parameters")
    given.context = min(given.context, model.transformer.wpe.num_embeddings)
    if given.tokens is None:
        tokens = nanogpt.load(given.text)
    else:
        numbers = array.array("H", given.tokens.read_bytes())
        tokens = torch.tensor(numbers, dtype=torch.long)
    before, after, swarm = nanogpt.train(model, tokens, given, "gpt2")
    # The folder of a peer that was given none has gone with the swarm.
    folder = swarm.data_dir if swarm.data_dir.is_dir() else Path()
    file = given.save or folder / "gpt2.safetensors"
    save(model, loaded, file)
    exchanges = swarm.leave()["exchanges"]
    print(
        f"END before={before:.4f} after={after:.4f} exchanges={exchanges} reason={swarm.membership} saved={file}"
    )


if __name__ == "__main__":
    main()
