//! One `dnode` process: starting it, hearing of its end, and never leaving it behind.
//!
//! Three nets catch a process that should be gone. The runner sends SIGTERM, then SIGKILL. A
//! dropped [`PeerProcess`] kills its process group. And if the runner itself is killed, the pipe
//! that is the child's standard input closes, which ends a `dnode join --exit-with-stdin`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;

use dnode_protocol::membership::{RunSecret, Ticket};
use rand::Rng as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// Name of the file inside a peer's data directory that takes its output and its errors.
pub const LOG_FILE: &str = "log.txt";
/// Name of the file inside a peer's data directory that holds its listening addresses.
pub const ADDRESS_FILE: &str = "address";
/// Name of the folder inside a peer's data directory that holds its checkpoints.
pub const CHECKPOINTS_FOLDER: &str = "checkpoints";
/// Name of the file of parameters in the folder of a checkpoint.
pub const PARAMETERS_FILE: &str = "parameters.safetensors";
/// Beside it, what was averaged over the last part of the run.
pub const TAIL_AVERAGE_FILE: &str = "tail-average.safetensors";
/// Lines of a log shown when its process fails; the reason is nearly always in the last few.
const TAIL_LINES: usize = 15;
/// Bytes of a log read for that.
const TAIL_BYTES: u64 = 16 * 1024;

/// The environment variable by which peers are told the secret of their run.
const SECRET_VARIABLE: &str = "DNODE_SECRET";

/// The secret of all swarms that this process starts, as a ticket without addresses.
fn secret() -> &'static str {
    static SECRET: OnceLock<String> = OnceLock::new();
    SECRET.get_or_init(|| {
        let mut bytes = [0; RunSecret::BYTES];
        rand::rng().fill_bytes(&mut bytes);
        let ticket = Ticket::new(RunSecret::from_bytes(bytes), []);
        ticket.map_or_else(|_| unreachable!("no address is too long"), |it| it.to_text())
    })
}

/// A running or ended child in its own process group.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    status: Option<ExitStatus>,
}

impl PeerProcess {
    /// Starts `program` with `arguments`; its output goes to [`LOG_FILE`] in `directory`.
    ///
    /// The caller hands over the data directory, which is created.
    ///
    /// # Errors
    /// Whatever the system says about the directory, the log file or the program.
    pub fn start(program: &Path, arguments: &[String], directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let log = File::create(directory.join(LOG_FILE))?;
        let child = Command::new(program)
            .args(arguments)
            .env(SECRET_VARIABLE, secret())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, status: None })
    }

    /// The end of the process, if it has ended.
    ///
    /// # Errors
    /// The system cannot tell.
    pub fn poll_exit(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Waits for the end of a process that was told to end; closes its standard input.
    ///
    /// # Errors
    /// The system cannot tell.
    pub async fn wait_exit(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        let status = self.child.wait().await?;
        self.status = Some(status);
        Ok(status)
    }

    /// The id of the process; `None` once it has been waited for.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks the process to end (SIGTERM to its group), going on first if it is stopped. Does
    /// nothing if it has ended.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Stops the process where it stands (SIGSTOP to its group). Does nothing if it has ended.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a stopped process go on. Does nothing if it has ended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the process at once (SIGKILL to its group). Does nothing if it has ended.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // An id is there exactly until the child is reaped, so the group cannot be a stranger's.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            // A group that is already gone is what was wanted.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of the log in the data directory of a peer, for a person.
pub(super) fn log_tail(directory: &Path) -> String {
    let path = directory.join(LOG_FILE);
    let bytes = match read_end(&path) {
        Ok(bytes) => bytes,
        Err(error) => return format!("(cannot read {}: {error})", path.display()),
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    if last.is_empty() {
        return format!("({} is empty)", path.display());
    }
    format!("last lines of {}:\n  {}", path.display(), last.join("\n  "))
}

/// The last [`TAIL_BYTES`] of a file.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
