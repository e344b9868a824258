"""Loops as people have them: mixed precision, wrapped models, a device."""

from __future__ import annotations

import pytest
import torch
from conftest import Start

def test_a_loop_of_mixed_precision_that_accumulates_learns(start: Start) -> None:
    text = '''
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
# It does nothing without a device; the loop is the same.
scaler = torch.cuda.amp.GradScaler(enabled=False)
generator = torch.Generator().manual_seed(len(sys.argv))
losses = []
with dnode.join(model, optimizer, run="mixed", steps=400, require_peers=1, **peers(sys.argv[1:]), **LOCAL) as swarm:
    while swarm.membership == "joined":
        total = 0.0
        for _ in range(2):
            x, y = batch(generator)
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                out = model(x)
            assert out.dtype == torch.bfloat16
            loss = torch.nn.functional.mse_loss(out.float(), y) / 2
            scaler.scale(loss).backward(); total += loss.item()
        scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        swarm.step(loss=total, samples=2 * 32)
        losses.append(total)
print("DONE", losses[0], losses[-1], swarm.leave()["exchanges"])
'''
    first = start("0", text)
    second = start("1", text, first.address())
    for peer in (first, second):
        log = peer.wait()
        before, after, exchanges = log.split("DONE ")[1].split()[:3]
        assert float(after) < 0.3 * float(before) and int(exchanges) > 0, log


def test_wrappers_do_not_change_the_names_of_parameters(start: Start) -> None:
    # torch.compile is not in every version: a stand-in has the name that it gives to the model.
    text = '''
from dnode._torch import collect
class Around(torch.nn.Module):
    def __init__(self, name, inner):
        super().__init__()
        setattr(self, name, inner)
def names(model):
    return [tensor.name for tensor in collect(model, None, "keep").exchanged]
plain = names(Net())
for name in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
    assert names(Around(name, Net())) == plain, name
class DataParallel(Around): pass
for kind in (DataParallel, lambda name, inner: torch.nn.DataParallel(inner)):
    assert names(kind("module", Around("_orig_mod", Net()))) == plain
# A model's own part may have that name.
own = ["module." + name for name in plain]
assert names(Around("module", Net())) == names(DataParallel("module", Around("module", Net()))) == own
assert names(DataParallel("module", torch.nn.Sequential(Around("module", Net()))))[0] == "0.module.first.weight"
part = Net(); part.second = Around("_orig_mod", part.second)
assert names(part) == plain
assert names(Around("modules", Net())) == ["modules." + name for name in plain]
print("NAMES", plain)
'''
    log = start("0", text).wait()
    assert "NAMES ['first.weight', 'first.bias', 'second.weight', 'second.bias']" in log, log


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this PyTorch is older than 2 and has no torch.compile")
def test_a_compiled_model_and_a_plain_one_are_one_swarm(start: Start) -> None:
    text = '''
model = Net()
if len(sys.argv) == 1:
    # Of the compiler's stages those that need no C compiler.
    model = torch.compile(model, backend="aot_eager")
    assert all(name.startswith("_orig_mod.") for name, _ in model.named_parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(len(sys.argv))
first = None
with dnode.join(model, optimizer, run="compiled", steps=300, require_peers=1, **peers(sys.argv[1:]), **LOCAL) as swarm:
    while swarm.membership == "joined":
        loss = one_step(model, optimizer, generator)
        first = first if first is not None else loss.item()
        swarm.step(loss=loss, samples=32)
print("DONE", first, loss.item(), swarm.leave()["exchanges"])
'''
    compiled = start("0", text)
    plain = start("1", text, compiled.address())
    for peer in (compiled, plain):
        before, after, exchanges = peer.wait().split("DONE ")[1].split()[:3]
        assert float(after) < 0.3 * float(before) and int(exchanges) > 0, peer.log()


def test_a_model_whose_ranks_have_parts_of_it_is_refused(start: Start) -> None:
    # Stand-ins: FSDP of PyTorch 1.13 needs a device, and its tensors of several ranks are not in it.
    text = '''
class FullyShardedDataParallel(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self._fsdp_wrapped_module = inner
class DTensor(torch.nn.Parameter): pass
def of_tensors():
    model = Net()
    model.first.weight = DTensor(torch.zeros(16, 4))
    return model
def of_layers():
    model = Net()
    model.first = FullyShardedDataParallel(model.first)
    return model
for model in (FullyShardedDataParallel(Net()), of_layers(), of_tensors()):
    try:
        dnode.join(model, run="parts", **LOCAL)
    except dnode.ConfigError as error:
        print("REFUSED", error)
'''
    log = start("0", text).wait()
    said = "REFUSED join with a model whose ranks have parts of the weights"
    assert log.count(said) == 3 and log.count("DistributedDataParallel") == 3, log


#: A stand-in: parameters and losses that say they are on a device, and a device that counts waits.
ON_DEVICE = '''
import contextlib
import threading
class Waits(dict):
    """What the thread that steps waits for, and other threads while it waits for them."""
    def add(self, what):
        if threading.current_thread() is not threading.main_thread():
            what = "node " + what
        self[what] = self.get(what, 0) + 1
waits = Waits()
class Event:
    def record(self, stream): pass
    def query(self): return True
    def synchronize(self): waits.add("event")
class Stream:
    def __init__(self, device=None): pass
    def wait_stream(self, other): waits.add("copies")
torch.cuda.Event, torch.cuda.Stream = Event, Stream
main = Stream()
torch.cuda.default_stream = torch.cuda.current_stream = lambda device: main
torch.cuda.stream = lambda stream: contextlib.nullcontext()
def synchronize(device=None): waits.add("device")
torch.cuda.synchronize = synchronize
empty = torch.empty
torch.empty = lambda *shape, pin_memory=False, **rest: empty(*shape, **rest)
class Device:
    type, index = "cuda", 0
class Weight(torch.nn.Parameter):
    is_cuda = True
    device = Device()
    def record_stream(self, stream): pass
class Loss(torch.Tensor):
    """Or another figure of a step."""
    is_cuda = True
    def item(self): waits.add("loss"); return 1.0
    def __float__(self): waits.add("loss"); return 1.0
    def cpu(self): waits.add("loss"); return torch.ones(())
    def tolist(self): waits.add("loss"); return 1.0
    def detach(self): return torch.ones(())
model = torch.nn.Module()
model.weight = Weight(torch.ones(8, 4))
# What cannot be mixed there goes by way of the host.
dnode._native.device_problem = lambda index: "a stand-in"
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
'''


def test_a_step_without_an_exchange_waits_for_nothing_of_a_device(start: Start) -> None:
    # The rule has its first exchange after the steps that are counted.
    text = ON_DEVICE + '''
swarm = dnode.join(model, optimizer, run="device", **{**LOCAL, "rule": "gossip-outer", "local_steps": 1000})
figure = torch.ones(()).as_subclass(Loss)
optimizer.param_groups[0]["lr"] = figure
begun = dict(waits)
for _ in range(200):
    swarm.step(loss=figure, gradient_norm=figure)
print("WAITS", {name: number - begun.get(name, 0) for name, number in waits.items() if number != begun.get(name)})
optimizer.param_groups[0]["lr"] = 0.1
swarm.leave()
print("COPIED", sorted(waits), waits["node event"] == waits["node copies"])
# A loop with a stream of its own: what the node does comes between what the loop asks before and after.
from dnode._torch import collect, devices, in_order
order = []
class Named(Stream):
    def __init__(self, name): self.name = name
    def wait_stream(self, other): order.append(f"{self.name} after {other.name}")
shared, own = Named("shared"), Named("own")
torch.cuda.default_stream, torch.cuda.current_stream = (lambda device: shared), (lambda device: own)
with in_order(devices(collect(model, optimizer, "keep").exchanged)):
    order.append("node")
print("ORDER", order)
'''
    log = start("0", text).wait()
    assert "WAITS {}" in log and "COPIED ['node copies', 'node event'] True" in log, log
    assert "ORDER ['shared after own', 'node', 'own after shared']" in log, log


def test_of_a_device_a_step_waits_for_copies_of_what_an_exchange_reads_alone(start: Start) -> None:
    text = ON_DEVICE + '''
swarm = dnode.join(model, optimizer, run="device", steps=300, require_peers=1, **peers(sys.argv[1:]), **LOCAL)
figure, begun = torch.ones(()).as_subclass(Loss), dict(waits)
optimizer.param_groups[0]["lr"] = figure
steps, most = 0, 0
while swarm.membership == "joined":
    before = waits.get("node event", 0)
    swarm.step(loss=figure, gradient_norm=figure)
    if swarm.membership == "joined":
        steps += 1
        most = max(most, waits.get("node event", 0) - before)
        told = {name: number - begun.get(name, 0) for name, number in waits.items() if number != begun.get(name)}
optimizer.param_groups[0]["lr"] = 0.1
print("IN STEPS", steps, sorted(told), told.get("node event") == told.get("node copies"), told.get("node event"), most)
print("EXCHANGES", swarm.leave()["exchanges"])
'''
    first = start("0", text)
    second = start("1", text, first.address())
    for peer in (first, second):
        log = peer.wait()
        steps, rest = log.split("IN STEPS ")[1].splitlines()[0].split(" ", 1)
        what, number, most = rest.rsplit(" ", 2)
        # The thread that steps asks nothing of the device. One of the node waits, while that thread waits for
        # it: once in a step for each tensor that an exchange reads, and this model has one.
        assert what == "['node copies', 'node event'] True", log
        assert 0 < int(number) <= int(steps) and int(most) == 1, log
        assert int(log.split("EXCHANGES ")[1].split()[0]) > 0, log


def test_a_peer_that_begins_with_other_weights_is_refused_where_that_was_agreed(start: Start) -> None:
    text = '''
torch.manual_seed(int(sys.argv[1]))
model = Net()
assert len(dnode.digest(model)) == 16 and dnode.digest(model) == dnode.digest(model)
assert dnode.digest(model) == dnode.digest(model, frozen=True)
base = Net()
base.first.requires_grad_(False)
before = dnode.digest(base), dnode.digest(base, frozen=True)
with torch.no_grad():
    base.first.weight[0, 0] += 1.0
assert (dnode.digest(base) == before[0], dnode.digest(base, frozen=True) == before[1]) == (True, False)
try:
    swarm = dnode.join(
        torch.nn.DataParallel(model), run="digest", agreed={"weights": dnode.digest(model)}, **peers(sys.argv[2:]), **LOCAL
    )
except dnode.RunMismatch as error:
    print("REFUSED", error)
    sys.exit()
print("JOINED", swarm.wait_for_peers(1))
while len(sys.argv) == 2:
    swarm.step(0.0)
    time.sleep(0.001)
'''
    first = start("0", text, "1")
    address = first.address()
    assert "JOINED" in start("1", text, "1", address).wait()
    refused = start("2", text, "2", address).wait()
    assert "model.weights" in refused.split("REFUSED ")[1].splitlines()[0], refused
