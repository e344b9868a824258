//! Goodput and CPU time of every kind of path between two processes of this machine.
//!
//! `cargo bench -p dnode-direct`; a last argument sets the bytes of each transfer in MiB.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench that stops at a fault")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use dnode_direct::{Arrival, Config, Direct, Kind, Sender, Target};
use futures::AsyncReadExt as _;
use libp2p_identity::Keypair;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Header and payload of a tensor frame.
const FRAME: (usize, usize) = (96, 256 << 10);
/// Transfers of each kind; the median counts.
const REPEATS: usize = 5;
/// Size of one transfer, MiB, unless the command line says another.
const SIZE_MIB: usize = 2048;

/// CPU seconds of this process, which has one thread.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|first| first.parse::<f64>().ok());
    nanos.unwrap_or(f64::NAN) / 1e9
}

fn key(number: u8) -> Keypair {
    Keypair::ed25519_from_bytes([number; 32]).unwrap()
}

fn config(kind: Kind) -> Config {
    Config { memory: kind == Kind::Memory, tcp: kind != Kind::Memory, trusted: kind == Kind::Plain }
}

/// Takes one path after the other to its end; says the CPU time of each.
async fn serve(kind: Kind) {
    let (direct, mut arrivals) = Direct::start((&key(2), 1), &[HERE], config(kind)).unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "{}", direct.port()).unwrap();
    let mut frame = vec![0; FRAME.0 + FRAME.1];
    while let Some(Arrival::Path(mut path)) = arrivals.recv().await {
        let begin = cpu();
        while path.read_exact(&mut frame).await.is_ok() {}
        drop(path);
        writeln!(out, "{}", cpu() - begin).unwrap();
    }
}

/// Sends `frames` frames. Returns seconds and CPU seconds.
async fn transfer(mut path: Sender, frames: usize) -> (f64, f64) {
    let head = [1; FRAME.0];
    // As long as a model's fragment, so that it does not stay in a cache.
    let tensor = vec![2; 64 * FRAME.1];
    let (begin, cpu_begin) = (Instant::now(), cpu());
    for index in 0..frames {
        let offset = index % 64 * FRAME.1;
        path.write(&head, &tensor[offset..offset + FRAME.1]).await.unwrap();
    }
    path.finish().await;
    (begin.elapsed().as_secs_f64(), cpu() - cpu_begin)
}

/// The other process; it ends with this one.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(index: usize, kind: Kind, frames: usize) {
    let program = std::env::current_exe().unwrap();
    let mut child = Other(
        Command::new(program)
            .args(["serve", &index.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap().parse().unwrap();
    let (direct, _arrivals) = Direct::start((&key(1), 1), &[], config(kind)).unwrap();
    let peer = key(2).public().to_peer_id();
    let target = Target { peer, incarnation: 1, address: HERE, port };
    let mut results = Vec::new();
    for _ in 0..REPEATS {
        let path = direct.open(&target).await.unwrap();
        assert_eq!(path.kind(), kind);
        let (seconds, sender) = transfer(path, frames).await;
        let receiver: f64 = lines.next().unwrap().unwrap().parse().unwrap();
        let gigabytes = (frames * FRAME.1) as f64 / 1e9;
        results.push((gigabytes / seconds, sender / gigabytes, receiver / gigabytes));
    }
    results.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (rate, sender, receiver) = results[REPEATS / 2];
    let (least, most) = (results[0].0, results[REPEATS - 1].0);
    println!(
        "{:13} {rate:6.2} GB/s ({least:.2} to {most:.2}), CPU {sender:.2} s/GB sending, {receiver:.2} s/GB receiving",
        kind.to_string()
    );
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [serving, index] = &words[..]
        && serving == "serve"
    {
        runtime.block_on(serve(Kind::ALL[index.parse::<usize>().unwrap()]));
        return;
    }
    let size = words.last().and_then(|word| word.parse::<usize>().ok()).unwrap_or(SIZE_MIB);
    let frames = (size << 20) / FRAME.1;
    println!(
        "{REPEATS} transfers of {size} MiB each between two processes, median (least to most)"
    );
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        runtime.block_on(measure(index, kind, frames));
    }
}
