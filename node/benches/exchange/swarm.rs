//! The processes of a swarm, started and watched by the benchmark.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use dnode::ADDRESS_FILE;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::peer;
use crate::trainer::Kind;

/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(20);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);
/// Clock ticks of `/proc` in a second, on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

/// What every peer of a benchmark is told.
const SETTINGS: [&str; 7] = [
    "network.mdns=false",
    "network.listen=[\"/ip4/127.0.0.1/udp/0/quic-v1\"]",
    "run.steps=1000000000",
    "run.batch=1",
    "node.evaluate_every=0",
    "node.metrics_every=1000000000",
    "node.linger=1s",
];

/// Peers of one run.
pub(crate) struct Swarm {
    pub(crate) peers: Vec<Peer>,
    _folder: TempDir,
}

/// The process of one peer; killed when dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: std::path::PathBuf,
}

impl Swarm {
    /// Starts `peers` that find each other through the first.
    pub(crate) fn start(kind: Kind, peers: usize, parameters: usize, sets: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        let mut bootstrap = None;
        for rank in 0..peers {
            let path = folder.path().join(rank.to_string());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([peer::COMMAND, kind.name(), &rank.to_string(), &peers.to_string()]);
            command.arg(parameters.to_string()).args(SETTINGS).args(sets);
            command.arg(format!("network.require_peers={}", peers - 1));
            command.arg(format!("node.data_dir={}", path.display())).args(&bootstrap);
            let mut child = pipe(command);
            let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let output = BufReader::new(output);
            all.push(Peer { child, input, output, folder: path.clone() });
            if rank == 0 {
                bootstrap = Some(format!("network.bootstrap=[\"{}\"]", address(&path)));
            }
        }
        Self { peers: all, _folder: folder }
    }

    /// Has every peer begin and waits until all are done; seconds, and the largest error.
    pub(crate) fn turn(&mut self) -> (f64, f64) {
        let began = Instant::now();
        for peer in &mut self.peers {
            peer.begin();
        }
        let errors: Vec<f64> = self.peers.iter_mut().map(Peer::done).collect();
        (began.elapsed().as_secs_f64(), errors.into_iter().fold(0.0, f64::max))
    }

    /// CPU seconds of all peers so far.
    pub(crate) fn cpu(&self) -> f64 {
        self.peers.iter().map(Peer::cpu).sum()
    }
}

impl Peer {
    fn begin(&mut self) {
        self.input.write_all(b"go\n").unwrap();
        self.input.flush().unwrap();
    }

    /// Waits for the peer to hand over; the error that it names.
    pub(crate) fn done(&mut self) -> f64 {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("a peer died"))
    }

    fn process(&self) -> String {
        format!("/proc/{}", self.child.id())
    }

    /// CPU seconds so far.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("{}/stat", self.process())).unwrap();
        let behind = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = behind.split_whitespace().collect();
        // User and system time are fields 14 and 15; the name before is field 2.
        fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum::<f64>() / TICKS
    }

    /// Ends the peer in order; bytes of frames that it has sent.
    pub(crate) fn end(&mut self) -> u64 {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap();
        let text = std::fs::read_to_string(self.folder.join("metrics.jsonl")).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        last["bytes_out"].as_u64().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pipe(mut command: Command) -> Child {
    command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "error".to_owned()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Where the peer with this folder listens.
fn address(folder: &Path) -> String {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(folder.join(ADDRESS_FILE)).unwrap_or_default();
        if let Some(line) = text.lines().next() {
            return line.to_owned();
        }
        assert!(began.elapsed() < DEADLINE, "the first peer never listens");
        std::thread::sleep(LOOK);
    }
}
