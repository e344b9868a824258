"""The plain PyTorch loop that testnet/scripts/gpu.sh compares with: the same gpt, batch and update.

Arguments by position: device, precision, layers, heads, width, context, batch, peak in TFLOP/s.
"""
import contextlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 50304
WARM_UP, STEPS_MIN, SECONDS = 10, 20, 3.0


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.attention(self.attention_norm(x))
        qkv = qkv.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, width))
        inner = F.gelu(self.expand(self.inner_norm(x)), approximate="tanh")
        return x + self.contract(inner)


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.blocks(self.tokens(tokens) + self.positions.weight)
        return F.linear(self.norm(x), self.tokens.weight)


def main():
    device, precision = sys.argv[1:3]
    layers, heads, width, context, batch = map(int, sys.argv[3:8])
    peak = float(sys.argv[8])
    torch.manual_seed(1)
    if device == "cpu":
        torch.set_num_threads(2)
    model = Gpt(layers, heads, width, context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    kind = {"f32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    cast = torch.autocast(device.split(":")[0], kind) if kind else contextlib.nullcontext()
    scaler = torch.amp.GradScaler(device.split(":")[0], enabled=precision == "fp16")
    data = torch.randint(VOCABULARY, (batch, context + 1)).to(device)

    def step():
        with cast:
            logits = model(data[:, :-1])
        loss = F.cross_entropy(logits.float().view(-1, VOCABULARY), data[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()  # dnode reads the loss of every step too

    for _ in range(WARM_UP):
        step()
    times, start = [], time.perf_counter()
    while len(times) < STEPS_MIN or time.perf_counter() - start < SECONDS:
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    times.sort()
    median = times[len(times) // 2]
    tokens = batch * context / median
    per_token = 6 * sum(p.numel() for p in model.parameters()) + 12 * layers * width * context
    share = f", MFU {100 * tokens * per_token / (peak * 1e12):.1f} %" if peak else ""
    print(f"PyTorch  {device} {precision}: {median * 1e3:.2f} ms/step (median of {len(times)}), "
          f"{tokens:.0f} tokens/s, {tokens * per_token / 1e12:.3f} TFLOP/s{share}")


main()
