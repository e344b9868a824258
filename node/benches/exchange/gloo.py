"""Seconds of each all-reduce of gloo: gloo.py PROCESSES ELEMENTS TURNS"""
import socket, subprocess, sys, time


def worker(rank, processes, elements, turns, port):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    values = torch.empty(elements)
    for turn in range(turns + 3):
        values.fill_(float(rank))
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(values)
        dist.barrier()
        seconds = time.perf_counter() - began
        assert abs(float(values[-1]) - processes * (processes - 1) / 2) < 1e-3
        if rank == 0 and turn >= 3:
            print(seconds, flush=True)
    dist.destroy_process_group()


if len(sys.argv) > 4:
    worker(*map(int, sys.argv[1:]))
else:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [[sys.executable, __file__, str(rank), *sys.argv[1:], str(port)] for rank in range(int(sys.argv[1]))]
    for process in [subprocess.Popen(rank) for rank in ranks]:
        process.wait()
