"""Weights on a CUDA device as one vector that exchanges mix there. With a device, all tests use it
(``testnet/scripts/gpu.sh python``); what they need of one is here."""

from __future__ import annotations

import os

import pytest

from conftest import Start

ON_CUDA = os.environ.get("DNODE_TEST_DEVICE", "cpu").startswith("cuda")
needs_device = pytest.mark.skipif(not ON_CUDA, reason="DNODE_TEST_DEVICE names no CUDA device")


def test_a_vector_has_the_numbers_of_its_tensors_which_are_views_of_it(start: Start) -> None:
    # The same on the host, where the node is not told of it.
    log = start("0", '''
from dnode import _native, _vector
from dnode._torch import collect
model = Net(device="cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = [p.clone() for p in model.parameters()]
tensors = collect(model, optimizer, "keep").exchanged
assert _vector.of(tensors) is None, "they are on the host"
vector = _vector.Vector(tensors)
index, begins = vector.place
assert index == 0
for p, was in zip(model.parameters(), before):
    assert p.data_ptr() == begins and torch.equal(p, was) and p.is_contiguous()
    begins += 4 * p.numel()
one_step(model, optimizer, torch.default_generator)
now = torch.cat([p.detach().flatten() for p in model.parameters()])
assert torch.equal(vector._numbers, now) and not torch.equal(now, torch.cat([p.flatten() for p in before]))

def alone(tensor):
    holder = torch.nn.Module()
    holder.weight = torch.nn.Parameter(tensor)
    (found,) = collect(holder, None, "keep").exchanged
    return _vector._is_alone(found)
whole = torch.zeros(4, 6)
print("ALONE", [alone(it) for it in (whole, whole.bfloat16(), torch.zeros(6, 4).t(), torch.zeros(8, 6)[:4])])
problem = _native.device_problem(0)
print("PROBLEM", problem is None or (problem.startswith("no CUDA device 0: ") and "\\n" not in problem))
''').wait()
    assert "ALONE [True, False, False, False]" in log and "PROBLEM True" in log, log


@needs_device
def test_weights_of_32_bits_are_mixed_where_they_lie_and_others_by_way_of_the_host(start: Start) -> None:
    text = '''
model = Net(getattr(torch, sys.argv[1]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
places = [p.data_ptr() for p in model.parameters()]
with dnode.join(model, optimizer, run="device", require_peers=1, steps=1000, **peers(sys.argv[2:]), **LOCAL) as swarm:
    begun = [p.data_ptr() for p in model.parameters()]
    moved = 0
    while swarm.membership == "joined":
        moved += swarm.step(one_step(model, optimizer, torch.default_generator)).moved
    print("PLACES", begun != places, begun == [p.data_ptr() for p in model.parameters()], moved > 0)
'''
    for kind, said in (("float32", "PLACES True True True"), ("bfloat16", "PLACES False True True")):
        first = start(f"{kind}-0", text, kind)
        second = start(f"{kind}-1", text, kind, first.address())
        for peer in (first, second):
            log = peer.wait()
            assert said in log and ("weights are mixed on the device" in log) == (kind == "float32"), log


@needs_device
def test_a_loop_may_have_a_stream_of_its_own(start: Start) -> None:
    # Long work before each step: numbers that are read or moved too early are others. Both begin with what all
    # exchange.
    text = '''
model = Net()
def fill(value):
    with torch.no_grad():
        for p in model.parameters(): p.fill_(value)
fill(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
ballast = torch.rand(2048, 2048, device=DEVICE)
with dnode.join(model, optimizer, run="stream", require_peers=1, steps=400, **peers(sys.argv[1:]), **LOCAL) as swarm:
    with torch.cuda.stream(torch.cuda.Stream()):
        moved = 0
        while swarm.membership == "joined":
            fill(9.0)
            for _ in range(10):
                ballast = ballast @ ballast
                ballast = ballast / ballast.norm()
            fill(0.5)
            moved += swarm.step(0.0).moved
            with torch.no_grad():
                assert all(bool((p == 0.5).all()) for p in model.parameters()), swarm.last_step.index
print("EXACT", moved > 0)
'''
    first = start("0", text)
    second = start("1", text, first.address())
    for peer in (first, second):
        assert "EXACT True" in peer.wait()
