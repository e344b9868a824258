//! Time of an all-reduce among processes on loopback, and the bandwidth of the bus that it comes to.
//!
//! `cargo bench -p dnode-collective --bench collective -- [tcp] [shm] [ucx] [ucx-tcp] [gloo] [mpi]`; without a name
//! all that are there run; `ucx` as between processes of one host, `ucx-tcp`
//! as between hosts without RDMA. With `DNODE_BENCH_PYTHON` naming a Python that has torch (mpi4py), gloo
//! (Open MPI, whose `mpirun` must be there) is measured in the same run.
//! `docs/measurements.md` has the tables.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dnode_collective::{
    Collective, Link, Place, Reduction, SharedMemory, Sockets, over_ucx, ucx_is_there,
};

/// Bytes of f32, with the all-reduces that are measured.
const SIZES: [(usize, usize); 6] =
    [(4 << 10, 400), (64 << 10, 200), (1 << 20, 60), (4 << 20, 40), (64 << 20, 8), (256 << 20, 5)];
/// All-reduces before those.
const WARM: usize = 2;
const WORLDS: [usize; 2] = [2, 4];
const PATIENCE: Duration = Duration::from_secs(60);
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
    let all = ["tcp", "shm", "ucx", "ucx-tcp", "gloo", "mpi"];
    let chosen = all.iter().filter(|name| words.is_empty() || words.contains(&(**name).to_owned()));
    println!(
        "all-reduce of f32: world, bytes, backend, microseconds (median, tenth, ninth tenth), GB/s of bus"
    );
    let chosen: Vec<_> = chosen.collect();
    for world in WORLDS {
        for name in &chosen {
            match **name {
                "ucx" | "ucx-tcp" if let Err(why) = ucx_is_there() => {
                    println!("{world:>2} {name}: not measured, {why}");
                }
                "tcp" | "shm" | "ucx" | "ucx-tcp" => ours(name, world),
                _ => theirs(name, world),
            }
        }
    }
}

/// Starts the processes of a group and shows what the first one measures.
fn ours(backend: &str, world: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let me = std::env::current_exe().unwrap();
    let ranks: Vec<_> = (0..world)
        .map(|rank| {
            let words = [backend, &rank.to_string(), &world.to_string(), path].map(str::to_owned);
            Command::new(&me).arg("rank").args(words).spawn().unwrap()
        })
        .collect();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
}

/// One rank of a group; the first one prints.
fn rank(words: &[String]) {
    let [backend, rank, size, folder] = words else { panic!("{words:?}") };
    let place = Place { rank: rank.parse().unwrap(), size: size.parse().unwrap() };
    let folder = Path::new(folder);
    let links = if backend == "ucx" { meet_near(place, folder) } else { meet(place, folder) };
    let mut group: Box<dyn Collective> = match &backend[..] {
        "shm" => {
            Box::new(SharedMemory::new(place, links, memory(place, folder), PATIENCE).unwrap())
        }
        "ucx" | "ucx-tcp" => {
            let (group, why) = over_ucx(Sockets::new(place, links, PATIENCE).unwrap()).unwrap();
            assert_eq!(why, None);
            Box::new(group)
        }
        _ => Box::new(Sockets::new(place, links, PATIENCE).unwrap()),
    };
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

/// Joins the ranks by connections over loopback.
fn meet(place: Place, folder: &Path) -> Vec<Option<Box<dyn Link>>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    write(&folder.join(format!("port-{}", place.rank)), &port.to_string());
    let mut links: Vec<Option<Box<dyn Link>>> = (0..place.size).map(|_| None).collect();
    let mut keep = |stream: TcpStream, rank: usize| {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        links[rank] = Some(Box::new(stream));
    };
    for other in 0..place.rank {
        let port = read(&folder.join(format!("port-{other}")));
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        std::io::Write::write_all(&mut stream, &[place.rank as u8]).unwrap();
        keep(stream, other);
    }
    for _ in place.rank + 1..place.size {
        let (mut stream, _) = listener.accept().unwrap();
        let mut other = [0];
        std::io::Read::read_exact(&mut stream, &mut other).unwrap();
        keep(stream, usize::from(other[0]));
    }
    links
}

/// Joins the ranks by sockets of this host.
fn meet_near(place: Place, folder: &Path) -> Vec<Option<Box<dyn Link>>> {
    let path = |rank: usize| folder.join(format!("socket-{rank}"));
    let listener = UnixListener::bind(path(place.rank)).unwrap();
    write(&folder.join(format!("ready-{}", place.rank)), "");
    let mut links: Vec<Option<Box<dyn Link>>> = (0..place.size).map(|_| None).collect();
    let mut keep = |stream: UnixStream, rank: usize| {
        stream.set_nonblocking(true).unwrap();
        links[rank] = Some(Box::new(stream));
    };
    for other in 0..place.rank {
        read(&folder.join(format!("ready-{other}")));
        let mut stream = UnixStream::connect(path(other)).unwrap();
        std::io::Write::write_all(&mut stream, &[place.rank as u8]).unwrap();
        keep(stream, other);
    }
    for _ in place.rank + 1..place.size {
        let (mut stream, _) = listener.accept().unwrap();
        let mut other = [0];
        std::io::Read::read_exact(&mut stream, &mut other).unwrap();
        keep(stream, usize::from(other[0]));
    }
    links
}

/// The memory of the group, which the first rank makes.
fn memory(place: Place, folder: &Path) -> dnode_direct::Mapping {
    use std::os::fd::AsRawFd as _;
    let said = folder.join("memory");
    if place.rank == 0 {
        let (map, file) = SharedMemory::create(place.size).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        write(&said, &path);
        // The others open it through this process.
        std::mem::forget(file);
        return map;
    }
    let path = PathBuf::from(read(&said));
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    SharedMemory::open(&file.into(), place.size).unwrap()
}

fn write(path: &Path, text: &str) {
    let part = path.with_extension("part");
    fs::write(&part, text).unwrap();
    fs::rename(part, path).unwrap();
}

/// Waits for a file.
fn read(path: &Path) -> String {
    loop {
        match fs::read_to_string(path) {
            Ok(text) => return text,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
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
