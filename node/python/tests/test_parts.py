"""Models of which each process of a group has a part."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Start
from test_group import RANK, SINGLE, ranks_of

try:
    from torch.distributed.fsdp import fully_shard as _  # noqa: F401

    HAS_FULLY_SHARD = True
except (ImportError, ValueError):
    # PyTorch 1.13 with Python 3.11 fails in the import.
    HAS_FULLY_SHARD = False

#: A rank of a loop whose model is in parts.
LOOP = '''
def full(model):
    return [getattr(p, "full_tensor", lambda: p)().detach().flatten().tolist() for p in model.parameters()]
def moments():
    return [
        [(key, getattr(value, "full_tensor", lambda: value)().flatten().tolist()) for key, value in sorted(optimizer.state[p].items())]
        for p in model.parameters()
    ]
again = bool(rest)
model = Net()
if again:
    with torch.no_grad():
        for p in model.parameters(): p.zero_()
model = shard(model)
optimizer = make_optimizer(model)
generator = torch.Generator().manual_seed(rank)
state = torch.load("state.pt") if again and rank == 0 else False
words = {**LOCAL, "data_dir": "again"} if again else {**LOCAL, "steps": 300, "require_peers": 1}
swarm = dnode.join(model, optimizer, run="hosts", process_group=WORLD, resume=state, **words)
if again:
    print("BEGINS", swarm.last_step.index, full(model))
    print("MOMENTS", moments())
    swarm.leave()
    end()
assert swarm.wait_for_peers(1) == 1
moved = 0
while swarm.membership == "joined":
    loss = train(model, optimizer, generator)
    moved += swarm.step(loss=loss, samples=32).moved
    if swarm.last_step.index == 100:
        saved = swarm.state_dict()
        assert (saved["checkpoint"] is not None) == (rank == 0)
        print("MOMENTS", moments())
        if rank == 0:
            torch.save(saved, "state.pt")
            # With what the weights of the model have yet to move by.
            from safetensors.torch import load
            told = load(bytes(saved["checkpoint"]["parameters.safetensors"].tolist()))
            print("BEGINS", saved["index"], [told[name].flatten().tolist() for name, _ in model.named_parameters()])
print("WEIGHTS", full(model))
print("ENDED", swarm.membership, moved, swarm.leave()["exchanges"], loss.item())
end()
'''

FULLY_SHARD = '''
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
def shard(model):
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)
train = one_step
'''

#: What FSDP has of PyTorch 2, in PyTorch 1.13: a part of the rows of the first layer at each rank, and a gradient
#: step by hand.
STAND_IN = '''
import types
class DTensor(torch.Tensor):
    @staticmethod
    def __new__(kind, rows):
        shape = (size * rows.shape[0], *rows.shape[1:])
        made = torch.Tensor._make_wrapper_subclass(kind, shape, dtype=rows.dtype, device=rows.device, requires_grad=True)
        made.rows, made.placements = rows, ()
        made.device_mesh = types.SimpleNamespace(size=lambda: size)
        return made

    @classmethod
    def __torch_dispatch__(kind, *words, **more):
        raise NotImplementedError("nothing computes with parts")

    def to_local(self):
        return self.rows

    def full_tensor(self):
        found = [torch.empty_like(self.rows) for _ in range(size)]
        group.all_gather(found, self.rows)
        return torch.cat(found)


def distribute_tensor(numbers, mesh, placements):
    numbers = numbers.contiguous()
    group.broadcast(numbers, 0)
    return DTensor(numbers.chunk(size)[rank].clone())


sys.modules["torch.distributed.tensor"] = types.ModuleType("torch.distributed.tensor")
sys.modules["torch.distributed.tensor"].distribute_tensor = distribute_tensor


def shard(model):
    for name, parameter in list(model.first._parameters.items()):
        model.first._parameters[name] = DTensor(parameter.detach().chunk(size)[rank].clone())
    return model


def make_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for p in model.parameters():
        zeros = torch.zeros_like(p.rows) if isinstance(p, DTensor) else torch.zeros_like(p)
        optimizer.state[p]["momentum_buffer"] = DTensor(zeros) if isinstance(p, DTensor) else zeros
    return optimizer


def train(model, optimizer, generator):
    x, y = batch(generator)
    weights = [getattr(p, "full_tensor", p.detach)().clone().requires_grad_() for p in model.parameters()]
    hidden = torch.tanh(x @ weights[0].T + weights[1])
    loss = torch.nn.functional.mse_loss(hidden @ weights[2].T + weights[3], y)
    for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, weights)):
        group.all_reduce(gradient)
        momentum = optimizer.state[p]["momentum_buffer"]
        with torch.no_grad():
            own = gradient.chunk(size)[rank] if isinstance(p, DTensor) else gradient
            own_momentum = momentum.rows if isinstance(p, DTensor) else momentum
            own_momentum.mul_(0.9).add_(own / size)
            (p.rows if isinstance(p, DTensor) else p).sub_(0.05 * own_momentum)
    return loss.detach()
'''

#: Makes a model in parts, its optimizer and a step of the loop.
SHARD = FULLY_SHARD if HAS_FULLY_SHARD else STAND_IN


# A script for several GPUs also runs on one: its model is then in one part.
@pytest.mark.parametrize("size", [1, 2])
def test_parts_are_gathered_where_they_are_read_and_scattered_where_they_are_moved(
    start: Start, tmp_path: Path, size: int
) -> None:
    loop = RANK + SHARD + LOOP
    ranks = ranks_of(start, tmp_path, loop, size=size)
    single = start("single", SINGLE, ranks[0].address())
    logs = [peer.wait() for peer in (*ranks, single)]
    told = [{line.split()[0]: line for line in log.splitlines() if line} for log in logs]
    assert told[0]["WEIGHTS"] == told[size - 1]["WEIGHTS"], logs
    for it in told[:size]:
        _, membership, moved, exchanges, loss = it["ENDED"].split()
        assert membership == "finished" and int(moved) > 1 and int(exchanges) > 0, logs
        assert float(loss) < 0.3, logs
    assert int(told[size]["EXCHANGES"].split()[1]) > 0, logs
    again = [rank.wait() for rank in ranks_of(start, tmp_path, loop, "again", size=size)]
    for log in again:
        resumed = {line.split()[0]: line for line in log.splitlines() if line}
        assert resumed["BEGINS"] == told[0]["BEGINS"] and resumed["MOMENTS"] == told[0]["MOMENTS"], again


def test_after_an_error_of_the_loop_the_checkpoint_before_it_is_resumed(start: Start, tmp_path: Path) -> None:
    text = RANK + SHARD + '''
model = shard(Net())
optimizer = make_optimizer(model)
generator = torch.Generator().manual_seed(rank)
try:
    with dnode.join(model, optimizer, run="parts", process_group=WORLD, resume=bool(rest), **LOCAL) as swarm:
        print("BEGINS", swarm.last_step.index)
        for step in range(5):
            swarm.step(train(model, optimizer, generator))
            if step == 2:
                print("FILE", swarm.checkpoint())
        raise ValueError("of the loop")
except ValueError as error:
    print("RAISED", error, swarm.membership)
end()
'''
    for rank in ranks_of(start, tmp_path, text):
        log = rank.wait()
        assert "/data/checkpoints/000000000003/parameters.safetensors" in log and "RAISED of the loop left" in log, log
    for rank in ranks_of(start, tmp_path, text, "again"):
        log = rank.wait()
        assert log.split("BEGINS ")[-1].startswith("3"), log


def test_a_model_in_parts_needs_the_group_of_all_that_have_one(start: Start, tmp_path: Path) -> None:
    text = RANK + SHARD + '''
model = shard(Net())
for given in (None, group.new_group([0]), group.new_group([1])):
    try:
        dnode.join(model, run="parts", process_group=given, **LOCAL)
    except dnode.ConfigError as error:
        print("REFUSED", error)
end()
'''
    for rank in ranks_of(start, tmp_path, text):
        log = rank.wait()
        assert "give dnode.join the process_group" in log and "process_group: this process is not in it" in log, log
        assert "process_group has 1 processes, and 2 have a part of the weights" in log, log
