//! Processes that become the ranks of a group over loopback, for the benches of collective operations.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dnode_collective::{Collective, Link, Place, SharedMemory, Sockets, over_nccl, over_ucx};

/// Names the own address of a rank that is started by hand, on a machine of an emulated network.
const ADDRESS: &str = "DNODE_BENCH_ADDRESS";
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts `world` processes of this program with the words `rank BACKEND RANK WORLD FOLDER` and
/// `more`, and waits for them.
pub(crate) fn start(backend: &str, world: usize, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let me = std::env::current_exe().unwrap();
    let ranks: Vec<_> = (0..world)
        .map(|rank| {
            let words = [backend, &rank.to_string(), &world.to_string(), path].map(str::to_owned);
            Command::new(&me).arg("rank").args(words).args(more).spawn().unwrap()
        })
        .collect();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
}

/// The group of the rank at `place`: `tcp`, `shm`, `ucx` as inside a host, or `ucx-tcp` as between
/// hosts without RDMA, `nccl` with the device of the rank's number.
pub(crate) fn group(backend: &str, place: Place, folder: &Path) -> Box<dyn Collective> {
    let links = if backend == "ucx" { meet_near(place, folder) } else { meet(place, folder) };
    match backend {
        "shm" => Box::new(shared(place, links, folder)),
        "ucx" | "ucx-tcp" => {
            let (group, why) = over_ucx(Sockets::new(place, links, PATIENCE).unwrap()).unwrap();
            assert_eq!(why, None);
            Box::new(group)
        }
        "nccl" => {
            let group = Sockets::new(place, links, PATIENCE).unwrap();
            let (group, why) = over_nccl(group, place.rank).unwrap();
            assert_eq!(why, None);
            group
        }
        _ => Box::new(Sockets::new(place, links, PATIENCE).unwrap()),
    }
}

/// Joins the ranks by connections.
fn meet(place: Place, folder: &Path) -> Vec<Option<Box<dyn Link>>> {
    let address = std::env::var(ADDRESS).unwrap_or_else(|_| "127.0.0.1".to_owned());
    let listener = TcpListener::bind((&address[..], 0)).unwrap();
    let own = listener.local_addr().unwrap();
    write(&folder.join(format!("address-{}", place.rank)), &own.to_string());
    let ready = |stream: TcpStream| {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Box::new(stream) as Box<dyn Link>
    };
    let connect = |other| {
        let address = read(&folder.join(format!("address-{other}")));
        TcpStream::connect(address).unwrap()
    };
    greet(place, connect, || listener.accept().unwrap().0, ready)
}

/// Joins the ranks by sockets of this host.
fn meet_near(place: Place, folder: &Path) -> Vec<Option<Box<dyn Link>>> {
    let path = |rank: usize| folder.join(format!("socket-{rank}"));
    let listener = UnixListener::bind(path(place.rank)).unwrap();
    write(&folder.join(format!("ready-{}", place.rank)), "");
    let ready = |stream: UnixStream| {
        stream.set_nonblocking(true).unwrap();
        Box::new(stream) as Box<dyn Link>
    };
    let connect = |other| {
        read(&folder.join(format!("ready-{other}")));
        UnixStream::connect(path(other)).unwrap()
    };
    greet(place, connect, || listener.accept().unwrap().0, ready)
}

/// Connects to the ranks before this one and accepts those after it, which say who they are.
fn greet<S: Read + Write>(
    place: Place,
    connect: impl Fn(usize) -> S,
    accept: impl Fn() -> S,
    ready: impl Fn(S) -> Box<dyn Link>,
) -> Vec<Option<Box<dyn Link>>> {
    let mut links: Vec<Option<Box<dyn Link>>> = (0..place.size).map(|_| None).collect();
    for (other, link) in links.iter_mut().enumerate().take(place.rank) {
        let mut stream = connect(other);
        stream.write_all(&[place.rank as u8]).unwrap();
        *link = Some(ready(stream));
    }
    for _ in place.rank + 1..place.size {
        let mut stream = accept();
        let mut other = [0];
        stream.read_exact(&mut other).unwrap();
        links[usize::from(other[0])] = Some(ready(stream));
    }
    links
}

/// A group that shares the memory which the first rank makes.
fn shared(place: Place, links: Vec<Option<Box<dyn Link>>>, folder: &Path) -> SharedMemory {
    use std::os::fd::AsRawFd as _;
    let said = folder.join("memory");
    let map = if place.rank == 0 {
        let (map, file) = SharedMemory::create(place.size).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        write(&said, &path);
        // The others open it through this process.
        std::mem::forget(file);
        map
    } else {
        let path = PathBuf::from(read(&said));
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        SharedMemory::open(&file.into(), place.size).unwrap()
    };
    SharedMemory::new(place, links, map, PATIENCE).unwrap()
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
