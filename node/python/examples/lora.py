"""Adapters of low rank are trained and averaged; the base stays as it is, at every peer.

    python -m dnode.launch -n 2 node/python/examples/lora.py
    python node/python/examples/lora.py --base base.pt --save adapters.pt

`--base` names a state dictionary of the GPT in nanogpt.py. Without it the base is drawn at random, from the
same seed at all peers. Only parameters that require a gradient cross the network: here some percent.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

import nanogpt


class LoRA(torch.nn.Module):
    """y = W x + (scale / rank) · B A x, with W frozen and B zero at first (Hu et al. 2021)."""

    def __init__(self, base: torch.nn.Linear, rank: int, scale: float = 16.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.factor = scale / rank
        self.a = torch.nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.factor * ((x @ self.a.T) @ self.b.T)


def adapt(model: torch.nn.Module, rank: int) -> torch.nn.Module:
    """Freezes the model and puts an adapter at each linear layer."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, LoRA(child, rank))
    return model


def digest(model: torch.nn.Module) -> str:
    """Tells whether any number of the base has changed."""
    hashed = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not name.endswith((".a", ".b")):
            hashed.update(tensor.numpy().tobytes())
    return hashed.hexdigest()[:16]


def main() -> None:
    words = nanogpt.arguments(__doc__)
    words.add_argument("--base", type=Path)
    words.add_argument("--rank", type=int, default=4)
    words.add_argument("--save", type=Path, help="a file for the adapters")
    words.set_defaults(learning_rate=1e-2)
    given = words.parse_args()

    torch.manual_seed(0)
    model = nanogpt.GPT(given.layers, given.heads, given.width, given.context)
    if given.base is None:
        print("base: drawn at random; --base FILE reads one")
    else:
        model.load_state_dict(torch.load(given.base))
    adapt(model, given.rank)
    base = digest(model)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    before, after, swarm = nanogpt.train(model, nanogpt.load(given.text), given, "lora")
    if given.save is not None:
        torch.save({name: it for name, it in model.state_dict().items() if name.endswith((".a", ".b"))}, given.save)
    outcome = swarm.leave()
    print(
        f"END before={before:.4f} after={after:.4f} exchanges={outcome['exchanges']} "
        f"reason={swarm.membership} trained={trained} total={total} base={base == digest(model)}"
    )


if __name__ == "__main__":
    main()
