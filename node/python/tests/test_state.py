"""What a peer is saved as by ``torch.save``, and goes on from."""

from __future__ import annotations

import json

from conftest import Start

#: A peer of 16 bits, alone, whose rule has slow weights and a momentum of theirs. `again` goes on from the
#: state of the first start, in another folder.
ALONE = '''
import json
from safetensors.torch import load
again = len(sys.argv) > 1
model = Net(torch.bfloat16)
if again:
    with torch.no_grad():
        for p in model.parameters(): p.zero_()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = torch.load(sys.argv[1]) if again else None
OPTIONS = {**LOCAL, "rule": "gossip-outer", "local_steps": 4}
swarm = dnode.join(model, optimizer, run="state", resume=state if again else False, **OPTIONS)


def told(state):
    masters = load(bytes(state["checkpoint"]["parameters.safetensors"].tolist()))
    live = load(bytes(state["checkpoint"]["state.safetensors"].tolist()))
    moments = [optimizer.state[p] for p in model.parameters()]
    return {
        "at": (state["index"], state["position"]),
        "masters": {name: (str(t.dtype), t.flatten().tolist()) for name, t in masters.items()},
        "live": {name: t.flatten().tolist() for name, t in live.items()},
        "weights": [p.flatten().tolist() for p in model.parameters()],
        "moments": [{key: t.flatten().tolist() for key, t in sorted(it.items())} for it in moments],
        "lr": optimizer.param_groups[0]["lr"],
    }


if again:
    swarm.load_state_dict(state)
else:
    for group in optimizer.param_groups: group["lr"] = 0.03125
    for _ in range(10):
        swarm.step(loss=one_step(model, optimizer, torch.default_generator), samples=32)
now = swarm.state_dict()
print("STATE", json.dumps(told(now)))
print("RATES", optimizer.param_groups[0]["lr"], swarm.last_step.index)
if not again:
    torch.save({"swarm": now, "more": 1}, "peer.pt")
    torch.save(now, "state.pt")
    swarm.leave()
    last = swarm.state_dict()
    torch.save(last, "left.pt")
    print("LEFT", last["index"], last["checkpoint"].keys() == now["checkpoint"].keys())
'''


def test_a_saved_state_goes_on_in_another_folder_with_all_its_numbers(start: Start) -> None:
    first = start("0", ALONE)
    before = first.wait()
    second = start("1", ALONE, "../0/state.pt").wait()
    states = [json.loads(log.split("STATE ")[1].splitlines()[0]) for log in (before, second)]
    assert states[0]["at"][0] == 10 and "LEFT 10 True" in before, before
    assert "RATES 0.03125 10" in second, second
    for name in ("at", "weights", "moments", "lr"):
        assert states[0][name] == states[1][name], name
    masters, weights = states[0]["masters"], [x for tensor in states[0]["weights"] for x in tensor]
    assert all(dtype == "torch.float32" for dtype, _ in masters.values())
    # What is trained is beside what is exchanged, and both in more digits than the tensors have.
    assert {"live", "outer_momentum"} <= set(states[0]["live"]), states[0]["live"].keys()
    assert sorted(states[0]["live"]["live"]) != sorted(weights)
    for name in ("masters", "live"):
        for key, saved in states[0][name].items():
            found = states[1][name][key]
            assert saved == found or _near(saved, found), (name, key)


def _near(saved: list[float], found: list[float]) -> bool:
    return len(saved) == len(found) and all(abs(a - b) <= 1e-6 * max(1.0, abs(a)) for a, b in zip(saved, found))


def test_what_cannot_be_gone_on_from_is_refused_and_leaves_nothing(start: Start) -> None:
    text = '''
import pathlib, shutil
def peer(name, resume, **more):
    model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, dnode.join(model, optimizer, run=more.pop("run", "state"), resume=resume, **{**LOCAL, "data_dir": name, **more})
def refused(what, name, resume, **more):
    try:
        peer(name, resume, **more)
    except dnode.Error as error:
        print(what, type(error).__name__, error)
    print(what, "LEAVES", [it.name for it in pathlib.Path(name).glob("checkpoints/*")])
model, optimizer, swarm = peer("a", False)
for _ in range(3):
    swarm.step(one_step(model, optimizer, torch.default_generator))
state = swarm.state_dict()
swarm.step(one_step(model, optimizer, torch.default_generator))
swarm.leave()
files = state["checkpoint"]
refused("RUN", "b", state, run="other")
refused("FORMAT", "b", {"index": 3})
refused("NEWER", "a", state)
refused("NONE", "b", {**state, "checkpoint": None})
refused("FILES", "b", {**state, "checkpoint": {**files, "../run.json": files["manifest.json"]}})
refused("TYPE", "b", {**state, "checkpoint": {**files, "manifest.json": torch.zeros(3)}})
broken = files["parameters.safetensors"].clone(); broken[-1] ^= 1
refused("BROKEN", "b", {**state, "checkpoint": {**files, "parameters.safetensors": broken}})
refused("RULE", "c", state, rule="gossip-outer")
# The folder of the state itself goes on, also where its checkpoint of that step has become another.
shutil.rmtree("a/checkpoints/000000000004")
for changed in (False, True):
    if changed:
        file = pathlib.Path("a/checkpoints/000000000003/manifest.json")
        file.write_text(file.read_text() + " ")
    _, _, swarm = peer("a", state)
    print("GOES ON", swarm.last_step.index)
    try:
        swarm.load_state_dict({**state, "index": 4})
    except dnode.CheckpointError as error:
        print("LATER", error)
    swarm.leave()
'''
    log = start("0", text).wait()
    said = {line.split()[0]: line for line in log.splitlines() if "Error" in line or "RunMismatch" in line}
    assert all(line.split()[1] == "CheckpointError" for line in said.values()), log
    assert "it is of run 'state', and this peer is of 'other'" in said["RUN"], log
    assert "not a state_dict() of a swarm" in said["FORMAT"], log
    assert "a has a checkpoint of step 4; take resume=True" in said["NEWER"], log
    assert "load model and optimizer yourself" in said["NONE"], log
    assert "must have the files manifest.json" in said["FILES"], log
    assert "manifest.json must be a vector of uint8" in said["TYPE"], log
    assert {"BROKEN", "RULE"} <= set(said), log
    assert all(f"{what} LEAVES []" in log for what in ("RUN", "NONE", "FILES", "TYPE", "BROKEN", "RULE")), log
    assert log.count("GOES ON 3") == 2 and log.count("this peer stands at step 3; join with resume=state") == 2, log


def test_the_state_of_a_peer_whose_node_has_failed_has_no_checkpoint_and_ends_no_loop(start: Start) -> None:
    text = '''
import shutil
model = Net()
swarm = dnode.join(model, run="state", errors=sys.argv[1], **LOCAL)
swarm.step(0.0)
shutil.rmtree("data/checkpoints", ignore_errors=True)
open("data/checkpoints", "w").write("in the way")
try:
    print("STATE", swarm.state_dict()["checkpoint"], swarm.step(0.0).membership)
except dnode.CheckpointError as error:
    print("RAISED", error)
'''
    alone = start("0", text, "alone").wait()
    assert "STATE None joined" in alone and "the state of the swarm has no checkpoint" in alone, alone
    assert "RAISED" in start("1", text, "raise").wait()


def test_the_state_of_any_optimizer_comes_back_in_its_types_and_shapes(start: Start) -> None:
    # What optimizers keep: factors of a matrix, moments of other types, counters, and what no file of numbers has.
    text = '''
import logging
from dnode._torch import Callbacks, collect
logging.basicConfig()
def made():
    model = Net(torch.bfloat16, device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.param_groups[0].update(count=0, told=False)
    return optimizer, Callbacks(collect(model, optimizer, "keep").exchanged, optimizer)
def same(a, b):
    if not isinstance(a, torch.Tensor): return type(a) is type(b) and a == b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
optimizer, callbacks = made()
states = []
for group in optimizer.param_groups:
    for p in group["params"]:
        states.append({
            "exp_avg": torch.randn(p.shape), "row_var": torch.rand(p.shape[0], 1), "narrow": torch.randn_like(p),
            "codes": torch.randint(0, 255, p.shape, dtype=torch.uint8), "one": torch.rand(1), "count": 3, "rms": 0.25,
            "step": torch.tensor(5.0), "rate": torch.tensor(0.1234567), "seen": torch.tensor(9, dtype=torch.int64), "wide": torch.rand(3, dtype=torch.float64).float().double(),
        })
        optimizer.state[p] = {**states[-1], "flag": True, "nothing": None}
optimizer.param_groups[0].update(count=7, momentum=0.5, told=True)
saved = [(name, bytearray(data)) for name, data in callbacks.save()]
again, restored = made()
again.param_groups[0].update(lr=0.1, dampening=0.125)
restored.restore(saved)
found = [again.state[p] for group in again.param_groups for p in group["params"]]
wrong = [key for was, now in zip(states, found) for key in was if not same(was[key], now.get(key))]
group = again.param_groups[0]
print("FOUND", len(found), wrong, sorted(set(found[0]) - set(states[0])), [group.get(key) for key in ("lr", "count", "momentum", "told", "dampening")])
for p in optimizer.state:
    optimizer.state[p]["history"] = [1, 2]
saved = [(name, bytearray(data)) for name, data in callbacks.save()]
again, restored = made()
restored.restore(saved)
print("LEFT", len(again.state), again.param_groups[0]["count"])
adamw = torch.optim.AdamW(again.param_groups[0]["params"], lr=0.25)
Callbacks(restored.tensors, adamw).restore(saved)
print("OTHER", len(adamw.state), adamw.param_groups[0]["lr"])
'''
    log = start("0", text).wait()
    # What the loop has changed in a group comes back; what it has not is as the loop gives it.
    assert "FOUND 4 [] ['flag'] [0.5, 7, 0.5, True, 0.125]" in log, log
    # A state of which something is missing is not put back in part.
    assert "LEFT 0 7" in log, log
    assert log.count("checkpoints lack the optimizer's state of parameters that have a `history`, which is a list") == 1, log
    assert "OTHER 0 0.25" in log and "has the state of SGD, and the loop has AdamW: it begins with no state" in log, log
