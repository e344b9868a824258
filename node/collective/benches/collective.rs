//! Time of an all-reduce among processes on loopback, and the bandwidth of the bus that it comes to.
//!
//! `cargo bench -p dnode-collective --bench collective -- [tcp] [shm] [ucx] [ucx-tcp] [nccl] [gloo] [mpi]`;
//! without a name all that are there run; `ucx` is UCX as between processes of one host, `ucx-tcp` as
//! between hosts without RDMA, `nccl` has a CUDA device for each rank. With `DNODE_BENCH_PYTHON` naming a Python that has torch (mpi4py), gloo
//! (Open MPI, whose `mpirun` must be there) is measured in the same run.
//! `docs/measurements.md` has the tables.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

mod ranks;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use dnode_collective::limits::RANKS_MAX;
use dnode_collective::{Place, Reduction, nccl_devices, ucx_is_there};
use ranks::{group, start};

/// Bytes of f32, with the all-reduces that are measured.
const SIZES: [(usize, usize); 6] =
    [(4 << 10, 400), (64 << 10, 200), (1 << 20, 60), (4 << 20, 40), (64 << 20, 8), (256 << 20, 5)];
/// All-reduces before those.
const WARM: usize = 2;
const WORLDS: [usize; 2] = [2, 4];
/// Names the Python.
const PYTHON: &str = "DNODE_BENCH_PYTHON";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [word, rest @ ..] = &words[..]
        && word == "rank"
    {
        rank(rest);
        return;
    }
    let all = ["tcp", "shm", "ucx", "ucx-tcp", "nccl", "gloo", "mpi"];
    let chosen = all.iter().filter(|name| words.is_empty() || words.contains(&(**name).to_owned()));
    println!(
        "all-reduce of f32: world, bytes, backend, microseconds (median, tenth, ninth tenth), GB/s of bus"
    );
    let chosen: Vec<_> = chosen.collect();
    if chosen.iter().any(|name| **name == "nccl") {
        over_devices();
    }
    for world in WORLDS {
        for name in &chosen {
            match **name {
                "ucx" | "ucx-tcp" if let Err(why) = ucx_is_there() => {
                    println!("{world:>2} {name}: not measured, {why}");
                }
                "nccl" => {}
                "tcp" | "shm" | "ucx" | "ucx-tcp" => start(name, world, &[]),
                _ => theirs(name, world),
            }
        }
    }
}

/// Groups over NCCL of one device, of so many as worlds have, and of all.
fn over_devices() {
    let devices = match nccl_devices() {
        Ok(0) => return println!("   nccl: not measured, there is no CUDA device"),
        Ok(devices) => devices,
        Err(why) => return println!("   nccl: not measured, {why}"),
    };
    let mut worlds: Vec<usize> = [1, devices.min(RANKS_MAX)].into_iter().chain(WORLDS).collect();
    worlds.sort_unstable();
    worlds.dedup();
    for world in worlds {
        if world <= devices {
            start("nccl", world, &[]);
        } else {
            println!("{world:>2} nccl: not measured, there are {devices} CUDA devices");
        }
    }
}

/// One rank of a group; the first one prints.
fn rank(words: &[String]) {
    let [backend, rank, size, folder] = words else { panic!("{words:?}") };
    let place = Place { rank: rank.parse().unwrap(), size: size.parse().unwrap() };
    let mut group = group(backend, place, Path::new(folder));
    for (bytes, turns) in SIZES {
        let mut values = vec![0.0_f32; bytes / size_of::<f32>()];
        let mut times = Vec::new();
        for _ in 0..WARM + turns {
            values.fill(place.rank as f32);
            group.barrier().unwrap();
            let began = Instant::now();
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            times.push(began.elapsed().as_secs_f64());
            let sum = (place.size * (place.size - 1) / 2) as f32;
            assert!(values.iter().all(|value| (value - sum).abs() < 1e-3));
        }
        if place.rank == 0 {
            row((place.size, bytes), backend, &mut times[WARM..]);
        }
    }
}

fn row((world, bytes): (usize, usize), name: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() - 1) * share / 10] * 1e6;
    let bus = 2.0 * (world - 1) as f64 / world as f64 * bytes as f64 / at(5) / 1e3;
    println!(
        "{world:>2} {bytes:>10} {name:<7} {:>9.0} {:>9.0} {:>9.0} {bus:>7.2}",
        at(5),
        at(1),
        at(9)
    );
}

/// What gloo or Open MPI need for the same.
fn theirs(name: &str, world: usize) {
    let Ok(python) = std::env::var(PYTHON) else {
        println!("{world:>2} {name}: not measured, {PYTHON} names no Python");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join(format!("measure_{name}.py"));
    let text = if name == "gloo" { include_str!("gloo.py") } else { include_str!("mpi.py") };
    fs::write(&script, text).unwrap();
    let mut command = if name == "mpi" {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--quiet", "-np"]);
        command.arg(world.to_string()).arg(&python).arg(&script);
        command
    } else {
        let mut command = Command::new(&python);
        command.arg(&script).arg(world.to_string());
        command
    };
    for (bytes, turns) in SIZES {
        command.arg(format!("{}:{}", bytes / size_of::<f32>(), WARM + turns));
    }
    let output = command.env("OMP_NUM_THREADS", "1").stderr(Stdio::inherit()).output();
    let Ok(output) = output else {
        println!("{world:>2} {name}: not measured, it is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    for (line, (bytes, _)) in text.lines().zip(SIZES) {
        let mut times: Vec<f64> =
            line.split_whitespace().filter_map(|time| time.parse().ok()).collect();
        assert!(times.len() > WARM, "{name}: {line}");
        row((world, bytes), name, &mut times[WARM..]);
    }
}
