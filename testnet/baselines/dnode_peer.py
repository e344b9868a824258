"""dnode's own package for PyTorch, as a variant of `dnode-testnet compare`: the model, data and optimizer of
the other scripts in a loop of their own, whose peers are those of `dnode.join`.

The files that the harness reads are written by the node, which counts its bytes, and `settings.json`, since
it does not know what the loop trains.
"""
import json, os
import common

a = common.arguments(); c = common.settings(a)
import dnode, torch


class Model(torch.nn.Module):
    """dnode's named tensors as parameters of the same names."""

    def __init__(self, c, tensors):
        super().__init__(); self.c = c; self.names = list(tensors)
        for name, value in tensors.items():
            *path, last = name.split("."); at = self
            for part in path:
                if part not in at._modules: at.add_module(part, torch.nn.Module())
                at = at._modules[part]
            at.register_parameter(last, torch.nn.Parameter(value))
        self.values = [self.get_parameter(name) for name in self.names]

    def named(self): return dict(zip(self.names, self.values))
    def forward(self, x): return common.forward(self.c, self.named(), x)


model = Model(c, common.load_tensors(a.initial)); data = common.Data(c); batch = c["run"]["batch"]
optimizer = common.make_optimizer(c, common.optimizer_groups(c, model))
own = {f"{section}.{key}": value for section in ("gossip", "network", "node") for key, value in c[section].items()}
own["node.data_dir"] = a.data_dir; own["network.listen"] = [a.listen]; own["network.mdns"] = False
if a.bootstrap: own["network.bootstrap"] = a.bootstrap
swarm = dnode.join(model, optimizer, run="compare", steps=c["run"]["steps"], batch=batch, errors="raise", config=own)
last = c["run"]["steps"] - 1
while swarm.membership == "joined":
    for group in optimizer.param_groups: group["lr"] = common.learning_rate(c, min(swarm.last_step.position, last))
    x, y = data.batch(); optimizer.zero_grad(set_to_none=True)
    loss = common.F.cross_entropy(model(x), y); loss.backward()
    if c["optimizer"]["clip_norm"] > 0: torch.nn.utils.clip_grad_norm_(model.parameters(), c["optimizer"]["clip_norm"])
    optimizer.step(); swarm.step(loss=loss, samples=batch)
swarm.leave()
with open(os.path.join(a.data_dir, "settings.json"), "w") as f: json.dump({section: c[section] for section in ("run", "model", "data", "optimizer")}, f)
