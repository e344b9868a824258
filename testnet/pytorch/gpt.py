"""dnode's gpt in PyTorch, made from a checkpoint alone."""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner, epsilon = config["width"], config["expansion"] * config["width"], config["norm_epsilon"]
        self.heads = config["heads"]
        self.attention_norm, self.inner_norm = (nn.LayerNorm(width, eps=epsilon) for _ in range(2))
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        samples, tokens, width = x.shape
        qkv = self.attention(self.attention_norm(x)).view(samples, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.projection(attended.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.contract(F.gelu(self.expand(self.inner_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.token_embedding = nn.Embedding(config["vocabulary"], config["width"])
        self.position_embedding = nn.Embedding(config["context"], config["width"])
        self.blocks = [f"block{index}" for index in range(config["layers"])]
        for name in self.blocks:
            self.add_module(name, Block(config))
        self.final_norm = nn.LayerNorm(config["width"], eps=config["norm_epsilon"])

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight[:tokens.shape[1]]
        for name in self.blocks:
            x = self.get_submodule(name)(x)
        return self.final_norm(x) @ self.token_embedding.weight.T


def load(told, tensors):
    assert told["model"]["kind"] == "gpt" and told["model"]["activation"] == "gelu-tanh"
    names = {name: name.replace(".gain", ".weight") for name in tensors}
    names |= {name: f"{name}.weight" for name in ("token_embedding", "position_embedding")}
    model = Gpt(told["model"])
    model.load_state_dict({names[name]: tensor for name, tensor in tensors.items()})
    return model.eval()
