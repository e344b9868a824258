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

/// Settings of peers that exchange without a pause and never commit. The guard would refuse weights that
/// are so far apart without a reason.
pub(crate) const BACK_TO_BACK: [&str; 5] = [
    "gossip.rule=pairwise",
    "gossip.mix_every=1",
    "gossip.local_steps=1000000",
    "gossip.balance=off",
    "gossip.guard=false",
];

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
    folder: TempDir,
}

/// The process of one peer; killed when dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: std::path::PathBuf,
}

impl Swarm {
    /// Starts `peers` that find each other through the first and wait for each other.
    pub(crate) fn start(kind: Kind, peers: usize, parameters: usize, sets: &[&str]) -> Self {
        let mut swarm = Self { peers: Vec::new(), folder: tempfile::tempdir().unwrap() };
        for _ in 0..peers {
            swarm.add(kind, peers, parameters, sets);
        }
        swarm
    }

    /// Starts one that waits for nobody.
    pub(crate) fn alone(kind: Kind, parameters: usize, sets: &[&str]) -> Self {
        Self::start(kind, 1, parameters, sets)
    }

    /// Starts one more, and waits until it is connected.
    pub(crate) fn join(&mut self, kind: Kind, parameters: usize, sets: &[&str]) {
        self.add(kind, 2, parameters, sets);
        self.peers.last().unwrap().listens();
    }

    fn add(&mut self, kind: Kind, together: usize, parameters: usize, sets: &[&str]) {
        let rank = self.peers.len();
        let folder = self.folder.path().join(rank.to_string());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([peer::COMMAND, kind.name(), &rank.to_string(), &together.to_string()]);
        command.arg(parameters.to_string()).args(SETTINGS).args(sets);
        command.arg(format!("network.require_peers={}", together - 1)).arg("network.open=true");
        command.arg(format!("node.data_dir={}", folder.display()));
        if let Some(first) = self.peers.first() {
            command.arg(format!("network.bootstrap=[\"{}\"]", first.listens()));
        }
        let mut child = pipe(command);
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        self.peers.push(Peer { child, input, output: BufReader::new(output), folder });
    }

    /// Gives the first peer's training thread the first core, and all else the second.
    pub(crate) fn pin(&self) {
        for peer in &self.peers {
            taskset(&["-a", "-p", "-c", "1", &peer.child.id().to_string()]);
        }
        let thread = self.peers[0].training_thread();
        taskset(&["-p", "-c", "0", thread.rsplit_once('/').unwrap().1]);
    }

    /// Gives all peers but the first the second core.
    pub(crate) fn pin_others(&self) {
        for peer in &self.peers[1..] {
            taskset(&["-a", "-p", "-c", "1", &peer.child.id().to_string()]);
        }
    }

    /// Ends all; bytes of frames sent by all together.
    pub(crate) fn end(mut self) -> u64 {
        self.peers.iter_mut().map(Peer::end).sum()
    }

    /// Has every peer begin and waits until all are done; seconds from the last that began to the
    /// last that was done, and the largest error.
    pub(crate) fn turn(&mut self) -> (f64, f64) {
        for peer in &mut self.peers {
            peer.begin();
        }
        let turns: Vec<_> = self.peers.iter_mut().map(Peer::averaged).collect();
        let [began, done, error] =
            [0, 1, 2].map(|which| turns.iter().map(|turn| turn[which]).fold(0.0, f64::max));
        ((done - began) / 1e9, error)
    }

    /// CPU seconds of all peers so far.
    pub(crate) fn cpu(&self) -> f64 {
        self.peers.iter().map(Peer::cpu).sum()
    }
}

impl Peer {
    pub(crate) fn begin(&mut self) {
        self.input.write_all(b"go\n").unwrap();
        self.input.flush().unwrap();
    }

    /// How many steps it has done since it was asked last, and in how many seconds: from the end of a
    /// step to the end of a step.
    pub(crate) fn count(&mut self) -> (f64, f64) {
        self.begin();
        let [steps, nanoseconds] = self.said()[..] else { panic!("a peer died") };
        (steps, nanoseconds / 1e9)
    }

    /// Begins to count its steps; processor time of its training thread so far.
    pub(crate) fn mark(&mut self) -> f64 {
        self.count();
        self.training_cpu()
    }

    /// Steps since then in a second, and in a second of the training thread's processor time.
    pub(crate) fn rates(&mut self, mark: f64) -> [f64; 2] {
        let (steps, seconds) = self.count();
        [steps / seconds, steps / (self.training_cpu() - mark)]
    }

    /// Waits for the peer to average: when it began, when it was done, in nanoseconds, and the error
    /// that it names.
    pub(crate) fn averaged(&mut self) -> [f64; 3] {
        self.said().try_into().unwrap_or_else(|_| panic!("a peer died"))
    }

    fn said(&mut self) -> Vec<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn process(&self) -> String {
        format!("/proc/{}", self.child.id())
    }

    /// CPU seconds so far.
    pub(crate) fn cpu(&self) -> f64 {
        cpu(&self.process())
    }

    /// CPU seconds of the training thread so far.
    fn training_cpu(&self) -> f64 {
        cpu(&self.training_thread())
    }

    /// The folder of the training thread in `/proc`.
    fn training_thread(&self) -> String {
        let threads = std::fs::read_dir(format!("{}/task", self.process())).unwrap();
        let mut threads = threads.map(|entry| entry.unwrap().path().display().to_string());
        let is_it = |path: &String| {
            let name = std::fs::read_to_string(format!("{path}/comm"));
            name.is_ok_and(|name| name.trim() == "training")
        };
        threads.find(is_it).unwrap()
    }

    /// Most memory that was resident so far, bytes.
    pub(crate) fn memory_most(&self) -> f64 {
        let status = std::fs::read_to_string(format!("{}/status", self.process())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        1024.0 * line.trim().trim_end_matches(" kB").parse::<f64>().unwrap()
    }

    /// Where it listens, as soon as it does.
    fn listens(&self) -> String {
        address(&self.folder)
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

/// CPU seconds that a folder of `/proc` tells.
fn cpu(folder: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("{folder}/stat")).unwrap();
    let behind = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    // User and system time are fields 14 and 15; the name before is field 2.
    fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum::<f64>() / TICKS
}

fn taskset(arguments: &[&str]) {
    let status = Command::new("taskset").args(arguments).stdout(Stdio::null()).status();
    assert!(status.unwrap().success(), "taskset {arguments:?}");
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
