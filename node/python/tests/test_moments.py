"""First moments that are averaged beside the weights (``gossip.moments``)."""

from __future__ import annotations

import pytest
from conftest import Start


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_peers_with_other_momentum_come_to_have_its_mean(start: Start, kind: str) -> None:
    # Momentum that does not decay, no gradient after the first step, and a rate of zero: nothing but exchanges
    # changes it. Adam's is of one step, so what it uses of it is ten times as much.
    text = """
kind, first = sys.argv[1], float(sys.argv[2])
model = Net()
if kind == "sgd":
    optimizer, scale = torch.optim.SGD(model.parameters(), lr=0.0, momentum=1.0), 1.0
else:
    optimizer, scale = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.999)), 0.1
def kept():
    return [optimizer.state[p]["momentum_buffer" if kind == "sgd" else "exp_avg"] for p in model.parameters()]
gossip = {"moments": True, "codecs": ["f32"]}
swarm = dnode.join(model, optimizer, run="moments", require_peers=1, gossip=gossip, **peers(sys.argv[3:]), **LOCAL)
weights = [p.clone() for p in model.parameters()]
for p in model.parameters():
    p.grad = torch.full_like(p, first)
optimizer.step()
start = scale * torch.full((), first)
assert all(torch.allclose(it, start.expand_as(it)) for it in kept())
middle, near = scale * 1.1, 0
end = time.monotonic() + 60
# The other one goes on for as long, so that none waits for who is gone.
while near < 400:
    assert time.monotonic() < end, [it.flatten()[:3] for it in kept()]
    time.sleep(0.001)
    swarm.step(0.0)
    near += all(bool((it - middle).abs().max() < 0.02 * scale) for it in kept())
assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights)), "weights were equal, and are as they were"
print("MEAN", swarm.leave()["exchanges"] > 0)
"""
    first = start("0", text, kind, "1.0")
    second = start("1", text, kind, "1.2", first.address())
    for peer in (first, second):
        assert "MEAN True" in peer.wait()


def test_the_moment_of_adam_is_exchanged_as_it_is_used(start: Start) -> None:
    text = """
from dnode._moments import of
from dnode._torch import collect
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.999))
tensors = collect(model, optimizer, "keep").exchanged
moments = of(tensors, optimizer, False)
for moment in moments:
    # The optimizer has made none yet: what is written is kept until it has.
    moment.mirror.fill_(3.0)
    moment.store(); moment.fetch()
    assert bool((moment.mirror == 3.0).all())
generator = torch.Generator().manual_seed(1)
for t in range(1, 80):
    one_step(model, optimizer, generator)
    for moment, parameter in zip(moments, model.parameters()):
        own = optimizer.state[parameter]["exp_avg"]
        before = own.clone()
        moment.fetch()
        assert torch.allclose(moment.mirror, own / (1 - 0.8 ** t), rtol=2e-4), t
        moment.store()
        assert torch.allclose(own, before, rtol=1e-6), t
        moment.mirror.mul_(2.0)
        moment.store()
        assert torch.allclose(own, 2 * before, rtol=2e-4), t
print("USED")
"""
    assert "USED" in start("0", text).wait()


def test_what_has_no_moments_is_refused(start: Start) -> None:
    text = """
model = Net()
def refused(optimizer):
    try:
        dnode.join(model, optimizer, run="refused", config={"gossip.moments": True}, **LOCAL)
    except dnode.ConfigError as error:
        return str(error)
print("NONE", refused(None))
print("SGD", refused(torch.optim.SGD(model.parameters(), lr=0.1)))
"""
    log = start("0", text).wait()
    assert "NONE gossip.moments averages the optimizer's first moments: give dnode.join the optimizer" in log, log
    assert "SGD gossip.moments averages" in log and "SGD has none for first.weight: give it momentum" in log, log
