"""PyTorch DistributedDataParallel over gloo, as a variant of `dnode-testnet compare`.

Bytes are those of a ring all-reduce of f32 gradients, 2 (n-1)/n 4P a step; gloo does not count them.
"""
import os, socket, sys, time

# The address first: importing torch takes long, and the next peer starts when this one has an address.
at = lambda flag: sys.argv[sys.argv.index(flag) + 1]
host, home = at("--listen").split("/")[2], at("--data-dir")
if "--bootstrap" in sys.argv: address = at("--bootstrap")
else:
    with socket.socket() as s: s.bind((host, 0)); address = f"{host}:{s.getsockname()[1]}"
os.makedirs(home, exist_ok=True)
with open(os.path.join(home, "address.new"), "w") as f: f.write(address + "\n")
os.rename(os.path.join(home, "address.new"), os.path.join(home, "address"))

import common

a = common.arguments(); c = common.settings(a)
import torch, torch.distributed as dist

n, rank = c["data"]["shards"], c["data"]["shard"]
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if host.startswith("127.") else "wan0")
peer = common.Peer(a, c, "ddp")
dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=n)
model = torch.nn.parallel.DistributedDataParallel(peer.model)
optimizer = common.make_optimizer(c, common.optimizer_groups(c, peer.model))
each = 2 * (n - 1) / n * 4 * sum(v.numel() for v in peer.model.values)
for step in range(c["run"]["steps"]):
    begun = time.perf_counter()
    for group in optimizer.param_groups: group["lr"] = common.learning_rate(c, step)
    x, y = peer.data.batch(); optimizer.zero_grad(set_to_none=True)
    loss = common.F.cross_entropy(model(x), y); loss.backward()
    if c["optimizer"]["clip_norm"] > 0: torch.nn.utils.clip_grad_norm_(peer.model.parameters(), c["optimizer"]["clip_norm"])
    optimizer.step(); peer.bytes += each
    peer.stepped(loss.item(), time.perf_counter() - begun)
dist.barrier(); peer.end(); dist.destroy_process_group()
