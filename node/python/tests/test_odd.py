"""Settings of PyTorch, models and optimizers that are not the usual ones."""

from __future__ import annotations

from conftest import Start


def test_the_default_type_of_a_loop_does_not_change_what_is_saved(start: Start) -> None:
    begin = '''
torch.set_default_dtype(torch.float64)
model = Net(torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
swarm = dnode.join(model, optimizer, run="types", resume=len(sys.argv) > 1, **LOCAL)
if len(sys.argv) == 1:
    for group in optimizer.param_groups: group["lr"] = 0.0003
    for _ in range(3):
        loss = model(torch.rand((8, 4), dtype=torch.float32)).square().mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()
        swarm.step(loss)
print("RATE", "%.6f" % optimizer.param_groups[0]["lr"])
swarm.leave()
'''
    start("0", begin).wait()
    log = start("0", begin, "again").wait()
    assert log.count("RATE 0.000300") == 2, log


def test_weights_that_are_no_numbers_are_replaced_by_those_of_a_checkpoint(start: Start) -> None:
    begin = '''
dtype = getattr(torch, sys.argv[1])
model = Net(dtype)
again = len(sys.argv) > 2
if again:
    with torch.no_grad():
        for p in model.parameters(): p.fill_(float("nan"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
swarm = dnode.join(model, optimizer, run="numbers", resume=again, **LOCAL)
if not again:
    for _ in range(3):
        swarm.step(one_step(model, optimizer, torch.default_generator))
print("SUM", "%.6f" % sum(p.float().sum().item() for p in model.parameters()))
swarm.leave()
'''
    for dtype in ("float32", "float64", "bfloat16"):
        start(dtype, begin, dtype).wait()
        log = start(dtype, begin, dtype, "again").wait()
        first, second = [part.split()[0] for part in log.split("SUM ")[1:]]
        assert first == second and "nan" not in first, log


def test_a_large_change_of_a_weight_of_16_bits_leaves_nothing_of_what_it_was(start: Start) -> None:
    log = start("0", '''
from safetensors.torch import load_file
model = Net(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
swarm = dnode.join(model, optimizer, run="residual", rule="pairwise", **LOCAL)
for _ in range(3):
    swarm.step(one_step(model, optimizer, torch.default_generator))
swarm.checkpoint()
with torch.no_grad():
    for p in model.parameters(): p.fill_(0.25)
swarm.step(0.0)
numbers = load_file(str(swarm.checkpoint()))
print("EXACT", all(bool((t == 0.25).all()) for t in numbers.values()))
print("KEPT", all(bool((p == 0.25).all()) for p in model.parameters()))
swarm.leave()
''').wait()
    assert "EXACT True" in log and "KEPT True" in log, log


def test_what_the_swarm_does_not_know_of_an_optimizer_is_said(start: Start) -> None:
    log = start("0", '''
model = Net(torch.float32)
temperature = torch.nn.Parameter(torch.ones(()))
late = next(model.parameters())
late.requires_grad_(False)
optimizer = torch.optim.SGD([*[p for p in model.parameters() if p.requires_grad], temperature], lr=0.01)
swarm = dnode.join(model, optimizer, run="strangers", **LOCAL)
print("JOINED")
late.requires_grad_(True)
optimizer.add_param_group({"params": [late]})
for _ in range(3):
    swarm.step(one_step(model, optimizer, torch.default_generator))
swarm.checkpoint()
swarm.checkpoint()
swarm.leave()
''').wait()
    joined, after = log.split("JOINED")
    assert "1 of the optimizer's parameters are not of the model" in joined, log
    assert after.count("the optimizer has parameters that it did not have when this process joined") == 1, log


def test_averaged_buffers_are_numbers_and_what_is_not_given_has_its_default(start: Start) -> None:
    log = start("0", '''
from dnode._host import Host
model = Net(torch.float32)
model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
try:
    dnode.join(model, None, run="mask", buffers="average", **LOCAL)
except dnode.ConfigError as error:
    print("REFUSED", error)
swarm = dnode.join(model, None, run="mask", buffers="average", exclude="mask", **LOCAL)
swarm.leave()
from dnode._joining import Joining
os.environ.update(DNODE_LAUNCH_RANK="0", DNODE_LAUNCH_SIZE="3", DNODE_LAUNCH_FOLDER="launched")
options, _ = Joining("run", {"data_dir": None, "steps": None}, {}, [], None, False, {}, False)._options()
print("PLACE", options.temporary, [text for text in options.texts if "data_dir" in text])
''').wait()
    assert 'REFUSED buffers = "average": mask has numbers that are not finite' in log, log
    assert "PLACE None" in log and "launched/0" in log, log
