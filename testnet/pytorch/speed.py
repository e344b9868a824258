"""Tokens per second of llamas in PyTorch: the shapes of `cargo bench -p dnode-trainer --bench llama`.

speed.py THREADS f32|bf16 [SIZE...]: medians of the forward pass without a gradient, of forward and backward
pass, and of whole steps with AdamW. bf16 is autocast: weights and moments are f32. Attention is
`scaled_dot_product_attention` where this PyTorch has it, and all else as in llama.py.
"""
import statistics
import sys
import time

import torch
from torch.nn import functional as F

import llama

VOCABULARY = 4096
TIMES_MIN, SECONDS = 5, 2.0
# Layers, heads, width, tokens of a sample, samples.
SIZES = {"1M": (4, 4, 96, 128, 8), "10M": (7, 5, 320, 256, 4), "100M": (12, 12, 768, 256, 2)}


def fused(self, x):
    """llama.Block.forward with fused attention."""
    samples, tokens, width = x.shape
    rows = self.attention(self.attention_norm(x)).view(samples, tokens, -1, width // self.heads)
    q, k, v = rows.transpose(1, 2).split((self.heads, self.groups, self.groups), 1)
    q, k = llama.turn(q, self.rates), llama.turn(k, self.rates)
    k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
    attended = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
    x = x + self.projection(attended.transpose(1, 2).reshape(samples, tokens, width))
    gate, up = self.expand(self.inner_norm(x)).chunk(2, -1)
    return x + self.contract(F.silu(gate) * up)


def median(call):
    call()
    start, times = time.perf_counter(), []
    while len(times) < TIMES_MIN or time.perf_counter() - start < SECONDS:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def main(threads, precision, *sizes):
    torch.set_num_threads(int(threads))
    torch.set_flush_denormal(True)
    if hasattr(F, "scaled_dot_product_attention"):
        llama.Block.forward = fused
    half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")
    for name in sizes or SIZES:
        layers, heads, width, context, batch = SIZES[name]
        torch.manual_seed(1)
        model = llama.Llama({
            "layers": layers, "heads": heads, "key_value_heads": heads // 2 if heads % 2 == 0 else heads,
            "width": width, "inner": 3 * width, "vocabulary": VOCABULARY, "norm_epsilon": 1e-5,
            "rotary_base": 10000.0, "tied": True,
        })
        # As dnode draws them. From PyTorch's own embedding, of deviation 1, come numbers so small that they are slow.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.02)
        count = sum(p.numel() for p in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, targets = torch.randint(VOCABULARY, (2, batch, context))

        def forward():
            with half:
                logits = model(tokens)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

        def scored():
            with torch.no_grad():
                forward()

        def gradient():
            optimizer.zero_grad(set_to_none=False)
            forward().backward()

        def step():
            gradient()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        rates = [batch * context / median(call) for call in (scored, gradient, step)]
        print(
            f"PyTorch {torch.__version__} {precision}, {threads} threads, {name} ({count}, {batch} x {context}): "
            "forward {:.0f} tokens/s, forward and backward {:.0f}, step {:.0f}".format(*rates), flush=True)


main(*sys.argv[1:])
