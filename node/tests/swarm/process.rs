//! A real `dnode` process in a test: started in a folder of its own, watched through its files,
//! killed when the test ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dnode_protocol::PeerId;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_dnode");
pub(crate) const LOOPBACK: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
/// Longest wait for anything: far more than a healthy run needs on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);
/// What a failed test shows of each peer's log and metrics.
const LINES_SHOWN: usize = 40;
const LINE_SHOWN: usize = 240;
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);

/// The secret of the tests' runs.
pub(crate) const SECRET: [u8; 32] = [42; 32];

/// A ticket of the tests' runs.
pub(crate) fn ticket(addresses: &[&str]) -> String {
    let bytes = |text: &&str| text.parse::<dnode_network::Multiaddr>().unwrap().to_vec();
    let secret = dnode_network::RunSecret::from_bytes(SECRET);
    dnode::Ticket::new(secret, addresses.iter().map(bytes)).unwrap().to_text()
}

/// Waits until `condition` yields something; panics with `what` when it never does.
pub(crate) fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(began.elapsed() < DEADLINE, "never happened: {what}");
        pause();
    }
}

fn pause() {
    std::thread::sleep(LOOK);
}

/// A running (or ended) peer.
pub(crate) struct Peer {
    child: Child,
    folder: PathBuf,
}

impl Peer {
    /// Starts a peer in `root/name` with the flags every test wants, and `flags`.
    pub(crate) fn start(root: &TempDir, name: &str, flags: &[&str]) -> Self {
        Self::start_listening(root, name, LOOPBACK, flags)
    }

    /// [`Peer::start`] at a listening address.
    pub(crate) fn start_listening(
        root: &TempDir,
        name: &str,
        listen: &str,
        flags: &[&str],
    ) -> Self {
        let flags = [&["--listen", listen], flags].concat();
        Self::run(root, name, Command::new(PROGRAM), &flags)
    }

    /// [`Peer::start`] with a log that names every exchange.
    pub(crate) fn start_debugging(root: &TempDir, name: &str, flags: &[&str]) -> Self {
        let mut program = Command::new(PROGRAM);
        program.env("RUST_LOG", "warn,dnode=debug");
        Self::run(root, name, program, &[&["--listen", LOOPBACK], flags].concat())
    }

    /// [`Peer::start`] by a shell that does `before` first.
    pub(crate) fn start_after(root: &TempDir, name: &str, before: &str, flags: &[&str]) -> Self {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{before} && exec \"$0\" \"$@\""), PROGRAM]);
        Self::run(root, name, shell, &[&["--listen", LOOPBACK], flags].concat())
    }

    /// All peers of a test are members of one closed run, unless it is to be open.
    pub(crate) fn run(root: &TempDir, name: &str, mut program: Command, flags: &[&str]) -> Self {
        if !flags.contains(&"--open") {
            program.env("DNODE_SECRET", ticket(&[]));
        }
        Self::run_alone(root, name, program, flags)
    }

    /// [`Peer::run`] without a secret.
    pub(crate) fn run_alone(
        root: &TempDir,
        name: &str,
        mut program: Command,
        flags: &[&str],
    ) -> Self {
        let folder = root.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let log = std::fs::File::options().append(true).create(true).open(folder.join("log"));
        let log = log.unwrap();
        let _ = std::fs::remove_file(folder.join("data/address"));
        if !program.get_envs().any(|(name, _)| name == "RUST_LOG") {
            program.env_remove("RUST_LOG");
        }
        let child = program
            .args(["join", "--exit-with-stdin", "--no-mdns", "--data-dir", "data"])
            .args(["--set", "data.kind=digits"])
            .args(flags)
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    /// Its name.
    pub(crate) fn id(&mut self) -> PeerId {
        let start = self.wait_line("start", |line| line["kind"] == "start");
        start["peer"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Where it listens.
    pub(crate) fn address(&mut self) -> String {
        let file = self.data().join("address");
        let mut read = || std::fs::read_to_string(&file).ok()?.lines().next().map(str::to_owned);
        wait("the peer listens", &mut read)
    }

    /// All whole lines of its metrics.
    pub(crate) fn metrics(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.data().join("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a line of its metrics.
    pub(crate) fn wait_line(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait(what, || {
            let found = self.metrics().into_iter().find(|line| wanted(line));
            if found.is_none()
                && let Some(status) = self.child.try_wait().unwrap()
            {
                let again = self.metrics().into_iter().find(|line| wanted(line));
                assert!(again.is_some(), "{what}: ended with {status}\n{}", self.log());
                return again;
            }
            found
        })
    }

    pub(crate) fn wait_event(&mut self, name: &str) -> Value {
        self.wait_line(name, |line| line["kind"] == "event" && line["name"] == name)
    }

    pub(crate) fn wait_step(&mut self, step: u64) {
        self.wait_line("training", |line| line["step"].as_u64().is_some_and(|at| at >= step));
    }

    /// Waits for its end.
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        wait("the peer ends", || self.child.try_wait().unwrap())
    }

    /// The last line of a peer that ended well.
    pub(crate) fn finish(&mut self) -> Value {
        let status = self.wait_exit();
        assert!(status.success(), "{status}\n{}", self.log());
        let last = self.metrics().pop().unwrap();
        assert_eq!(last["kind"], "final", "{last}");
        last
    }

    /// The end of log and metrics, for whoever reads a failure.
    #[expect(clippy::print_stderr, reason = "part of the message of a failed test")]
    fn show_end(&self) {
        let metrics = std::fs::read_to_string(self.data().join("metrics.jsonl"));
        for text in [self.log(), metrics.unwrap_or_default()] {
            let lines: Vec<&str> = text.lines().collect();
            let end: Vec<String> = lines[lines.len().saturating_sub(LINES_SHOWN)..]
                .iter()
                .map(|line| line.chars().take(LINE_SHOWN).collect())
                .collect();
            eprintln!("{}:\n{}", self.folder.display(), end.join("\n"));
        }
    }

    /// What happens when the program that started it dies.
    pub(crate) fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A signal by name, for example `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.show_end();
        }
    }
}

/// Sorted names of the checkpoints in `data`.
pub(crate) fn checkpoints(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("checkpoints")).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
