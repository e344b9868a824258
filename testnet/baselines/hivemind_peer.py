"""hivemind.Optimizer with local updates, as a variant of `dnode-testnet compare`: local steps, then an
average over all peers that are found within the matchmaking time.

Bytes are those of its butterfly all-reduce of f16 parameters, 2 (n-1)/n 2P a round; it does not count
them. The average comes after gossip.local_steps of every peer.
"""
import os, time
import common

a = common.arguments(); c = common.settings(a)
import hivemind, torch

MATCHMAKING_S = 3.0
n = c["data"]["shards"]; host = a.listen.split("/")[2]
peer = common.Peer(a, c, "hivemind")
dht = hivemind.DHT(host_maddrs=[f"/ip4/{host}/tcp/0"], initial_peers=[b for b in a.bootstrap if b.startswith("/")], start=True)
peer.address("\n".join(str(m) for m in dht.get_visible_maddrs()))
local = c["gossip"].get("local_steps", 25); batch = c["run"]["batch"]
inner = common.make_optimizer(c, common.optimizer_groups(c, peer.model))
opt = hivemind.Optimizer(dht=dht, run_id="compare", target_batch_size=n * local * batch, batch_size_per_step=batch, optimizer=inner, use_local_updates=True, delay_state_averaging=False,
                         matchmaking_time=MATCHMAKING_S, averaging_timeout=20.0, state_averaging_compression=hivemind.compression.Float16Compression(), verbose=False)
while not all(os.path.exists(os.path.join(os.path.dirname(os.path.abspath(peer.home)), f"peer-{i}", "address")) for i in range(n)): time.sleep(0.2)
each = 2 * (n - 1) / n * 2 * sum(v.numel() for v in peer.model.values); epoch = opt.local_epoch
for step in range(c["run"]["steps"]):
    begun = time.perf_counter()
    for group in inner.param_groups: group["lr"] = common.learning_rate(c, step)
    x, y = peer.data.batch(); opt.zero_grad(set_to_none=True)
    loss = common.F.cross_entropy(peer.model(x), y); loss.backward()
    if c["optimizer"]["clip_norm"] > 0: torch.nn.utils.clip_grad_norm_(peer.model.parameters(), c["optimizer"]["clip_norm"])
    opt.step()
    if opt.local_epoch != epoch: epoch = opt.local_epoch; peer.bytes += each
    peer.stepped(loss.item(), time.perf_counter() - begun)
peer.end(); opt.shutdown(); dht.shutdown()
