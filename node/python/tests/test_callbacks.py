"""The callbacks for Trainers: mixed precision, resuming, processes of a host, and errors in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Script, Start

#: What both frameworks are given: the regression of the prelude, and 64 batches of it.
DATA = '''
import json, os
def windows(seed):
    x, y = batch(torch.Generator().manual_seed(seed), 512)
    return torch.utils.data.TensorDataset(x.cpu(), y.cpu())
def loss_of(module):
    # Trainers leave a module where they like.
    x, y = batch(torch.Generator().manual_seed(99), 256)
    place = next(module.parameters()).device
    return torch.nn.functional.mse_loss(module.net(x.to(place)), y.to(place)).item()
def weights(model):
    return [round(number, 6) for parameter in model.parameters() for number in parameter.flatten().tolist()]
def meet(words):
    # Two processes of one host, which meet at a file.
    import torch.distributed as group
    rank, file = words
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    group.init_process_group("gloo", init_method="file://" + file, rank=int(rank), world_size=2)
def end(**words):
    print("END", json.dumps(words, default=str))
    # The threads of a process group of PyTorch 1.13 may abort a process whose interpreter ends.
    os._exit(0)
'''

LIGHTNING = '''
import warnings; warnings.filterwarnings("ignore")
try:
    from lightning.pytorch import LightningModule, Trainer
except ModuleNotFoundError:
    from pytorch_lightning import LightningModule, Trainer
from dnode.lightning import SwarmCallback
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.seen = Net(), set()
    def training_step(self, batch, index):
        x, y = batch
        out = self.net(x)
        self.seen.add(str(out.dtype))
        if FAILS_AT is not None and self.trainer.global_step >= FAILS_AT:
            raise RuntimeError("the loop has failed")
        return torch.nn.functional.mse_loss(out.float(), y)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)
def fit(seed, callback, steps, path=None, plugins=None, **words):
    """Trains; the module, and how many steps were taken."""
    module = Module()
    loader = torch.utils.data.DataLoader(windows(seed), batch_size=8, shuffle=True)
    trainer = Trainer(
        accelerator="cpu" if DEVICE == "cpu" or "strategy" in words else "gpu", max_steps=steps, callbacks=[callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir="out", plugins=plugins, **words,
    )
    trainer.fit(module, loader, ckpt_path=path)
    return module, trainer
FAILS_AT = None
''' 

TRANSFORMERS = '''
from transformers import Trainer, TrainingArguments
from dnode.transformers import SwarmCallback
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.seen = Net(), set()
    def forward(self, x, y):
        out = self.net(x)
        self.seen.add(str(out.dtype))
        if FAILS_AT is not None and trainer.state.global_step >= FAILS_AT:
            raise RuntimeError("the loop has failed")
        return {"loss": torch.nn.functional.mse_loss(out.float(), y)}
def fit(seed, callback, steps, path=None, **words):
    """Trains; the module, and the Trainer."""
    global trainer
    module = Module()
    data = [{"x": x, "y": y} for x, y in windows(seed)]
    args = TrainingArguments(
        output_dir="out", max_steps=steps, per_device_train_batch_size=8, learning_rate=0.01, report_to=[],
        disable_tqdm=True, use_cpu=DEVICE == "cpu" or "ddp_backend" in words, data_seed=seed, **{"save_steps": 10**6, **words},
    )
    trainer = Trainer(module, args, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=path)
    return module, trainer
FAILS_AT = None
'''

FRAMEWORKS = pytest.mark.parametrize("framework", ["lightning", "transformers"])


def _script(framework: str, text: str) -> str:
    return DATA + (LIGHTNING if framework == "lightning" else TRANSFORMERS) + text


def _end(peer: Script) -> dict[str, Any]:
    said = [line for line in peer.wait().splitlines() if line.startswith("END ")]
    assert said, peer.log()
    found: dict[str, Any] = json.loads(said[-1][4:])
    return found


@FRAMEWORKS
def test_a_trainer_of_mixed_precision_learns_with_another(start: Start, framework: str) -> None:
    given = {"lightning": "precision='bf16-mixed'", "transformers": "bf16=True"}[framework]
    text = f'''
callback = SwarmCallback(run="mixed", require_peers=1, **peers(sys.argv[1:]), **LOCAL)
module, trainer = fit(len(sys.argv), callback, 200, {given})
print("SWARM", callback.swarm.membership)
loss = loss_of(module)
end(loss=loss, seen=sorted(module.seen), exchanges=callback.swarm.leave()["exchanges"])
'''
    first = start("0", _script(framework, text))
    second = start("1", _script(framework, text), first.address())
    for end in map(_end, (first, second)):
        assert end["seen"] == ["torch.bfloat16"] and end["loss"] < 0.2 and end["exchanges"] > 0, end


#: A scaler that leaves out every third step, as one does that has met an overflow.
SKIPS = {
    "lightning": '''
try:
    from lightning.pytorch.plugins import MixedPrecision
except ModuleNotFoundError:
    from pytorch_lightning.plugins import MixedPrecisionPlugin as MixedPrecision
class Scaler:
    steps = skipped = 0
    def scale(self, loss): return loss
    def unscale_(self, optimizer): pass
    def step(self, optimizer, **words):
        self.steps += 1
        if self.steps % 3 == 0:
            self.skipped += 1
        else:
            optimizer.step()
    def update(self): pass
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
class Precision(MixedPrecision):
    # PyTorch 1.13 has no numbers of float16 on a CPU.
    def autocast_context_manager(self): return torch.autocast(DEVICE.split(":")[0], dtype=torch.bfloat16)
scaler = Scaler()
words = dict(plugins=[Precision("16-mixed", DEVICE.split(":")[0], scaler)])
''',
    "transformers": '''
import accelerate.optimizer
class scaler:
    steps = skipped = 0
def step(self, closure=None):
    scaler.steps += 1
    self._is_overflow = scaler.steps % 3 == 0
    if self._is_overflow:
        scaler.skipped += 1
    else:
        self.optimizer.step()
accelerate.optimizer.AcceleratedOptimizer.step = step
accelerate.optimizer.AcceleratedOptimizer.step_was_skipped = property(lambda self: self._is_overflow)
words = {}
''',
}


@FRAMEWORKS
def test_a_step_that_a_scaler_has_skipped_counts_and_harms_nobody(start: Start, framework: str) -> None:
    text = SKIPS[framework] + '''
callback = SwarmCallback(run="skips", require_peers=1, **peers(sys.argv[1:]), **LOCAL)
module, trainer = fit(len(sys.argv), callback, 300, **words)
loss = loss_of(module)
outcome = callback.swarm.leave()
taken = (trainer.state if hasattr(trainer, "state") and hasattr(trainer.state, "log_history") else trainer).global_step
end(loss=loss, skipped=scaler.skipped, taken=taken, samples=outcome["samples"], exchanges=outcome["exchanges"])
'''
    first = start("0", _script(framework, text))
    second = start("1", _script(framework, text), first.address())
    for end in map(_end, (first, second)):
        assert end["skipped"] == end["taken"] // 3 > 0 and end["samples"] == 8 * end["taken"], end
        assert end["loss"] < 0.2 and end["exchanges"] > 0, end


@FRAMEWORKS
def test_a_resumed_trainer_resumes_its_peer(start: Start, framework: str) -> None:
    saves = {
        "lightning": '"out/checkpoints/saved.ckpt"',
        "transformers": '"out/checkpoint-40"',
    }[framework]
    words = "" if framework == "lightning" else ", save_steps=40"
    # Lightning saves by another callback; it finds the swarm's folder by what ours has put into the file.
    save = {
        "lightning": '''
class Saves(SwarmCallback):
    def on_train_batch_end(self, trainer, *rest):
        super().on_train_batch_end(trainer, *rest)
        if trainer.global_step == 40: trainer.save_checkpoint(SAVED)
''',
        "transformers": "Saves = SwarmCallback\n",
    }[framework]
    text = f"SAVED = {saves}\n" + save + f'''
again = len(sys.argv) > 1
settings = {{name: value for name, value in LOCAL.items() if name != "data_dir"}}
callback = Saves(run="resumes", **settings)
joined = []
step = dnode.Swarm.step
def watched(self, *words, **rest):
    if not joined:
        state = self._optimizer.state[self._tensors[0].tensor]
        joined.append([self.last_step.index, float(state["step"])])
    return step(self, *words, **rest)
dnode.Swarm.step = watched
module, trainer = fit(1, callback, 100 if again else 60, SAVED if again else None{words})
outcome = callback.swarm.leave()
end(joined=joined[0], folder=os.path.relpath(callback.swarm.data_dir), step=outcome["step"], samples=outcome["samples"])
'''
    first = _end(start("0", _script(framework, text)))
    second = _end(start("0", _script(framework, text), "again"))
    # The last one is of the end of training: the optimizer goes on from there, with one step more.
    assert first == {"joined": [0, 1], "folder": "out/dnode", "step": 60, "samples": 480}, first
    assert second == {"joined": [60, 61], "folder": "out/dnode", "step": 100, "samples": 800}, second


def test_steps_of_several_optimizers_in_a_batch_are_one_of_the_swarm(start: Start) -> None:
    text = '''
from types import SimpleNamespace
def steps(batches, most, optimizers):
    return SwarmCallback(run="several")._steps(
        SimpleNamespace(estimated_stepping_batches=batches, max_steps=most, optimizers=[None] * optimizers)
    )
counted = [steps(40, 40, 2), steps(30, 41, 2), steps(10, 40, 2), steps(10, -1, 2), steps(40, 40, 1), steps(float("inf"), -1, 2)]
Single = Module
class Module(Single):
    automatic_optimization = False
    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            loss = super().training_step(batch, index)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss.detach()}
    def configure_optimizers(self):
        first, *rest = self.parameters()
        return [torch.optim.SGD(part, lr=0.01) for part in ([first], rest)]
callback = SwarmCallback(run="several", optimizer="all", **LOCAL)
module, trainer = fit(1, callback, 40)
outcome = callback.swarm.leave()
end(counted=counted, step=outcome["step"], reason=outcome["reason"], taken=trainer.global_step)
'''
    found = _end(start("0", _script("lightning", text)))
    assert found == {"counted": [20, 21, 10, 10, 40, None], "step": 20, "reason": "steps done", "taken": 40}, found


def test_a_loss_that_was_divided_by_the_items_of_all_ranks_is_told_as_a_mean(start: Start) -> None:
    text = '''
from types import SimpleNamespace
def told(world, across, **named):
    """The loss that is told of two batches, of forwards with these losses."""
    callback = SwarmCallback(run="parts")
    for loss in (0.25, 0.5):
        output = {"loss": torch.tensor(loss)}
        callback._after_forward(torch.nn.Linear(1, 1), (torch.zeros(4, 1),), named, output)
    args = SimpleNamespace(world_size=world, train_batch_size=4, gradient_accumulation_steps=2, **across)
    callback.on_step_end(args, None, SimpleNamespace(should_training_stop=False))
    return float(callback._host.loss)
across = {"average_tokens_across_devices": True}
parts = [told(1, across, num_items_in_batch=8), told(2, across, num_items_in_batch=16)]
parts += [told(2, {"average_tokens_across_devices": False}, num_items_in_batch=8), told(2, {}, num_items_in_batch=8)]
end(parts=parts, means=[told(2, across), told(2, across, num_items_in_batch=None)])
'''
    found = _end(start("0", _script("transformers", text)))
    assert found == {"parts": [0.75, 1.5, 0.75, 0.75], "means": [0.375, 0.375]}, found


#: Two ranks of a host, and one more process; a word for each framework makes the Trainer one of several.
HOST = '''
if len(sys.argv) == 3:
    meet(sys.argv[1:])
    seed = int(sys.argv[1])
    words = WORDS
else:
    seed, words = 7, {}
callback = SwarmCallback(run="hosts", require_peers=1, **(peers(sys.argv[1:]) if len(sys.argv) == 2 else {}), **LOCAL)
module, trainer = fit(seed, callback, 200, **words)
loss = loss_of(module)
swarm = callback.swarm
end(loss=loss, weights=weights(module), outcome=None if swarm is None else swarm.leave(), alone=swarm is None)
'''
WORDS = {
    "lightning": 'dict(strategy="ddp", devices=2)',
    "transformers": 'dict(ddp_backend="gloo")',
}


@FRAMEWORKS
def test_the_ranks_of_a_host_are_one_peer(start: Start, tmp_path: Path, framework: str) -> None:
    text = _script(framework, HOST.replace("WORDS", WORDS[framework]))
    meeting = str(tmp_path / "meeting")
    ranks = [start(f"rank-{rank}", text, str(rank), meeting) for rank in (0, 1)]
    single = start("single", text, ranks[0].address())
    speaker, follower, other = map(_end, (*ranks, single))
    assert speaker["weights"] == follower["weights"] and follower["alone"], (speaker, follower)
    for end in (speaker, other):
        assert end["outcome"]["exchanges"] > 0 and end["loss"] < 0.2, end
    # Eight samples at each rank.
    assert speaker["outcome"]["samples"] % 16 == 0 < speaker["outcome"]["samples"], speaker


def test_the_ranks_of_a_host_resume_with_one_optimizer_state_and_are_refused_together(start: Start, tmp_path: Path) -> None:
    text = DATA + '''
from pathlib import Path
from dnode._host import Host
meet(sys.argv[1:])
rank = int(sys.argv[1])
def train(steps, resume):
    """What this rank has after so many steps, and what it had when it began."""
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    host, generator = Host("resumes", LOCAL), torch.Generator().manual_seed(rank)
    host.join(model, optimizer, speaks=rank == 0, steps=None, data_dir=Path("data"), resume=resume)
    def state():
        moments = [it for entry in optimizer.state.values() for it in entry["exp_avg_sq"].flatten().tolist()]
        return [round(number, 9) for number in moments] + weights(model)
    begun = state()
    for _ in range(steps):
        host.step(one_step(model, optimizer, generator), 64)
    host.leave()
    return begun, state()
first, second = train(40, False), train(3, True)
refused = []
def fails(self, **words):
    raise dnode.Error("the node has failed")
dnode.Swarm.step = fails
for wrong in ({"local_steps": 0}, {"errors": "raise", "data_dir": "other"}):
    host = Host("refused", {**LOCAL, **wrong})
    try:
        host.join(Net(), None, speaks=rank == 0, steps=None, data_dir=Path("data"), resume=False)
        host.step(0.0, 1)
    except dnode.Error as error:
        refused.append(f"{type(error).__name__}: {error}")
    host.leave(quietly=True)
end(first=first, second=second, refused=refused)
'''
    meeting = str(tmp_path / "meeting")
    speaker, follower = map(_end, [start(f"rank-{rank}", text, str(rank), meeting) for rank in (0, 1)])
    for end in (speaker, follower):
        assert end["second"][0] == speaker["first"][1] and end["second"][1] == speaker["second"][1], end
        assert len(end["refused"]) == 2, end
        assert "(told by rank 0)" in follower["refused"][0], end
    assert "local_steps" in speaker["refused"][0] and "Error: the node has failed" == speaker["refused"][1], speaker


@FRAMEWORKS
def test_an_error_in_training_leaves_the_swarm(start: Start, framework: str) -> None:
    fails = '''
FAILS_AT = 40
callback = SwarmCallback(run="fails", require_peers=1, **LOCAL)
try:
    with callback if framework == "transformers" else contextlib.nullcontext():
        fit(1, callback, 10**6)
except RuntimeError as error:
    print("FAILED", error, callback.swarm.membership)
# The process is still there, and not the peer: it is told what was told when it left.
print("OUTCOME", callback.swarm.membership, callback.swarm.leave()["reason"])
'''
    stays = '''
callback = SwarmCallback(run="fails", **peers(sys.argv[1:]), **LOCAL)
fit(2, callback, 10**6)
'''
    text = f"import contextlib\nframework = {framework!r}\n"
    first = start("0", _script(framework, text + fails))
    second = start("1", _script(framework, text + stays), first.address())
    first.until("FAILED the loop has failed")
    first.until("OUTCOME left interrupted")
    assert "checkpoint written" in first.wait()
    second.until("peer down")
