"""dnode's llama in PyTorch, made from a checkpoint alone."""
import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gain, self.epsilon = nn.Parameter(torch.ones(config["width"])), config["norm_epsilon"]

    def forward(self, x):
        return self.gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


def rates(config):
    """How far each pair of channels of a head turns from one position to the next."""
    half = config["width"] // config["heads"] // 2
    own, scaling = config["rotary_base"] ** (-torch.arange(half) / half), config.get("rotary_scaling")
    if scaling is None:
        return own
    slow = own / scaling["factor"]
    if scaling["kind"] == "linear":
        return slow
    turns = scaling["positions"] * own / (2 * torch.pi)
    share = ((turns - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return (1 - share) * slow + share * own


def turn(x, rates):
    """Channels i and i + half of each head by the angle of their position; x: [B, heads, T, D]."""
    tokens, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.outer(torch.arange(tokens).float(), rates)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["width"], config["inner"]
        self.heads, self.groups, self.rates = config["heads"], config["key_value_heads"], rates(config)
        channels = (self.heads + 2 * self.groups) * width // self.heads
        self.attention_norm, self.inner_norm = Norm(config), Norm(config)
        self.attention = nn.Linear(width, channels, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.expand, self.contract = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        samples, tokens, width = x.shape
        rows = self.attention(self.attention_norm(x)).view(samples, tokens, -1, width // self.heads)
        q, k, v = rows.transpose(1, 2).split((self.heads, self.groups, self.groups), 1)
        q, k = turn(q, self.rates), turn(k, self.rates)
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.projection(attended.transpose(1, 2).reshape(samples, tokens, width))
        gate, up = self.expand(self.inner_norm(x)).chunk(2, -1)
        return x + self.contract(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.token_embedding = nn.Embedding(config["vocabulary"], config["width"])
        self.blocks = [f"block{index}" for index in range(config["layers"])]
        for name in self.blocks:
            self.add_module(name, Block(config))
        self.final_norm = Norm(config)
        self.head = None if config["tied"] else nn.Linear(config["width"], config["vocabulary"], bias=False)

    def forward(self, tokens):
        x = self.token_embedding(tokens)
        for name in self.blocks:
            x = self.get_submodule(name)(x)
        x = self.final_norm(x)
        return self.head(x) if self.head else x @ self.token_embedding.weight.T


def load(told, tensors):
    assert told["model"]["kind"] == "llama"
    model = Llama(told["model"])
    names = {name: name.replace("token_embedding", "token_embedding.weight") for name in tensors}
    model.load_state_dict({names[name]: tensor for name, tensor in tensors.items()})
    return model.eval()
