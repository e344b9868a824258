"""A line for each size, the seconds of each all-reduce: mpirun -np N python mpi.py ELEMENTS:TURNS ..."""
import sys, time
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
for word in sys.argv[1:]:
    elements, turns = map(int, word.split(":"))
    values, times = numpy.empty(elements, dtype=numpy.float32), []
    for _ in range(turns):
        values.fill(world.rank)
        world.Barrier()
        began = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, values)
        times.append(time.perf_counter() - began)
        assert abs(float(values[-1]) - world.size * (world.size - 1) / 2) < 1e-3
    if world.rank == 0:
        print(*times, flush=True)
