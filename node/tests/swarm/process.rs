//! A real `dnode` process in a test: started in a folder of its own, watched through its files,
//! killed when the test ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for anything: far more than a healthy run needs on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);

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
        Self::start_listening(root, name, "/ip4/127.0.0.1/udp/0/quic-v1", flags)
    }

    /// [`Peer::start`] at a listening address.
    pub(crate) fn start_listening(
        root: &TempDir,
        name: &str,
        listen: &str,
        flags: &[&str],
    ) -> Self {
        let folder = root.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let log = std::fs::File::options().append(true).create(true).open(folder.join("log"));
        let log = log.unwrap();
        let _ = std::fs::remove_file(folder.join("data/address"));
        let child = Command::new(env!("CARGO_BIN_EXE_dnode"))
            .args(["join", "--exit-with-stdin", "--no-mdns", "--data-dir", "data"])
            .args(["--listen", listen])
            .args(flags)
            .current_dir(&folder)
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, folder }
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
