"""Weights that a loop or a framework puts elsewhere while a swarm has them."""

from __future__ import annotations

from conftest import Start

#: f32 weights on a device, on the host: the node reaches the vector's parts one by one.
VECTOR = '''
from safetensors.torch import load_file
from dnode import _vector
_vector.of = _vector.Vector
_vector.Vector.place = None
def fill(model, value):
    for p in model.parameters(): p.data = torch.full_like(p, value)
def stored(model):
    """Bytes of the memories of all parameters."""
    return [len(p.storage()) * 4 for p in model.parameters()]
def values(file):
    return sorted({number for it in load_file(file).values() for number in it.flatten().tolist()})
'''


def test_what_the_model_has_in_the_place_of_a_tensor_counts(start: Start) -> None:
    log = start("0", '''
from safetensors.torch import load, load_file
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
swarm = dnode.join(model, optimizer, run="places", buffers="average", **LOCAL)
swarm.step(0.0)
# What `load_state_dict(assign=True)` of PyTorch 2.1 does, and a module that makes its buffer anew.
model[0].weight = torch.nn.Parameter(torch.full((4, 4), 2.0))
model[1].running_mean = torch.full((4,), 5.0)
optimizer.param_groups[0]["params"] = list(model.parameters())
optimizer.state[model[0].weight]["momentum_buffer"] = torch.full((4, 4), 3.0)
saved = load_file(swarm.checkpoint())
print("SAVED", saved["0.weight"].unique().tolist(), saved["1.running_mean"].unique().tolist())
state = load(bytes(swarm.state_dict()["checkpoint"]["state.safetensors"].tolist()))
print("STATE", [it.unique().tolist() for name, it in state.items() if "0.weight.momentum_buffer" in name])
kept = model[0].weight
del model[0].weight
model[0].register_parameter("weight_orig", kept)
swarm.step(0.0)
model.to("meta")
try:
    swarm.step(0.0)
except dnode.Error as error:
    print("REFUSED", error)
print("NONE", swarm.checkpoint())
print("LEFT", swarm.leave()["step"])
''').wait()
    assert "SAVED [2.0] [5.0]" in log and "STATE [[3.0]]" in log, log
    assert "REFUSED train parameter 0.bias: its type, shape or place has changed" in log, log
    assert "NONE None" in log and "LEFT 2" in log, log


def test_weights_of_a_vector_that_were_elsewhere_are_views_of_it_again(start: Start) -> None:
    log = start("0", VECTOR + '''
model = Net(device="cpu")
swarm = dnode.join(model, run="vector", **LOCAL)
print("ONE", set(stored(model)) == {4 * 97}, swarm._vector is not None)
fill(model, 2.0)
swarm.step(0.0)
print("AGAIN", set(stored(model)) == {4 * 97}, values(swarm.checkpoint()))
model.first.weight.data = model.first.weight.data.half().float() + 1.0
torch.nn.Module.to(model, "meta")
try:
    swarm.step(0.0)
except dnode.Error as error:
    print("REFUSED", error)
model.to_empty(device="cpu")
fill(model, 4.0)
swarm.step(0.0)
print("BACK", set(stored(model)) == {4 * 97}, values(swarm.checkpoint()))
swarm.leave()
print("OWN", stored(model) == [4 * p.numel() for p in model.parameters()], float(model.first.weight.sum()) == 4.0 * 64)
torch.save(model.second.state_dict(), "second")
print("SMALL", os.path.getsize("second") < 2000)
''').wait()
    assert "ONE True True" in log and "AGAIN True [2.0]" in log and "BACK True [4.0]" in log, log
    assert "REFUSED train parameter first.weight: its type, shape or place has changed" in log, log
    assert "OWN True True" in log and "SMALL True" in log, log


def test_a_join_that_is_refused_leaves_each_tensor_its_own_memory(start: Start) -> None:
    log = start("0", VECTOR + '''
model = Net(device="cpu")
own = lambda: stored(model) == [4 * p.numel() for p in model.parameters()]
fill(model, 2.0)
try:
    dnode.join(model, run="refused", resume={"index": 3}, **LOCAL)
except dnode.Error as error:
    print("REFUSED", type(error).__name__, own())
try:
    dnode.join(model, run="refused", **{**LOCAL, "listen": ["/ip4/192.0.2.1/udp/1/quic-v1"]})
except dnode.Error as error:
    print("REFUSED", type(error).__name__, own())
swarm = dnode.join(model, run="refused", **LOCAL)
print("JOINED", not own(), swarm._vector is not None, values(swarm.checkpoint()))
''').wait()
    assert log.count("REFUSED") == 2 and log.count(" True\n") >= 2 and "False" not in log, log
    assert "JOINED True True [2.0]" in log, log


def test_a_swarm_that_is_forgotten_leaves_with_the_weights_that_the_model_has(start: Start) -> None:
    log = start("0", VECTOR.replace("_vector.of =", "_ =") + '''
import pathlib
model = Net(device="cpu")
swarm = dnode.join(model, run="forgotten", **LOCAL)
fill(model, 2.0)
swarm.step(0.0)
fill(model, 3.0)
del swarm
others = [torch.full((size,), 7.0) for size in (64, 16, 16, 1) * 8]
(file,) = pathlib.Path("data/checkpoints").glob("*/parameters.safetensors")
print("LAST", values(file))
''').wait()
    assert "LAST [3.0]" in log, log


def test_a_device_without_memory_for_a_vector_mixes_by_way_of_the_host(start: Start) -> None:
    log = start("0", '''
from dnode import _native, _vector
from dnode._torch import collect
class Device:
    type, index = "cuda", 0
class Weight(torch.nn.Parameter):
    is_cuda = True
    device = Device()
model = torch.nn.Module()
model.weight = Weight(torch.ones(8, 4))
_native.device_problem = lambda index: None
def full(tensors): raise torch.cuda.OutOfMemoryError("CUDA out of memory")
_vector.Vector = full
import logging
logging.basicConfig(level=logging.INFO)
print("VECTOR", _vector.of(collect(model, None, "keep").exchanged))
# One that is on the host now is read and moved there.
(it,) = collect(model, None, "keep").exchanged
it.mirror = torch.zeros(8, 4)
Weight.is_cuda = False
it.check()
it.fetch()
print("READ", it.mirror.unique().tolist())
it.mirror.fill_(2.0)
it.store()
print("MOVED", model.weight.unique().tolist())
''').wait()
    assert "weights cross to the host to be mixed: CUDA out of memory" in log and "VECTOR None" in log, log
    assert "READ [1.0]" in log and "MOVED [2.0]" in log, log


def test_weights_that_share_memory_are_exchanged_once_or_refused(start: Start) -> None:
    log = start("0", '''
from dnode._torch import collect
def model(*tensors):
    made = torch.nn.Module()
    for name, it in zip("abc", tensors):
        made.register_parameter(name, torch.nn.Parameter(it))
    return made
def names(*tensors):
    try:
        return [it.name for it in collect(model(*tensors), None, "keep").exchanged]
    except dnode.ConfigError as error:
        return str(error)
whole = torch.zeros(6, 4)
print("TIED", names(whole, torch.zeros(2), whole.detach()))
# As a part of a vector it would have other memory than its twin.
from dnode._vector import _is_alone
print("ALONE", [_is_alone(it) for it in collect(model(whole, torch.zeros(2), whole.detach()), None, "keep").exchanged])
print("APART", names(whole[:2], whole[2:]), names(whole[:, :2], whole[:, 2:]))
for it in (names(whole, whole.t()), names(whole[1:], whole[:2]), names(whole, whole[0, 0])):
    print("REFUSED", it)
''').wait()
    assert "TIED ['a', 'b']" in log and "APART ['a', 'b'] ['a', 'b']" in log, log
    assert "ALONE [False, True]" in log, log
    refused = [line for line in log.splitlines() if line.startswith("REFUSED")]
    assert len(refused) == 3 and all("have some of their numbers in common" in line for line in refused), log


def test_an_optimizer_without_a_rate_trains_and_is_saved(start: Start) -> None:
    log = start("0", '''
from safetensors.torch import load
model = Net(device="cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
swarm = dnode.join(model, optimizer, run="rates", **LOCAL)
one_step(model, optimizer, torch.default_generator)
def names():
    swarm.step(0.0)
    state = load(bytes(swarm.state_dict()["checkpoint"]["state.safetensors"].tolist()))
    return [sum("momentum_buffer" in name for name in state), sum("group.0.lr" in name for name in state)]
told = [names()]
optimizer.param_groups[0]["lr"] = None
told.append(names())
del optimizer.param_groups[0]["lr"]
told.append(names())
print("SAVED", told)
from dnode._torch import Callbacks
def fails(self): raise ValueError("no state")
Callbacks.save = fails
print("FILE", swarm.checkpoint())
swarm.leave()
''').wait()
    assert "SAVED [[5, 1], [5, 0], [5, 0]]" in log, log
    assert "ERROR save the optimizer's state: ValueError: no state; the checkpoint lacks it" in log, log
    assert "FILE /" in log and "/data/checkpoints" in log, log
