"""Seconds of each averaging of hivemind: hivemind.py PROCESSES ELEMENTS TURNS

From the moment all peers ask to the moment the last has the average, group forming included, with
the shortest time for that which hivemind accepts without failing groups.
"""
import os, subprocess, sys, time


def worker(rank, processes, elements, addresses):
    os.environ["HIVEMIND_LOGLEVEL"] = "ERROR"
    import hivemind
    import torch
    from hivemind.averaging import DecentralizedAverager
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    dht = hivemind.DHT(initial_peers=addresses, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    averager = DecentralizedAverager([torch.full((elements,), float(rank))], dht, start=True, prefix="bench",
                                     target_group_size=processes, min_matchmaking_time=0.5, request_timeout=0.5)
    print(*map(str, dht.get_visible_maddrs()), file=out, flush=True)
    for line in sys.stdin:
        time.sleep(max(0.0, float(line) - time.time()))
        group = averager.step(timeout=60)
        print(time.time() if group and len(group) == processes else 0, file=out, flush=True)
    averager.shutdown()
    dht.shutdown()
    os._exit(0)


def start(rank, addresses):
    command = [sys.executable, __file__, str(rank), *sys.argv[1:3], *addresses]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def main(processes, turns):
    peers = [start(0, [])]
    addresses = peers[0].stdout.readline().split()
    peers += [start(rank, addresses) for rank in range(1, processes)]
    for peer in peers[1:]:
        peer.stdout.readline()
    for _ in range(turns):
        at = time.time() + 0.3
        for peer in peers:
            peer.stdin.write(f"{at}\n")
            peer.stdin.flush()
        ends = [float(peer.stdout.readline() or 0) for peer in peers]
        if min(ends) > 0:
            print(max(ends) - at, flush=True)
    for peer in peers:
        peer.stdin.close()
    for peer in peers:
        try:
            peer.wait(10)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(peer.pid, 9)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    # As a peer it has the rank before, and addresses behind.
    if "DNODE_BENCH_RANK" in os.environ:
        worker(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        os.environ["DNODE_BENCH_RANK"] = "1"
        main(int(sys.argv[1]), int(sys.argv[3]))
