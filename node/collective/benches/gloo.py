"""A line for each size, the seconds of each all-reduce of gloo: gloo.py PROCESSES ELEMENTS:TURNS ..."""
import os, socket, subprocess, sys, time


def worker(rank, processes, port, sizes):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    for elements, turns in sizes:
        values, times = torch.empty(elements), []
        for _ in range(turns):
            values.fill_(float(rank))
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            times.append(time.perf_counter() - began)
            assert abs(float(values[-1]) - processes * (processes - 1) / 2) < 1e-3
        if rank == 0:
            print(*times, flush=True)
    dist.barrier()
    dist.destroy_process_group()


processes = int(sys.argv[1])
if "DNODE_BENCH_RANK" in os.environ:
    sizes = [tuple(map(int, word.split(":"))) for word in sys.argv[2:]]
    worker(int(os.environ["DNODE_BENCH_RANK"]), processes, os.environ["DNODE_BENCH_PORT"], sizes)
else:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    name = [sys.executable, __file__, *sys.argv[1:]]
    environment = lambda rank: {**os.environ, "DNODE_BENCH_RANK": str(rank), "DNODE_BENCH_PORT": port}
    for process in [subprocess.Popen(name, env=environment(rank)) for rank in range(processes)]:
        process.wait()
