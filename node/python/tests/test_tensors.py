"""What of a model is exchanged, and how its numbers are read and moved."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import ROOT, Start, wait_for

#: Two peers that pull their parameters to different goals, until an exchange was seen in each tensor.
PULLS = '''
import math
goal = 1.0 if len(sys.argv) == 1 else 1.2
swarm = dnode.join(model, optimizer, run="tensors", **OPTIONS, **peers(sys.argv[1:]), **LOCAL)
wanted = dict(named)
away = {name: False for name in wanted}
end = time.monotonic() + 60
while not all(away.values()) or swarm.last_step.index < 400:
    assert time.monotonic() < end, away
    time.sleep(0.001)
    with torch.no_grad():
        before = {}
        for name, tensor in wanted.items():
            tensor += (0.05 * (goal - tensor.float())).to(tensor.dtype)
            before[name] = tensor.clone()
    swarm.step(0.0)
    for name, tensor in wanted.items():
        away[name] |= not torch.equal(before[name], tensor)
print("MOVED", sorted(away))
print("STAYED", [name for name, tensor in kept.items() if not torch.equal(tensor, before_all[name])])
# The other goes on until this one has seen what it wants.
end = time.monotonic() + 5
while time.monotonic() < end:
    swarm.step(0.0)
    time.sleep(0.001)
swarm.leave()
'''

MODELS = '''
OPTIONS = {}
kind = open("kind").read()
optimizer = None
if kind == "tied":
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(8, 4)
            self.head = torch.nn.Linear(4, 8, bias=False)
            self.head.weight = self.embedding.weight
    model = Tied()
elif kind == "frozen":
    model = Net()
    model.first.requires_grad_(False)
    optimizer = torch.optim.SGD([model.second.weight], lr=0.1)
elif kind == "layout":
    model = Net()
    model.first.weight = torch.nn.Parameter(torch.zeros(4, 16).t())
    model.scale = torch.nn.Parameter(torch.tensor(0.5))
    model.double()
    model.second.float()
elif kind == "buffers":
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    OPTIONS = {"buffers": "average"}
else:
    model = Net(getattr(torch, kind))
model.to(DEVICE)
named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and (optimizer is None or n == "second.weight")]
if kind == "buffers":
    named += [(n, b) for n, b in model.named_buffers() if b.is_floating_point()]
kept = {n: p for n, p in model.named_parameters() if n not in dict(named)}
before_all = {n: p.clone() for n, p in kept.items()}
LOCAL["gossip"] = {"guard": False}
'''


def _pulls(start: Start, kind: str) -> list[str]:
    text = f"open('kind', 'w').write({kind!r})\n" + MODELS + PULLS
    first = start("0", text)
    second = start("1", text, first.address())
    return [peer.wait() for peer in (first, second)]


def test_tied_weights_are_exchanged_once(start: Start) -> None:
    for log in _pulls(start, "tied"):
        assert "MOVED ['embedding.weight']" in log, log


def test_frozen_parameters_and_those_of_no_optimizer_stay_as_they_are(start: Start) -> None:
    for log in _pulls(start, "frozen"):
        assert "MOVED ['second.weight']" in log and "STAYED []" in log, log


def test_numbers_of_64_bits_and_tensors_that_are_not_contiguous_are_exchanged(start: Start) -> None:
    for log in _pulls(start, "layout"):
        assert "MOVED ['first.bias', 'first.weight', 'scale', 'second.bias', 'second.weight']" in log, log


def test_averaged_buffers_are_exchanged_like_parameters(start: Start) -> None:
    for log in _pulls(start, "buffers"):
        assert "MOVED ['0.bias', '0.weight', '1.bias', '1.running_mean', '1.running_var', '1.weight']" in log


def test_peers_of_16_bits_exchange_by_masters(start: Start) -> None:
    for log in _pulls(start, "bfloat16"):
        assert "MOVED ['first.bias', 'first.weight', 'second.bias', 'second.weight']" in log, log


def test_a_displacement_smaller_than_the_spacing_of_16_bits_is_not_lost(start: Start) -> None:
    # The peer of 32 bits trains from 1 to 1.02 by steps that bfloat16 does not know near 1 (its spacing
    # is 0.0078); the one of 16 bits takes no steps of its own and must follow by exchanges alone.
    text = '''
narrow = len(sys.argv) > 1
model = Net(torch.bfloat16 if narrow else torch.float32)
with torch.no_grad():
    for p in model.parameters(): p.fill_(1.0)
swarm = dnode.join(model, run="narrow", **peers(sys.argv[1:]), **LOCAL)
swarm.wait_for_peers(1)
end = time.monotonic() + 60
while not (narrow and all((p > 1.01).all() for p in model.parameters())):
    assert time.monotonic() < end, [p.float().mean().item() for p in model.parameters()]
    if narrow is False:
        with torch.no_grad():
            for p in model.parameters(): p += 0.001 * (1.02 - p)
        if swarm.stats["peers"] == 0 and swarm.last_step.index > 2000: break
    swarm.step(0.0)
    time.sleep(0.001)
print("FOLLOWED", narrow)
swarm.leave()
'''
    first = start("0", text)
    second = start("1", text, first.address())
    assert "FOLLOWED True" in second.wait()
    assert "FOLLOWED False" in first.wait()


def test_a_peer_in_python_and_one_in_rust_are_one_swarm(start: Start, tmp_path: Path) -> None:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "release" / "examples" / "own_loop"
    words = ["--data-dir", "data", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--no-mdns", "--open", "--shard", "0/2"]
    words += ["--set", "gossip.local_steps=5", "--set", "gossip.balance=off", "--steps", "3000"]
    folder = tmp_path / "rust"
    folder.mkdir()
    with (folder / "log").open("w") as log:
        command = [str(program), *words, "--require-peers", "1"]
        rust = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        file = folder / "data" / "address"
        address = wait_for(lambda: (file.read_text().split() or [None])[0] if file.exists() else None, "it listens")
        text = '''
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(4))
model = Plain()
generator = torch.Generator().manual_seed(3)
swarm = dnode.join(model, run="own-loop", bootstrap=sys.argv[1:], steps=3000, **LOCAL)
while swarm.membership == "joined":
    x = torch.rand(4, generator=generator) - 0.5
    error = ((model.weights - TRUTH[0]) * x).sum().detach()
    with torch.no_grad():
        model.weights -= 0.1 * error * x
    swarm.step(error ** 2)
print("ENDED", swarm.membership, swarm.leave()["exchanges"], model.weights.tolist())
'''
        python = start("python", text, address)
        log_of_python = python.wait()
        assert rust.wait(60) == 0, (folder / "log").read_text()
    finally:
        rust.kill()
        rust.wait()
    kind, exchanges, *weights = log_of_python.split("ENDED ")[1].splitlines()[0].split()
    assert kind == "finished" and int(exchanges) > 0, log_of_python
    for got, want in zip(weights, [1.0, -2.0, 0.5, 3.0]):
        assert abs(float(got.strip("[],")) - want) < 0.1, log_of_python
    told = (folder / "log").read_text()
    assert int(told.split("] after ")[1].split()[0]) > 0, told


def test_accumulated_batches_are_one_step(start: Start) -> None:
    text = '''
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(len(sys.argv))
with dnode.join(model, optimizer, run="accumulate", require_peers=1, **peers(sys.argv[1:]), **LOCAL) as swarm:
    for _ in range(300):
        total = 0.0
        for _ in range(4):
            x, y = batch(generator)
            loss = torch.nn.functional.mse_loss(model(x), y) / 4
            loss.backward(); total += loss.item()
        optimizer.step(); optimizer.zero_grad()
        swarm.step(loss=total, samples=4 * 32)
    outcome = swarm.leave()
print("DONE", outcome["step"], outcome["samples"], total, outcome["exchanges"])
'''
    first = start("0", text)
    second = start("1", text, first.address())
    for peer in (first, second):
        step, samples, loss, exchanges = peer.wait().split("DONE ")[1].split()[:4]
        assert (step, samples) == ("300", str(300 * 128)) and int(exchanges) > 0
        assert float(loss) < 0.2


def test_weights_that_the_loop_puts_elsewhere_are_found_and_their_old_memory_is_kept(start: Start) -> None:
    text = '''
import gc
from safetensors.torch import load_file
model = Net(device="cpu")
swarm = dnode.join(model, run="elsewhere", **LOCAL)
swarm.step(0.0)
def elsewhere(value):
    for p in model.parameters(): p.data = torch.full_like(p, value)
    gc.collect()
    # What was freed is taken by others.
    return [torch.full_like(p, 7.0) for p in model.parameters()]
others = elsewhere(2.0)
saved = load_file(swarm.checkpoint())
print("SAVED", all(bool((it == 2.0).all()) for it in saved.values()), len(saved))
model.half()
others += elsewhere(3.0)
try:
    swarm.step(0.0)
except dnode.Error as error:
    print("REFUSED", error)
last = load_file(swarm.leave()["parameters"])
print("LAST", all(bool((it == 2.0).all()) for it in last.values()), all(bool((it == 7.0).all()) for it in others))
'''
    log = start("0", text).wait()
    assert "SAVED True 4" in log and "LAST True True" in log, log
    assert "REFUSED train parameter first.weight: its type, shape or place has changed" in log, log
    assert "the last checkpoint has the weights of the last step" in log, log


def test_a_master_that_has_overflowed_is_taken_from_its_tensor_again(start: Start) -> None:
    text = '''
from dnode._torch import Place, Tensor
tensor = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16).t())
it = Tensor(Place("weight", {"weight": tensor}, "weight"), tensor)
it.reflect()
for value in (1.0, float("nan"), 2.0):
    with torch.no_grad(): tensor.fill_(value)
    it.fetch()
    print("MASTER", it.mirror.flatten().tolist() == [value] * 8)
it.mirror.add_(0.001)
with torch.no_grad(): tensor.add_(1.0)
it.fetch()
print("MASTER", bool(((it.mirror - 3.001).abs() < 1e-6).all()))
'''
    log = start("0", text).wait()
    assert [line for line in log.splitlines() if line.startswith("MASTER")] == [
        "MASTER True",
        "MASTER False",
        "MASTER True",
        "MASTER True",
    ], log
