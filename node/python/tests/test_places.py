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
