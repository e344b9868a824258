"""What is trained and stays with its peer."""

from __future__ import annotations

from pathlib import Path

from conftest import Start
from test_group import RANK, ranks_of
from test_parts import SHARD

#: A peer with a head of its own, which is trained with a rate of 0: so it is what the peer began with, or what an
#: exchange has made of it.
LOOP = '''
moments, steps, resume, others = sys.argv[1] == "moments", int(sys.argv[2]), sys.argv[3] == "again", sys.argv[4:]
model = Net()
torch.manual_seed(len(sys.argv))
for parameter in model.second.parameters():
    torch.nn.init.normal_(parameter)
head = [p.tolist() for p in model.second.parameters()]
heads = {"params": model.second.parameters(), "lr": 0.0, "weight_decay": 0.0}
optimizer = torch.optim.AdamW([{"params": model.first.parameters()}, heads], lr=0.01)
generator = torch.Generator().manual_seed(len(sys.argv))
gossip = {"moments": moments, "guard": False}
with dnode.join(
    model, optimizer, run="heads", exclude="second", resume=resume, gossip=gossip, **peers(others), **LOCAL
) as swarm:
    print("BEGINS", swarm.last_step.index, [p.tolist() for p in model.second.parameters()])
    print("STATE", len(optimizer.state), [sorted(optimizer.state[p]) for p in optimizer.state][-1:])
    if not resume:
        assert swarm.wait_for_peers(1) >= 1
    moved = 0
    while swarm.last_step.index < steps or not (moved or resume):
        moved += swarm.step(one_step(model, optimizer, generator), samples=32).moved
    file = swarm.checkpoint()
    if not others:
        torch.save(swarm.state_dict(), "state.pt")
    print("HEAD", [p.tolist() for p in model.second.parameters()] == head)
    while not resume and not os.path.exists("../enough"):
        swarm.wait_for_peers(99, timeout=0.02)
from safetensors.torch import load_file
print("FILE", sorted(load_file(file)), "EXCHANGES", swarm.leave()["exchanges"])
'''


def test_a_head_of_its_own_is_neither_exchanged_nor_lost(start: Start, tmp_path: Path) -> None:
    for kind in ("plain", "moments"):
        (tmp_path / "enough").unlink(missing_ok=True)
        first = start(f"{kind}-0", LOOP, kind, "300", "anew")
        second = start(f"{kind}-1", LOOP, kind, "300", "anew", first.address())
        began = [peer.until("BEGINS 0 ") for peer in (first, second)]
        assert began[0] != began[1]
        for peer in (first, second):
            assert peer.until("HEAD") == "True", peer.log()
        refused = start(f"{kind}-2", LOOP.replace('exclude="second", ', ""), kind, "300", "anew", first.address())
        text = refused.wait(status=1)
        assert "RunMismatch" in text and "second.weight" in text.split("RunMismatch")[1], text
        (tmp_path / "enough").touch()
        for peer in (first, second):
            log = peer.wait()
            assert "FILE ['first.bias', 'first.weight'] EXCHANGES" in log, log
            assert int(log.split("EXCHANGES ")[1].split()[0]) > 0, log
        # Of a model that was drawn anew: the head is that of the checkpoint, and so is what the optimizer has of it.
        again = start(f"{kind}-0", LOOP.replace("torch.manual_seed(len(sys.argv))", "torch.manual_seed(99)"), kind, "1", "again")
        log = again.wait()
        line = log.split("BEGINS ")[-1].splitlines()[0]
        assert int(line.split()[0]) >= 300 and line.split(" ", 1)[1] == began[0], log
        assert "STATE 4 [['exp_avg', 'exp_avg_sq', 'step']]" in log, log


def test_a_state_of_torch_save_has_the_head_and_another_shape_of_it_is_refused(start: Start) -> None:
    log = start("0", '''
optimizers = lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model = Net()
optimizer = optimizers(model)
swarm = dnode.join(model, optimizer, run="heads", exclude=model.second.parameters(), **LOCAL)
for _ in range(3):
    swarm.step(one_step(model, optimizer, torch.default_generator))
# What takes a parameter's place is found, as of those that are exchanged.
model.second.weight = torch.nn.Parameter(torch.full((1, 16), 0.25))
optimizer.param_groups[0]["params"][2] = model.second.weight
swarm.step(one_step(model, optimizer, torch.default_generator))
state, wanted = swarm.state_dict(), model.second.weight.tolist()
momentum = optimizer.state[model.second.weight]["momentum_buffer"].tolist()
swarm.leave()
other = Net()
anew = optimizers(other)
swarm = dnode.join(other, anew, run="heads", exclude=["second.weight", "second.bias"], resume=state, **{**LOCAL, "data_dir": "b"})
print("SAME", other.second.weight.tolist() == wanted, anew.state[other.second.weight]["momentum_buffer"].tolist() == momentum)
swarm.leave()
wide = Net(); wide.second = torch.nn.Linear(16, 2)
try:
    dnode.join(wide, optimizers(wide), run="heads", exclude="second", resume=state, **{**LOCAL, "data_dir": "c"})
except dnode.CheckpointError as error:
    print("SHAPE", error)
''').wait()
    assert "SAME True True" in log, log
    assert "parameter second.weight, which is excluded, has 16 numbers in the checkpoint and 32 in the model" in log, log


def test_what_is_excluded_must_be_of_the_model_and_whole(start: Start) -> None:
    log = start("0", '''
class Tied(Net):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.third = torch.nn.Linear(4, 4)
        self.third.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(3))
from dnode._exclude import Excluded
from dnode._torch import collect
def names(model, exclude, buffers="average"):
    found = collect(model, None, buffers, excluded=Excluded(model, exclude))
    return [it.name for it in found.exchanged], [it.name for it in found.local]
print("NAMES", names(Tied(), ["mean", "second"]))
print("PART", names(torch.nn.DataParallel(Net()), "first"))
# A prefix ends at a dot, and one parameter does for all of its names.
odd = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "head2": torch.nn.Linear(2, 2)})
print("DOT", names(odd, "head"))
tied = Tied()
print("BOTH", names(tied, tied.third.parameters(), "keep"))
def refused(**given):
    try:
        dnode.join(Tied(), run="excluded", **given, **LOCAL)
    except dnode.ConfigError as error:
        print("REFUSED", error)
refused(exclude="heads")
refused(exclude=torch.nn.Linear(2, 3).parameters())
refused(exclude=[3])
refused(exclude="third.weight")
refused(exclude=["first", "second", "third"])
model = Net()
other = dnode.digest(model, exclude="second")
with torch.no_grad():
    model.second.weight += 1.0
print("DIGEST", dnode.digest(model, exclude="second") == other, dnode.digest(model) == other)
''').wait()
    tied = "['first.weight', 'first.bias', 'third.bias'], ['second.weight', 'second.bias']"
    assert f"NAMES ({tied})" in log, log
    assert "PART (['second.weight', 'second.bias'], ['first.weight', 'first.bias'])" in log, log
    assert "DOT (['head2.weight', 'head2.bias'], ['head.weight', 'head.bias'])" in log, log
    assert "BOTH (['first.bias', 'second.weight', 'second.bias'], ['first.weight', 'third.bias'])" in log, log
    for said in (
        'REFUSED exclude: the model has no parameter, buffer or part "heads"',
        "REFUSED exclude: a tensor of [3, 2] is not of the model",
        "REFUSED exclude: 3 is not of the model",
        "REFUSED exclude has third.weight, which is the same tensor as first.weight: exclude both, or none",
        "REFUSED join with a model that has no parameter to train",
        "DIGEST True False",
    ):
        assert said in log, log


#: A rank whose local part another start has from its checkpoint.
GROUP = '''
def full(model):
    return [getattr(p, "full_tensor", lambda: p)().detach().flatten().tolist() for p in model.first.parameters()]
torch.manual_seed(99 if rest else 0)
model = shard(Net())
optimizer = make_optimizer(model)
generator = torch.Generator().manual_seed(rank)
swarm = dnode.join(model, optimizer, run="heads", exclude="first", process_group=WORLD, resume=bool(rest), **LOCAL)
print("BEGINS", swarm.last_step.index, full(model))
for step in range(0 if rest else 5):
    swarm.step(train(model, optimizer, generator))
print("ENDS", full(model))
swarm.leave()
end()
'''
#: The same of a model of which each rank has the whole.
WHOLE = '''
shard, train = parallel, one_step
def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
'''


def test_all_ranks_of_a_group_have_a_local_part_again(start: Start, tmp_path: Path) -> None:
    for made in (SHARD, WHOLE + GROUP[: GROUP.index("torch.manual_seed")].replace("model.first", "model.module.first")):
        text = RANK + made + (GROUP if made is SHARD else GROUP[GROUP.index("torch.manual_seed") :])
        ends = [rank.wait().split("ENDS ")[1].splitlines()[0] for rank in ranks_of(start, tmp_path, text)]
        for rank in ranks_of(start, tmp_path, text, "again"):
            log = rank.wait()
            line = log.split("BEGINS ")[-1].splitlines()[0]
            assert line.split(" ", 1)[1] in ends and int(line.split()[0]) >= 5, log
            (rank.folder / "log").unlink()
        for folder in tmp_path.glob("rank-*/data"):
            import shutil

            shutil.rmtree(folder)
