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
        return [it.name for it in collect(model(*tensors), None, "keep")]
    except dnode.ConfigError as error:
        return str(error)
whole = torch.zeros(6, 4)
print("TIED", names(whole, torch.zeros(2), whole.detach()))
# As a part of a vector it would have other memory than its twin.
from dnode._vector import _is_alone
print("ALONE", [_is_alone(it) for it in collect(model(whole, torch.zeros(2), whole.detach()), None, "keep")])
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
    assert "FILE data/checkpoints" in log, log
